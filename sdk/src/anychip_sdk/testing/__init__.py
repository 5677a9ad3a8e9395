"""A kit for testing backends: random inputs for every op, error bounds, a device to wrap. Knows no chip."""

from anychip_sdk.testing.cases import DIMENSIONS, random_batch, random_case
from anychip_sdk.testing.check import Comparison, check_kernel
from anychip_sdk.testing.device import ReferenceDevice, ReferencePlugin, reference_plugin

__all__ = [
    "DIMENSIONS",
    "Comparison",
    "ReferenceDevice",
    "ReferencePlugin",
    "check_kernel",
    "random_batch",
    "random_case",
    "reference_plugin",
]
