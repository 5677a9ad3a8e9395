"""A plugin check tells everything that is wrong with a wheel at once, and nothing of one that is whole."""

import base64
import hashlib
import json
import zipfile

import pytest

from anychip_sdk.check import Problem, Report, as_text, check_plugins, exit_code
from anychip_sdk.check.__main__ import main
from anychip_sdk.check.package import unpacked
from anychip_sdk.errors import BackendNotFound, UsageError
from anychip_sdk.scaffold import scaffold

TAG = "py3-none-any"
METADATA = """Metadata-Version: 2.3
Name: {name}
Version: {version}
Requires-Python: >=3.10
Requires-Dist: anychip-sdk>=0.1.0,<1
"""


@pytest.fixture
def sources(tmp_path):
    """The files of a fresh backend's package, as a wheel holds them."""
    folder = scaffold("acme", tmp_path / "new").folder / "src"
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def wheel_of(
    folder,
    files,
    *,
    metadata=METADATA.format(name="anychip-acme", version="0.1.0"),
    entry="acme = anychip_acme",
    file="anychip_acme-0.1.0",
    tag=TAG,
    after=None,
):
    """Pack files as a build backend would; `after` are written over them when RECORD is done."""
    info = "anychip_acme-0.1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/entry_points.txt": f"[anychip.backends]\n{entry}\n" if entry else "",
    }
    record = "".join(f"{name},{digest(text)},{len(text.encode())}\n" for name, text in files.items())
    path = folder / f"{file}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, **(after or {}), f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            archive.writestr(name, text)
    return path


def digest(text):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def changed(sources, file, old, new):
    path = f"anychip_acme/{file}"
    assert sources[path].count(old) == 1
    return {**sources, path: sources[path].replace(old, new)}


def package_problems(tmp_path, wheel):
    """What is seen without loading anything."""
    return list(unpacked(wheel, tmp_path / "unpacked").problems)


def only(reports):
    (report,) = reports
    return report


def texts(report, area):
    return [problem.text for problem in report.problems if problem.area == area]


def test_a_whole_wheel_has_no_problem(tmp_path, sources):
    report = only(check_plugins(str(wheel_of(tmp_path, sources))))
    assert (report.problems, report.notes, report.exit_code) == ((), (), 0)
    assert (report.name, report.distribution, report.module) == ("acme", "anychip-acme", "anychip_acme")
    assert report.facts["hooks"] == ["backend", "probe", "open_device", "register_ops"]
    assert report.facts["kernels"] == ["linear"]
    assert report.facts["devices"] == ["acme:0"]


def test_everything_that_is_wrong_with_a_wheel_is_told_at_once(tmp_path, sources):
    del sources["anychip_acme/conformance.yaml"]
    wheel = wheel_of(
        tmp_path,
        {**sources, "tests/test_it.py": ""},
        metadata="Metadata-Version: 2.3\nName: acme\nVersion: 0.2.0\nRequires-Python: >=4\nRequires-Dist: anychip\n",
        entry="acme = acme_chip",
        after={"anychip_acme/kernels.py": "1", "anychip_acme/more.py": ""},
    )
    told = "\n".join(package_problems(tmp_path, wheel))
    for part in (
        "the file's name says anychip-acme 0.1.0, its metadata say acme 0.2.0",
        "it needs Python >=4",
        "it does not require anychip-sdk",
        "it requires anychip; a plugin needs anychip-sdk only",
        "anychip_acme/kernels.py is not what RECORD says",
        "RECORD does not list anychip_acme/more.py",
        "it puts 'tests' beside other packages' modules",
        "the entry point 'acme' imports acme_chip, which is not in the wheel",
        "conformance.yaml is not in the wheel",
    ):
        assert part in told


def test_a_wheel_for_another_machine_is_told(tmp_path, sources):
    wheel = wheel_of(tmp_path, sources, tag="cp310-cp310-solaris_sparc")
    told = "it is built for cp310-cp310-solaris_sparc, which does not fit this Python"
    assert package_problems(tmp_path, wheel) == [told]


def test_a_wheel_without_a_backend_is_told(tmp_path, sources):
    report = only(check_plugins(str(wheel_of(tmp_path, sources, entry=""))))
    assert texts(report, "package") == ["it has no entry point in the group anychip.backends, so no recipe can name it"]
    assert (report.name, report.exit_code) == ("", 4)


def test_an_sdk_that_does_not_fit_is_told(tmp_path, sources):
    metadata = METADATA.format(name="anychip-acme", version="0.1.0").replace(">=0.1.0,<1", ">=7")
    told = package_problems(tmp_path, wheel_of(tmp_path, sources, metadata=metadata))
    assert [text.partition(";")[0] for text in told] == ["it needs anychip-sdk >=7"]


def test_claims_that_the_registration_denies_are_conformance_failures(tmp_path, sources):
    files = changed(sources, "conformance.yaml", "linear: all  ", "linear: all\n  rope: [float32]  ")
    files = changed(files, "conformance.yaml", "async_streams: false", "async_streams: true")
    files = changed(files, "conformance.yaml", "fusions: []", "fusions: [qkv_proj, mah]")
    files = changed(files, "conformance.yaml", "[float32, bfloat16]", "[float32, float16]")
    report = only(check_plugins(str(wheel_of(tmp_path, files))))
    assert texts(report, "claims") == [
        "op 'linear' is claimed for float16; the plugin registers it for float32, bfloat16",
        "op 'rope' is claimed for float32; the plugin registers it not at all",
        "fusion 'mah' is claimed; there is none, neither built in nor the plugin's",
        "dtype float16 is claimed; acme:0 says that it has float32, bfloat16",
        "async_streams is claimed; acme:0 says that it hasn't got it",
    ]
    assert len(report.problems) == 5
    assert report.exit_code == 7
    note = "op 'linear' has a kernel for bfloat16 that is not claimed, so the suite does not test it"
    assert report.notes == (note,)


