"""A virtual environment with the SDK as a wheel and what the SDK requires, nothing else. Knows pip; knows no backend.

The SDK and the plugins are built and installed by pip; the third-party packages that the SDK's metadata ask for are
links to those of this environment, since fetching them anew takes a network. anychip and its plugins are not there.
"""

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.sources import ROOT

TIMEOUT_S = 280


@dataclass(frozen=True)
class CleanVenv:
    """Its folder; commands run in an empty folder beside it, without this environment's variables."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    def install(self, wheel: Path) -> None:
        """What is installed of that distribution is replaced."""
        pip(
            "--python",
            str(self.python),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--force-reinstall",
            str(wheel),
        )

    def uninstall(self, distribution: str) -> None:
        pip("--python", str(self.python), "uninstall", "--quiet", "--yes", distribution)

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """`python ARGUMENTS` there."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TMPDIR") if name in os.environ}
        environ = {**kept, "ANYCHIP_HOME": str(self.folder / "state"), "PYTHONNOUSERSITE": "1"}
        elsewhere = self.folder / "empty"
        elsewhere.mkdir(exist_ok=True)
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=cwd or elsewhere,
            env=environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def clean_venv(folder: Path, sdk: Path) -> CleanVenv:
    """Make one with that wheel of the SDK and the packages that it requires with the extra `conformance`."""
    venv.create(folder, with_pip=False, symlinks=True)
    clean = CleanVenv(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in sorted(closure(list(requirements(sdk)))):
        link(name, site)
    clean.install(sdk)
    return clean


def wheel(source: Path, target: Path) -> Path:
    """Build it without a network."""
    pip("wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(target), str(source))
    return max(target.glob("*.whl"), key=lambda path: path.stat().st_mtime_ns)


def sdk_wheel(target: Path) -> Path:
    return wheel(ROOT / "sdk", target)


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def requirements(built: Path) -> Iterator[Requirement]:
    """What a wheel asks for, the extra `conformance` included."""
    with zipfile.ZipFile(built) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    for line in Parser().parsestr(text).get_all("Requires-Dist") or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": "conformance"}):
            yield requirement


def closure(wanted: list[Requirement]) -> set[str]:
    """The names of all distributions that those need here."""
    found: set[str] = set()
    while wanted:
        name = canonicalize_name(wanted.pop().name)
        if name in found:
            continue
        found.add(name)
        further = map(Requirement, distribution(name).requires or ())
        wanted += [one for one in further if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def link(name: str, site: Path) -> None:
    """Lay a distribution's files beside those that are there, as links."""
    one = distribution(name)
    for top in {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}:
        target = Path(str(one.locate_file(top)))
        if not target.name.endswith(".pth") and not (site / top).exists():
            (site / top).symlink_to(target)
