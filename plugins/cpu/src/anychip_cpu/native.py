"""The library of native kernels: finding, checking and calling it. Knows its functions; knows no op."""

from __future__ import annotations

import ctypes
import os
import struct
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from anychip_cpu.native_build import LIBRARY, SOURCES, digest
from anychip_sdk.step import Step

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
HEAD_DIM_STEP, HEAD_DIM_MAX = 16, 256

#: what a call changes of AttentionArgs: its first fields, up to the window
_CALL = struct.Struct("=4Q6q")


class AttentionArgs(ctypes.Structure):
    """The struct of attention.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out")),
        *((name, ctypes.c_int64) for name in ("q_token_stride", "q_head_stride")),
        *((name, ctypes.c_int64) for name in ("page_stride", "slot_stride", "head_stride", "window")),
        ("scale", ctypes.c_double),
        ("soft_cap", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("dtype", "heads", "kv_heads", "head_dim")),
        *((name, ctypes.c_int32) for name in ("rows", "page_size", "pages_max", "threads")),
        *((name, ctypes.c_void_p) for name in ("query_start", "context_lens", "page_table", "sinks")),
        ("value_dim", ctypes.c_int64),
    )


class Scores(NamedTuple):
    """What scores become before they are weights."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None  #: float32 [heads], contiguous


def attention_args(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: Scores) -> bytes:
    """AttentionArgs but for the step; k and v have the same strides, the last dimension of all is contiguous.

    The memory of the tensors, the sinks among them, must stay.
    """
    args = AttentionArgs(dtype=DTYPES[q.dtype], heads=q.shape[1], kv_heads=k.shape[2], head_dim=q.shape[2])
    args.scale, args.soft_cap = scores.scale, scores.soft_cap or 0.0
    args.value_dim = out.shape[2]
    args.sinks = None if scores.sinks is None else scores.sinks.data_ptr()
    pointers = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
    _CALL.pack_into(memoryview(args).cast("B"), 0, *pointers, *q.stride()[:2], *k.stride()[:3], scores.window or 0)
    return bytes(args)


class Heads(NamedTuple):
    """Of queries, keys and values: what layers of one kind share."""

    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0  #: so many of a value's first elements are mixed; 0: all


class AttentionCall:
    """One step's attention: what all layers share is filled in once.

    Args:
        library: what runs it.
        step: whose rows are worked on.
        group: of states, whose pages are read.
        heads: of every layer that calls it.
        rows: so many of the step's first rows are worked on.
    """

    def __init__(self, library: Library, step: Step, group: int, heads: Heads, rows: int) -> None:
        self._run = library.attention
        table = step.paged(group).page_table
        self._held = [tensor.to(torch.int32).contiguous() for tensor in (step.query_start, step.context_lens, table)]
        dtype = DTYPES[heads.dtype]
        args = AttentionArgs(dtype=dtype, heads=heads.heads, kv_heads=heads.kv_heads, head_dim=heads.head_dim)
        args.value_dim = heads.value_dim or heads.head_dim
        args.rows, args.page_size, args.pages_max = rows, step.page_size, table.shape[-1]
        args.threads = torch.get_num_threads()
        args.query_start, args.context_lens, args.page_table = (tensor.data_ptr() for tensor in self._held)
        self._args = args
        self._bytes = memoryview(args).cast("B")
        self._address = ctypes.addressof(args)

    def __call__(self, out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: Scores) -> None:
        """k and v have the same strides; the last dimension of all is contiguous."""
        page, slot, head, _ = k.stride()
        token, query, _ = q.stride()
        pointers = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        _CALL.pack_into(self._bytes, 0, *pointers, token, query, page, slot, head, scores.window or 0)
        args = self._args
        args.scale, args.soft_cap = scores.scale, scores.soft_cap or 0.0
        args.sinks = None if scores.sinks is None else scores.sinks.data_ptr()
        if self._run(self._address):
            message = "native attention: no memory for its intermediate results"
            raise MemoryError(message)


