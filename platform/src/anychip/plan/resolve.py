"""Decide everything. Pure: a recipe, a checkpoint's config and a backend's probe in, a frozen Plan out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from anychip.graph.expand import expand
from anychip.graph.fold import FusionDecision, fold
from anychip.graph.ir import ModelGraph, WeightSpec
from anychip.graph.program import cut, program_of
from anychip.graph.quantize import WHOLE_BLOCKS, SchemeOf, matrices, quantize
from anychip.graph.replace import Binding
from anychip.graph.replace import replace as bind_kernels
from anychip.graph.trace import trace_config
from anychip.models.config import ModelConfig
from anychip.plan.memory import MAX_RUNNING, budget, needs
from anychip.plan.ops import bind_engine_ops, op_table
from anychip.plan.plan import BackendPlan, Decision, HeldCertificate, ModelPlan, Plan, SchedulerPlan, VerificationPlan
from anychip.plan.requires import check_requires
from anychip.plan.shared_experts import slots_refused
from anychip.plan.thinking import decide_thinking
from anychip.recipe.errors import did_you_mean
from anychip.recipe.schema import Recipe
from anychip.recipe.watchdog import watchdog_limits
from anychip.text.thinking import TemplateThinking
from anychip.weights.load import Shard
from anychip.weights.schemes import Scheme, choose
from anychip_sdk.backend import Backend
from anychip_sdk.device import DeviceInfo
from anychip_sdk.errors import FusionRefused, PreconditionFailed, RecipeInvalid
from anychip_sdk.fusion import policies_with
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import Fact, Override, dtype_name

DEFAULT_PAGE_SIZE = 16
DEFAULT_CHUNK = 2048  #: prompt tokens in a step
DIFFERS = "its outputs differ from the unfused graph's"  #: of a fusion that verification refused
EXPECTED_TOKENS = 1024  #: what a request is taken to need when max_running_requests is auto


@dataclass(frozen=True)
class CheckpointFacts:
    """What a plan has to know of a checkpoint; no weights."""

    path: Path
    format: str
    config: ModelConfig
    thinking: TemplateThinking
    notes: tuple[str, ...] = ()
    storages: Mapping[str, str] = field(default_factory=dict)  #: tensor -> how the file holds it: BF16, Q4_1 ...


def resolve(
    recipe: Recipe,
    checkpoint: CheckpointFacts,
    backend: Backend,
    device: DeviceInfo,
    reason: str,
    without: frozenset[str] = frozenset(),
    certificate: HeldCertificate | None = None,
) -> Plan:
    """The plan of a recipe on a device.

    Args:
        recipe: what the user wrote.
        checkpoint: the model's shape.
        backend: the loaded backend; only its registry, fusions and static facts are used.
        device: what its probe said.
        reason: why it is this backend.
        without: fusion policies that verification refused at load.
        certificate: the valid one of the backend's installed package.

    Raises:
        PreconditionFailed: the family: versions, context, kernels, fusions, memory.
        ConformanceFailed: the recipe requires a certificate that isn't there.
        RecipeInvalid: an override names no op of the catalogue.
    """
    config = checkpoint.config
    check_requires(recipe, backend, device, certificate)
    model = _model_plan(recipe, checkpoint, device)
    page_size = _page_size(recipe, device)
    kv_dtype = _dtype(recipe.memory.kv_dtype) or model.dtype.value
    binding = make_binding(recipe, config, backend, model.dtype.value, kv_dtype, page_size.value)
    graph = unfolded(config, binding)
    scheme_of = _scheme_of(recipe, checkpoint)
    wanted = wanted_policies(recipe, backend)
    refused = {
        **_blocks_of_integers(recipe, wanted, graph, scheme_of),
        **slots_refused(recipe, wanted, graph, scheme_of),
        **_refused_at_load(without),
    }
    policies = [policy for policy in wanted if policy not in refused]
    fusions = fold(graph, binding, policies, backend.fusions)
    order = policies_with(backend.fusions)
    fusions = tuple(sorted((*fusions, *refused.values()), key=lambda one: order.index(one.policy)))
    model = replace(model, quantization=_quantization(recipe, quantize(graph, binding, scheme_of)))
    engine_ops = bind_engine_ops(binding)
    warnings = _fusion_warnings(recipe, fusions, without)

    chunk = _chunk(recipe, device)
    explicit = recipe.scheduler.max_running_requests
    most_running = explicit if isinstance(explicit, int) else MAX_RUNNING
    program = program_of(graph)
    needed = needs(graph, program, config.vocab_size, model.dtype.value, kv_dtype, chunk.value, most_running)
    kv_tokens = recipe.memory.kv_tokens
    memory = budget(
        needed,
        device,
        fraction=recipe.memory.static_fraction,
        page_size=page_size.value,
        context=model.context_length.value,
        kv_tokens_max=kv_tokens if isinstance(kv_tokens, int) else None,
        running=explicit if isinstance(explicit, int) else None,
    )
    pool_tokens = memory.kv_pages * page_size.value
    running = _max_running(explicit, pool_tokens, model.context_length.value, memory.slots)
    decided = {"chunked_prefill_size": chunk, "max_running_requests": running, "overlap": _overlap(recipe, device)}
    scheduler = SchedulerPlan(
        **{**dict(recipe.scheduler), **decided},
        max_queued_requests=recipe.server.max_queued_requests,
        page_size=page_size,
        kv_dtype=kv_dtype,
        kv_tokens=pool_tokens,
        tpot_p95_s=recipe.slo.tpot_p95,
    )
    rows = op_table(graph, engine_ops)
    if recipe.ops.fallback == "warn":
        fallbacks = [row.op for row in rows if row.is_fallback]
        if fallbacks:
            warnings.append(f"{len(fallbacks)} ops run on the reference: {', '.join(fallbacks)} (see platform ops)")
    if pool_tokens < model.context_length.value:
        warnings.append(
            f"the KV pool holds {pool_tokens} tokens, less than the context of {model.context_length.value}: "
            "longer requests are refused"
        )
    return Plan(
        name=recipe.name,
        model=model,
        backend=BackendPlan(
            backend.name,
            backend.distribution,
            backend.version,
            reason,
            device,
            backend.emulated,
            backend.info.environment,
            recipe.backend.threads,
            certificate,
        ),
        ops=rows,
        fusions=fusions,
        verification=VerificationPlan(recipe.fusion.verify, recipe.fusion.on_missing == "error"),
        memory=memory,
        scheduler=scheduler,
        weights=graph.used_weights(),
        graph=graph,
        program=program,
        pieces=cut(program, backend.compiles(program)),
        binding=binding,
        engine_ops=engine_ops,
        shard=Shard(),
        warnings=tuple(warnings),
        limits=recipe.server.limits,
        watchdog=watchdog_limits(recipe.server.watchdog),
    )


def _scheme_of(recipe: Recipe, checkpoint: CheckpointFacts) -> SchemeOf:
    def scheme_of(spec: WeightSpec, is_head: bool) -> Scheme | None:
        storages = {checkpoint.storages.get(source.tensor, "") for source in spec.sources}
        return choose(recipe.model.quantization, storages, is_head=is_head)

    return scheme_of


def _blocks_of_integers(
    recipe: Recipe, wanted: Sequence[str], graph: ModelGraph, scheme_of: SchemeOf
) -> dict[str, FusionDecision]:
    """The wanted policies that would take plain weights where the model has integers, each refused."""
    if not any(scheme_of(spec, is_head) for _, spec, is_head in matrices(graph) if not is_head):
        return {}
    reason = f"its op takes plain weights, and model.quantization is {recipe.model.quantization}"
    blocks = [policy for policy in wanted if policy in WHOLE_BLOCKS]
    return {policy: FusionDecision(policy, 0, reason, refused=True) for policy in blocks}


def _quantization(recipe: Recipe, held: Counter[str]) -> Decision[str]:
    wanted = recipe.model.quantization
    if wanted == "none":
        return Decision(wanted, "weights are held in dtype")
    counts = "; ".join(f"{count} matrices {how}" for how, count in held.items())
    return Decision(wanted, counts or "the checkpoint holds no 8- or 4-bit integers")


def make_binding(
    recipe: Recipe, config: ModelConfig, backend: Backend, dtype: torch.dtype, kv_dtype: torch.dtype, page_size: int
) -> Binding:
    """What kernels are resolved against."""
    facts: dict[str, Fact] = {
        **config.facts(),
        "page_size": page_size,
        "kv_dtype": dtype_name(kv_dtype),
    }
    return Binding(backend.ops, dtype, facts, _overrides(recipe, backend), recipe.ops.fallback != "forbid")


def unfolded(config: ModelConfig, binding: Binding) -> ModelGraph:
    """The model's graph with kernels bound and nothing fused; its constants have the digits of the binding's dtype."""
    return bind_kernels(expand(trace_config(replace(config, dtype=binding.dtype))), binding)


def wanted_policies(recipe: Recipe, backend: Backend) -> tuple[str, ...]:
    """The fusions that the recipe names, or all that there are.

    Raises:
        RecipeInvalid: a name is neither built in nor one of the backend's own, with the nearest that is.
    """
    known, policies = policies_with(backend.fusions), recipe.fusion.policies
    if policies == "auto":
        return known
    problems = [
        f"fusion.policies[{index}]: '{name}' is neither built in nor of backend '{backend.name}', expected one of "
        f"{', '.join(known)}.{did_you_mean(name, known)}"
        for index, name in enumerate(policies)
        if name not in known
    ]
    if problems:
        raise RecipeInvalid(problems)
    return tuple(policies)


def _model_plan(recipe: Recipe, checkpoint: CheckpointFacts, device: DeviceInfo) -> ModelPlan:
    name = recipe.server.served_name or checkpoint.path.name
    return ModelPlan(
        recipe.model.source,
        checkpoint.path,
        checkpoint.format,
        checkpoint.config,
        _model_dtype(recipe, checkpoint.config, device),
        _context_length(recipe, checkpoint.config),
        name,
        decide_thinking(recipe.model.thinking, checkpoint.thinking, checkpoint.path),
        (*checkpoint.notes, *checkpoint.config.notes),
    )


def _model_dtype(recipe: Recipe, config: ModelConfig, device: DeviceInfo) -> Decision[torch.dtype]:
    offered = device.capabilities.dtypes
    wanted = _dtype(recipe.model.dtype)
    if wanted is not None:
        if wanted not in offered:
            names = ", ".join(map(dtype_name, offered))
            message = f"model.dtype is {dtype_name(wanted)}; device {device.name} ({device.product}) has {names}"
            raise PreconditionFailed(message, hint="set model.dtype to auto")
        return Decision(wanted, "model.dtype")
    if config.dtype in offered:
        return Decision(config.dtype, "the checkpoint's own")
    stored = "names none" if config.dtype is None else f"has {dtype_name(config.dtype)}, which the device lacks"
    return Decision(offered[0], f"the device's first choice; the checkpoint {stored}")


def _context_length(recipe: Recipe, config: ModelConfig) -> Decision[int]:
    wanted = recipe.model.context_length
    if wanted == 1:
        message = "model.context_length is 1: a prompt and an answer need a token each"
        raise PreconditionFailed(message, hint="set model.context_length to 2 or more")
    longest = config.longest_context
    if wanted is None:
        further = f"; scaled as its config says it reaches {longest}" if longest > config.max_positions else ""
        return Decision(config.max_positions, f"the model's own{further}")
    if wanted > longest:
        message = f"model.context_length is {wanted}; the model was made for {longest} positions"
        raise PreconditionFailed(message, hint=f"set model.context_length to {longest} or less")
    return Decision(wanted, "model.context_length")


def _page_size(recipe: Recipe, device: DeviceInfo) -> Decision[int]:
    wanted = recipe.memory.page_size
    if isinstance(wanted, int):
        return Decision(wanted, "memory.page_size")
    if device.capabilities.page_size is not None:
        return Decision(device.capabilities.page_size, "auto: what the device's attention is made for")
    return Decision(DEFAULT_PAGE_SIZE, "auto: prefixes are shared in steps of 16 tokens and gathered page by page")


def _chunk(recipe: Recipe, device: DeviceInfo) -> Decision[int]:
    wanted = recipe.scheduler.chunked_prefill_size
    if isinstance(wanted, int):
        return Decision(wanted, "scheduler.chunked_prefill_size")
    measured = device.capabilities.prefill_tokens
    if measured is not None:
        return Decision(measured, "auto: so many the device reads at nearly full speed, by its backend's measurements")
    return Decision(DEFAULT_CHUNK, "auto: the backend names no measurement of the device")


def _overlap(recipe: Recipe, device: DeviceInfo) -> Decision[bool]:
    wanted = recipe.scheduler.overlap
    if isinstance(wanted, bool):
        return Decision(wanted, "scheduler.overlap")
    if device.capabilities.async_streams:
        return Decision(True, "auto: the device has asynchronous streams")
    return Decision(False, "auto: the device computes while the host waits")


def _max_running(explicit: int | str, pool_tokens: int, context: int, slots: int) -> Decision[int]:
    if isinstance(explicit, int):
        return Decision(explicit, "scheduler.max_running_requests")
    expected = min(context, EXPECTED_TOKENS)
    count = max(1, min(MAX_RUNNING, pool_tokens // expected))
    reason = f"auto: {pool_tokens} pool tokens / {expected} expected per request, at most {MAX_RUNNING}"
    if slots and slots // 2 < count:
        return Decision(slots // 2, f"auto: half of {slots} slots for sequences' states, the others are for snapshots")
    return Decision(count, reason)


def _overrides(recipe: Recipe, backend: Backend) -> tuple[Override, ...]:
    problems = []
    found = []
    providers = {backend.name, "reference"}
    for index, one in enumerate(recipe.ops.overrides):
        where = f"ops.overrides[{index}]"
        if one.op not in CATALOGUE:
            problems.append(f"{where}.op: there is no op '{one.op}' in the catalogue ({', '.join(sorted(CATALOGUE))})")
        if one.provider is not None and one.provider not in providers:
            problems.append(f"{where}.provider: '{one.provider}' is not one of {', '.join(sorted(providers))}")
        dtype = None if one.dtype is None else getattr(torch, one.dtype, None)
        if one.dtype is not None and not isinstance(dtype, torch.dtype):
            problems.append(f"{where}.dtype: '{one.dtype}' is no dtype; expected e.g. bfloat16")
        compute = None if one.compute_dtype is None else _dtype(one.compute_dtype)
        found.append(Override(one.op, dtype, one.provider, tuple(one.ban), compute))
    if problems:
        raise RecipeInvalid(problems)
    return tuple(found)


def _fusion_warnings(
    recipe: Recipe, decisions: tuple[FusionDecision, ...], without: frozenset[str] = frozenset()
) -> list[str]:
    """What verification refused, and what on_missing asks for where policies were named."""
    differ = [f"fusion {policy}: refused: {DIFFERS}" for policy in sorted(without)]
    if recipe.fusion.policies == "auto" or recipe.fusion.on_missing == "ignore":
        return differ
    missing = [one for one in decisions if one.refused and one.policy not in without]
    texts = [f"fusion {one.policy}: not applied: {one.reason}" for one in missing]
    if texts and recipe.fusion.on_missing == "error":
        raise FusionRefused(
            "\n".join(texts), hint="drop them from fusion.policies, or set fusion.on_missing to warn or ignore"
        )
    return [*texts, *differ]


def _refused_at_load(policies: frozenset[str]) -> dict[str, FusionDecision]:
    return {policy: FusionDecision(policy, 0, DIFFERS, refused=True) for policy in policies}


def _dtype(name: str) -> torch.dtype | None:
    if name == "auto":
        return None
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


__all__ = [
    "DEFAULT_PAGE_SIZE",
    "CheckpointFacts",
    "make_binding",
    "resolve",
    "unfolded",
    "wanted_policies",
]
