"""Which calls of a program have no instruction, and why, before anything is loaded. Knows forms; knows no values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Union

import torch

from anychip_cpu import host, native
from anychip_cpu.kernels import experts, routing
from anychip_cpu.kernels.elementwise import GATES
from anychip_cpu.kernels.rows import HEAD_DIM_MAX
from anychip_cpu.programs.instructions import NO_INSTRUCTION, WRITERS
from anychip_sdk.ops import CATALOGUE, Arg
from anychip_sdk.program import Call, Program, Value, is_own_dtype, view
from anychip_sdk.registry import Facts, Resolution, dtype_name

#: kernels whose work a program does bit for bit; those of other names may read other layouts
KERNELS = ("native", "add", "embedding", "select_rows")
#: products that the step brings the place of
HEADS = ("lm_head", "lm_head_int8")
#: what a router tells experts, of other dtypes than their own
ROUTED = {"ids": torch.int32, "weights": torch.float32}
#: how many rows a value is given to see how it lies in memory: a number that no view names
ROWS = 1_000_003

Forms = Mapping[str, torch.Tensor]  #: a call's values by the schema's names, on the meta device
Form = Callable[[Forms, Facts], Union[str, None]]


def refusals(program: Program) -> tuple[str | None, ...]:
    """For each call None where it has an instruction, else why not."""
    library = native.library()
    if isinstance(library, native.Absent):
        return (f"native kernels are {library}",) * len(program.calls)
    return _Check(program).run()


class _Check:
    """Walks through a program; a refused call ends a piece, and what it made comes to the next as a copy."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._forms: dict[str, torch.Tensor] = {}
        self._states: set[str] = set()  # caches that this piece has written to
        self._logits: set[str] = set()  # that this piece has made
        self._has_head = False
        self._has_tiles = "amx_bf16" in host.instruction_sets()

    def run(self) -> tuple[str | None, ...]:
        self._copied(self._program.inputs)
        reasons = []
        for call in self._program.calls:
            reason = self._view(call) if call.is_view else self._kernel(call)
            if reason is not None:
                self._states.clear()
                self._logits.clear()
                self._has_head = False
                self._copied(call.makes)
            reasons.append(reason)
        return tuple(reasons)

    def _copied(self, names: tuple[str, ...]) -> None:
        """Values that lie in memory of their own."""
        for name in names:
            rows, *sizes = self._program.shapes.get(name, ("",))
            if rows in ("tokens", "logits"):
                shape = (ROWS, *(int(size) for size in sizes))
                self._forms[name] = torch.empty(shape, dtype=self._program.dtypes[name], device="meta")

    def _view(self, call: Call) -> str | None:
        name, *rest = call.reads
        form = self._forms.get(name)
        if rest or form is None or name in self._logits:
            return f"{call.op} looks at {'logits' if name in self._logits else 'what has no rows'}"
        reason = self._dtype(form.dtype)
        if reason is not None:
            return reason
        try:
            found = view(call.op, [form, *call.args[1:]])
        except (RuntimeError, TypeError, IndexError) as error:
            return f"{call.op}: {str(error).splitlines()[0]}"
        parts = found if isinstance(found, (tuple, list)) else (found,)
        if call.op == "item" or len(parts) != len(call.results) or any(part.shape[:1] != (ROWS,) for part in parts):
            return f"{call.op} of the rows themselves"
        self._forms.update((made, part) for made, part in zip(call.results, parts, strict=True) if made is not None)
        return None

    def _kernel(self, call: Call) -> str | None:
        bound, op = call.bound, CATALOGUE[call.op]
        assert bound is not None
        reason = self._dtype(bound.key.dtype) or _of_kernel(call.op, bound)
        given: dict[str, torch.Tensor] = {}
        for arg, value in zip(op.args, call.args, strict=True):
            if not (arg.is_step or arg.is_plain or value is None):
                reason = reason or self._argument(call, arg, value, bound.key.dtype)
                if isinstance(value, Value) and value.name in self._forms:
                    given[arg.name] = self._forms[value.name]
        reason = reason or self._rows(call) or _FORMS[call.op](given, call.facts)
        if reason is None:
            self._made(call)
        return reason

    def _dtype(self, dtype: torch.dtype) -> str | None:
        if dtype not in native.DTYPES:
            return f"{dtype_name(dtype)} has no native kernels"
        if dtype == torch.bfloat16 and self._has_tiles:
            return "prefill rows go to torch on AMX bfloat16"  # which way a row takes must not depend on its mates
        return None

    def _argument(self, call: Call, arg: Arg, value: Any, dtype: torch.dtype) -> str | None:
        """Why an argument can't be read."""
        is_value = isinstance(value, Value)
        if arg.state:
            is_known = not is_value or value.name in self._states
            return None if is_known else "its caches come from a call that is not compiled"
        if is_value != (not arg.weight and (is_own_dtype(arg) or arg.name in ROUTED)):
            return f"its {arg.name} is {'computed' if is_value else 'a constant'}"
        if not is_value:
            return None
        if value.name in self._logits:
            return "it reads logits"
        form = self._forms.get(value.name)
        wanted = ROUTED.get(arg.name, dtype)
        if form is None or form.dtype != wanted:
            return f"its {arg.name} is not {dtype_name(wanted)}"
        rows = "tokens" if call.op == "select_rows" else call.rows
        return None if self._program.shapes[value.name][0] == rows else f"its {arg.name} has other rows than its result"

    def _rows(self, call: Call) -> str | None:
        if call.op == "select_rows":
            return None if call.rows == "logits" else "its result has a row for each token"
        op = CATALOGUE[call.op]
        if op.step_index is not None and call.rows != "tokens":
            return "it works on rows that become logits"
        return "a second product to logits" if call.op in HEADS and self._has_head else None

    def _made(self, call: Call) -> None:
        for name, result in zip(call.results, CATALOGUE[call.op].returns, strict=True):
            if name is not None and result.state:
                self._states.add(name)
            elif name is not None:
                self._copied((name,))
                if call.op in HEADS:
                    self._logits.add(name)
        self._has_head |= call.op in HEADS


