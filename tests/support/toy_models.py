"""Small models with a recurrent state per sequence, as torch modules over a step. Knows steps; knows no checkpoint.

No op of the catalogue has a recurrence, so these models aren't traced and compiled: their forward is the module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from anychip.engine.loader import LoadedModel, make_pool
from anychip.models.attention import Attention
from anychip.models.config import ModelConfig
from anychip.models.layers import Embedding, LMHead, RMSNorm
from anychip.models.rope import RotaryTable
from anychip.models.state import State, number_states
from anychip.plan.plan import Plan
from anychip.recipe.schema import Recipe
from anychip_sdk import ops
from anychip_sdk.device import DeviceConfig
from anychip_sdk.kv import KVPool
from anychip_sdk.state import StateGroup, StateSpec, StateTensor, bytes_per_slot, bytes_per_token, grouped
from anychip_sdk.step import Step
from support.plans import plan_of, stub_backend, tiny_config

#: which mixers a model of each kind has, in order
TOYS: Mapping[str, Sequence[str]] = {
    "recurrent": ("recurrence", "recurrence"),
    "hybrid": ("recurrence", "windowed", "recurrence", "full"),
}
WINDOW = 8
STD = 0.15


class Recurrence(nn.Module):
    """state = decay * state + input, token by token; the output is what the state is then.

    Elementwise, so that the same tokens give the same bits in chunks of any length.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.state = State(StateSpec("recurrent", "slot", (StateTensor("sums", (size,), torch.float32),)))
        self.decay = torch.linspace(0.5, 0.99, size)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        sums = self.state.sums
        out = torch.empty_like(x)
        token = 0
        for slot, count in zip(step.slotted(self.state.group).slots.tolist(), step.query_lens_host, strict=True):
            for _ in range(count):
                sums[slot] = self.decay * sums[slot] + x[token]
                out[token] = sums[slot]
                token += 1
        return out


class ToyLM(nn.Module):
    """A residual block for each mixer between an embedding and tied logits."""

    def __init__(self, config: ModelConfig, mixers: Sequence[str], positions: int) -> None:
        super().__init__()
        self.embed = Embedding(config.vocab_size, config.hidden_size)
        self.norms = nn.ModuleList(RMSNorm(config.hidden_size, 1e-6) for _ in mixers)
        self.mixers = nn.ModuleList(
            Recurrence(config.hidden_size) if mixer == "recurrence" else Attention(config, int(mixer == "full"))
            for mixer in mixers
        )
        self.norm = RMSNorm(config.hidden_size, 1e-6)
        self.head = LMHead(config.hidden_size, config.vocab_size, tied_to=self.embed.weight)
        self.table = RotaryTable(config.rope, config.head_dim).compute(positions)

    def forward(self, step: Step) -> torch.Tensor:
        x = self.embed(step)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            more = mixer(norm(x), step) if isinstance(mixer, Recurrence) else mixer(norm(x), step, self.table)
            x = ops.add(more, x)
        return self.head(ops.select_rows(self.norm(x), step))


@contextmanager
def toy_model(kind: str, recipe: Recipe, slots: int | None = None) -> Iterator[LoadedModel]:
    """A toy as the engine wants it, for the length of a with block.

    Args:
        slots: of the pool; None: two for each running sequence, as plans have it.
    """
    config = tiny_config(
        "qwen2",
        num_hidden_layers=2,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
    )
    backend = stub_backend()
    plan = plan_of(recipe, config, backend)
    model = ToyLM(config, TOYS[kind], plan.model.context_length.value)
    number_states(model)
    _draw_weights(model)
    states = [module for module in model.modules() if isinstance(module, State)]
    groups, places = grouped([state.spec for state in states])
    plan = _with_states(plan, groups, slots or 2 * plan.scheduler.max_running_requests.value)
    device = backend.open(plan.backend.device, DeviceConfig())
    pool = make_pool(plan, backend, device)
    _bind(pool, states, places)
    loaded = LoadedModel(plan, device, pool, model, "", {}, {}, 0)
    try:
        yield loaded
    finally:
        loaded.close()


def _draw_weights(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn: dict[int, nn.Parameter] = {}  # tied parameters stay one
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            values = torch.randn(parameter.shape, generator=generator) * STD
            values = values + 1 if parameter.ndim == 1 else values
            made = drawn.setdefault(id(parameter), nn.Parameter(values, requires_grad=False))
            setattr(module, name, made)


def _with_states(plan: Plan, groups: tuple[StateGroup, ...], slots: int) -> Plan:
    """The plan of a model with other states, and as many pages."""
    per_token = bytes_per_token(groups, plan.scheduler.kv_dtype)
    per_slot = bytes_per_slot(groups, plan.scheduler.kv_dtype)
    tokens = plan.memory.kv_pages * plan.scheduler.page_size.value
    memory = replace(
        plan.memory,
        kv_pool=tokens * per_token + slots * per_slot,
        kv_bytes_per_token=per_token,
        slots=slots,
        bytes_per_slot=per_slot,
    )
    return replace(plan, graph=replace(plan.graph, groups=groups), memory=memory)


def _bind(pool: KVPool, states: Sequence[State], places: Sequence[tuple[int, int]]) -> None:
    """What the engine's loader does for graphs: the pool's tensors in the states' places."""
    for state, (group, layer) in zip(states, places, strict=True):
        for tensor, memory in zip(state.spec.tensors, pool.tensors(group, layer), strict=True):
            setattr(state, tensor.name, memory)


__all__ = ["TOYS", "WINDOW", "toy_model"]
