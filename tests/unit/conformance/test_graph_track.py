"""The graph track passes right backends and fails each wrong one by the requirement's name. Knows wrong fusions."""

import pytest

from anychip import backends
from anychip.conformance.compile_mutants import CapturedPiece, CapturingPlugin
from anychip.conformance.graph import DTYPES
from anychip_sdk import ops
from anychip_sdk.backend import load_backend
from anychip_sdk.conformance.mutants import with_argument
from anychip_sdk.conformance.requirements import REQUIREMENTS
from anychip_sdk.fusion import Fusion
from anychip_sdk.hooks import hookimpl
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.program import interpret
from anychip_sdk.testing import reference_plugin
from support.plans import StubPlugin, references
from support.platform_checks import ALL_FUSIONS, claims, context_of, failures, run

TRACK = [key for key, rule in REQUIREMENTS.items() if rule.track == "graph"]
UNSELFISH = ("qkv_proj", "gate_up_proj")  #: fusions that need no kernel


class Plugin(StubPlugin):
    """The references under a name of their own, with fusions and a compiler."""

    def __init__(self, fusions=(), compiler=None, **options):
        super().__init__(capacity=1 << 30, **options)
        self.fusions, self.compiler = fusions, compiler

    @hookimpl
    def anychip_fusions(self):
        return self.fusions

    @hookimpl
    def anychip_compiles(self, program):
        return None if self.compiler is None else [None] * len(program.calls)

    @hookimpl
    def anychip_compile(self, program, context):
        return None if self.compiler is None else self.compiler(program, context)


def stub(*fusions, compiler=None, without=(), **kernels):
    plugin = Plugin(fusions, compiler, kernels={**references(*without), **kernels})
    return load_backend("stub", plugin, distribution="anychip-stub", version="0.1.0")


def reference(name):
    return CATALOGUE[name].reference


def failing(backend, tmp_path, only="*", fusions=ALL_FUSIONS):
    """The ids that fail, with their cases; `only` picks cases by name."""
    said = claims(backend, fusions=fusions)
    found = {key: failures(key, backend, said, tmp_path, only=only) for key in TRACK}
    return {key: problems for key, problems in found.items() if problems}


# --- right backends ---


def test_the_cpu_backend_passes_in_every_dtype(tmp_path):
    backend = backends.load("cpu")
    said = claims(backend, DTYPES, fusions=ALL_FUSIONS)
    results = [(key, *one) for key in TRACK for one in run(key, backend, said, tmp_path)]
    assert [(key, name, problem) for key, name, problem, _ in results if problem] == []
    places = {name: context.measured["places"] for key, name, _, context in results if key == "AC-GRAPH-002"}
    assert all(places[f"{policy}-bfloat16"] > 0 for policy in ALL_FUSIONS)
    assert not any(context.fallbacks for *_, context in results)


def test_the_references_pass_and_say_that_they_are_the_fallback(tmp_path):
    backend = load_backend("host", reference_plugin("host"), distribution="anychip-host", version="0.1.0")
    assert failing(backend, tmp_path, "q*", UNSELFISH) == {}
    [*_, (_, _, context)] = run("AC-GRAPH-001", backend, claims(backend), tmp_path)
    assert "linear" in context.fallbacks


def test_a_compiler_that_runs_the_graph_passes(tmp_path):
    def compiler(program, context):
        return interpret(program, context.values, context.limits)

    backend = stub(compiler=compiler)
    assert failing(backend, tmp_path, "*float32") == {}
    results = run("AC-GRAPH-010", backend, claims(backend, fusions=ALL_FUSIONS), tmp_path)
    assert all(context.measured["pieces"] > 0 for *_, context in results)


def test_a_compiler_that_captures_a_few_sizes_and_pads_passes(tmp_path):
    sizes = []

    class Counting(CapturedPiece):
        def cut(self, out, tokens):
            sizes.append((len(out), tokens))
            return super().cut(out, tokens)

    class Capturing(CapturingPlugin):
        piece = Counting

    backend = load_backend("refchip", Capturing(), distribution="anychip-sdk", version="1.0")
    assert set(failures("AC-GRAPH-010", backend, claims(backend, fusions=ALL_FUSIONS), tmp_path).values()) == set()
    assert set(sizes) == {(1, 1), (2, 2), (4, 3), (8, 5), (8, 6), (8, 7), (8, 8)}


