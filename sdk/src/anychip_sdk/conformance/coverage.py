"""Two-sided: all that a backend can bring has a requirement or a written exemption, and nothing more has.

Knows names; runs nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from anychip_sdk.conformance.cases import load_checks
from anychip_sdk.conformance.claims import CAPABILITIES
from anychip_sdk.conformance.requirements import REQUIREMENTS, Requirement
from anychip_sdk.device import Capabilities
from anychip_sdk.hooks import HOOKS
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.testing.cases import random_case

#: what no requirement tests -> why
EXEMPT: Mapping[str, str] = {
    "hook:anychip_emulator": "the emulator is a plugin itself, which the whole suite tests when run with --emulate",
    "hook:anychip_diagnose": "advice for people; its form is validated at the call, its truth is the vendor's",
    "capability:page_size": "a wish that plans read; pools of every page size are tested",
    "capability:prefill_tokens": "a wish that plans read; chunks of every size are tested",
}

_fusions: set[str] = set()


def declare_fusions(names: Iterable[str]) -> None:
    """Name the fusions that a package ships; each needs a requirement from then on."""
    _fusions.update(names)


@dataclass(frozen=True)
class Inventory:
    """All that a backend or the platform can bring and that could be wrong."""

    hooks: tuple[str, ...]
    capabilities: tuple[str, ...]
    ops: tuple[str, ...]
    fusions: tuple[str, ...]

    def names(self) -> tuple[str, ...]:
        """As `covers` writes them."""
        parts = {"hook": self.hooks, "capability": self.capabilities, "op": self.ops, "fusion": self.fusions}
        return tuple(f"{kind}:{name}" for kind, names in parts.items() for name in names)


def inventory() -> Inventory:
    """What this installation knows."""
    load_checks()
    capabilities = tuple(field.name for field in dataclasses.fields(Capabilities))
    return Inventory(HOOKS, capabilities, tuple(CATALOGUE), tuple(sorted(_fusions)))


def gaps(
    known: Inventory | None = None,
    requirements: Mapping[str, Requirement] = REQUIREMENTS,
    exempt: Mapping[str, str] = EXEMPT,
) -> tuple[str, ...]:
    """What is wrong with the coverage, one line each; empty where it is whole.

    Args:
        known: what must be covered; None: what this installation knows.
        requirements: whose `covers` count.
        exempt: name -> reason.
    """
    names = (known or inventory()).names()
    covering = covered(requirements)
    present = {rule.track for rule in requirements.values()}
    found = [f"{name} has no requirement and no exemption" for name in names if name not in {**covering, **exempt}]
    found += [f"op:{op} has no random arguments, so that its cases can't be run" for op in _without_case(names)]
    needed = {need for rule in requirements.values() for need in rule.needs}
    if "graph" in present:  # without the platform, its claims can't be tested
        found += [
            f"claim {name} is needed by no requirement, so nothing tests it" for name in CAPABILITIES.keys() - needed
        ]
    for name, keys in covering.items():
        if name not in names:
            found.append(f"{', '.join(keys)}: covers {name}, which does not exist")
    for name, reason in exempt.items():
        if not reason.strip():
            found.append(f"the exemption of {name} gives no reason")
        if name not in names:
            found.append(f"the exemption of {name} is stale: it does not exist")
        elif name in covering and "graph" in present:
            found.append(f"the exemption of {name} is stale: {', '.join(covering[name])} covers it")
    return tuple(found)


def _without_case(names: Iterable[str]) -> list[str]:
    found = []
    for op in (name.partition(":")[2] for name in names if name.startswith("op:") and name[3:] in CATALOGUE):
        try:
            random_case(op, torch.float32, 0)
        except KeyError:
            found.append(op)
    return found


def covered(requirements: Mapping[str, Requirement] = REQUIREMENTS) -> dict[str, tuple[str, ...]]:
    """What is tested -> the requirements that do."""
    found: dict[str, tuple[str, ...]] = {}
    for key, rule in requirements.items():
        for name in rule.covers:
            found[name] = (*found.get(name, ()), key)
    return found


__all__ = ["EXEMPT", "Inventory", "covered", "declare_fusions", "gaps", "inventory"]
