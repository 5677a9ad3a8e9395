"""Workloads as files: what is shipped, and what is said of a wrong one."""

import random

import pytest

from anychip.bench import workload as workloads
from anychip.bench.workload import Range, WorkloadInvalid, load, read
from anychip_sdk.errors import UsageError

GOOD = "version: 1\nname: mine\nprompt: {own_tokens: 8}\noutput_tokens: 4\n"


@pytest.mark.parametrize("name", workloads.shipped())
def test_a_shipped_workload_is_valid_and_has_its_files_name(name):
    found = load(name)
    assert found.name == name
    assert found.description


def test_what_is_promised_is_shipped():
    assert {"chat", "long-prefill", "shared-prefix", "zh-qa", "w1", "w2", "w3"} <= set(workloads.shipped())


def exactly(tokens):
    return Range(min=tokens, max=tokens)


def test_the_fixed_workloads_have_the_lengths_that_they_are_known_by():
    w1, w2, w3, chinese = map(load, ("w1", "w2", "w3", "zh-qa"))
    assert (w1.prompt.own_tokens, w1.output_tokens, w1.concurrency) == (exactly(512), exactly(64), (1,))
    assert (w2.prompt.own_tokens, w2.output_tokens) == (exactly(256), exactly(64))
    assert (w3.prompt.shared_tokens, w3.prompt.own_tokens, w3.output_tokens) == (1024, exactly(64), exactly(32))
    assert (w1.requests_at(1), w2.requests_at(16), w3.requests_at(4)) == (1, 16, 16)
    assert (chinese.prompt.own_tokens, chinese.output_tokens) == (exactly(800), exactly(512))


def test_a_file_of_ones_own_is_read(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD, encoding="utf-8")
    assert load(str(path)).name == "mine"
    path = tmp_path / "mine.json"
    path.write_text('{"version": 1, "name": "j", "prompt": {"own_tokens": 8}, "output_tokens": 4}', encoding="utf-8")
    assert load(str(path)).output_tokens == exactly(4)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "w.yaml:1:1  found nothing, expected a mapping of version, name"),
        ("- 1", "found a list, expected a mapping"),
        (GOOD + "colour: 3", "w.yaml:5:1  colour: unknown key, expected one of version"),
        (GOOD + "concurency: [1]", "concurency: unknown key. Did you mean concurrency?"),
        (GOOD.replace("own_tokens", "own-tokens"), "prompt.own-tokens: unknown key. Did you mean own_tokens?"),
        (GOOD.replace("own_tokens", "own-tokens"), "w.yaml:3:9  prompt.own_tokens: missing"),
        (GOOD.replace("8", "0"), "w.yaml:3:22  prompt.own_tokens: found 0: input should be greater than"),
        (GOOD.replace("8", "{min: 9, max: 3}"), "prompt.own_tokens: min 9 is more than max 3"),
        (GOOD.replace("8", "{min: 9, most: 3}"), "prompt.own_tokens.most: unknown key, expected one of min, max"),
        (GOOD.replace("8", "long"), "w.yaml:3:22  prompt.own_tokens: expected a number of tokens, or a range"),
        (GOOD + "concurrency: [1, two]", "concurrency[1]: found text 'two': input should be a valid integer"),
        (GOOD + "concurrency: []", "concurrency: found a list:"),
        (GOOD.replace("{own", "{texts: {sentences: ['{x}']}, own"), "a sentence holds {x}, which values doesn't have"),
        (GOOD.replace("{own", "{texts: {sentences: ['{x']}, own"), "prompt.texts: a sentence or a list of values"),
        (GOOD + "name: again", "duplicate key"),
        ("version: [", "not valid YAML"),
    ],
)
def test_a_wrong_file_is_told_with_its_place(text, problem):
    with pytest.raises(WorkloadInvalid) as failure:
        read(text, "w.yaml")
    assert problem in str(failure.value)
    assert failure.value.exit_code == 3


def test_all_problems_are_told_at_once():
    with pytest.raises(WorkloadInvalid) as failure:
        read("version: 2\nprompt: {}\noutput_tokens: -1\nseed: 4\n", "w.yaml")
    said = "\n".join(failure.value.problems)
    assert [word for word in ("version", "name", "own_tokens", "output_tokens", "seed") if word not in said] == []


def test_an_unknown_name_tells_the_nearest_and_how_to_name_a_file():
    with pytest.raises(UsageError, match=r"no workload 'chatt'; shipped: chat.*Did you mean chat\?"):
        load("chatt")
    with pytest.raises(UsageError, match="cannot be read"):
        load("./nowhere.yaml")


def test_a_length_is_drawn_from_both_ends_of_its_range():
    numbers = random.Random(0)
    assert {Range(min=2, max=4).draw(numbers) for _ in range(100)} == {2, 3, 4}
    assert exactly(7).draw(numbers) == 7


def test_the_digest_is_of_what_is_sent():
    mine = read(GOOD, "w")
    assert read(GOOD.replace("mine", "yours"), "w").digest == mine.digest
    assert read(GOOD.replace("8", "9"), "w").digest != mine.digest


def test_the_longest_request_counts_prefix_prompt_and_output():
    text = GOOD.replace("own_tokens: 8", "shared_tokens: 100, own_tokens: {min: 1, max: 20}")
    assert read(text, "w").tokens_max == 100 + 20 + 4
