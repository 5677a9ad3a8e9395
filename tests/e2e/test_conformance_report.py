"""A part of the suite has no verdict; the report opens in a real browser, with nothing on the console."""

import re
import shutil
import subprocess

import pytest

from anychip_sdk.conformance.certify.verdict import judged
from anychip_sdk.conformance.report.html import report_html
from support.command_line import platform
from support.conformance_runs import case, made_up, waiver

WIDTH, HEIGHT = 1280, 2000
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")


def test_a_limited_run_has_no_verdict(tmp_path):
    options = ("--only", "AC-DEVICE-020", "--level", "smoke", "--out", str(tmp_path / "out"))
    done = platform("conformance", "run", "cpu", *options, home=tmp_path)
    assert done.returncode == 10, done.stdout + done.stderr
    assert done.stdout.startswith("PARTIAL: no verdict")
    assert not (tmp_path / "certificates").exists()


def many():
    """Something in every section of the page."""
    cases = [
        case(
            f"AC-OP-001[{op}-{dtype}]",
            op=op,
            dtype=dtype,
            measured={"headroom": index / 30},
            seconds=0.1 * index,
        )
        for index, (op, dtype) in enumerate(
            (op, dtype) for op in ("add", "linear", "mha") for dtype in ("float32", "bfloat16")
        )
    ]
    failing = case("AC-OP-002[rope-tail]", "failed", message="'got' is off by 3, 1 is the bound " * 6, replay="run x")
    waived = case("AC-OP-003[silu]", "failed", op="silu")
    absent = case("AC-STREAM-004", "not_claimed", missing=("async_streams",))
    leaks = [case(f"AC-MEMORY-01{i}", measured={"rss_bytes_per_cycle": 900.0 * i - 300}) for i in range(4)]
    return judged(made_up(*cases, failing, waived, absent, *leaks, waivers=[waiver("AC-OP-003")]))


@needs_browser
def test_the_report_opens_in_a_browser(tmp_path):
    page = tmp_path / "report.html"
    page.write_text(report_html(many()), encoding="utf-8")
    shot = tmp_path / "shot.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--v=0"]
    where = [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={WIDTH},{HEIGHT}"]
    done = subprocess.run(
        [BROWSER, *flags, *where, f"--screenshot={shot}", page.as_uri()],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert shot.is_file(), done.stderr
    assert re.findall(r"^.*CONSOLE.*$", done.stderr, re.MULTILINE) == []
    assert size_of(shot) == (WIDTH, HEIGHT)
    assert shot.stat().st_size > 50_000  # an empty page is far smaller


@needs_browser
def test_the_report_is_no_wider_than_the_window(tmp_path):
    page = tmp_path / "report.html"
    probe = "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script></body>"
    page.write_text(report_html(many()).replace("</body>", probe), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"]
    where = [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={WIDTH},{HEIGHT}"]
    done = subprocess.run(
        [BROWSER, *flags, *where, page.as_uri()], capture_output=True, text=True, check=False, timeout=120
    )
    content, window = map(int, re.search(r"<title>(\d+) of (\d+)</title>", done.stdout).groups())
    assert content <= window


def size_of(png) -> tuple[int, int]:
    header = png.read_bytes()[:24]
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")
