"""Step 4: products with plain weights become products with integers. Knows which op takes what; reads no weight."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import fx

from anychip.graph.fold import drop_unused
from anychip.graph.ir import ModelGraph, QuantizedPart, WeightSpec, argument, resolution
from anychip.graph.replace import Binding, bind, node_facts, refuse
from anychip.weights.schemes import Scheme
from anychip_sdk.errors import PreconditionFailed
from anychip_sdk.ops import Op, gate_rows, linear_int4, linear_int8, lm_head_int8, moe_experts_int4, moe_experts_int8
from anychip_sdk.ops.quantized import BLOCKS, PACKED, WHOLE_ROW
from anychip_sdk.registry import OpKey

SchemeOf = Callable[[WeightSpec, bool], "Scheme | None"]  #: of a matrix, and whether it makes the logits

#: policies whose ops take plain weights: there is no whole block of integers in the catalogue
WHOLE_BLOCKS = ("mha", "ffn")

_OPS: Mapping[tuple[str, int], Op] = {
    ("linear", 8): linear_int8,
    ("linear", 4): linear_int4,
    ("lm_head", 8): lm_head_int8,
    ("moe_experts", 8): moe_experts_int8,
    ("moe_experts", 4): moe_experts_int4,
}


def matrices(model: ModelGraph) -> list[tuple[fx.Node, WeightSpec, bool]]:
    """The products with a parameter: node, parameter, whether it makes the logits.

    A gate of rows stays as it is, like a router's weight: it is small, and decides about whole results.
    """
    found = []
    for node, op in model.op_nodes():
        if op.name in ("linear", "lm_head") and not all(user.target is gate_rows for user in node.users):
            spec = model.weights.get(str(argument(node, op, "weight").target))
            if spec is not None:
                found.append((node, spec, op.name == "lm_head"))
    return found


class _Part(NamedTuple):
    """One of an op's weights that are held as integers."""

    prefix: str  #: of the arguments that its parts go to
    spec: WeightSpec
    scheme: Scheme


def quantize(model: ModelGraph, binding: Binding, scheme_of: SchemeOf) -> Counter[str]:
    """Rewrite the graph in place; returns in words how matrices are held and multiplied, with their number.

    Raises:
        PreconditionFailed: for all matrices at once whose shape the scheme can't hold.
        KernelMissing: for all ops at once that no kernel fits, or that need the fallback where it is forbidden.
    """
    chosen = [*_products(model, scheme_of), *_mixtures(model, scheme_of)]
    shapes = [(one.spec.name, one.scheme.problem(one.spec.shape[-1])) for _, parts in chosen for one in parts]
    problems = [f"{name}: {problem}" for name, problem in shapes if problem]
    if problems:
        message = f"{len(problems)} matrices can't be quantized with this scheme:\n  " + "\n  ".join(problems[:8])
        raise PreconditionFailed(message, hint="set model.quantization to int4 (groups of 32) or int8 (whole rows)")
    missing: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for node, parts in chosen:
        new = _replaced(model, node, parts)
        assert isinstance(new.target, Op)
        _choose_block(model, new, new.target, binding)
        problem = bind(model, new, new.target, binding)
        if problem:
            missing.setdefault(new.target.name, problem)
            continue
        for one in parts:
            counts[_in_words(new, new.target, one.scheme)] += math.prod(one.spec.shape[:-2])
    refuse(missing)
    drop_unused(model)
    model.graph.lint()
    return counts


def _products(model: ModelGraph, scheme_of: SchemeOf) -> Iterator[tuple[fx.Node, list[_Part]]]:
    for node, spec, is_head in matrices(model):
        scheme = scheme_of(spec, is_head)
        if scheme is not None:
            yield node, [_Part("", spec, scheme)]


def _mixtures(model: ModelGraph, scheme_of: SchemeOf) -> Iterator[tuple[fx.Node, list[_Part]]]:
    """Both of a mixture's products are held alike: with 8 bits where the checkpoint's own integers are not."""
    for node, op in model.op_nodes():
        if op.name != "moe_experts":
            continue
        specs = {name: model.weights[str(argument(node, op, f"{name}weight").target)] for name in ("gate_up_", "down_")}
        schemes = [scheme_of(spec, False) for spec in specs.values()]
        held = [scheme for scheme in schemes if scheme is not None]
        if len(held) < len(specs):
            continue
        if len({(scheme.bits, scheme.group) for scheme in held}) > 1:
            held = [one if (one.bits, one.group) == (8, PACKED) else Scheme(8, PACKED) for one in held]
        yield node, [_Part(name, spec, scheme) for (name, spec), scheme in zip(specs.items(), held, strict=True)]


def _replaced(model: ModelGraph, node: fx.Node, parts: Sequence[_Part]) -> fx.Node:
    assert isinstance(node.target, Op)
    op = _OPS[node.target.name, parts[0].scheme.bits]
    given = {arg.name: value for arg, value in zip(node.target.args, node.args, strict=True)}
    with model.graph.inserting_before(node):
        for prefix, spec, scheme in parts:
            stem = f"{spec.name.removesuffix('weight')}{scheme.name}"
            for part in scheme.parts(*spec.shape):
                name = f"{stem}_{part.name}"
                of = QuantizedPart(stem, spec.shape, scheme, part)
                model.weights[name] = WeightSpec(name, part.shape, spec.sources, of)
                given[prefix + part.name] = model.graph.create_node("get_attr", name)
        new = model.graph.create_node("call_function", op, tuple(given.get(arg.name) for arg in op.args), {})
    node.replace_all_uses_with(new)
    model.graph.erase_node(node)
    return new


def _choose_block(model: ModelGraph, node: fx.Node, op: Op, binding: Binding) -> None:
    """Have activations rounded in the blocks of the kernel that the backend tries first."""
    names = [arg.name for arg in op.args]
    if "block" not in names:
        return
    facts = node_facts(model, node, op, binding)
    choices = [{**facts, "block": block} for block in BLOCKS]
    key = OpKey(op.name, op.version, binding.dtype)
    node.update_arg(names.index("block"), BLOCKS[binding.registry.preferred(key, choices, binding.overrides)])


def _in_words(node: fx.Node, op: Op, scheme: Scheme) -> str:
    if "block" not in op.signature.parameters or argument(node, op, "block") != WHOLE_ROW:
        return str(scheme)
    kernel = resolution(node).kernel
    return f"{scheme}, activations rounded by whole rows, as {kernel.provider}/{kernel.name} does"


__all__ = ["WHOLE_BLOCKS", "SchemeOf", "matrices", "quantize"]
