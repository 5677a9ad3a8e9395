"""The CPU backend is certified by the real command, and a recipe believes its signed certificate."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from anychip_sdk.conformance.certify import store
from anychip_sdk.conformance.certify.certificate import KillScore
from support.command_line import platform, write_keys
from support.tiny_models import make_tiny

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

SCORE = KillScore(7, 8)  #: any one: that the selftest's is taken is seen by it
REQUIRED = ("--set", "backend.requires.conformance=bringup")


class Run:
    """One run of the suite with its state, its results and the key that signed them."""

    def __init__(self, folder, profile):
        self.home, self.out = folder / "home", folder / "out"
        self.private, self.public = write_keys(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ANYCHIP_HOME", str(self.home))
            store.store_kill_score(SCORE)
        options = ("--profile", profile, "--level", "smoke", "--sign-key", str(self.private))
        self.done = self.conformance("run", "cpu", *options, "--out", str(self.out), "--output", "json")

    def conformance(self, *arguments):
        return platform("conformance", *arguments, home=self.home, timeout_s=800)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("conformance"), "bringup")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    make_tiny(folder / "model", "qwen3", tokenizer=True)
    values = {"version": 1, "name": "tiny", "model": {"source": "./model"}, "backend": {"name": "cpu"}}
    path = folder / "tiny.yaml"
    path.write_text(json.dumps({**values, "memory": {"kv_tokens": 1024}}), encoding="utf-8")
    return path


def assert_conformant(run, profile, at_least):
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    said = json.loads(run.done.stdout)
    assert (said["verdict"], said["profile"], said["level"]) == ("CONFORMANT", profile, "smoke")
    assert (said["failures"], said["gaps"], said["emulated"]) == ([], [], False)
    assert said["counts"]["passed"] > at_least


def test_the_cpu_backend_is_conformant_with_bringup(cpu):
    assert_conformant(cpu, "bringup", 50)


def test_the_cpu_backend_is_conformant_with_serving_full(tmp_path):
    assert_conformant(Run(tmp_path, "serving-full"), "serving-full", 1000)


def test_its_certificate_is_signed_and_holds_the_selftests_score(cpu):
    certificate = json.loads((cpu.out / "certificate.json").read_text(encoding="utf-8"))
    assert certificate["kill_score"] == {"killed": SCORE.killed, "mutants": SCORE.mutants}
    done = cpu.conformance("verify", str(cpu.out), "--public-key", str(cpu.public), "--output", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["signed_by"]
    assert cpu.conformance("diff", str(cpu.out), str(cpu.out)).returncode == 0


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("results.json", '"outcome": "passed"', '"outcome": "failed"'),
        ("certificate.json", '"verdict": "CONFORMANT"', '"verdict": "CONFORMANT WITH 1 WAIVERS"'),
    ],
)
def test_what_is_changed_afterwards_is_not_believed(cpu, tmp_path, file, old, new):
    folder = Path(shutil.copytree(cpu.out, tmp_path / "out"))
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    done = cpu.conformance("verify", str(folder))
    assert done.returncode == 8
    assert "not what the suite wrote" in done.stderr


def test_a_recipe_that_requires_a_certificate_is_planned_with_it_and_refused_without(cpu, recipe, tmp_path):
    planned = platform("plan", str(recipe), *REQUIRED, "--output", "json", home=cpu.home)
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["backend"]["certificate"]["profile"] == "bringup"
    refused = platform("apply", str(recipe), *REQUIRED, home=tmp_path)
    assert refused.returncode == 7, refused.stdout + refused.stderr
    assert "holds no certificate" in refused.stderr


def test_a_certificate_does_not_count_for_files_that_have_changed_since(cpu, recipe, tmp_path):
    package = Path(find_spec("anychip_cpu").origin).parent
    copied = Path(shutil.copytree(package, tmp_path / "site/anychip_cpu", ignore=shutil.ignore_patterns("__pycache__")))
    elsewhere = {"home": cpu.home, "PYTHONPATH": str(copied.parent)}
    same = platform("plan", str(recipe), *REQUIRED, **elsewhere)
    assert same.returncode == 0, same.stderr
    kernels = copied / "kernels/elementwise.py"
    kernels.write_text(kernels.read_text(encoding="utf-8") + "\n# one more line\n", encoding="utf-8")
    changed = platform("apply", str(recipe), *REQUIRED, **elsewhere)
    assert changed.returncode == 7, changed.stdout + changed.stderr
    assert "for other files" in changed.stderr
