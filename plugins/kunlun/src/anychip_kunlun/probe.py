"""The cards as the platform plans with them. Knows chips, versions and capabilities; opens no device."""

from __future__ import annotations

import torch

from anychip_kunlun import detect
from anychip_kunlun.chips import MIB, chip_of
from anychip_kunlun.detect import Inventory
from anychip_kunlun.smi import Card
from anychip_kunlun.stack import Stack
from anychip_sdk.device import Capabilities, DeviceInfo

#: the pip names of the parts whose versions matter, and what they are called here
DISTRIBUTIONS = {
    "torch": "torch",
    "xmlir": "xmlir",
    "kunlun_ops": "kunlun_ops",
    "xspeedgate_ops": "xspeedgate_ops",
}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
#: a page that the vendor's own deployments use
PAGE_SIZE = 128
CAPABILITIES = Capabilities(dtypes=DTYPES, async_streams=True, page_size=PAGE_SIZE)


def probe(stack: Stack) -> tuple[DeviceInfo, ...]:
    """The visible cards; none where the stack is not whole, see `detect.absence`."""
    if any(problem.is_blocking for problem in detect.problems(stack)):
        return ()
    found = detect.inventory(stack)
    if not found.cards:
        return _without_tool(stack, found)
    return tuple(_device(stack, found, index, card) for index, card in enumerate(found.cards))


def has_kernels(stack: Stack) -> bool:
    """Whether the fused ops run on the cards that are there."""
    return any(device.attributes.get("kernels") == "kunlun_ops" for device in probe(stack))


def part_versions(stack: Stack, found: Inventory) -> dict[str, str]:
    """Every part of the stack whose version is known."""
    known = {"driver": found.driver, "runtime": found.runtime}
    known.update({part: stack.version(name) for part, name in DISTRIBUTIONS.items()})
    return {part: version.partition("+")[0] for part, version in known.items() if version}


def _device(stack: Stack, found: Inventory, index: int, card: Card) -> DeviceInfo:
    chip = chip_of(card.product)
    total = card.memory_mib_total * MIB
    known = chip is not None and chip.has_kernels
    attributes = {
        "architecture": chip.architecture if chip else "unknown",
        "kernels": "kunlun_ops" if known else "none: kunlun_ops runs on the P800 only, every op is the reference's",
        "card": f"xpu{card.number}",
        "temperature_c": card.temperature_c,
        "power_w": card.power_w,
        "utilization_percent": card.utilization,
    }
    return DeviceInfo(
        name=f"kunlun:{index}",
        product=card.product,
        memory_bytes_total=total,
        memory_bytes_free=max(0, total - card.memory_mib_used * MIB),
        capabilities=CAPABILITIES,
        versions=_versions(stack, found, card.firmware),
        attributes=attributes | _parts(stack, found),
    )


def _without_tool(stack: Stack, found: Inventory) -> tuple[DeviceInfo, ...]:
    """Where xpu-smi is missing: what the accelerator itself says, which takes a context on each card."""
    devices = []
    for index in range(stack.accelerator.device_count()):
        free, total = stack.accelerator.mem_get_info(index)
        product = str(stack.load(detect.HOOK).xpu.get_device_properties(index).name)
        known = product == "KL3"
        kernels = "kunlun_ops" if known else "none: kunlun_ops runs on KL3 chips only, every op is the reference's"
        devices.append(
            DeviceInfo(
                name=f"kunlun:{index}",
                product=f"{product} (xpu-smi is missing)",
                memory_bytes_total=total,
                memory_bytes_free=free,
                capabilities=CAPABILITIES,
                versions=_versions(stack, found, ""),
                attributes={"architecture": product, "kernels": kernels} | _parts(stack, found),
            )
        )
    return tuple(devices)


def _versions(stack: Stack, found: Inventory, firmware: str) -> dict[str, str]:
    parts = part_versions(stack, found)
    known = {
        "driver": parts.get("driver"),
        "runtime": parts.get("runtime"),
        "sdk": parts.get("xmlir"),
        "firmware": firmware,
    }
    return {name: version for name, version in known.items() if version}


def _parts(stack: Stack, found: Inventory) -> dict[str, str]:
    parts = part_versions(stack, found)
    return {name: parts[name] for name in ("torch", "kunlun_ops", "xspeedgate_ops") if name in parts}


__all__ = ["CAPABILITIES", "DISTRIBUTIONS", "DTYPES", "has_kernels", "part_versions", "probe"]
