"""Prompts as token ids: exact lengths, seeds, shared prefixes, texts."""

import asyncio

import pytest

from anychip.bench.prompts import make_prompts
from anychip.bench.workload import load, read
from anychip_sdk.errors import PreconditionFailed

VOCAB = 50_000


async def by_byte(text):
    return list(text.encode())


async def by_nothing(text):
    return []


def make(workload, count=4, seed="s", vocab=VOCAB, tokenize=by_byte):
    return asyncio.run(make_prompts(workload, count, seed, vocab, tokenize))


def workload(prompt, output="4"):
    return read(f"version: 1\nname: w\nprompt: {prompt}\noutput_tokens: {output}\n", "w.yaml")


def test_random_prompts_have_exact_lengths_and_ids_of_the_vocabulary():
    prompts = make(load("w2"), 16)
    assert {len(prompt.ids) for prompt in prompts} == {256}
    assert {prompt.output_tokens for prompt in prompts} == {64}
    ids = {token for prompt in prompts for token in prompt.ids}
    assert min(ids) >= 1000
    assert max(ids) < 40_000


def test_a_small_vocabulary_is_used_whole():
    ids = {token for prompt in make(load("w2"), 16, vocab=300) for token in prompt.ids}
    assert ids == set(range(300))


def test_the_same_seed_gives_the_same_prompts_and_another_one_others():
    assert make(load("chat"), seed="a") == make(load("chat"), seed="a")
    first, second = make(load("w2"), seed="a"), make(load("w2"), seed="b")
    assert all(one.ids[:16] != other.ids[:16] for one, other in zip(first, second, strict=True))


def test_prompts_of_a_run_share_the_prefix_and_nothing_after_it():
    prompts = make(load("w3"), 16)
    assert {len(prompt.ids) for prompt in prompts} == {1088}
    assert len({prompt.ids[:1024] for prompt in prompts}) == 1
    assert len({prompt.ids[1024:] for prompt in prompts}) == 16
    assert make(load("w3"), seed="other")[0].ids[:1024] != prompts[0].ids[:1024]


def test_lengths_of_a_range_differ():
    prompts = make(workload("{own_tokens: {min: 2, max: 9}}", "{min: 1, max: 5}"), 64)
    assert {len(prompt.ids) for prompt in prompts} == set(range(2, 10))
    assert {prompt.output_tokens for prompt in prompts} == set(range(1, 6))


def test_a_text_is_filled_in_and_ends_with_its_tail():
    texts = "{head: 'Read. ', sentences: ['{a} is here. '], tail: 'Where is {a}?', values: {a: [Ann]}}"
    (prompt,) = make(workload(f"{{own_tokens: 40, texts: {texts}}}"), 1)
    said = bytes(prompt.ids).decode()
    assert len(said) == 40
    assert said.startswith("Read. Ann is here. ")
    assert said.endswith("Where is Ann?")


def test_a_tail_longer_than_the_prompt_is_all_of_it():
    (prompt,) = make(workload("{own_tokens: 3, texts: {sentences: [a], tail: abcdef}}"), 1)
    assert bytes(prompt.ids) == b"def"


def test_the_chinese_workload_is_chinese_and_no_two_prompts_are_alike():
    prompts = make(load("zh-qa"), 4)
    assert len({prompt.ids for prompt in prompts}) == 4
    for prompt in prompts:
        text = bytes(prompt.ids).decode(errors="ignore")
        assert len(prompt.ids) == 800
        assert text.startswith("请阅读下面的资料")
        assert text.endswith("回答：")


def test_a_tokenizer_that_brings_too_little_is_an_error():
    with pytest.raises(PreconditionFailed, match="0 tokens; 800 are wanted"):
        make(load("zh-qa"), 1, tokenize=by_nothing)
