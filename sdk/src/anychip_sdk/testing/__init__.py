"""A kit for testing backends: random inputs for every op, error bounds, a device to wrap. Knows no chip."""

from anychip_sdk.testing.cases import DIMENSIONS, chunk_step, random_case, random_step
from anychip_sdk.testing.check import Comparison, check_kernel
from anychip_sdk.testing.device import ReferenceDevice, ReferencePlugin, reference_plugin

__all__ = [
    "DIMENSIONS",
    "Comparison",
    "ReferenceDevice",
    "ReferencePlugin",
    "check_kernel",
    "chunk_step",
    "random_case",
    "random_step",
    "reference_plugin",
]
