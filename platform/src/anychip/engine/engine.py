"""The engine in this process, as a Python API. Knows recipes, text and token ids; knows no HTTP.

with anychip.Engine.from_recipe("recipes/quickstart.yaml") as engine:
    for completion in engine.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8)):
        print(completion.text)
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Union

from anychip.engine.core import EngineCore, build_core
from anychip.engine.outputs import ChoiceAssembler
from anychip.engine.request import FinishReason, GenerateRequest, SamplingParams
from anychip.plan.plan import Plan
from anychip.recipe import load as load_recipe
from anychip.recipe.schema import Recipe
from anychip.text.chat_template import ChatTemplate
from anychip.text.thinking import fixed_variables
from anychip.text.thinking_probe import thinking_of
from anychip.text.tokenizer import Tokenizer
from anychip.weights.checkpoint import open_checkpoint
from anychip_sdk.errors import RequestInvalid

Prompt = Union[str, Sequence[int], Sequence[Mapping[str, object]]]


@dataclass(frozen=True)
class Completion:
    """One finished answer. `index` tells the n completions of a prompt apart."""

    prompt: int  #: which of the prompts
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Engine:
    """A loaded model in this process. Not thread safe; a context manager."""

    def __init__(self, core: EngineCore, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._core = core
        self.tokenizer = tokenizer
        self.template = template
        self._ids = itertools.count()
        self._variables = fixed_variables(core.plan.model.thinking.value, thinking_of(template))

    @classmethod
    def from_recipe(cls, recipe: str | os.PathLike[str] | Recipe, sets: Sequence[str] = ()) -> Engine:
        """Plan, load and warm up.

        Args:
            recipe: a recipe's file, or a loaded recipe.
            sets: assignments such as `memory.kv_tokens=4096`, for a file.

        Raises:
            AnychipError: the recipe is invalid, or something that it needs is missing.
        """
        loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, sets).recipe
        core = build_core(loaded, lambda *_: None)
        try:
            with open_checkpoint(core.plan.model.path) as checkpoint:
                tokenizer = Tokenizer.from_checkpoint(checkpoint)
                template = ChatTemplate.from_checkpoint(checkpoint, tokenizer.special_tokens)
        except BaseException:
            core.close()
            raise
        return cls(core, tokenizer, template)

    @property
    def plan(self) -> Plan:
        return self._core.plan

    @property
    def core(self) -> EngineCore:
        return self._core

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None, stop: Sequence[str] = ()
    ) -> list[Completion]:
        """Answers for all prompts, computed together; in the order of the prompts, then of their indices.

        Args:
            prompts: one or several; a prompt is a text, token ids, or chat messages.
            params: how tokens are chosen; greedy by default.
            stop: strings that end a text, left out of it.

        Raises:
            RequestInvalid: a prompt or parameter is wrong; nothing was computed.
        """
        many = [prompts] if _is_single(prompts) else list(prompts)
        chosen = params or SamplingParams(temperature=0.0)
        ids = [self._prompt_ids(prompt) for prompt in many]  # type: ignore[arg-type]
        requests = [GenerateRequest(f"local-{next(self._ids)}", list(one), chosen) for one in ids]
        try:
            for request in requests:
                self._core.add(request)
            return sorted(self._collect(requests, stop), key=lambda one: (one.prompt, one.index))
        except BaseException:
            self._core.fail_all("generate() ended early")  # also a step that was left in the middle
            raise

    def close(self) -> None:
        self._core.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _prompt_ids(self, prompt: Prompt) -> Sequence[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if not prompt or isinstance(prompt[0], int):
            return prompt  # type: ignore[return-value]
        if self.template is None:
            message = f"{self.plan.model.path} has no chat template: give a text or token ids instead of messages"
            raise RequestInvalid(message, param="prompt")
        text = self.template.render(prompt, **self._variables)  # type: ignore[arg-type]
        return self.tokenizer.encode(text, add_special=False)

    def _collect(self, requests: Sequence[GenerateRequest], stop: Sequence[str]) -> Iterator[Completion]:
        prompts = {request.id: index for index, request in enumerate(requests)}
        choices = {
            (request.id, index): _Choice(
                ChoiceAssembler(self.tokenizer.stream(), stop, None, request.params.min_tokens)
            )
            for request in requests
            for index in range(request.params.n)
        }
        unfinished = set(choices)
        while unfinished:
            for event in self._core.step():
                key = (event.request_id, event.index)
                if key not in unfinished:
                    continue
                choice = choices[key]
                delta = choice.assembler.push(event)
                choice.text += delta.text
                choice.token_ids += event.token_ids
                if delta.finish_reason is None:
                    continue
                unfinished.discard(key)
                yield Completion(
                    prompts[event.request_id],
                    event.index,
                    choice.text,
                    tuple(choice.token_ids[: delta.completion_tokens]),
                    delta.finish_reason,
                    event.prompt_tokens,
                    event.cached_tokens,
                    delta.completion_tokens,
                )
                if event.finish_reason is None:  # a stop string ended it, of which the core knows nothing
                    self._core.stop(*key)


class _Choice:
    def __init__(self, assembler: ChoiceAssembler) -> None:
        self.assembler = assembler
        self.text = ""
        self.token_ids: list[int] = []


def _is_single(prompts: object) -> bool:
    """Whether this is one prompt: a text, a list of ids, or a list of messages."""
    if isinstance(prompts, str):
        return True
    first = prompts[0] if isinstance(prompts, Sequence) and prompts else None
    return isinstance(first, (int, Mapping))


__all__ = ["Completion", "Engine", "Prompt"]
