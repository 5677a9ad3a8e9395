"""Build the shared objects that tests load, once a session. Knows the compiler's name; knows no fault."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from anychip_sdk.native import INCLUDE
from support.sources import ROOT

EXAMPLE = ROOT / "examples/native"
FAULTY = Path(__file__).parent / "native/faulty.cpp"


def compiler() -> str:
    """The C++ compiler on the path; the test is skipped where there is none."""
    named = os.environ.get("CXX", "").split()[:1]
    found = next((path for name in (*named, "c++", "g++", "clang++") if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no C++ compiler is on the path")
    return found


def build_example(target: Path) -> Path:
    """What `make` in examples/native makes, in a folder of its own."""
    if shutil.which("make") is None:
        pytest.skip("make is not on the path")
    run("make", "-C", str(EXAMPLE), f"OUT={target}", f"SDK={INCLUDE}", f"CXX={compiler()}")
    return target / "libexample_backend.so"


def build_faulty(target: Path, *options: str) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    file = target / "libfaulty.so"
    warnings = ("-Wall", "-Wextra", "-Wno-unused")
    flags = ("-std=c++17", "-O0", "-fPIC", "-shared", *warnings, f"-I{INCLUDE}", *options)
    run(compiler(), *flags, "-o", str(file), str(FAULTY))
    return file


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
