"""Step 1: calls of building blocks become catalogue ops. Knows how to inline a module; knows no kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import fx, nn

from anychip.graph.ir import ModelGraph
from anychip.graph.trace import OpTracer, canonical_names


def expand(model: ModelGraph) -> ModelGraph:
    """A graph in which each block is replaced by the ops that it is made of; weights keep their names."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    canonical = canonical_names(model.root)
    for node in model.graph.nodes:
        if node.op == "call_module":
            values[node] = _inline(graph, node, model.root, values, canonical)
        elif node.op == "output":
            graph.output(fx.map_arg(node.args[0], values.__getitem__))
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
    _share_attributes(graph)
    expanded = model.with_graph(graph)
    _fix_dtypes(expanded)
    return expanded


def _inline(
    graph: fx.Graph, call: fx.Node, root: nn.Module, values: Mapping[fx.Node, fx.Node], canonical: Mapping[int, str]
) -> fx.Node:
    """Copy the block's own graph in place of its call; returns the node of its result."""
    path = str(call.target)
    block = root.get_submodule(path)
    inner = OpTracer(()).trace(block)
    local: dict[fx.Node, fx.Node] = {}
    arguments = iter(call.args)
    for node in inner.nodes:
        if node.op == "placeholder":
            argument = next(arguments)
            assert isinstance(argument, fx.Node)
            local[node] = values[argument]
        elif node.op == "output":
            result = node.args[0]
            assert isinstance(result, fx.Node)
            return local[result]
        else:
            copied = graph.node_copy(node, local.__getitem__)
            if node.op == "get_attr":
                copied.target = canonical[id(_attribute(block, str(node.target)))]
            local[node] = copied
    message = f"{path} returns nothing"
    raise AssertionError(message)


def _fix_dtypes(model: ModelGraph) -> None:
    """Parameters whose dtype an op's schema fixes are held in it, whatever the model's is."""
    for node, op in model.op_nodes():
        for arg, value in zip(op.args, node.args, strict=True):
            name = str(value.target) if isinstance(value, fx.Node) else ""
            if arg.weight and arg.dtype != "T" and name in model.weights:
                model.weights[name] = replace(model.weights[name], dtype=getattr(torch, arg.dtype))


def _attribute(block: nn.Module, target: str) -> object:
    owner, _, name = target.rpartition(".")
    return getattr(block.get_submodule(owner), name)


def _share_attributes(graph: fx.Graph) -> None:
    """One get_attr node per parameter, before everything that computes."""
    first: dict[str, fx.Node] = {}
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        kept = first.setdefault(str(node.target), node)
        if kept is node:
            inputs[-1].append(node)
            inputs.append(node)
        else:
            node.replace_all_uses_with(kept)
            graph.erase_node(node)


__all__ = ["expand"]
