"""Compile the native kernels with the system's compiler. Knows files and flags; knows nothing but Python's library."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIBRARY = Path(__file__).with_name("libanychip_cpu.so")
#: where the sources are in a checkout; an installed package has none
SOURCES = Path(__file__).parents[2] / "native"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden")
#: products and sums are fused where the source says so only: else the compiler decides, each time anew
KERNEL_FLAGS = ("-ffp-contract=off", "-fno-math-errno", "-fno-exceptions")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c", "-mprefer-vector-width=512")
#: kernels for one instruction set each: the file, its flags; on other processors only the first is compiled
KERNELS = {
    "portable": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": AVX512,
    "avx512_bf16": (*AVX512, "-mavx512bf16"),
    "avx512_vnni": (*AVX512, "-mavx512vnni"),
    "amx_bf16": (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}
COMMON = (
    "attention.cpp",
    "compact.cpp",
    "experts.cpp",
    "library.cpp",
    "penalties.cpp",
    "products.cpp",
    "program.cpp",
    "recurrent.cpp",
    "routing.cpp",
    "rows.cpp",
    "sampling.cpp",
    "threads.cpp",
)


class CannotBuildError(Exception):
    """There is no compiler, or it failed; the text says which."""


def digest(sources: Path = SOURCES) -> str:
    """What the library is made from, in a few letters."""
    found = hashlib.sha256()
    for path in sorted(sources.glob("*.[ch]pp")):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def compiler() -> list[str]:
    """$CXX or the first compiler on the path, as the start of a command.

    Raises:
        CannotBuildError: there is none.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    names = [chosen] if chosen else [[name] for name in COMPILERS]
    for name in names:
        if shutil.which(name[0]):
            return name
    tried = "$CXX " + chosen[0] if chosen else ", ".join(COMPILERS)
    message = f"no compiler ({tried} not found)"
    raise CannotBuildError(message)


def build(library: Path = LIBRARY, sources: Path = SOURCES) -> Path:
    """Compile the sources into the library, with the kernels of every instruction set that the compiler knows.

    Raises:
        CannotBuildError: there is no compiler, or it failed.
    """
    command = compiler()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = Path(folder)

        def compiled(name: str) -> Path | None:
            target = objects / f"{name}.o"
            flags = (*FLAGS, *KERNEL_FLAGS, *KERNELS[name])
            source = sources / f"kernels_{name}.cpp"
            return target if _run([*command, *flags, "-c", str(source), "-o", str(target)]) else None

        names = list(KERNELS) if platform.machine().lower() in ("x86_64", "amd64") else ["portable"]
        found = [made for made in pool.map(compiled, names) if made is not None]
        linked = objects / library.name
        defines = [f"-DANYCHIP_{made.stem.upper()}" for made in found]
        version = f'-DANYCHIP_CPU_VERSION="{digest(sources)}"'
        inputs = [str(sources / name) for name in COMMON] + [str(made) for made in found]
        link = [*command, *FLAGS, *defines, version, "-shared", *inputs, "-o", str(linked)]
        error: list[str] = []
        if not _run(link, error):
            message = f"{command[0]} failed: {error[0]}"
            raise CannotBuildError(message)
        # the name changes hands at once: a process that has the old library open keeps it
        beside = library.with_suffix(".new")
        shutil.copy(linked, beside)
        beside.replace(library)
    return library


def _run(command: Sequence[str], error: list[str] | None = None) -> bool:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and error is not None:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        error.append(lines[0].strip() if lines else f"exit status {done.returncode}")
    return done.returncode == 0


__all__ = ["LIBRARY", "SOURCES", "CannotBuildError", "build", "compiler", "digest"]
