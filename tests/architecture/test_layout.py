"""The tree, the layers and the entry points."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.sources import ROOT

BIN = Path(sys.executable).parent


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_the_folder_platform_is_no_package():
    assert not (ROOT / "platform/__init__.py").exists()


def test_the_standard_library_platform_is_imported_from_the_root():
    done = run(sys.executable, "-c", "import platform; print(platform.system()); print(platform.__file__)")
    assert done.returncode == 0, done.stderr
    system, file = done.stdout.split()
    assert system
    assert not Path(file).is_relative_to(ROOT / "platform")


def test_sources_lie_in_src():
    packages = {path.parent.name for path in ROOT.glob("*/src/*/__init__.py")}
    packages |= {path.parent.name for path in ROOT.glob("plugins/*/src/*/__init__.py")}
    assert packages == {"anychip", "anychip_cpu", "anychip_cuda", "anychip_kunlun", "anychip_sdk"}


def test_tests_are_no_packages():
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_the_layers_hold(tmp_path):
    linter = BIN / "lint-imports"
    if not linter.exists():
        pytest.skip("import-linter is not installed")
    done = run(str(linter), "--config", str(ROOT / "pyproject.toml"), "--no-cache", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_module_is_the_command():
    as_module = run(sys.executable, "-m", "anychip", "--version")
    as_command = run(str(BIN / "platform"), "--version")
    assert as_module.returncode == as_command.returncode == 0
    assert as_module.stdout == as_command.stdout != ""


@pytest.mark.parametrize("module", ["anychip", "anychip.cli.main", "anychip.recipe", "anychip_sdk.errors"])
def test_what_needs_no_torch_imports_none(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert run(sys.executable, "-c", code).returncode == 0


def test_help_imports_no_torch():
    code = (
        "import sys\nfrom anychip.cli.main import main\n"
        "code = main(['--help'])\nsys.exit(code or ('torch' in sys.modules) * 7)"
    )
    assert run(sys.executable, "-c", code).returncode == 0


def test_importing_every_plugin_imports_no_platform():
    code = (
        "import sys, anychip_cpu, anychip_cuda, anychip_kunlun\n"
        "sys.exit(any(name.split('.')[0] == 'anychip' for name in sys.modules))"
    )
    assert run(sys.executable, "-c", code).returncode == 0
