"""What is added to logits: each id once, made when rows or bans change and not in each step."""

import pytest
import torch

from anychip.engine.biases import Biases
from anychip.engine.step_plan import Draw, Sampling


def draws(settings, step):
    return [Draw(number, step, one) for number, one in enumerate(settings)]


class Counting:
    """Brings tensors to the device, and counts them."""

    def __init__(self):
        self.moved = 0

    def __call__(self, tensor):
        self.moved += 1
        return tensor


def as_dict(entries):
    rows, ids, values = (one.tolist() for one in entries)
    assert len({*zip(rows, ids, strict=True)}) == len(rows)
    return dict(zip(zip(rows, ids, strict=True), values, strict=True))


def test_an_id_named_twice_gets_the_sum_and_a_ban_prevails():
    settings = [
        Sampling(1),
        Sampling(1, logit_bias=((5, 1.0), (3, 2.0), (5, 0.5)), min_tokens=2, banned=(3, 9)),
        Sampling(1, logit_bias=((5, -4.0),)),
    ]
    biases = Biases(settings, lambda tensor: tensor)
    inf = float("inf")
    assert as_dict(biases.entries(draws(settings, 1), 0)) == {(1, 3): -inf, (1, 5): 1.5, (1, 9): -inf, (2, 5): -4.0}
    assert as_dict(biases.entries(draws(settings, 1), 1)) == {(1, 3): 2.0, (1, 5): 1.5, (2, 5): -4.0}
    assert [one.dtype for one in biases.entries(draws(settings, 2), 0)] == [torch.int64, torch.int64, torch.float32]


def test_nothing_is_added_where_nothing_is_asked_for():
    settings = [Sampling(1), Sampling(1, min_tokens=2, banned=(3,)), Sampling(1, min_tokens=7)]
    assert not Biases(settings[:1], lambda tensor: tensor)
    assert Biases(settings, lambda tensor: tensor).entries(draws(settings, 2), 0) is None


@pytest.mark.parametrize("entries", [1, 50_000])
def test_steps_make_no_entries_anew(entries):
    count = Counting()
    settings = [Sampling(1, logit_bias=tuple((token, 1.0) for token in range(entries)), min_tokens=5, banned=(2,))] * 8
    biases = Biases(settings, count)
    first = biases.entries(draws(settings, 0), 0)
    assert all(biases.entries(draws(settings, 0), later) is first for later in range(5))
    assert count.moved == 3
    unbanned = biases.entries(draws(settings, 5), 0)
    assert all(biases.entries(draws(settings, 6), later) is unbanned for later in range(100))
    assert count.moved == 6