def _of_kernel(op: str, bound: Resolution) -> str | None:
    if op not in WRITERS:
        return f"{op} has no instruction: {NO_INSTRUCTION.get(op, 'the library does not know it')}"
    if bound.provider != "cpu" or bound.kernel.name not in KERNELS:
        return f"it runs on {bound.provider}'s kernel {bound.kernel.name}"
    return None if bound.compute_dtype is None else f"it is computed in {dtype_name(bound.compute_dtype)}"


def _whole_rows(given: Forms, facts: Facts) -> str | None:
    are_whole = all(form.dim() == 2 and form.is_contiguous() for form in given.values())
    are_alike = len({form.shape for form in given.values()}) == 1
    return None if are_whole and are_alike else "a norm or sum of heads or of parts of rows"


def _even_rows(given: Forms, facts: Facts) -> str | None:
    are_even = all(form.dim() == 2 and form.stride(1) == 1 for form in given.values())
    are_alike = len({form.shape for form in given.values()}) <= 1
    return None if are_even and are_alike else "rows whose elements lie apart, or of other than two dimensions"


def _mixed(given: Forms, facts: Facts) -> str | None:
    are_lists = all(given[name].dim() == 2 and given[name].is_contiguous() for name in ROUTED)
    return _even_rows({"x": given["x"]}, facts) if are_lists else "ids or weights that are a part of wider ones"


def _heads(given: Forms, facts: Facts) -> str | None:
    are_heads = all(form.dim() == 3 and form.stride(2) == 1 for form in given.values())
    sizes = {form.shape[-1] for form in given.values()}
    if not are_heads or len(sizes) != 1:
        return "heads of unlike size, or whose elements lie apart"
    return None if max(sizes) <= HEAD_DIM_MAX else f"head_dim is above {HEAD_DIM_MAX}"


def _normed(given: Forms, facts: Facts) -> str | None:
    [x] = given.values()
    return _heads(given, facts) if x.dim() == 3 else _whole_rows(given, facts)


def _moved(given: Forms, facts: Facts) -> str | None:
    are_even = all(form.stride(-1) == 1 and form.dim() == (2 if name in "ab" else 3) for name, form in given.items())
    are_whole = are_even and all(form.stride(1) == form.shape[2] for form in given.values() if form.dim() == 3)
    return None if are_whole else "heads that don't lie side by side"


def _written(given: Forms, facts: Facts) -> str | None:
    return _heads(given, facts) or _kept(facts)


def _attended(given: Forms, facts: Facts) -> str | None:
    [q] = given.values()
    return _heads(given, facts) or _kept(facts) or _attention(q.shape[-1])


def _block(given: Forms, facts: Facts) -> str | None:
    return _even_rows(given, facts) or _kept(facts) or _attention(facts.get("head_dim"))


def _kept(facts: Facts) -> str | None:
    """Caches must have the dtype of what is written to them."""
    kept = facts.get("kv_dtype")
    return None if kept in (None, facts.get("dtype", kept)) else f"caches are {kept}, the op {facts['dtype']}"


def _attention(head_dim: object) -> str | None:
    return None if native.is_supported_head_dim(head_dim) else f"no native attention of head_dim {head_dim}"


def _any(given: Forms, facts: Facts) -> str | None:
    return None


#: by the op's name: why values of such a form can't be read
_FORMS: Mapping[str, Form] = {
    "add": _whole_rows,
    "add_rms_norm": _whole_rows,
    "causal_conv_silu": _even_rows,
    "embedding": _any,
    "ffn": _even_rows,
    "gated_delta_rule": _moved,
    "kv_write": _written,
    "linear": _even_rows,
    "linear_int4": _even_rows,
    "linear_int8": _even_rows,
    "lm_head": _even_rows,
    "lm_head_int8": _even_rows,
    "mha": _block,
    **dict.fromkeys(experts.OPS, _mixed),
    "paged_attention": _attended,
    "qk_norm_rope": _heads,
    "rms_norm": _normed,
    "rms_norm_offset": _whole_rows,
    "rope": _heads,
    routing.OP: _even_rows,
    "scale": _even_rows,
    "select_rows": _even_rows,
    **dict.fromkeys(GATES, _even_rows),
}


__all__ = ["refusals"]
