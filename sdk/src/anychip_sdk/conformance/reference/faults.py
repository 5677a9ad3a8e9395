"""All faults of the reference chip by name. Knows no check."""

from anychip_sdk.conformance.reference.faulty import (  # noqa: F401  # they declare
    copies,
    devices,
    kernels,
    manners,
    memory,
    pools,
    registrations,
    streams,
)
from anychip_sdk.conformance.reference.faulty.base import FAULTS, Fault, device_fault, plugin_fault

__all__ = ["FAULTS", "Fault", "device_fault", "plugin_fault"]
