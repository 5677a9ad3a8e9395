"""What the CPU backend says of a host that is slower than it could be."""

import pytest

from anychip_cpu import diagnosis, host, native

MKL, OPENBLAS = "Build settings: BLAS_INFO=mkl, ...", "Build settings: BLAS_INFO=open, ..."


def test_every_check_of_this_host_has_a_finding():
    areas = ["native kernels", "oneDNN", "instruction sets", "cores", "huge pages", "environment"]
    assert [one.area for one in diagnosis.findings({})] == areas


def test_kernels_that_were_not_built_are_a_warning_with_the_reason():
    found = diagnosis.kernels(native.Absent("not built (no compiler)"))
    assert (found.status, found.what) == ("warn", "not built (no compiler)")


def test_a_torch_without_onednn_is_a_warning():
    assert [diagnosis.packed_products(has).status for has in (True, False)] == ["ok", "warn"]


@pytest.mark.parametrize(
    ("sets", "status"), [((), "warn"), (("avx2",), "info"), (("asimd",), "info"), (("avx512_bf16", "avx2"), "ok")]
)
def test_instruction_sets_are_judged_by_what_products_need(sets, status):
    assert diagnosis.instructions(sets).status == status


@pytest.mark.parametrize(
    ("text", "setting", "status"),
    [
        ("always [madvise] never\n", "madvise", "ok"),
        ("[always] madvise never\n", "always", "ok"),
        ("always madvise [never]\n", "never", "warn"),
        (None, "", "info"),
    ],
)
def test_huge_pages_that_are_off_are_a_warning(tmp_path, text, setting, status):
    path = tmp_path / "enabled"
    if text is not None:
        path.write_text(text)
    assert host.huge_pages(path) == setting
    assert diagnosis.huge_pages(setting).status == status


@pytest.mark.parametrize(
    ("environ", "build", "status"),
    [
        ({}, MKL, "ok"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, MKL, "warn"),
        ({"OPENBLAS_CORETYPE": "Haswell"}, MKL, "info"),
        ({"OPENBLAS_CORETYPE": "Haswell"}, OPENBLAS, "warn"),
    ],
)
def test_variables_that_slow_torch_down_are_named(environ, build, status):
    found = diagnosis.environment(environ, build)
    assert found.status == status
    assert all(name in found.what for name in environ)
