"""What the emulator imitates and how that is known: the list to check on the first real card. Knows no mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: source: read in published code or documents. issue: a user's report. inferred: a guess.
Status = Literal["source", "issue", "inferred"]


@dataclass(frozen=True)
class Row:
    """One behaviour.

    Attributes:
        covers: the ops of kunlun_ops and the settings of the emulator that it is about.
    """

    behaviour: str
    source: str
    status: Status
    covers: tuple[str, ...] = ()


KERNELS = "vLLM-Kunlun ops/_kunlun_ops.py"
ATTENTION = "vLLM-Kunlun v1/attention/backends/kunlun_attn.py"
WIKI = "vLLM-Kunlun wiki"
INSTALL = "vLLM-Kunlun docs/source/installation.md"
XRE = "XRE header xpu/defs.h"

FIDELITY: tuple[Row, ...] = (
    # what the machine looks like
    Row("kunlun_ops runs on the P800 only", "vLLM-Kunlun FAQ", "source", ("chip",)),
    Row("device nodes /dev/xpuN and /dev/xpuctrl, /proc/kunlun/version", INSTALL, "source", ("nodes", "host", "cards")),
    Row(
        "xpu-smi -m prints 32 shell-quoted fields; the product's name holds a space",
        "tools that read it",
        "source",
        ("chip",),
    ),
    Row(
        "xpu-smi shows N/A or 10.2 as the runtime, or what the CUDA shim claims", "vLLM-Kunlun #355", "issue", ("smi",)
    ),
    Row("older tools print 22 fields, or refuse -m", "tools that accept so few", "inferred", ("smi",)),
    Row(
        "driver and runtime of different releases run together, unnoticed",
        "vLLM-Kunlun #355",
        "issue",
        ("driver", "runtime"),
    ),
    Row(
        "XPU_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES must be equal", "vLLM-Kunlun #382", "issue", ("visible-mismatch",)
    ),
    # torch on the chip
    Row("cards are cuda:N, called GPU, of capability 8.6", WIKI, "source"),
    Row("the hook that patches torch fails silently; the table of kernels shows it", WIKI, "source", ("silent-hook",)),
    Row(
        "torch_xmlir.__version__ is an OrderedDict, its xpu.set_device answers xla:N",
        WIKI,
        "source",
        ("missing-module",),
    ),
    Row("two generations of wheels: torch 2.5.1 and 2.9.0", INSTALL, "source", ("torch251", "torch290")),
    Row("kunlun_ops was called xtorch_ops", KERNELS, "source", ("xtorch-ops", "missing-op")),
    Row("the current device is a thread's own, 0 in a new one", XRE, "source"),
    Row("tensors of another card than the current one break a kernel (700)", XRE, "inferred"),
    Row("tensors of two cards in one op are refused as torch does", "PyTorch", "source"),
    # memory
    Row("P800: 98304 MiB; the emulator's cards are smaller", XRE, "source", ("memory",)),
    Row("torch's caching allocator is unmodified: granules of 512 bytes, segments of 2 and 20 MiB", WIKI, "source"),
    Row("out of memory is torch's error, with the runtime's 705", XRE, "source"),
    Row(
        "freed ranges of device memory may not merge",
        "vLLM-Kunlun reports of fragmentation",
        "inferred",
        ("fragmenting",),
    ),
    Row(
        "new and freed memory holds NaN; of blocks over 64 MiB only the ends",
        "the emulator's own strictness",
        "inferred",
    ),
    Row(
        "two stacks in one process have an allocator each and don't see each other",
        "a limit of the emulator",
        "inferred",
    ),
    Row("results of torch's own ops are not counted as device memory", "a limit of the emulator", "inferred"),
    # streams
    Row("at most 8 queues run at once; more streams share them", "CUDA_DEVICE_MAX_CONNECTIONS=8", "source"),
    Row(
        "copies within a card are deferred, those to or from host memory are done when the call returns",
        "PyTorch",
        "source",
    ),
    Row(
        "ops of the default stream run in order with the host",
        "a limit of the emulator",
        "inferred",
        ("blocking-streams",),
    ),
    Row("a queued copy doesn't keep its memory; memory freed before breaks the card", "PyTorch", "source"),
    Row("XPU_DUMMY_EVENT makes events fakes", "vLLM-Kunlun setup_env.sh", "source"),
    Row(
        "a kernel's fault is reported at a later synchronize and the card stays dead",
        "vLLM-Kunlun #318, #475",
        "issue",
        ("fault", "fault-file"),
    ),
    Row(
        "only synchronizing and copies to or from the host raise it; reading by torch's own ops doesn't",
        "a limit of the emulator",
        "inferred",
    ),
    # graphs, collectives, speed
    Row("graphs are captured with XMLIR_FORCE_USE_XPU_GRAPH=1 only", WIKI, "inferred", ("no-graph",)),
    Row("replayed graphs give garbled output", "vLLM-Kunlun #475", "issue", ("garbled-graph",)),
    Row("host lengths and lods are fixed when a graph is captured", "CUDA graphs", "inferred"),
    Row("backend nccl is the vendor's library under nccl's name", WIKI, "source"),
    Row(
        "collectives fail: addr_window not properly set; BKCL_CHECK_AW=0 skips the check",
        "vLLM-Kunlun #382, #420",
        "issue",
        ("addr-window",),
    ),
    Row("bf16 products take twice the time of fp16", "vLLM-Kunlun #377", "issue", ("bf16-slow",)),
    Row("the first launch of an op is slow", "vLLM-Kunlun #329", "issue", ("slow-compile",)),
    Row(
        "fp16 linear is wrong with 248320 output columns; where it begins is unknown",
        "vLLM-Kunlun #387",
        "issue",
        ("wrong-linear",),
    ),
    # ops
    Row("arguments are contiguous, indices int32, outputs are arguments", KERNELS, "source"),
    Row("refusals read: Check 0 == ret failed, left operand=..., OP failed", "vLLM-Kunlun issues", "issue"),
    Row("arithmetic in float32, rounded once to the storage dtype", "the vendor's kernels are closed", "inferred"),
    Row("float32 is taken by every op that takes fp16 and bf16", "vLLM-Kunlun platforms/kunlun.py", "inferred"),
    Row(
        "newer rmsnorm takes a weight of x's dtype, the older a float32 one and `out`",
        KERNELS,
        "source",
        ("rmsnorm", "add_rmsnorm"),
    ),
    Row(
        "add_rmsnorm rounds the sum before it norms it; outputs may be the inputs",
        KERNELS,
        "inferred",
        ("add_rmsnorm",),
    ),
    Row(
        "the older add_rmsnorm has the newer one's arguments, with a float32 weight",
        KERNELS,
        "inferred",
        ("add_rmsnorm",),
    ),
    Row("int8 pages hold values by the absmax of each head or channel", KERNELS, "source", ("reshape_and_cache",)),
    Row("swiglu takes its gate from the first half", KERNELS, "source", ("swiglu", "silu_and_mul", "turned-swiglu")),
    Row(
        "gelu is the exact one, quick_gelu is x sigmoid(1.702 x); both take out",
        KERNELS,
        "inferred",
        ("gelu", "quick_gelu"),
    ),
    Row(
        "rotary_embedding works in place, its table has the dtype of q, positions are int64",
        KERNELS,
        "source",
        ("rotary_embedding",),
    ),
    Row(
        "split_norm_rope_neox norms with eps 1e-6: it has no argument for it",
        "vLLM-Kunlun ops/rotary_embedding.py",
        "inferred",
        ("split_norm_rope_neox",),
    ),
    Row(
        "caches are [blocks, kv_heads, block_size, head_dim]; negative slots are skipped",
        ATTENTION,
        "source",
        ("reshape_and_cache", "reshape_and_cache_flash"),
    ),
    Row("block sizes are 16, 32, 64 and 128", ATTENTION, "inferred", ("prefill_attention",)),
    Row("head sizes are 32, 64, 80, 96, 112, 120, 128, 192, 256 and 512", "vLLM-Kunlun ops/paged_attn.py", "source"),
    Row("prefill's scale is alpha / sqrt(head_dim)", ATTENTION, "source", ("prefill_attention", "plain-alpha")),
    Row("a lod is given twice, on host and card, and must be the same", ATTENTION, "source", ("prefill_attention",)),
    Row(
        "a window counts the own position; swa_right is -1 or 0",
        ATTENTION,
        "inferred",
        ("prefill_attention", "speculative_attention"),
    ),
    Row("decode refuses 1024 rows and more", "vLLM-Kunlun #477", "issue", ("speculative_attention", "paged_attention")),
    Row(
        "a scale of 0.0 means 1 / sqrt(head_dim) to decode",
        ATTENTION,
        "source",
        ("speculative_attention", "paged_attention"),
    ),
    Row("decode takes up to 2 queries a row, as MLA's does", ATTENTION, "inferred", ("speculative_attention",)),
    Row("table entries behind a row's last block are not read", ATTENTION, "inferred", ("speculative_attention",)),
    Row(
        "a scale is the absolute maximum, the kernel divides by 127",
        KERNELS,
        "source",
        ("quant2d", "dequant2d_per_token", "matmul"),
    ),
    Row("int8 rounds half to even", "the vendor's kernels are closed", "inferred", ("quant2d",)),
    Row("the absolute maximum of a row with a NaN is NaN", "the vendor's kernels are closed", "inferred", ("quant2d",)),
    Row(
        "samplers take float32 probabilities and int32 k, and return int32",
        "vLLM-Kunlun v1/sample/ops/topk_topp_sampler.py",
        "source",
        ("top_k_sampling_from_probs", "top_p_sampling_from_probs", "top_k_top_p_sampling_from_probs"),
    ),
    Row(
        "MoE, MLA, LoRA, linear attention, GPTQ and AWQ ops and the int8 ops of xspeedgate_ops are not emulated",
        "a limit of the emulator",
        "inferred",
    ),
)

__all__ = ["FIDELITY", "Row", "Status"]
