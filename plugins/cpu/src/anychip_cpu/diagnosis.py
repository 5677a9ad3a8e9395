"""What makes this host slower than it could be, and what to do. Knows settings; measures nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from anychip_cpu import host, native
from anychip_sdk.finding import Finding

#: variables that keep the libraries under torch from the processor's best instructions or from its cores
LIMITING = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "OMP_THREAD_LIMIT",
)
#: the same, where torch multiplies with OpenBLAS
OPENBLAS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS")
VECTORS = ("avx2", "asimd")  #: the least that makes products fast
BF16 = ("amx_bf16", "avx512_bf16")


def findings(environ: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """The host's checks."""
    return (
        kernels(native.library()),
        packed_products(torch.backends.mkldnn.is_available()),
        instructions(host.instruction_sets()),
        Finding("cores", "info", f"{host.cores()} physical, one thread on each unless backend.threads says otherwise"),
        huge_pages(host.huge_pages()),
        environment(os.environ if environ is None else environ, torch.__config__.show()),
    )


def kernels(library: native.Library | native.Absent) -> Finding:
    """The native attention kernels: built for this processor, or why not."""
    area = "native kernels"
    if isinstance(library, native.Absent):
        hint = "install a C++ compiler, then install anychip-cpu again; attention runs in plain torch until then"
        return Finding(area, "warn", str(library), "built with the package", hint)
    if not library.is_parallel:
        hint = "use a torch build with an OpenMP runtime (libgomp, libiomp5 or libomp)"
        return Finding(area, "warn", f"{library.kernels}, on one thread: no OpenMP runtime found", "all cores", hint)
    return Finding(area, "ok", library.kernels)


def packed_products(is_available: bool) -> Finding:
    if is_available:
        return Finding("oneDNN", "ok", "torch has it: weights are packed")
    hint = "use a torch build with oneDNN (torch.backends.mkldnn)"
    return Finding("oneDNN", "warn", "torch lacks it: products run on plain weights", "packed weights", hint)


def instructions(sets: tuple[str, ...]) -> Finding:
    area = "instruction sets"
    what = " ".join(sets) or "none that matter"
    if not set(sets) & set(VECTORS):
        hint = "serve on a newer processor, or pass the host's instruction sets on to this virtual machine"
        return Finding(area, "warn", what, " or ".join(VECTORS), hint)
    if not set(sets) & set(BF16):
        return Finding(area, "info", f"{what}; bfloat16 is computed through float32", f"{' or '.join(BF16)}, for speed")
    return Finding(area, "ok", what)


def huge_pages(setting: str) -> Finding:
    """Weights are read from end to end for each token; with small pages that takes longer."""
    area = "huge pages"
    if setting in ("always", "madvise"):
        return Finding(area, "ok", setting)
    if setting == "never":
        hint = f"echo madvise > {host.HUGE_PAGES}"
        return Finding(area, "warn", "never", "madvise or always", hint)
    return Finding(area, "info", "this kernel has no setting for them")


def environment(environ: Mapping[str, str], torch_build: str) -> Finding:
    """Variables that slow the libraries down, set by somebody or by an image."""
    names = LIMITING + (OPENBLAS if "BLAS_INFO=open" in torch_build else ())
    found = [f"{name}={environ[name]}" for name in names if environ.get(name)]
    if found:
        hint = f"unset {' '.join(one.partition('=')[0] for one in found)}, unless they are meant"
        return Finding("environment", "warn", ", ".join(found), "unset: they limit instructions or threads", hint)
    idle = [name for name in OPENBLAS if environ.get(name)]
    if idle:
        return Finding("environment", "info", f"{', '.join(idle)} set; this torch does not multiply with OpenBLAS")
    return Finding("environment", "ok", "no variable limits instructions or threads")


__all__ = ["environment", "findings", "huge_pages", "instructions", "kernels", "packed_products"]
