"""A new backend's package is conformant on its first day where only the SDK is installed, and a broken one is not."""

import json

import pytest

from anychip_sdk.scaffold import scaffold
from support import vendor_guide
from support.clean_venv import clean_venv, sdk_wheel, wheel

#: what is broken -> file, what stands there, what stands there instead, the requirements that must see it
BROKEN = {
    "an allocation that is not cleared": (
        "device.py",
        "return super().alloc(nbytes, alignment)",
        "return super().alloc(nbytes, alignment).fill_(255)",
        {"AC-MEMORY-004"},
    ),
    "a probe that says more than the device": (
        "device.py",
        "capabilities=CAPABILITIES,\n            versions",
        "capabilities=Capabilities(dtypes=(torch.float64,)),\n            versions",
        {"AC-DEVICE-003"},
    ),
    "a copy that forgets the last byte": (
        "device.py",
        "super().copy(dst, src, stream)",
        "super().copy(dst.flatten()[:-1], src.flatten()[:-1], stream)",
        {"AC-COPY-001"},
    ),
    "a kernel that is claimed and not registered": (
        "kernels.py",
        'registry.register("linear", linear, dtypes=FLOATS)',
        'registry.register("linear", linear, dtypes=FLOATS[:1])',
        {"AC-DEVICE-020[op-linear-bfloat16]"},
    ),
}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    return clean_venv(folder / "venv", sdk_wheel(folder))


@pytest.fixture
def package(clean, tmp_path):
    """Written by the SDK's own command, from the SDK's wheel."""
    done = clean.run("-m", "anychip_sdk.scaffold", "acme", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    yield tmp_path / "anychip-acme"
    clean.uninstall("anychip-acme")


def change(package, file, old, new):
    path = package / "src/anychip_acme" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def bringup(clean, out, *options):
    """Exit code and cases of a run."""
    command = ("run", "acme", "--profile", "bringup", "--level", "smoke", "--out", str(out))
    done = clean.run("-m", "anychip_sdk.conformance", *command, *options)
    assert (out / "results.json").exists(), done.stdout + done.stderr
    cases = json.loads((out / "results.json").read_text(encoding="utf-8"))["cases"]
    return done.returncode, {case["id"]: case["outcome"] for case in cases}


def failed(cases):
    return {case for case, outcome in cases.items() if outcome == "failed"}


def test_only_the_sdk_is_there(clean):
    code = (
        "import importlib.metadata as m, importlib.util as u\n"
        "print(*sorted(d.metadata['Name'] for d in m.distributions() if d.metadata['Name'].startswith('anychip')))\n"
        "print(u.find_spec('anychip'), u.find_spec('anychip_sdk').origin)\n"
    )
    names, places = clean.run("-c", code).stdout.splitlines()
    assert names == "anychip-sdk"
    assert places.startswith("None ")
    assert str(clean.folder) in places


@pytest.mark.slow
def test_a_new_package_is_whole_and_passes_bringup(clean, package, tmp_path):
    again = scaffold("acme", tmp_path / "again").folder
    files = [path.relative_to(again) for path in again.rglob("*") if path.is_file()]
    assert [file for file in files if (again / file).read_bytes() != (package / file).read_bytes()] == []
    built = wheel(package, tmp_path / "dist")
    clean.install(built)
    done = clean.run("-m", "anychip_sdk.check", str(built))
    assert done.returncode == 0, done.stdout + done.stderr
    code, cases = bringup(clean, tmp_path / "out")
    assert failed(cases) == set()
    assert code == 0
    certificate = json.loads((tmp_path / "out/certificate.json").read_text(encoding="utf-8"))
    assert certificate["identity"]["distribution"] == "anychip-acme"
    assert clean.run("-m", "anychip_sdk.conformance", "verify", str(tmp_path / "out")).returncode == 0


@pytest.mark.slow
def test_a_hook_broken_on_purpose_fails_its_requirement_and_nothing_else(clean, package, tmp_path):
    file, old, new, requirements = BROKEN["an allocation that is not cleared"]
    change(package, file, old, new)
    clean.install(wheel(package, tmp_path / "dist"))
    code, cases = bringup(clean, tmp_path / "out", "--only", "memory", "--only", "copy", "--only", "stream")
    assert code == 7
    assert failed(cases) == requirements


@pytest.mark.slow
def test_the_guides_twenty_lines_pass_bringup(clean, tmp_path):
    built = wheel(vendor_guide.write(tmp_path / "guide"), tmp_path / "dist")
    clean.install(built)
    try:
        done = clean.run("-m", "anychip_sdk.check", str(built))
        code, cases = bringup(clean, tmp_path / "out")
    finally:
        clean.uninstall("anychip-acme")
    assert done.returncode == 0, done.stdout + done.stderr
    assert failed(cases) == set()
    assert code == 0


@pytest.mark.slow
def test_its_own_tests_pass(clean, package, tmp_path):
    clean.install(wheel(package, tmp_path / "dist"))
    done = clean.run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=package)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_fails_its_requirement(clean, package, tmp_path, what):
    file, old, new, requirements = BROKEN[what]
    change(package, file, old, new)
    clean.install(wheel(package, tmp_path / "dist"))
    # without its last byte no copy works, so that nearly everything fails; one requirement is shown
    only = ("--only", "AC-COPY-001") if "copy" in what else ()
    code, cases = bringup(clean, tmp_path / "out", *only)
    assert code == 7
    assert {case if case in requirements else case.partition("[")[0] for case in failed(cases)} == requirements
