"""Tokens are drawn row by row: seed, position and parameters decide, batch mates never. Knows no scheduler."""

import math

import pytest
import torch

from anychip import backends
from anychip.engine.request import GREEDY_BELOW, GenerateRequest, SamplingParams
from anychip.engine.sampler import Sampler
from anychip.engine.sequence import Sequence
from anychip.engine.step_plan import Draw, History
from anychip.engine.step_planner import sampling_of
from anychip.graph.replace import Binding
from anychip.plan.memory import SAMPLED_ROWS
from anychip.plan.ops import bind_engine_ops
from anychip_sdk.backend import load_backend
from anychip_sdk.testing import reference_plugin

VOCAB = 64
EOS = 2


@pytest.fixture(scope="module", params=["stub", "cpu"])
def sampler(request):
    """On the references, and on the CPU backend's own kernels."""
    stub = load_backend("stub", reference_plugin("stub"), distribution="test", version="1")
    backend = stub if request.param == "stub" else backends.choose("cpu").backend
    return Bench(Sampler(bind_engine_ops(Binding(backend.ops, torch.float32, {})), torch.device("cpu")))


class Bench:
    """A sampler that meets each sequence anew, as after a retraction."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.number = 0

    def __call__(self, logits, sequences):
        return [token for drawn in self.drawn(logits, sequences) for token in drawn.tokens]

    def drawn(self, logits, sequences):
        draws = [self._draw(one) for one in sequences]
        drawn = self.sampler.take(draws, self.sampler(logits, draws))
        self.sampler.forget([draw.sequence for draw in draws])
        return drawn

    def _draw(self, one):
        self.number += 1
        history = History(one.tokens[: one.prompt_len], one.output_ids)
        return Draw(self.number, one.output_count, sampling_of(one), history)


def sequence(output=(), prompt=(5, 6, 7), **params):
    made = Sequence(GenerateRequest("r", list(prompt), SamplingParams(**params)), eos_token_ids=(EOS,))
    made.tokens += list(output)
    return made


def random_logits(rows, seed=0):
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def test_each_row_is_drawn_as_if_it_were_alone(sampler):
    rows = 2 * SAMPLED_ROWS + 5
    settings = [
        {"temperature": 0.0},
        {"seed": 1},
        {"seed": 1, "top_k": 5},
        {"seed": 2, "top_p": 0.8, "temperature": 0.7},
        {"seed": 3, "min_p": 0.1, "temperature": 1.5},
        {"seed": 4, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 0.0, "logit_bias": ((9, 20.0),)},
        {"seed": 6, "min_tokens": 4},
    ]
    sequences = [sequence(output=(7, 8, row % VOCAB), **settings[row % len(settings)]) for row in range(rows)]
    logits = random_logits(rows)
    together = sampler(logits.clone(), sequences)
    alone = [sampler(logits[row : row + 1].clone(), [one])[0] for row, one in enumerate(sequences)]
    backwards = sampler(logits.flip(0).clone(), sequences[::-1])
    assert together == alone == backwards[::-1]
    assert len(set(together)) > 10


def test_a_row_draws_the_same_in_any_company(sampler):
    one, logits = sequence(seed=7), random_logits(1)
    drawn = set()
    for mates in range(20):
        others = [sequence(seed=100 + mate) for mate in range(mates)]
        batch = torch.cat([random_logits(mates, seed=mates), logits])
        drawn.add(sampler(batch, [*others, one])[-1])
    assert len(drawn) == 1


def test_what_was_sampled_counts_for_the_next_tokens(sampler):
    logits = torch.zeros(2, VOCAB)
    logits[:, 9], logits[:, 8] = 2.0, 1.5
    mates = [sequence(temperature=0.0, frequency_penalty=1.0), sequence(seed=3, top_k=1)]
    found = []
    for step in range(3):
        history = History([5, 6, 7], []) if step == 0 else None
        draws = [Draw(-1, step, sampling_of(mates[0]), history), Draw(-2, step, sampling_of(mates[1]))]
        found.append([one.tokens for one in sampler.sampler.take(draws, sampler.sampler(logits.clone(), draws))])
    assert found == [[(9,), (9,)], [(8,), (9,)], [(9,), (9,)]]
    sampler.sampler.forget([-1, -2])


def test_log_probabilities_are_those_after_bias_and_before_temperature(sampler):
    logits = random_logits(3 + SAMPLED_ROWS)
    settings = [{"temperature": 0.0, "logprobs": 3, "logit_bias": ((9, 20.0),)}, {"seed": 1}, {"logprobs": 0}]
    settings += [{"temperature": 0.7, "seed": row, "logprobs": row % 4} for row in range(SAMPLED_ROWS)]
    drawn = sampler.drawn(logits.clone(), [sequence(**one) for one in settings])
    logits[0, 9] += 20.0
    expected = logits.double().log_softmax(-1)
    for row, (one, asked) in enumerate(zip(drawn, settings, strict=True)):
        if "logprobs" not in asked:
            assert one.logprobs == ()
            continue
        [found] = one.logprobs
        [token] = one.tokens
        assert found.logprob == pytest.approx(expected[row, token].item(), abs=1e-5)
        values, ids = expected[row].topk(asked["logprobs"])
        assert [token for token, _ in found.top] == ids.tolist()
        assert [value for _, value in found.top] == pytest.approx(values.tolist(), abs=1e-5)
    assert drawn[0].tokens == (9,)


def test_more_alternatives_than_there_are_tokens_are_all_of_them(sampler):
    [drawn] = sampler.drawn(torch.zeros(1, VOCAB), [sequence(temperature=0.0, logprobs=VOCAB + 1)])
    assert len(drawn.logprobs[0].top) == VOCAB


def test_wanting_log_probabilities_changes_no_token(sampler):
    logits = random_logits(8)
    plain = sampler(logits.clone(), [sequence(seed=row, temperature=row % 2) for row in range(8)])
    assert plain == sampler(logits.clone(), [sequence(seed=row, temperature=row % 2, logprobs=5) for row in range(8)])


def test_the_draw_depends_on_seed_and_output_position(sampler):
    logits = torch.zeros(1, VOCAB)
    by_seed = {sampler(logits.clone(), [sequence(seed=seed)])[0] for seed in range(40)}
    by_position = {sampler(logits.clone(), [sequence(seed=0, output=[9] * count)])[0] for count in range(40)}
    assert len(by_seed) > 20
    assert len(by_position) > 20


def test_draws_follow_the_distribution(sampler):
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, :3] = torch.tensor([0.5, 0.3, 0.2]).log()
    counts = [0] * VOCAB
    for start in range(0, 2000, 50):
        for token in sampler(logits.repeat(50, 1), [sequence(seed=start + row) for row in range(50)]):
            counts[token] += 1
    assert sum(counts[3:]) == 0
    for token, share in enumerate((0.5, 0.3, 0.2)):
        assert counts[token] / 2000 == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 2000))


@pytest.mark.parametrize("temperature", [0.0, GREEDY_BELOW / 2, GREEDY_BELOW, 1e-4, 1e-3])
def test_a_tiny_temperature_is_greedy(sampler, temperature):
    logits = random_logits(20)
    found = sampler(logits.clone(), [sequence(seed=row, temperature=temperature) for row in range(20)])
    assert found == logits.argmax(dim=-1).tolist()


def test_top_k_1_is_greedy(sampler):
    logits = random_logits(20)
    assert sampler(logits.clone(), [sequence(seed=row, top_k=1) for row in range(20)]) == logits.argmax(-1).tolist()


def test_nothing_below_top_p_or_min_p_is_drawn(sampler):
    logits = random_logits(1)
    probabilities, ids = logits[0].softmax(-1).sort(descending=True)
    nucleus = set(ids[: int((probabilities.cumsum(0) < 0.6).sum()) + 1].tolist())
    likely = set(ids[probabilities >= 0.2 * probabilities[0]].tolist())
    for seed in range(0, 300, 20):
        rows = range(seed, seed + 20)
        assert set(sampler(logits.repeat(20, 1), [sequence(seed=s, top_p=0.6) for s in rows])) <= nucleus
        assert set(sampler(logits.repeat(20, 1), [sequence(seed=s, min_p=0.2) for s in rows])) <= likely


def test_logit_bias_adds_and_adds_up(sampler):
    logits = torch.zeros(1, VOCAB)
    assert sampler(logits.clone(), [sequence(temperature=0.0, logit_bias=((9, 1.0), (8, 0.6), (8, 0.6)))]) == [8]
    assert sampler(logits.clone() - logits, [sequence(temperature=0.0, logit_bias=((0, -1.0),))]) == [1]


def test_the_end_is_banned_until_min_tokens(sampler):
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS], logits[0, 9], logits[0, 3] = 5.0, 4.0, 3.0
    stops = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": (9,)}
    assert sampler(logits.clone(), [sequence(output=[1], **stops)]) == [3]
    assert sampler(logits.clone(), [sequence(output=[1, 1], **stops)]) == [EOS]
    # with ignore_eos the end token is a token like any other
    assert sampler(logits.clone(), [sequence(output=[1], ignore_eos=True, **stops)]) == [EOS]


def test_a_bias_does_not_lift_the_ban(sampler):
    one = sequence(temperature=0.0, min_tokens=1, logit_bias=((EOS, 50.0),))
    assert sampler(torch.zeros(1, VOCAB), [one]) == [0]


def test_repetition_covers_the_prompt_and_presence_only_the_output(sampler):
    logits = torch.zeros(1, VOCAB)
    logits[0, 5], logits[0, 20], logits[0, 21] = 3.0, 2.9, 2.8  # 5 is in the prompt
    assert sampler(logits.clone(), [sequence(temperature=0.0, repetition_penalty=2.0)]) == [20]
    assert sampler(logits.clone(), [sequence(temperature=0.0, presence_penalty=2.0)]) == [5]
    assert sampler(logits.clone(), [sequence(temperature=0.0, presence_penalty=2.0, output=(5, 20))]) == [21]


def test_frequency_counts_occurrences(sampler):
    logits = torch.zeros(1, VOCAB)
    logits[0, 10], logits[0, 11] = 3.0, 2.5
    assert sampler(logits.clone(), [sequence(temperature=0.0, frequency_penalty=0.3, output=(10,))]) == [10]
    assert sampler(logits.clone(), [sequence(temperature=0.0, frequency_penalty=0.3, output=(10, 10))]) == [11]


def test_penalties_of_one_row_leave_the_others(sampler):
    logits = torch.zeros(3, VOCAB)
    logits[:, 5], logits[:, 20] = 3.0, 2.9
    rows = [sequence(temperature=0.0), sequence(temperature=0.0, repetition_penalty=2.0), sequence(temperature=0.0)]
    assert sampler(logits, rows) == [5, 20, 5]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.0}, {"seed": 1}, {"seed": 1, "top_k": 3, "top_p": 0.5, "min_p": 0.1}, {"logprobs": 2}],
)
def test_a_row_without_a_finite_largest_logit_gets_no_token_and_disturbs_no_other(sampler, value, params):
    logits = random_logits(3)
    sequences = [sequence(seed=4), sequence(**params), sequence(temperature=0.0)]
    expected = sampler(logits.clone(), sequences)
    if value == -math.inf:
        logits[1] = value
    else:
        logits[1, 40] = value
    found = sampler.drawn(logits, sequences)
    assert [one.tokens for one in found] == [(expected[0],), (), (expected[2],)]


def test_logits_that_are_banned_one_by_one_are_finite_enough(sampler):
    logits = random_logits(1)
    logits[0, 1:] = -math.inf
    assert sampler(logits, [sequence(seed=1)]) == [0]
