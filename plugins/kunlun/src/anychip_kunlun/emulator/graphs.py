"""Capture of what runs in a block, and its replay on the same buffers. Knows torch's dispatch; knows no vendor op.

During a capture kernels only enter the graph. torch's own ops that write in place do the same; those that return new
tensors also run once, to have tensors to return. Each replay writes into those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
SYNCHRONIZING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")


class Recorder:
    """The steps of a graph."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.written: Sequence[torch.Tensor] = ()  #: by the last step

    def add(self, step: Callable[[], None], written: Sequence[torch.Tensor]) -> None:
        self.steps.append(step)
        self.written = written

    def run(self) -> None:
        for step in self.steps:
            step()


class Capture(TorchDispatchMode):
    """Puts torch's ops into a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.name in SYNCHRONIZING:
            raise RuntimeError(f"{NOT_PERMITTED} [{func}]")
        if func._schema.is_mutable:
            written = _written(func, args, kwargs)
            self._recorder.add(
                lambda: func(*args, **kwargs), [leaf for leaf in tree_leaves(written) if _is_tensor(leaf)]
            )
            return written
        result = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if _is_tensor(leaf)]
        if _is_view(func) and _is_within(outputs, (args, kwargs)):
            return result

        def step() -> None:
            again = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if _is_tensor(leaf)]
            for output, value in zip(outputs, again, strict=True):
                output.copy_(value)

        self._recorder.add(step, outputs)
        return result


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _is_view(func: Any) -> bool:
    """Whether it returns a view, or may: `to` and `reshape` return a copy where there is no view."""
    return any(one.alias_info is not None for one in func._schema.returns)


def _is_within(outputs: Sequence[torch.Tensor], given: Any) -> bool:
    """Whether the outputs lie in the memory of what was given."""
    known = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(given) if _is_tensor(leaf)}
    return all(one.untyped_storage().data_ptr() in known for one in outputs)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an op that writes in place returns: those arguments that it writes."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
    written = [given[name] for name in _written_names(func) if name in given]
    return written[0] if len(func._schema.returns) == 1 else tuple(written) or None


def _written_names(func: Any) -> Iterator[str]:
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield argument.name


class Drained(TorchDispatchMode):
    """Lets torch's ops see what was queued on a side stream: they wait for it, then run at once."""

    def __init__(self, drain: Callable[[], None]) -> None:
        super().__init__()
        self._drain = drain

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._drain()
        return func(*args, **(kwargs or {}))


__all__ = ["Capture", "Drained", "Recorder"]
