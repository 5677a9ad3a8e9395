"""Sampling: filters by hand, frequencies against probabilities, penalties by hand. Knows no kernel."""

import pytest
import torch

from anychip_sdk.ops import apply_logit_bias, apply_penalties, argmax, sample

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def draw(probabilities, uniform, **settings):
    """Sample one row of given probabilities at each of the uniform numbers."""
    chosen = {**OFF, **settings}
    rows = len(uniform)
    logits = torch.tensor(probabilities, dtype=torch.float64).log().float().expand(rows, -1)
    return sample(
        logits,
        torch.full((rows,), chosen["temperature"]),
        torch.full((rows,), chosen["top_k"]),
        torch.full((rows,), chosen["top_p"]),
        torch.full((rows,), chosen["min_p"]),
        torch.tensor(uniform, dtype=torch.float64),
    ).tolist()


def reachable(probabilities, **settings):
    """All tokens that a fine grid of uniform numbers draws."""
    return set(draw(probabilities, [i / 1000 for i in range(1000)], **settings))


def test_tokens_are_drawn_in_order_of_falling_probability():
    assert draw([0.1, 0.6, 0.3], [0.0, 0.59, 0.61, 0.89, 0.91, 0.999]) == [1, 1, 2, 2, 0, 0]


def test_the_lower_id_comes_first_among_equals():
    assert draw([0.25, 0.25, 0.25, 0.25], [0.1, 0.3, 0.6, 0.8]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 0.4}, {0}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.85}, {0, 1, 2}),
        ({"top_p": 0.0001}, {0}),
        ({"min_p": 0.5}, {0, 1}),
        ({"min_p": 0.15}, {0, 1, 2}),
        ({"top_k": 2, "top_p": 0.63}, {0, 1}),
        ({"top_k": 3, "min_p": 0.5}, {0, 1}),
        # top-p counts what top-k left: 0.5 / 0.8 = 0.625
        ({"top_k": 2, "top_p": 0.62}, {0}),
    ],
)
def test_filters_keep_what_a_hand_table_says(settings, expected):
    assert reachable([0.5, 0.3, 0.15, 0.05], **settings) == expected


def test_frequencies_follow_the_filtered_probabilities():
    probabilities = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05], dtype=torch.float64)
    count = 20_000
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    drawn = torch.tensor(draw(probabilities.tolist(), uniform.tolist(), temperature=2.0, top_k=4))
    expected = probabilities.sqrt()[:4]
    expected = expected / expected.sum() * count
    seen = torch.bincount(drawn, minlength=5).double()
    assert seen[4] == 0
    chi_square = ((seen[:4] - expected) ** 2 / expected).sum()
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


def test_a_tiny_temperature_is_greedy():
    logits = torch.randn(16, 50, generator=torch.Generator().manual_seed(0))
    rows = len(logits)
    uniform = torch.linspace(0, 0.999, rows, dtype=torch.float64)
    tokens = sample(
        logits, torch.full((rows,), 1e-5), torch.zeros(rows).long(), torch.ones(rows), torch.zeros(rows), uniform
    )
    assert torch.equal(tokens, argmax(logits))


def test_the_largest_uniform_number_draws_the_last_kept_token():
    assert draw([0.5, 0.3, 0.2], [1 - 2**-53], top_k=2) == [1]


def test_a_row_does_not_depend_on_its_mates():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(8, 40, generator=generator)
    temperature, top_p, min_p = torch.rand(3, 8, generator=generator)
    settings = (temperature + 0.3, torch.arange(8), top_p, min_p / 4)
    uniform = torch.rand(8, generator=generator, dtype=torch.float64)
    together = sample(logits, *settings, uniform)
    for row in range(8):
        alone = sample(*(x[row : row + 1] for x in (logits, *settings, uniform)))
        assert alone.item() == together[row].item()


def test_a_banned_token_is_never_drawn():
    logits = torch.zeros(1, 4)
    apply_logit_bias(logits, torch.tensor([0]), torch.tensor([2]), torch.tensor([-torch.inf]))
    for uniform in (0.0, 0.3, 0.5, 0.7, 0.999):
        row = [torch.tensor([value]) for value in (1.0, 0, 1.0, 0.0)]
        assert sample(logits, *row, torch.tensor([uniform], dtype=torch.float64)).item() != 2


def test_argmax_takes_the_lowest_id_among_equals():
    assert argmax(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])).tolist() == [1, 0]


def test_penalties_by_hand():
    logits = torch.tensor([[1.0, -1.0, 2.0, 0.5], [9.0, 9.0, 9.0, 9.0]])
    returned = apply_penalties(
        logits,
        torch.tensor([0]),
        torch.tensor([[0, 1, -1]]),
        torch.tensor([[2, 2, -1]]),
        torch.tensor([2.0]),
        torch.tensor([0.25]),
        torch.tensor([0.1]),
    )
    assert returned is logits
    # 0 and 1 stand in the prompt: repetition only; 2 was written twice: 2/2 - 0.25 - 2 * 0.1
    torch.testing.assert_close(logits[0], torch.tensor([0.5, -2.0, 0.55, 0.5]))
    assert logits[1].tolist() == [9.0] * 4


def test_neutral_penalties_change_nothing():
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    one, zero = torch.ones(2), torch.zeros(2)
    apply_penalties(logits, torch.tensor([0, 1]), torch.tensor([[3], [4]]), torch.tensor([[5], [6]]), one, zero, zero)
    assert torch.equal(logits, before)


def test_logit_bias_by_hand():
    logits = torch.zeros(2, 3)
    apply_logit_bias(logits, torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1]), torch.tensor([1.5, -2.0, 4.0]))
    assert logits.tolist() == [[0.0, 0.0, 1.5], [-2.0, 4.0, 0.0]]
