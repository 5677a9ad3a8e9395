"""What `platform doctor` says of this stack: parts, versions, guesses to check. Knows findings; opens no card."""

from __future__ import annotations

from collections.abc import Iterator

from anychip_kunlun import compatibility, detect
from anychip_kunlun.chips import chip_of
from anychip_kunlun.detect import Inventory
from anychip_kunlun.probe import part_versions
from anychip_kunlun.stack import Stack
from anychip_sdk.finding import Finding


def findings(stack: Stack) -> tuple[Finding, ...]:
    """Everything that is known without opening a card."""
    problems = detect.problems(stack)
    found = [
        Finding(one.part, "fail" if one.is_blocking else "warn", one.what, hint=one.hint, source="the stack's parts")
        for one in problems
    ]
    if not any(problem.is_blocking for problem in problems):
        known = detect.inventory(stack)
        found += [*_cards(known), *_versions(stack, known)]
    return (*found, *_inferred())


def _cards(known: Inventory) -> Iterator[Finding]:
    for index, card in enumerate(known.cards):
        chip = chip_of(card.product)
        what = f"kunlun:{index} is {card.product}, {card.memory_mib_total} MiB, {card.temperature_c} C"
        if chip is not None and chip.has_kernels:
            yield Finding("card", "ok", what)
        else:
            hint = "memory and telemetry are reported; every op runs on the reference"
            yield Finding("card", "warn", what, "a P800", hint, "vLLM-Kunlun's list of supported chips")
    if not known.cards:
        yield Finding("card", "warn", "xpu-smi tells of no card", "a line for each", "put xpu-smi on the path")


def _versions(stack: Stack, known: Inventory) -> Iterator[Finding]:
    versions = part_versions(stack, known)
    verdicts = {one.part: one for one in compatibility.judge(versions)}
    for part, version in versions.items():
        if part not in verdicts:
            yield Finding("versions", "ok", f"{part} is {version}")
    for one in verdicts.values():
        yield Finding(
            "versions", "fail" if one.severity == "refused" else "warn", one.what, one.expected, one.hint, one.source
        )


def _inferred() -> Iterator[Finding]:
    """The emulator's guesses: what has to be looked at on the first real card."""
    from anychip_kunlun.emulator.fidelity import FIDELITY

    for row in FIDELITY:
        if row.status == "inferred":
            yield Finding("to check on a card", "info", row.behaviour, source=f"{row.status}: {row.source}")


__all__ = ["findings"]
