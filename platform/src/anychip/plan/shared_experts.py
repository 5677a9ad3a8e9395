"""Whether a shared expert becomes slots of the mixture beside it, before any graph is rewritten. Knows schemes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from anychip.graph.fold import FusionDecision
from anychip.graph.ir import ModelGraph, WeightSpec, argument
from anychip.graph.quantize import SchemeOf
from anychip.recipe.schema import Recipe
from anychip_sdk.ops import Op

POLICY = "shared_experts"
NOT_MEASURED = "auto leaves it out, as no measurement of the device says that it pays; name it to have it"


def slots_refused(
    recipe: Recipe, wanted: Sequence[str], graph: ModelGraph, scheme_of: SchemeOf
) -> dict[str, FusionDecision]:
    """The policy where it is not to be applied, with the reason; nothing where the rewriting decides."""
    mixtures = [_weights(graph, node, op) for node, op in graph.op_nodes() if op.name == "moe_experts"]
    if POLICY not in wanted or not mixtures:
        return {}
    reason = NOT_MEASURED if recipe.fusion.policies == "auto" else _differing(graph, mixtures, scheme_of)
    return {POLICY: FusionDecision(POLICY, 0, reason, refused=True)} if reason else {}


def _weights(graph: ModelGraph, node: fx.Node, op: Op) -> list[WeightSpec]:
    return [graph.weights[str(argument(node, op, name).target)] for name in ("gate_up_weight", "down_weight")]


def _differing(graph: ModelGraph, mixtures: list[list[WeightSpec]], scheme_of: SchemeOf) -> str:
    """Slots are held as the experts are, so the checkpoint must hold both alike; empty where it does.

    Slots never cut through a checkpoint's blocks: a width of experts that did would be refused for their own sake.
    """
    shared = [spec for name, spec in graph.weights.items() if ".shared_expert." in name and len(spec.shape) == 2]
    held = {scheme_of(spec, False) for specs in mixtures for spec in specs}
    apart = {scheme_of(spec, False) for spec in shared}
    if not shared or held == apart:
        return ""
    texts = [" and ".join(sorted({"plain" if one is None else str(one) for one in some})) for some in (held, apart)]
    return f"the experts are held as {texts[0]}, the shared one as {texts[1]}"


__all__ = ["NOT_MEASURED", "slots_refused"]
