"""Cache keys and what ends a text."""

from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.sequence import Sequence, encode


def sequence(index: int = 0, eos: tuple[int, ...] = (2,), **params: object) -> Sequence:
    request = GenerateRequest("r", [5, 6], SamplingParams(**params))  # type: ignore[arg-type]
    return Sequence(request, index, eos_token_ids=eos)


def test_the_key_follows_the_tokens() -> None:
    one = sequence(seed=1)
    assert bytes(one.key()) == encode([5, 6])
    one.tokens.append(1 << 20)
    assert bytes(one.key()) == encode([5, 6, 1 << 20])
    assert one.key_until(1) == encode([5])


def test_nothing_ends_the_text_before_min_tokens() -> None:
    one = sequence(seed=1, min_tokens=1, stop_token_ids=(9,))
    assert not one.ends_with(2)
    one.tokens.append(7)
    assert one.ends_with(2)
    assert one.ends_with(9)
    assert not one.ends_with(7)


def test_ignored_eos_does_not_end_the_text() -> None:
    assert not sequence(seed=1, ignore_eos=True).ends_with(2)
