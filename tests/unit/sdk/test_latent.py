"""Latent attention is attention over the keys and values that its matrices make, in either form."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from anychip_sdk.ops import latent_attention, latent_write
from anychip_sdk.step import Paged
from anychip_sdk.testing.cases import random_case, random_step

F64 = torch.float64


def made(heads=3, rank=6, rope=4, nope=5, value=7, page_size=3):
    generator = torch.Generator().manual_seed(rank)
    pairs = [(1, 9), (1, 1), (12, 12), (5, 20)]
    step = random_step(generator, page_size, 64, [context for _, context in pairs[:2]], pairs[2:])

    def floats(*shape):
        return torch.randn(shape, generator=generator, dtype=F64)

    queries = floats(step.tokens, heads, nope), floats(step.tokens, heads, rope)
    cache = torch.full((64, page_size, rank + rope), torch.nan, dtype=F64)
    kept = []
    for row, (_, context) in enumerate(pairs):
        entries, at = floats(context, rank + rope), torch.arange(context)
        slots = step.paged(0).page_table[row].long()[at // page_size] * page_size + at % page_size
        own = replace(step, groups=(Paged(step.paged(0).page_table, slots),))
        latent_write(entries[:, :rank], entries[:, rank:], cache, own, 0)
        kept.append(entries)
    weights = floats(heads * nope, rank), floats(heads * value, rank)
    return (*queries, cache, step, *weights, 0.3, 4, 0), kept


def by_row(step, x):
    return x.split(list(step.query_lens_host))


def test_latent_attention_equals_attention_with_keys_and_values_of_each_head():
    args, kept = made()
    q_nope, q_rope, _, step, key_weight, value_weight, scale, *_ = args
    expected = []
    for nope, rope, entries in zip(by_row(step, q_nope), by_row(step, q_rope), kept, strict=True):
        latents, rotated = entries[:, :6], entries[:, 6:]
        keys = (latents @ key_weight.T).view(-1, 3, 5)
        k = torch.cat((keys, rotated.unsqueeze(1).expand(-1, 3, -1)), dim=-1)
        v = (latents @ value_weight.T).view(-1, 3, 7)
        at = torch.arange(len(entries))
        seen = at <= at[len(entries) - len(nope) :].unsqueeze(1)
        q, k, v = (x.transpose(0, 1) for x in (torch.cat((nope, rope), dim=-1), k, v))
        expected.append(scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale).transpose(0, 1).flatten(1))
    torch.testing.assert_close(latent_attention(*args), torch.cat(expected))


def test_the_absorbed_form_equals_latent_attention():
    args, kept = made()
    q_nope, q_rope, _, step, key_weight, value_weight, scale, *_ = args
    expected = []
    for nope, rope, entries in zip(by_row(step, q_nope), by_row(step, q_rope), kept, strict=True):
        q = torch.cat((torch.einsum("qhn,hnr->qhr", nope, key_weight.view(3, 5, 6)), rope), dim=-1)
        scores = torch.einsum("qhe,ke->hqk", q, entries) * scale
        at = torch.arange(len(entries))
        hidden = at > at[len(entries) - len(nope) :].unsqueeze(1)
        mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ entries[:, :6]
        expected.append(torch.einsum("hqr,hvr->qhv", mixed, value_weight.view(3, 7, 6)).flatten(1))
    torch.testing.assert_close(latent_attention(*args), torch.cat(expected))


def test_the_last_tokens_of_a_prompt_get_what_they_get_in_a_whole_one():
    generator = torch.Generator().manual_seed(0)
    whole = random_step(generator, 4, 32, [], [(30, 30)])
    q_nope, q_rope, cache, _, *rest = random_case("latent_attention", F64, 0, page_size=4, pages=32)
    q_nope, q_rope = (torch.randn(30, *one.shape[1:], generator=generator, dtype=F64) for one in (q_nope, q_rope))
    cache = cache.nan_to_num(1.0)
    expected = latent_attention(q_nope, q_rope, cache, whole, *rest)
    for cut in (1, 7, 29):
        part = replace(
            whole,
            query_start=torch.tensor([0, 30 - cut], dtype=torch.int32),
            query_lens_host=(30 - cut,),
            positions=whole.positions[cut:],
        )
        found = latent_attention(q_nope[cut:], q_rope[cut:], cache, part, *rest)
        torch.testing.assert_close(found, expected[cut:])


@pytest.mark.parametrize("strided", [False, True])
def test_latent_write_fills_the_slots_and_nothing_else(strided):
    latent, rotated, cache, step, group = random_case("latent_write", F64, seed=1, strided=strided)
    before, slots = cache.clone(), step.paged(0).slots
    assert latent_write(latent, rotated, cache, step, group) is cache
    flat = cache.view(-1, cache.shape[-1])
    assert torch.equal(flat[slots], torch.cat((latent, rotated), dim=-1))
    flat[slots] = before.view(-1, cache.shape[-1])[slots]
    assert torch.equal(cache, before)