def test_a_fusion_of_the_backends_own_that_is_right_passes(tmp_path):
    def pattern(gate, up):
        return ops.mul(ops.silu(gate), up)

    def replacement(gate, up):
        return ops.silu_mul(gate, up)

    own = Fusion("silu_mul", "own", pattern, replacement, ("silu_mul",))
    assert failing(stub(own), tmp_path, "silu_mul*", (*ALL_FUSIONS, "own")) == {}


# --- wrong ones ---


def test_a_wrong_unfused_kernel(tmp_path):
    backend = stub(rms_norm=lambda x, weight, eps: reference("rms_norm")(x, weight, 0.0))
    assert set(failures("AC-GRAPH-001", backend, claims(backend), tmp_path)) == {
        "qwen3-float32", "llama-float32", "llama-gelu-float32", "qwen2-float32",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "kernel"),
    [
        ("silu_mul", lambda gate, up: reference("silu_mul")(up, gate)),
        ("add_rms_norm", lambda x, y, w, eps: (reference("rms_norm")(x, w, eps), x + y)),
        ("qk_norm_rope", lambda q, k, nq, nk, *rest: reference("qk_norm_rope")(q, k, nk, nq, *rest)),
        ("ffn", lambda x, wgu, bgu, wd, bd: reference("ffn")(x, wgu.roll(1, 0), bgu, wd, bd)),
        ("mha", lambda *args: reference("mha")(*with_argument("mha", args, scale=lambda scale: scale * 1.02))),
    ],
)
def test_a_wrong_fused_kernel(tmp_path, policy, kernel):
    found = failing(stub(**{policy: kernel}), tmp_path, f"{policy}*")
    assert set(found["AC-GRAPH-002"]) == {f"{policy}-float32"}
    assert set(found) <= {"AC-GRAPH-002", "AC-GRAPH-005", "AC-GRAPH-006"}
    assert "the outputs are off by" in found["AC-GRAPH-002"][f"{policy}-float32"]


def test_a_kernel_that_is_wrong_in_company_alone(tmp_path):
    """Its operands are views of one tensor only where gate and up are joined as well."""

    def silu_mul(gate, up):
        return reference("silu_mul")(gate, up) * (1.0 if gate.is_contiguous() else 1.01)

    without = ("ffn",)
    found = failing(stub(silu_mul=silu_mul, without=without), tmp_path, "*[3m]-float32")
    assert set(found) == {"AC-GRAPH-003"}


def test_a_fusion_that_finds_its_own_result_again(tmp_path):
    def pattern(x, y):
        return ops.add(x, y)

    def replacement(x, y):
        return ops.add(y, x)

    own = Fusion("add_rms_norm", "circular", pattern, replacement)
    found = failing(stub(own), tmp_path, "add_rms_norm*")
    assert set(found) == {"AC-GRAPH-004"}


def test_a_fusion_with_a_wrong_second_result(tmp_path):
    """Nobody reads it in the model, so only a second user shows it."""

    def pattern(gate, up):
        active = ops.silu(gate)
        return ops.mul(active, up), active

    def replacement(gate, up):
        return ops.silu_mul(gate, up), gate

    found = failing(stub(Fusion("silu_mul", "leaky", pattern, replacement, ("silu_mul",))), tmp_path, "silu_mul*")
    assert set(found) == {"AC-GRAPH-005"}
    assert "silu has a second user" in next(iter(found["AC-GRAPH-005"].values()))


def test_a_matcher_that_does_not_look_for_second_users(tmp_path, monkeypatch):
    """A value that is still wanted is erased."""
    from anychip.graph import fold
    from anychip.graph.match import Match, _Matcher

    def find(pattern, node):
        matcher = _Matcher(pattern)
        if not matcher.node(pattern.anchor, node) or not matcher.siblings():
            return None
        order = {one: index for index, one in enumerate(node.graph.nodes)}
        return Match(matcher.nodes, matcher.arguments, max(matcher.nodes.values(), key=order.__getitem__))

    monkeypatch.setattr(fold, "find", find)
    backend = stub()
    said = claims(backend, fusions=ALL_FUSIONS)
    with pytest.raises(RuntimeError, match="still ha"):  # the runner counts what a check raises as its failure
        failures("AC-GRAPH-005", backend, said, tmp_path, only="silu_mul*")


