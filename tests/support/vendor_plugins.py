"""Install vendor backends, right and broken, into a folder that goes on the path. Knows metadata; runs no pip."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anychip import backends

EXAMPLE = Path(__file__).parent / "vendor_example" / "acme_chip.py"

EMULATOR = """

@hookimpl
def anychip_emulator():
    import acme_emulator

    return acme_emulator
"""


@contextmanager
def alone_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, *modules: str) -> Iterator[Path]:
    """A folder that is the only one with backends in it; the modules are forgotten afterwards."""
    real = backends.distributions
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(backends, "distributions", lambda: real(path=[str(folder)]))
    monkeypatch.delenv(backends.ALLOW_VARIABLE, raising=False)
    yield folder
    for module in modules:
        sys.modules.pop(module, None)


def install(
    target: Path,
    source: str | None = None,
    *,
    name: str = "acme",
    module: str = "acme_chip",
    distribution: str = "acme-anychip",
    version: str = "0.1.0",
) -> Path:
    """Lay out in `target` what pip would: a module and its distribution's metadata."""
    target.mkdir(parents=True, exist_ok=True)
    (target / f"{module}.py").write_text(example() if source is None else source)
    info = target / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[anychip.backends]\n{name} = {module}\n")
    (info / "RECORD").write_text("")
    return target


def install_with_emulator(target: Path) -> Path:
    """The vendor example without its chip, and the emulator that it offers: the example as it is."""
    install(target, absent() + EMULATOR)
    (target / "acme_emulator.py").write_text(example())
    return target


def absent() -> str:
    """The vendor example on a machine without its chip."""
    return changed("    return [DeviceInfo(", "    return [] and [DeviceInfo(")


def example() -> str:
    """The source of the vendor example."""
    return EXAMPLE.read_text()


def changed(old: str, new: str) -> str:
    """The vendor example with one piece of it replaced."""
    source = example()
    if source.count(old) != 1:
        message = f"{old!r} stands {source.count(old)} times in the example, expected once"
        raise ValueError(message)
    return source.replace(old, new)


def misspelt_hook() -> str:
    return changed("def anychip_register_ops(registry", "def anychip_register_opps(registry")


def raising_import() -> str:
    return changed("import os\n", 'import os\n\nraise OSError("libacme.so.3: cannot open shared object file")\n')


def api_that_does_not_fit() -> str:
    return changed('api=">=1.0,<2"', 'api=">=2.0,<3"')


def free_above_total() -> str:
    return changed("memory.bytes_total, memory.bytes_free,", "1000, 2000,")
