"""What the service is told at its start and needs from the parts beneath it. Knows shapes; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from anychip.engine.mailbox import Generation
from anychip.engine.messages import ModelFacts, Progress
from anychip.engine.outputs import Decoder
from anychip.engine.request import GenerateRequest
from anychip.recipe.limits import LimitsSection
from anychip.text.thinking import NO_THINKING, TemplateThinking
from anychip_sdk.errors import AnychipError


@dataclass(frozen=True)
class ServerSettings:
    """What one service is told besides its model; it doesn't change while the service runs."""

    aliases: tuple[str, ...] = ()  #: further names that requests may use for the model
    namespace: str = ""  #: of the prefix cache
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)  #: by request field, e.g. temperature
    version: str = ""
    created_s: int = 0  #: Unix time, shown by /v1/models
    unknown_fields: Literal["strict", "lenient"] = "strict"  #: refused, or ignored and named in the reply's header
    limits: LimitsSection = field(default_factory=LimitsSection)
    drain_s: float = 10.0  #: how long running requests may go on after a stop is asked for


class EngineAccess(Protocol):
    """The engine as the service sees it; `EngineClient` is one."""

    @property
    def state(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def restarts(self) -> int: ...
    @property
    def hangs(self) -> int: ...
    @property
    def load_s(self) -> float: ...
    @property
    def model(self) -> ModelFacts | None: ...
    @property
    def progress(self) -> Progress: ...
    async def open(self, requests: Sequence[GenerateRequest]) -> Generation: ...
    async def stats(self, patience_s: float | None = None) -> dict[str, float]: ...
    def last_stats(self) -> dict[str, float]: ...
    async def flush_cache(self) -> bool: ...
    def fail_all(self, error: AnychipError) -> None: ...


class TextTokenizer(Protocol):
    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, add_special: bool = True) -> list[int]: ...
    def tokens_at_least(self, text: str) -> int: ...
    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...
    def stream(self, skip_special: bool = True) -> Decoder: ...


class PromptTemplate(Protocol):
    """Renders a conversation as one prompt text."""

    async def render_soon(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        **variables: object,
    ) -> str: ...


@dataclass(frozen=True)
class Served:
    """What the service finds out itself, beside the worker."""

    settings: ServerSettings
    tokenizer: TextTokenizer
    template: PromptTemplate | None = None
    thinking: TemplateThinking = NO_THINKING  #: what that template does about it


__all__ = ["EngineAccess", "PromptTemplate", "Served", "ServerSettings", "TextTokenizer"]
