"""The end-to-end track passes right backends and fails each wrong one by the requirement's name. Knows wrong parts."""

from dataclasses import replace

import pytest
import torch

from anychip import backends
from anychip.engine.scheduler import Scheduler
from anychip_sdk.backend import load_backend
from anychip_sdk.conformance.requirements import REQUIREMENTS
from anychip_sdk.hooks import hookimpl
from anychip_sdk.kv import SlabKVPool
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.step import Paged
from support.plans import StubPlugin, references
from support.platform_checks import ALL_FUSIONS, claims, failures, run

TRACK = [key for key, rule in REQUIREMENTS.items() if rule.track == "e2e"]
SPLIT = ("mha", "ffn")  #: left out where a test breaks attention itself


class Plugin(StubPlugin):
    def __init__(self, pool=SlabKVPool, **options):
        super().__init__(capacity=1 << 30, **options)
        self.pool = pool

    @hookimpl
    def anychip_create_kv_pool(self, spec, device):
        return self.pool(spec, device)


def stub(pool=SlabKVPool, without=SPLIT, **kernels):
    plugin = Plugin(pool, kernels={**references(*without), **kernels})
    return load_backend("stub", plugin, distribution="anychip-stub", version="0.1.0")


def reference(name):
    return CATALOGUE[name].reference


def attention(change):
    """paged_attention over another page table."""

    def kernel(q, k_cache, v_cache, step, scale, window, group, *rest):
        entry = step.paged(group)
        changed = replace(step, groups=(Paged(change(step, entry.page_table), entry.slots),))
        return reference("paged_attention")(q, k_cache, v_cache, changed, scale, window, group, *rest)

    return kernel


def failing(backend, tmp_path, *keys, **capabilities):
    said = claims(backend, fusions=ALL_FUSIONS, deterministic=True, **capabilities)
    found = {key: failures(key, backend, said, tmp_path) for key in keys or TRACK}
    return {key: problems for key, problems in found.items() if problems}


# --- right backends ---


def test_the_cpu_backend_passes(tmp_path):
    backend = backends.load("cpu")
    said = claims(backend, fusions=ALL_FUSIONS, deterministic=True)
    results = [(key, *one) for key in TRACK for one in run(key, backend, said, tmp_path)]
    assert [(key, name, problem) for key, name, problem, _ in results if problem] == []
    judged = [context.measured for key, *_, context in results if "steps" in context.measured]
    assert len(judged) > 15
    # tokens that rounding might decide test nothing
    assert all(one["steps_decided"] > 0.95 * one["steps"] for one in judged)
    assert not any(context.fallbacks for *_, context in results)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_cpu_backend_passes_in_half_precision(tmp_path, dtype):
    backend = backends.load("cpu")
    for key in ("AC-E2E-001", "AC-E2E-002"):
        [(_, problem, context)] = run(key, backend, claims(backend, (dtype,)), tmp_path)
        assert problem == ""
    # rounding leaves about half of the steps undecided on a model this small
    assert context.measured["steps_decided"] > context.measured["steps"] / 3


def test_the_references_pass(tmp_path):
    assert failing(stub(), tmp_path, "AC-E2E-001", "AC-E2E-003", "AC-E2E-004", "AC-E2E-010") == {}


def test_nothing_is_asked_of_a_backend_that_claims_no_serving(tmp_path):
    backend = stub(rms_norm=lambda x, weight, eps: x)
    assert failing(backend, tmp_path, serving=False) == {}


# --- wrong ones: each names the requirement that must find it ---


def test_a_wrong_layer(tmp_path):
    found = failing(stub(rms_norm=lambda x, weight, eps: reference("rms_norm")(x, weight, 0.0)), tmp_path, "AC-E2E-001")
    assert "a logit is off by" in found["AC-E2E-001"]["float32"]


def test_attention_that_reads_its_neighbours_pages(tmp_path):
    def neighbours(step, table):
        if step.rows > 1:
            table = table.clone()
            table[-1] = table[0]
        return table

    backend = stub(paged_attention=attention(neighbours))
    assert set(failing(backend, tmp_path, "AC-E2E-001", "AC-E2E-002")) == {"AC-E2E-002"}


def test_attention_that_forgets_earlier_chunks(tmp_path):
    def own_chunk_alone(q, k_cache, v_cache, step, *rest):
        out = reference("paged_attention")(q, k_cache, v_cache, step, *rest)
        start = 0
        for length, context in zip(step.query_lens_host, step.context_lens_host, strict=True):
            if 1 < length < context:
                out[start : start + length] *= 0.9
            start += length
        return out

    found = failing(stub(paged_attention=own_chunk_alone), tmp_path, "AC-E2E-003", "AC-E2E-004")
    assert set(found["AC-E2E-003"]) == {"7-float32", "16-float32"}
    assert "AC-E2E-004" in found


