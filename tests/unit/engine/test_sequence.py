"""Seeds, random numbers, cache keys and what ends a text."""

from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.sequence import Sequence, derive_seed, encode, uniform


def sequence(index: int = 0, eos: tuple[int, ...] = (2,), **params: object) -> Sequence:
    request = GenerateRequest("r", [5, 6], SamplingParams(**params))  # type: ignore[arg-type]
    return Sequence(request, index, eos_token_ids=eos)


def test_numbers_depend_on_seed_and_output_position_only() -> None:
    first, second = sequence(seed=3), sequence(seed=3)
    for _ in range(3):
        first.uniform()  # asking changes nothing
    assert first.uniform() == second.uniform()
    before = first.uniform()
    first.tokens.append(9)
    assert first.uniform() != before
    second.tokens.append(1)  # another token, the same position
    assert first.uniform() == second.uniform()


def test_each_completion_has_its_own_numbers() -> None:
    assert sequence(0, seed=3).uniform() != sequence(1, seed=3).uniform()
    assert derive_seed(1, 1) != derive_seed(2, 0)


def test_unseeded_requests_differ() -> None:
    assert sequence().seed != sequence().seed


def test_negative_and_huge_seeds_are_fine() -> None:
    for seed in (-1, 0, 2**63, 2**70):
        assert 0 <= sequence(seed=seed).uniform() < 1


def test_numbers_are_uniform() -> None:
    numbers = [uniform(derive_seed(seed, 0), position) for seed in range(50) for position in range(200)]
    assert all(0 <= number < 1 for number in numbers)
    for cell in range(10):
        share = sum(cell / 10 <= number < (cell + 1) / 10 for number in numbers) / len(numbers)
        assert abs(share - 0.1) < 0.015


def test_the_key_follows_the_tokens() -> None:
    one = sequence(seed=1)
    assert bytes(one.key()) == encode([5, 6])
    one.tokens.append(1 << 20)
    assert bytes(one.key()) == encode([5, 6, 1 << 20])
    assert one.key_until(1) == encode([5])


def test_nothing_ends_the_text_before_min_tokens() -> None:
    one = sequence(seed=1, min_tokens=1, stop_token_ids=(9,))
    assert set(one.banned_ids()) == {2, 9}
    assert not one.ends_with(2)
    one.tokens.append(7)
    assert one.banned_ids() == ()
    assert one.ends_with(2)
    assert one.ends_with(9)
    assert not one.ends_with(7)


def test_ignored_eos_neither_ends_nor_is_banned() -> None:
    one = sequence(seed=1, min_tokens=3, ignore_eos=True, stop_token_ids=(9,))
    assert one.banned_ids() == (9,)
    assert not sequence(seed=1, ignore_eos=True).ends_with(2)