def test_problems_of_the_manifest_come_with_their_lines(tmp_path, sources):
    files = changed(sources, "conformance.yaml", "deterministic: true", "determinstic: true")
    (told,) = texts(only(check_plugins(str(wheel_of(tmp_path, files)))), "manifest")
    assert told.startswith("anychip_acme/conformance.yaml:11  capabilities.determinstic: is unknown.")


BROKEN = {
    "import": ("kernels.py", "FLOATS = (", "import libacme\n\nFLOATS = (", "No module named 'libacme'"),
    "crash": ("kernels.py", "FLOATS = (", "import os\n\nos.abort()\nFLOATS = (", "was ended by SIGABRT"),
    "name": ("backend.py", 'name="acme"', 'name="amce"', "anychip_backend says 'amce'"),
    "api": ("backend.py", 'api=">=1.0,<2"', 'api=">=7,<8"', "was written for API >=7,<8"),
    "probe": (
        "backend.py",
        "    return probe()",
        "    raise OSError('no driver')",
        "anychip_probe: OSError: no driver",
    ),
}
QUICK = ("import", "crash")


@pytest.mark.parametrize("what", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in BROKEN])
def test_a_broken_contract_is_told_by_name(tmp_path, sources, what):
    file, old, new, told = BROKEN[what]
    report = only(check_plugins(str(wheel_of(tmp_path, changed(sources, file, old, new)))))
    assert told in "\n".join(texts(report, "contract"))
    assert report.exit_code == 4


def test_all_that_loading_does_to_others_is_told(tmp_path, sources):
    code = """
import builtins, os, threading, time
import anychip
builtins.print = lambda *values: None
os.environ["ACME"] = "1"
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
FLOATS = ("""
    report = only(check_plugins(str(wheel_of(tmp_path, changed(sources, "kernels.py", "FLOATS = (", code)))))
    assert texts(report, "contract") == [
        "loading it replaces builtins.print",
        "loading it changes os.environ",
        "loading it starts 1 threads",
        "it imports anychip; a plugin uses anychip_sdk only",
    ]


@pytest.mark.slow
def test_a_probe_that_changes_its_mind_is_told(tmp_path, sources):
    files = changed(
        sources,
        "backend.py",
        "    return probe()",
        "    found = list(probe())\n    SEEN.append(1)\n    return found if len(SEEN) % 2 else []",
    )
    files = changed(
        files,
        "backend.py",
        "@hookimpl\ndef anychip_backend",
        "SEEN: list[int] = []\n\n\n@hookimpl\ndef anychip_backend",
    )
    (told,) = texts(only(check_plugins(str(wheel_of(tmp_path, files)))), "contract")
    assert told == "anychip_probe finds ['acme:0'], then []: not the same devices twice"


@pytest.mark.slow
def test_what_a_plugin_prints_is_noted_and_harms_nothing(tmp_path, sources):
    files = changed(sources, "kernels.py", "FLOATS = (", "print('{\"hello\"')\nFLOATS = (")
    report = only(check_plugins(str(wheel_of(tmp_path, files))))
    assert report.passed
    assert report.notes == ("it prints when it is loaded: '{\"hello\"'",)


@pytest.mark.parametrize("name", ["acme.whl", "anychip_acme-0.1.0-py3-none-any.whl"])
def test_what_is_no_wheel_is_refused(tmp_path, name):
    (tmp_path / name).write_text("no archive")
    with pytest.raises(UsageError, match="is no wheel"):
        check_plugins(str(tmp_path / name))


def test_a_missing_wheel_and_a_missing_backend_are_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        check_plugins(str(tmp_path / "a-1-py3-none-any.whl"))
    with pytest.raises(BackendNotFound, match="no backend 'acme' is installed"):
        check_plugins("acme")


def test_an_installed_backend_is_checked_by_name():
    report = only(check_plugins("cpu"))
    assert report.problems == ()
    assert report.distribution == "anychip-cpu"
    assert "paged_attention" in report.facts["kernels"]


def report_of(*areas):
    return Report("x", "x", "x", "1", "x", problems=tuple(Problem(area, "wrong") for area in areas))


def test_the_gravest_exit_code_counts():
    assert exit_code([report_of(), report_of()]) == 0
    assert exit_code([report_of("claims"), report_of()]) == 7
    assert exit_code([report_of("claims", "package")]) == 4
    assert exit_code([report_of("claims"), report_of("contract")]) == 4


def test_a_report_ends_with_its_verdict():
    assert as_text(report_of()).splitlines()[-1] == "  ok"
    assert as_text(report_of("claims")).splitlines()[-1] == "  1 problem"


def test_the_module_is_a_command(tmp_path, sources, capsys):
    assert main([str(wheel_of(tmp_path, sources, entry="")), "-o", "json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    (plugin,) = document["plugins"]
    assert plugin["passed"] is False
    assert plugin["problems"][0]["area"] == "package"
    assert main(["nobody"]) == 4
    assert "no backend 'nobody' is installed" in capsys.readouterr().err
