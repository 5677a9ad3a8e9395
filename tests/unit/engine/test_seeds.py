"""Each drawn token has a random number of its own."""

from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.seeds import derive_seed, uniform
from anychip.engine.sequence import Sequence


def sequence(seed: int | None, index: int = 0) -> Sequence:
    return Sequence(GenerateRequest("r", [5, 6], SamplingParams(seed=seed)), index)


def test_numbers_depend_on_seed_and_output_position_only() -> None:
    first, second = sequence(3), sequence(3)
    assert [uniform(first.seed, place) for place in range(3)] == [uniform(second.seed, place) for place in range(3)]
    assert len({uniform(first.seed, place) for place in range(3)}) == 3


def test_each_completion_has_its_own_numbers() -> None:
    assert uniform(sequence(3).seed, 0) != uniform(sequence(3, 1).seed, 0)
    assert derive_seed(1, 1) != derive_seed(2, 0)


def test_unseeded_requests_differ() -> None:
    assert sequence(None).seed != sequence(None).seed


def test_negative_and_huge_seeds_are_fine() -> None:
    for seed in (-1, 0, 2**63, 2**70):
        assert 0 <= uniform(sequence(seed).seed, 0) < 1


def test_numbers_are_uniform() -> None:
    numbers = [uniform(derive_seed(seed, 0), position) for seed in range(50) for position in range(200)]
    assert all(0 <= number < 1 for number in numbers)
    for cell in range(10):
        share = sum(cell / 10 <= number < (cell + 1) / 10 for number in numbers) / len(numbers)
        assert abs(share - 0.1) < 0.015
