"""The reference chip: host memory that behaves like a real device, healthy or with one fault. Knows no requirement."""

from anychip_sdk.conformance.reference.device import AsyncReferenceDevice
from anychip_sdk.conformance.reference.plugin import (
    AsyncReferencePlugin,
    ReferenceLoader,
    reference_backend,
    reference_claims,
)

__all__ = [
    "AsyncReferenceDevice",
    "AsyncReferencePlugin",
    "ReferenceLoader",
    "reference_backend",
    "reference_claims",
]
