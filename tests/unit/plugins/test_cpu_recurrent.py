"""Native ops on states in slots: error models, equal bits in chunks and company, bounds; each instruction set."""

from dataclasses import replace

import pytest
import torch

from anychip_cpu import native
from anychip_cpu.kernels.recurrent import Recurrent
from anychip_sdk import CATALOGUE
from anychip_sdk.step import Slots
from anychip_sdk.testing import check_kernel, chunk_step, random_case

LIBRARY = native.load()
BUILT = pytest.mark.skipif(isinstance(LIBRARY, native.Absent), reason=f"native kernels: {LIBRARY}")
STATES = Recurrent(None if isinstance(LIBRARY, native.Absent) else LIBRARY)
KERNELS = {"causal_conv_silu": STATES.causal_conv_silu, "gated_delta_rule": STATES.gated_delta_rule}
SETS = ["portable", "avx2", "avx512"]
#: tails of every vector's width, whole vectors, several blocks of channels and of tokens
SIZES = [
    {"channels": 1, "taps": 1, "key_dim": 3, "value_dim": 1, "key_heads": 1, "value_heads": 1},
    {"channels": 300, "taps": 3, "key_dim": 33, "value_dim": 21, "value_heads": 6},
    {"channels": 256, "taps": 4, "key_dim": 128, "value_dim": 128, "context_max": 12},
    {"channels": 17, "taps": 15, "key_dim": 64, "value_dim": 80, "context_max": 100},
]
WIDTH = {"channels": 300, "key_dim": 32, "value_dim": 149}  # columns of each kind of block, and a rest


def tokens_of(name):
    """How many of an op's arguments have a row for each token."""
    return 1 if name == "causal_conv_silu" else 5


def in_chunks(name, args, lengths):
    """The results of one sequence's tokens in chunks of these lengths, and the state behind them."""
    names = [arg.name for arg in CATALOGUE[name].args]
    state, step = (names.index(one) for one in (CATALOGUE[name].states[0], "step"))
    given, outs, start = list(args), [], 0
    kept = given[state] = torch.zeros_like(args[state])
    for length in lengths:
        chunk = chunk_step([0] * sum(lengths), start, length, [0], 1000, groups=0)
        given[step] = replace(chunk, groups=(Slots(torch.tensor([2])),))
        for i in range(tokens_of(name)):
            given[i] = args[i][start : start + length]
        outs.append(KERNELS[name](*given)[0])
        start += length
    return torch.cat(outs), kept


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("dtype", list(native.DTYPES))
@pytest.mark.parametrize("op", list(KERNELS))
def test_states_are_within_the_error_model(instruction_set, op, dtype):
    for seed, sizes in enumerate(SIZES):
        args = random_case(op, dtype, seed, strided=seed % 2 == 1, bias=seed % 3 != 0, **sizes)
        found = check_kernel(CATALOGUE[op], KERNELS[op], args, dtype)
        assert found.passed, (sizes, found)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("dtype", list(native.DTYPES))
@pytest.mark.parametrize("op", list(KERNELS))
def test_a_text_has_the_same_bits_in_chunks_of_any_length(instruction_set, op, dtype):
    args = random_case(op, dtype, 0, decode_rows=0, prefill_rows=1, context_min=40, context_max=40, **WIDTH)
    count = len(args[0])
    whole, kept = in_chunks(op, args, [count])
    for lengths in ([1] * count, [2, 1, count - 3], [count // 2, count - count // 2]):
        got, state = in_chunks(op, args, lengths)
        assert torch.equal(got, whole)
        assert torch.equal(state[2], kept[2])


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("op", list(KERNELS))
def test_states_have_the_same_bits_for_any_number_of_threads(instruction_set, op):
    def run():
        args = random_case(op, torch.float32, 1, channels=2000, key_dim=128, value_dim=128, value_heads=8)
        return KERNELS[op](*args)

    alone = run()
    torch.set_num_threads(2)
    try:
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(run(), alone, strict=True))
    finally:
        torch.set_num_threads(1)


@BUILT
@pytest.mark.parametrize("op", list(KERNELS))
@pytest.mark.parametrize("slot", [-1, 9])
def test_a_slot_out_of_range_is_refused_before_anything_is_written(op, slot):
    args = list(random_case(op, torch.float32, 0))
    names = [arg.name for arg in CATALOGUE[op].args]
    state, step = (args[names.index(one)] for one in (CATALOGUE[op].states[0], "step"))
    slots = step.slotted(0).slots.clone()
    slots[-1] = slot
    args[names.index("step")] = replace(step, groups=(Slots(slots),))
    before = state.clone()
    with pytest.raises(IndexError, match="a slot is not below 9"):
        KERNELS[op](*args)
    assert torch.equal(state.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("op", list(KERNELS))
def test_what_the_library_can_t_read_is_left_to_the_reference(op):
    """float64, a state in another order, and no library at all."""
    for dtype in (torch.float64, torch.float32):
        args = list(random_case(op, dtype, 0))
        at = [arg.name for arg in CATALOGUE[op].args].index(CATALOGUE[op].states[0])
        if dtype == torch.float32:
            args[at] = args[at].transpose(-1, -2).contiguous().transpose(-1, -2)
        assert check_kernel(CATALOGUE[op], KERNELS[op], args, dtype).passed
        assert check_kernel(CATALOGUE[op], getattr(Recurrent(None), op), args, dtype).passed