def test_a_fusion_that_ignores_one_of_two_eps(tmp_path):
    def pattern(q, k, nq, nk, eps_q, eps_k, step, table):
        return ops.rope(ops.rms_norm(q, nq, eps_q), ops.rms_norm(k, nk, eps_k), step, table)

    def replacement(q, k, nq, nk, eps_q, eps_k, step, table):
        return ops.qk_norm_rope(q, k, nq, nk, eps_q, step, table)

    def taken_apart(function):
        def call(q, k, nq, nk, eps_q, eps_k, step, table):
            q, k = function(q, k, nq, nk, eps_q, eps_k, step, table)
            return q, k

        return call

    own = Fusion("qk_norm_rope", "careless", taken_apart(pattern), taken_apart(replacement), ("qk_norm_rope",))
    found = failing(stub(own), tmp_path, "qk_norm_rope*")
    assert set(found) == {"AC-GRAPH-006"}
    assert "eps is 0.1 instead of 0.001" in found["AC-GRAPH-006"]["qk_norm_rope-float32"]


def test_a_kernel_with_a_number_built_in(tmp_path):
    backend = stub(add_rms_norm=lambda x, y, w, eps: reference("add_rms_norm")(x, y, w, 1e-3))
    assert set(failing(backend, tmp_path, "add_rms_norm*")) == {"AC-GRAPH-006"}


def test_a_fusion_that_does_not_say_what_it_needs(tmp_path):
    def pattern(gate, up):
        return ops.mul(ops.silu(gate), up)

    def replacement(gate, up):
        return ops.silu_mul(gate, up)

    found = failing(stub(Fusion("silu_mul", "silent", pattern, replacement)), tmp_path, "silu_mul*")
    assert found == {
        "AC-GRAPH-007": {"AC-GRAPH-007": "fusion 'silent' introduces silu_mul, which its needs do not name"}
    }


def test_a_claimed_fusion_that_stopped_matching(tmp_path):
    found = failing(stub(without=("mha",)), tmp_path, "mha*")
    assert set(found) == {"AC-GRAPH-008"}
    assert set(found["AC-GRAPH-008"]) == {"mha"}
    assert "the backend has no kernel for mha" in found["AC-GRAPH-008"]["mha"]


def test_a_claimed_fusion_that_nobody_brings(tmp_path):
    found = failing(stub(), tmp_path, "acme*", (*ALL_FUSIONS, "acme_block"))
    assert found["AC-GRAPH-008"] == {"acme_block": "fusion 'acme_block' is claimed, but nobody brings it"}


def test_an_applied_fusion_that_is_not_claimed(tmp_path):
    found = failing(stub(), tmp_path, "ffn*", [one for one in ALL_FUSIONS if one != "ffn"])
    assert set(found) == {"AC-GRAPH-009"}
    assert set(found["AC-GRAPH-009"]) == {"ffn-float32"}
    assert REQUIREMENTS["AC-GRAPH-009"].force == "SHOULD"


def test_a_compiled_piece_that_keeps_its_first_answer(tmp_path):
    def compiler(program, context):
        forward = interpret(program, context.values, context.limits)
        kept = []

        def replay(*inputs):
            kept.append(kept[0] if kept else forward(*inputs))
            return kept[0]

        return replay

    found = failing(stub(compiler=compiler), tmp_path, "*float32")
    assert set(found) == {"AC-GRAPH-010"}
    assert set(found["AC-GRAPH-010"]) == {"fused-float32", "unfused-float32"}
    assert "run 1 of calls 0 to" in found["AC-GRAPH-010"]["fused-float32"]


def test_a_compiler_that_takes_what_it_cannot_compile(tmp_path):
    found = failing(stub(compiler=lambda program, context: None), tmp_path, "*float32")
    assert set(found) == {"AC-GRAPH-011"}


def test_a_requirement_leaves_the_pool_as_it_was(tmp_path):
    backend = stub()
    context = context_of(backend, claims(backend), tmp_path)
    failing(backend, tmp_path, "*mha*")
    assert context.device.memory() == context.open_device().memory()
