"""The op catalogue: every operation that the engine runs on a device. Knows references; knows no kernels."""

from anychip_sdk.ops.attention import paged_attention
from anychip_sdk.ops.base import CATALOGUE, STEP, Arg, Catalogue, ErrorModel, Op, op
from anychip_sdk.ops.blocks import ffn, mha
from anychip_sdk.ops.elementwise import add, gelu, gelu_mul, mul, silu, silu_mul
from anychip_sdk.ops.kv import kv_write
from anychip_sdk.ops.linear import embedding, linear, lm_head, select_rows
from anychip_sdk.ops.norm import add_rms_norm, rms_norm
from anychip_sdk.ops.quantized import linear_int4, linear_int8, lm_head_int8
from anychip_sdk.ops.rope import qk_norm_rope, rope
from anychip_sdk.ops.sampling import apply_logit_bias, apply_penalties, argmax, sample

__all__ = [
    "CATALOGUE",
    "STEP",
    "Arg",
    "Catalogue",
    "ErrorModel",
    "Op",
    "add",
    "add_rms_norm",
    "apply_logit_bias",
    "apply_penalties",
    "argmax",
    "embedding",
    "ffn",
    "gelu",
    "gelu_mul",
    "kv_write",
    "linear",
    "linear_int4",
    "linear_int8",
    "lm_head",
    "lm_head_int8",
    "mha",
    "mul",
    "op",
    "paged_attention",
    "qk_norm_rope",
    "rms_norm",
    "rope",
    "sample",
    "select_rows",
    "silu",
    "silu_mul",
]
