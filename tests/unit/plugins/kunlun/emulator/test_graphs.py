"""Capture and replay."""

from __future__ import annotations

import pytest
import torch

from anychip_kunlun.stack import Stack


@pytest.fixture
def ready(host: Stack) -> Stack:
    host.environ["XMLIR_FORCE_USE_XPU_GRAPH"] = "1"
    return host


def piece(stack: Stack, x: torch.Tensor, weight: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
    stack.load("kunlun_ops").rmsnorm(x, weight, normed, 1e-6)
    product = stack.linear(normed, torch.eye(8) * 2, None)
    product.add_(1)
    return product.view(-1, 4).sum(dim=1)


def test_a_replay_computes_anew_on_the_same_buffers(ready: Stack) -> None:
    x, weight, normed = torch.ones(2, 8), torch.ones(8), torch.zeros(2, 8)
    graph = ready.accelerator.CUDAGraph()
    with ready.accelerator.graph(graph):
        assert ready.accelerator.is_current_stream_capturing()
        result = piece(ready, x, weight, normed)
    assert not bool(normed.any())
    for seed in range(3):
        x.normal_(generator=torch.Generator().manual_seed(seed))
        graph.replay()
        ready.accelerator.synchronize()
        assert torch.equal(result, piece(ready, x, weight, torch.zeros(2, 8)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_may_be_a_view_is_replayed_where_it_is_a_copy(ready: Stack, dtype: torch.dtype) -> None:
    """In inference mode a cast comes as one op, which gives the tensor itself or a copy."""
    x = torch.ones(2, 8)
    graph = ready.accelerator.CUDAGraph()
    with torch.inference_mode():
        with ready.accelerator.graph(graph):
            result = x.to(dtype).t().reshape(4, 4)
        x.normal_()
        graph.replay()
        ready.accelerator.synchronize()
        assert torch.equal(result, x.to(dtype).t().reshape(4, 4))


def test_what_needs_a_result_on_the_host_is_not_permitted(ready: Stack) -> None:
    x = torch.ones(3)
    graph = ready.accelerator.CUDAGraph()
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"), ready.accelerator.graph(graph):
        x.sum().item()


def test_contracts_are_checked_during_a_capture(ready: Stack) -> None:
    x = torch.ones(8, 2).t()
    graph = ready.accelerator.CUDAGraph()
    with pytest.raises(ValueError, match="x is not contiguous"), ready.accelerator.graph(graph):
        ready.load("kunlun_ops").swiglu(x, torch.zeros(2, 4))


def test_a_garbled_replay_differs_from_eager(open_host) -> None:
    stack = open_host(garbled_replay=True)
    stack.environ["XMLIR_FORCE_USE_XPU_GRAPH"] = "1"
    x, y, eager = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)), torch.zeros(2, 4), torch.zeros(2, 4)
    graph = stack.accelerator.CUDAGraph()
    with stack.accelerator.graph(graph):
        stack.load("kunlun_ops").swiglu(x, y)
    graph.replay()
    stack.load("kunlun_ops").swiglu(x, eager)
    assert not torch.equal(y, eager)


def test_copies_are_captured_too(ready: Stack) -> None:
    source, target = torch.ones(3), torch.zeros(3)
    graph = ready.accelerator.CUDAGraph()
    with ready.accelerator.graph(graph):
        ready.copy(target, source, None)
    assert not bool(target.any())
    graph.replay()
    assert torch.equal(target, source)


def test_there_is_no_capture_without_the_variable_or_the_feature(host: Stack, open_host) -> None:
    without = open_host(has_graphs=False)
    without.environ["XMLIR_FORCE_USE_XPU_GRAPH"] = "1"
    for stack in (host, without):
        graph = stack.accelerator.CUDAGraph()
        with pytest.raises(RuntimeError, match="712"), stack.accelerator.graph(graph):
            pass


def test_a_graph_that_was_not_captured_is_not_replayed(ready: Stack) -> None:
    graph = ready.accelerator.CUDAGraph()
    with pytest.raises(RuntimeError, match="not captured"):
        graph.replay()