def test_a_pool_that_wipes_pages_that_are_still_shared(tmp_path):
    class Wiping(SlabKVPool):
        def free(self, pages):
            for slab in self._paged:
                slab[:, list(pages)] = 0
            super().free(pages)

    found = failing(stub(Wiping), tmp_path, "AC-E2E-002", "AC-E2E-004", "AC-E2E-006")
    assert set(found) == {"AC-E2E-004", "AC-E2E-006"}
    assert set(found["AC-E2E-004"]) == {"on-float32"}
    assert set(found["AC-E2E-006"]) == {"cached-float32"}


def test_a_pool_that_gives_a_page_twice(tmp_path):
    class Twice(SlabKVPool):
        def alloc(self, count):
            return [page - page % 2 if page > 4 else page for page in super().alloc(count)]

        def free(self, pages):
            held = [page if self.refcount(page) else page + 1 for page in pages]
            super().free([one for one in dict.fromkeys(held) if self.refcount(one)])

    assert "AC-E2E-002" in failing(stub(Twice), tmp_path, "AC-E2E-002")


def test_a_kernel_that_is_wrong_in_large_batches(tmp_path):
    def linear(x, weight, bias):
        out = reference("linear")(x, weight, bias)
        return out if len(x) == 1 or len(x) % 5 else torch.cat((out[:-1], out[:1]))

    found = failing(stub(linear=linear), tmp_path, "AC-E2E-005")
    assert "staggered-float32" in found["AC-E2E-005"]


@pytest.mark.parametrize("op", ["ffn", "silu_mul"])
def test_a_wrong_fused_kernel_that_verification_is_kept_from(tmp_path, op):
    wrong = {
        "ffn": lambda x, wgu, bgu, wd, bd: reference("ffn")(x, wgu.roll(1, 0), bgu, wd, bd),
        "silu_mul": lambda gate, up: reference("silu_mul")(up, gate),
    }
    backend = stub(without=() if op == "ffn" else SPLIT, **{op: wrong[op]})
    assert set(failing(backend, tmp_path, "AC-E2E-007")["AC-E2E-007"]) == {"all-float32"}


def test_a_kernel_that_is_wrong_for_pages_of_one_token(tmp_path):
    def shifted(step, table):
        return table if step.page_size > 1 else table.roll(1, 1)

    found = failing(stub(paged_attention=attention(shifted)), tmp_path, "AC-E2E-002", "AC-E2E-008")
    assert {key: set(cases) for key, cases in found.items()} == {"AC-E2E-008": {"1-float32"}}


def test_a_page_copy_that_copies_no_values(tmp_path):
    class KeysAlone(SlabKVPool):
        def copy_pages(self, src, dst):
            self._paged[0][:, list(dst)] = self._paged[0][:, list(src)]

    found = failing(stub(KeysAlone), tmp_path, "AC-E2E-002", "AC-E2E-009")
    assert {key: set(cases) for key, cases in found.items()} == {"AC-E2E-009": {"16-float32"}}


def test_a_bias_on_the_wrong_row(tmp_path):
    def bias_on_the_first_row(logits, rows, ids, values):
        return reference("apply_logit_bias")(logits, torch.zeros_like(rows), ids, values)

    found = failing(stub(apply_logit_bias=bias_on_the_first_row), tmp_path, "AC-E2E-002", "AC-E2E-010")
    assert set(found) == {"AC-E2E-010"}


def test_a_pool_that_keeps_a_page_of_each_request(tmp_path):
    class Keeping(SlabKVPool):
        def free(self, pages):
            super().free(pages[1:])

    found = failing(stub(Keeping), tmp_path, "AC-E2E-011")
    assert "one step after r2 was aborted" in found["AC-E2E-011"]["float32"]


def test_counts_that_are_made_up(tmp_path, monkeypatch):
    accept = Scheduler._accept

    def counted_twice(self, *args):
        self._counters.completion_tokens += 1
        return accept(self, *args)

    monkeypatch.setattr(Scheduler, "_accept", counted_twice)
    found = failing(stub(), tmp_path, "AC-E2E-012")
    assert "completion tokens" in found["AC-E2E-012"]["float32"]


def test_a_bias_that_does_nothing_lets_texts_run_on(tmp_path):
    found = failing(stub(apply_logit_bias=lambda logits, *rest: logits), tmp_path, "AC-E2E-013")
    assert "the text must end with token 2, once" in found["AC-E2E-013"]["float32"]


def test_a_draw_that_is_wrong_once_in_a_hundred(tmp_path):
    calls = []

    def sample(*args):
        calls.append(1)
        return reference("sample")(*args) ^ (len(calls) % 50 == 0)

    assert "differs from the first" in failing(stub(sample=sample), tmp_path, "AC-E2E-014")["AC-E2E-014"]["float32"]


def test_logits_that_are_no_numbers(tmp_path):
    def lm_head(x, weight):
        return reference("lm_head")(x, weight) * float("nan")

    found = failing(stub(lm_head=lm_head), tmp_path, "AC-E2E-001", "AC-E2E-002")
    assert set(found) == {"AC-E2E-001", "AC-E2E-002"}
