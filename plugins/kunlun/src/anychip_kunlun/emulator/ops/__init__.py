"""The vendor's fused ops, by family: contracts as strict as the chip's, arithmetic in float32. Knows no generation."""

from anychip_kunlun.emulator.ops.attention import AttentionOps
from anychip_kunlun.emulator.ops.cache import CacheOps
from anychip_kunlun.emulator.ops.dense import DenseOps
from anychip_kunlun.emulator.ops.quant import QuantOps
from anychip_kunlun.emulator.ops.rope import RopeOps
from anychip_kunlun.emulator.ops.sampling import SamplingOps

__all__ = ["AttentionOps", "CacheOps", "DenseOps", "QuantOps", "RopeOps", "SamplingOps"]
