"""From a plan to a model that runs: order of allocation, prepared weights, compiled graphs, clean ends. Knows stubs."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from anychip.engine import loader
from anychip.engine.loader import load_model
from anychip.plan.make import prepare
from anychip_cpu import native
from anychip_sdk.backend import load_backend
from anychip_sdk.errors import CheckpointInvalid, MemoryInsufficient
from anychip_sdk.hooks import PreparedWeight, hookimpl
from anychip_sdk.kv import SlabKVPool
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.testing import ReferenceDevice
from support.engines import NO_FUSION, loaded, logits_of, make_recipe, prepare_on, quiet, random_prompts
from support.family_models import make_family
from support.plans import GIB, StubPlugin, stub_backend
from support.tiny_models import make_tiny


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3")


class RecordingPlugin(StubPlugin):
    """Notes what is asked of it, in order; keeps the device that it opened."""

    def __init__(self, **options):
        super().__init__(capacity=4 * GIB, **options)
        self.log = []
        self.compiled = None

    @hookimpl
    def anychip_open_device(self, device, config):
        self.opened = RecordingDevice(self.log, device.memory_bytes_total)
        self.config = config
        return self.opened

    @hookimpl
    def anychip_create_kv_pool(self, spec, device):
        self.log.append("pool")
        self.spec = spec
        return SlabKVPool(spec, device)

    @hookimpl
    def anychip_compiles(self, program):
        return [None] * len(program.calls)

    @hookimpl
    def anychip_compile(self, program, context):
        self.log.append("compile")
        self.context = context
        return self.compiled


class RecordingDevice(ReferenceDevice):
    def __init__(self, log, capacity):
        super().__init__("stub", capacity)
        self.log = log

    def alloc(self, nbytes, alignment=64):
        self.log.append("alloc")
        return super().alloc(nbytes, alignment)

    def close(self):
        self.log.append("close")
        super().close()


def backend_of(plugin):
    return load_backend("stub", plugin, distribution="anychip-stub", version="0.1.0")


def test_weights_come_before_the_pool_and_the_pool_before_the_code(tiny):
    plugin = RecordingPlugin()
    with loaded(make_recipe(tiny, fusion={"verify": False}), backend_of(plugin)) as model:
        weights = len(model.plan.weights)
        assert plugin.log == ["alloc"] * weights + ["pool", "alloc", "compile"]
        assert plugin.opened.bytes_used == model.plan.memory.weights + model.plan.memory.kv_pool
    assert plugin.log[-1] == "close"
    assert plugin.opened.bytes_used == model.plan.memory.weights  # the device's own close gives these back


def test_the_pool_is_what_the_plan_says(tiny):
    plugin = RecordingPlugin()
    recipe = make_recipe(tiny, memory={"kv_tokens": 320, "page_size": 16, "kv_dtype": "bfloat16"})
    with loaded(recipe, backend_of(plugin)) as model:
        (group,) = plugin.spec.groups
        assert (group.layers, [tensor.shape for tensor in group.spec.tensors]) == (3, [(2, 32), (2, 32)])
        assert plugin.spec.dtype == torch.bfloat16
        assert (model.pool.layout.pages, model.pool.layout.page_size) == (20, 16)


def test_threads_and_limits_reach_the_backend(tiny):
    plugin = RecordingPlugin()
    recipe = make_recipe(
        tiny, backend={"threads": 3}, scheduler={"chunked_prefill_size": 100, "max_running_requests": 20}
    )
    with loaded(recipe, backend_of(plugin)):
        assert plugin.config.threads == 3
        assert (plugin.context.limits.tokens, plugin.context.limits.rows) == (120, 20)
        assert plugin.context.dtype == torch.float32


def test_what_the_backend_compiled_is_what_runs(tiny):
    plugin = RecordingPlugin()
    calls = []

    def forward(step, *inputs):
        calls.append((step.tokens, len(inputs)))
        return (torch.zeros(len(step.logit_rows), 512),)

    plugin.compiled = forward
    with loaded(make_recipe(tiny, fusion={"verify": False}), backend_of(plugin)) as model:
        assert logits_of(model, [5, 6, 7]).abs().max() == 0
    assert calls == [(3, 0)]


def test_verification_leaves_nothing_on_the_device(tiny):
    plugin = RecordingPlugin()
    with loaded(make_recipe(tiny), backend_of(plugin)) as model:
        assert plugin.opened.bytes_used == model.plan.memory.weights + model.plan.memory.kv_pool


class PreparingPlugin(StubPlugin):
    """Its lm_head takes a transposed weight, and notes what it prepared."""

    def __init__(self):
        super().__init__(capacity=4 * GIB)
        self.prepared = []

    @hookimpl
    def anychip_register_ops(self, registry):
        kernels = {name: op.reference for name, op in CATALOGUE.items() if name not in ("lm_head", "linear")}
        for name, kernel in kernels.items():
            registry.register(name, kernel, dtypes=self.dtypes, name=name)
        registry.register("lm_head", _lm_head, dtypes=self.dtypes, prepares_weight=True, name="lm_head_transposed")
        registry.register("linear", _linear, dtypes=self.dtypes, prepares_weight=True, name="linear_transposed")

    @hookimpl
    def anychip_prepare_weight(self, name, tensor, op):
        self.prepared.append((name, op))
        if tensor.dim() != 2:
            return None  # a bias stays as it is
        turned = tensor.T.contiguous()
        return PreparedWeight(turned, turned.nbytes, "transposed")


def _lm_head(x, weight):
    return (x @ weight).float()


def _linear(x, weight, bias=None):
    return x @ weight if bias is None else x @ weight + bias


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize("fused", [True, False])
def test_prepared_weights_are_made_once_and_go_to_their_kernels(tmp_path, kind, fused):
    directory = make_tiny(tmp_path / "tiny", kind, tie_word_embeddings=True)
    ids = random_prompts(1, [12])[0]
    with loaded(make_recipe(directory)) as model:
        right = logits_of(model, ids)
    plugin = PreparingPlugin()
    fusion = {"verify": False, **({} if fused else NO_FUSION)}
    with loaded(make_recipe(directory, fusion=fusion), backend_of(plugin)) as model:
        torch.testing.assert_close(logits_of(model, ids), right, rtol=1e-4, atol=1e-4)
        linears = [name for name, op in plugin.prepared if op == "linear"]
    assert len(plugin.prepared) == len(set(plugin.prepared))
    # the tied embedding is read as it is by one op and prepared for the other
    assert ("model.embed_tokens.weight", "lm_head") in plugin.prepared
    assert "model.embed_tokens.weight" not in linears


def test_a_tied_and_prepared_weight_is_counted_twice_in_the_plan(tmp_path):
    directory = make_tiny(tmp_path / "tiny", "qwen3", tie_word_embeddings=True)
    with loaded(make_recipe(directory), backend_of(PreparingPlugin())) as model:
        once = sum(one.elements for one in model.plan.weights.values()) * 4
        assert model.plan.memory.weights == once + 512 * 64 * 4
        assert model.weight_bytes == model.plan.memory.weights


def test_the_bytes_that_prepared_weights_really_take_are_told(tiny):
    class HalvingPlugin(PreparingPlugin):
        @hookimpl
        def anychip_prepare_weight(self, name, tensor, op):
            made = super().anychip_prepare_weight(name, tensor, op)
            return None if made is None else PreparedWeight(made.value, made.nbytes // 2, "halved")

    recipe = make_recipe(tiny, fusion={"verify": False, **NO_FUSION})
    with loaded(recipe, backend_of(PreparingPlugin())) as model:
        whole = model.weight_bytes
    with loaded(recipe, backend_of(HalvingPlugin())) as model:
        matrices = sum(one.elements for one in model.plan.weights.values() if len(one.shape) == 2) * 4
        assert whole - model.weight_bytes == matrices // 2  # the tied embedding is halved for the head only


def test_progress_rises_to_all_bytes_of_the_weights(tiny):
    told = []
    model = load_model(prepare(make_recipe(tiny)), lambda *one: told.append(one))
    model.close()
    load = [(done, total) for stage, done, total, _ in told if stage == "load"]
    total = sum(one.elements for one in model.plan.weights.values()) * 4
    assert [done for done, _ in load] == sorted(done for done, _ in load)
    assert load[-1] == (total, total)
    assert next(stage for stage, *_ in told) == "verify"
    assert set(model.timings_s) == {"verify", "load", "pool", "compile"}


def test_a_failure_closes_device_and_checkpoint(tiny, monkeypatch):
    plugin = RecordingPlugin()
    prepared = prepare_on(make_recipe(tiny, fusion={"verify": False}), backend_of(plugin))
    closed = []
    monkeypatch.setattr(prepared.checkpoint, "close", lambda: closed.append(True))

    def fails(*_):
        raise MemoryInsufficient("the pool does not fit")

    monkeypatch.setattr(loader, "make_pool", fails)
    with pytest.raises(MemoryInsufficient):
        load_model(prepared, quiet)
    assert plugin.log[-1] == "close"
    assert closed == [True]


def test_a_tensor_that_nothing_reads_is_an_error_before_memory_is_taken(tiny, tmp_path):
    tensors = load_file(tiny / "model.safetensors")
    tensors["model.layers.0.self_attn.extra.weight"] = torch.zeros(4)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(json.loads((tiny / "config.json").read_text())))
    with pytest.raises(CheckpointInvalid, match=r"self_attn\.extra\.weight"):
        prepare(make_recipe(tmp_path))


def test_a_stub_of_references_runs_like_the_cpu_backend(tiny):
    ids = random_prompts(1, [20])[0]
    with loaded(make_recipe(tiny)) as model:
        ours = logits_of(model, ids)
    with loaded(make_recipe(tiny), stub_backend(kernels={}, capacity=4 * GIB)) as model:
        torch.testing.assert_close(logits_of(model, ids), ours, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(isinstance(native.library(), native.Absent), reason="no native kernels")
def test_experts_are_loaded_one_by_one_where_their_prepared_forms_can_be_joined(tmp_path, monkeypatch):
    """Their kernels get what whole stacks would have become."""
    shape = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    recipe = make_recipe(make_family(tmp_path, "qwen3_moe", **shape))
    [ids] = random_prompts(1, [9], vocab=256)
    shapes, load = [], loader.load

    def recorded(parameter, *rest):
        shapes.append(parameter.shape)
        return load(parameter, *rest)

    monkeypatch.setattr(loader, "load", recorded)
    with loaded(recipe) as model:
        found, held_bytes = logits_of(model, ids), model.weight_bytes
    stacks = [shape for shape in shapes if len(shape) == 3]
    assert set(stacks) == {(1, 64, 64), (1, 64, 32)}
    monkeypatch.setattr(loader, "slices_of", lambda parameter: [parameter])
    with loaded(recipe) as model:
        assert torch.equal(logits_of(model, ids), found)
        assert model.weight_bytes == held_bytes
