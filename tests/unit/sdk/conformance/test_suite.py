"""The suite inside a vendor's own pytest is one test a case."""

import os
import subprocess
import sys

import pytest

from anychip_sdk.conformance.run.sessions import choose
from anychip_sdk.errors import UsageError


def run_pytest(folder, text: str, *arguments: str, **variables: str) -> str:
    (folder / "test_vendor.py").write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1", **variables}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, "test_vendor.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    return done.stdout + done.stderr


def test_each_claimed_case_is_a_test(tmp_path):
    text = 'from anychip_sdk.conformance.suite import *\nBACKEND = "cpu"\nPROFILE = "kernel"\n'
    output = run_pytest(tmp_path, text, "-rA", "-k", "AC-DEVICE-020 and silu or AC-OP-004 and silu-mul-float32")
    assert "test_requirement[AC-DEVICE-020[op-silu-mul-float32]]" in output
    assert "test_requirement[AC-OP-004[silu-mul-float32]]" in output
    assert " failed" not in output
    assert "skipped" not in output


def test_a_file_that_names_no_backend_says_so(tmp_path):
    text = "from anychip_sdk.conformance.suite import *\n"
    assert "set BACKEND in the test file" in run_pytest(tmp_path, text, ANYCHIP_CONFORMANCE_BACKEND="")


def test_unknown_profiles_are_refused():
    with pytest.raises(UsageError, match="no profile 'kernal'"):
        choose("cpu", "kernal", "smoke")