class Library:
    """A loaded library of this version.

    Attributes:
        attention: takes the address of AttentionArgs, returns 0 when done.
        norm, heads, gated, argmax, head_product: take the bytes of their struct in rows.hpp; `heads` returns 0 when
            done.
        convolve, delta: the same of recurrent.hpp; both return 0 when done.
        product: the same of products.hpp.
        experts, route: the same of experts.hpp and routing.hpp; `experts` returns 0 when done.
        plan_compact, pack_compact: the same of compact.hpp; `plan_compact` returns how many bytes are needed.
        program, run, free: the functions of program.hpp; `run` takes the program, StepArgs and each group's GroupArgs.
        sample, penalise: the same of sampling.hpp; `penalise` returns 0 when done.
        is_parallel: several threads share the work; else the process has no OpenMP runtime whose threads it could use.
    """

    def __init__(self, opened: ctypes.CDLL) -> None:
        self.attention = opened.anychip_cpu_attention
        self.attention.argtypes, self.attention.restype = (ctypes.c_void_p,), ctypes.c_int32
        self.norm, self.heads = opened.anychip_cpu_norm, opened.anychip_cpu_heads
        self.gated, self.argmax = opened.anychip_cpu_gated, opened.anychip_cpu_argmax
        self.convolve, self.delta = opened.anychip_cpu_convolve, opened.anychip_cpu_delta
        self.product = opened.anychip_cpu_product
        self.experts, self.route = opened.anychip_cpu_experts, opened.anychip_cpu_route
        self.plan_compact, self.pack_compact = opened.anychip_cpu_plan_compact, opened.anychip_cpu_pack_compact
        self.sample, self.penalise = opened.anychip_cpu_sample, opened.anychip_cpu_penalise
        self.head_product = opened.anychip_cpu_head_product
        for function in (
            *(self.norm, self.heads, self.gated, self.argmax, self.product, self.head_product),
            *(self.plan_compact, self.pack_compact, self.sample, self.penalise, self.convolve, self.delta),
            *(self.experts, self.route),
        ):
            function.argtypes, function.restype = (ctypes.c_char_p,), None
        self.plan_compact.restype = ctypes.c_int64
        for function in (self.heads, self.product, self.penalise, self.convolve, self.delta, self.experts):
            function.restype = ctypes.c_int32
        self.program, self.run, self.free = opened.anychip_cpu_program, opened.anychip_cpu_run, opened.anychip_cpu_free
        self.program.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
        self.program.restype = ctypes.c_void_p
        self.run.argtypes, self.run.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p), ctypes.c_int32
        self.free.argtypes, self.free.restype = (ctypes.c_void_p,), None
        self.instruction_bytes: int = opened.anychip_cpu_instruction_size()
        opened.anychip_cpu_kernels.restype = ctypes.c_char_p
        opened.anychip_cpu_choose.argtypes = (ctypes.c_char_p,)
        opened.anychip_cpu_set_openmp.argtypes = (ctypes.c_void_p,)
        self._opened = opened
        openmp = _openmp()
        self.is_parallel = openmp is not None
        opened.anychip_cpu_set_openmp(openmp and ctypes.byref(openmp))

    @property
    def kernels(self) -> str:
        """The instruction set whose kernels run."""
        name: bytes = self._opened.anychip_cpu_kernels()
        return name.decode()

    def use_tiles(self, is_used: bool) -> None:
        """Whether experts of bfloat16 are multiplied by the processor's matrix tiles, where it has any."""
        self._opened.anychip_cpu_use_tiles(int(is_used))

    def choose(self, kernels: str) -> bool:
        """Take another instruction set's kernels; False: the processor or the library hasn't got them."""
        return bool(self._opened.anychip_cpu_choose(kernels.encode()))


class Absent(str):
    """Why there is no library."""

    __slots__ = ()


def supports(dtype: torch.dtype, head_dim: int) -> bool:
    return dtype in DTYPES and is_supported_head_dim(head_dim)


def is_supported_head_dim(head_dim: object) -> bool:
    return isinstance(head_dim, int) and head_dim % HEAD_DIM_STEP == 0 and 0 < head_dim <= HEAD_DIM_MAX


@lru_cache(maxsize=1)
def library() -> Library | Absent:
    """The installed library, or the reason why none is used."""
    return load()


def state() -> str:
    """One line for people: the instruction set whose kernels run, or why none do."""
    found = library()
    if isinstance(found, Absent):
        return str(found)
    return found.kernels if found.is_parallel else f"{found.kernels}, one thread (no OpenMP runtime found)"


def load(path: Path = LIBRARY, sources: Path = SOURCES) -> Library | Absent:
    """Open and check a library of native kernels; one that doesn't fit is never called."""
    if not path.is_file():
        return Absent("not built (no compiler)")
    try:
        opened = ctypes.CDLL(str(path))
        opened.anychip_cpu_version.restype = ctypes.c_char_p
        version = opened.anychip_cpu_version().decode()
        size = opened.anychip_cpu_args_size()
    except (OSError, AttributeError) as error:
        return Absent(f"not usable ({error})")
    if size != ctypes.sizeof(AttentionArgs):
        return Absent("not usable (built for another version of this package)")
    if sources.is_dir() and version != digest(sources):
        return Absent("out of date (its sources have changed; install the package again)")
    return Library(opened)


#: of every OpenMP runtime
OPENMP_ENTRIES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


class _OpenMp(ctypes.Structure):
    """The struct of threads.hpp."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in OPENMP_ENTRIES)


def _openmp() -> _OpenMp | None:
    """The entries of the OpenMP runtime that torch has loaded; a second runtime is never loaded."""
    modes: list[tuple[str | None, int]] = [(None, ctypes.DEFAULT_MODE)]
    if hasattr(os, "RTLD_NOLOAD"):
        modes += [(name, os.RTLD_NOLOAD | os.RTLD_LAZY) for name in ("libgomp.so.1", "libiomp5.so", "libomp.so.5")]
    for name, mode in modes:
        try:
            runtime = ctypes.CDLL(name, mode=mode)
            entries = [ctypes.cast(getattr(runtime, entry), ctypes.c_void_p) for entry in OPENMP_ENTRIES]
        except (OSError, AttributeError):
            continue  # not loaded here, or it has no such entry
        return _OpenMp(*entries)
    return None


__all__ = [
    "DTYPES",
    "Absent",
    "AttentionCall",
    "Heads",
    "Library",
    "Scores",
    "attention_args",
    "is_supported_head_dim",
    "library",
    "load",
    "state",
    "supports",
]
