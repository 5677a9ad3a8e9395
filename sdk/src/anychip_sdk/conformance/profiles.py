"""Which claims a profile wants and which tracks it runs. Knows names; tests nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.requirements import TRACKS, Track
from anychip_sdk.profiles import PROFILES, Profile

#: what a decoder of today's shape runs on, before any fusion
CORE_OPS = ("add", "embedding", "kv_write", "linear", "lm_head", "paged_attention", "rms_norm", "rope", "silu_mul")
FULL_OPS = (*CORE_OPS, "add_rms_norm", "argmax", "qk_norm_rope", "sample", "select_rows")
FULL_FUSIONS = ("qkv_proj", "gate_up_proj", "add_rms_norm", "qk_norm_rope", "silu_mul")


@dataclass(frozen=True)
class Scope:
    """What a profile asks for.

    Attributes:
        tracks: all of their requirements are run.
        needs: claims that must be made.
        ops: each must be claimed, all of them for one dtype at least.
    """

    tracks: tuple[Track, ...]
    needs: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()


SCOPES: Mapping[Profile, Scope] = {
    "bringup": Scope(("device", "memory", "copy", "stream")),
    "kernel": Scope(("device", "memory", "copy", "stream", "op"), ops=CORE_OPS),
    "serving-core": Scope(TRACKS, ("serving",), CORE_OPS),
    "serving-full": Scope(TRACKS, ("serving", "deterministic", *(f"fusion:{name}" for name in FULL_FUSIONS)), FULL_OPS),
}


def missing_claims(claims: Claims, profile: Profile) -> tuple[str, ...]:
    """What the profile asks for and the manifest doesn't claim; empty where all is claimed."""
    scope = SCOPES[profile]
    missing = [name for name in scope.needs if not claims.holds(name)]
    short: dict[str, list[str]] = {
        dtype: [f"op:{op}:{dtype}" for op in scope.ops if not claims.holds(f"op:{op}:{dtype}")]
        for dtype in claims.dtypes
    }
    # the dtype that is nearest to complete is the one that was meant
    nearest = min(short, key=lambda dtype: len(short[dtype]), default="")
    missing += short.get(nearest, [f"op:{op}" for op in scope.ops])
    return tuple(missing)


def covers(held: Profile, wanted: Profile) -> bool:
    """Whether a certificate of one profile is enough where another is asked for."""
    return PROFILES.index(held) >= PROFILES.index(wanted)


__all__ = ["CORE_OPS", "FULL_FUSIONS", "FULL_OPS", "SCOPES", "Scope", "covers", "missing_claims"]
