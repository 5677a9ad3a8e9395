"""Send requests to a service and note when their tokens come. Knows HTTP; knows no workload and no statistics."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

import httpx

from anychip.bench.prompts import DEFAULT_VOCAB, Prompt
from anychip.bench.record import Record
from anychip.bench.wire import Answer, Api, Chunk, read_answer, request_body
from anychip_sdk.errors import PreconditionFailed

CONNECT_S = 10.0
#: Counters of prompt tokens found in the prefix cache and of prompt tokens altogether, as services name them.
CACHE_COUNTERS = (
    ("anychip:cached_tokens_total", "anychip:prompt_tokens_total"),
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
)


class ServiceFacts(NamedTuple):
    """What a service tells about itself; None or empty: it doesn't."""

    model: str
    context_length: int | None
    vocab_size: int
    info: dict[str, object]  #: what /server_info says, as far as results keep it


class CacheCounts(NamedTuple):
    """Since the service began."""

    cached_tokens: float
    prompt_tokens: float

    def rate_since(self, before: CacheCounts | None) -> float | None:
        if before is None or self.prompt_tokens <= before.prompt_tokens:
            return None
        return (self.cached_tokens - before.cached_tokens) / (self.prompt_tokens - before.prompt_tokens)


class LoadClient:
    """Connections to one service; proxies of the environment are passed by.

    Args:
        url: where it answers.
        api: the endpoint that takes the prompts.
        api_key: its key, if it wants one.
        timeout_s: how long it may be silent within a request.
        trust: what an https service's certificate is checked by; None: as the system does.
        clock: seconds; what records count from is given with each request.
    """

    def __init__(
        self,
        url: str,
        api: Api = Api.completions,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        clock: Callable[[], float] = time.perf_counter,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.model = ""
        self.clock = clock
        self._api = api
        headers = {"Accept-Encoding": "identity"}  # compressed streams come in blocks
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            trust_env=False,
            verify=True if trust is None else trust,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
            # a kept connection may be closed by the service just as a request goes out
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def __aenter__(self) -> LoadClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def facts(self) -> ServiceFacts:
        """Ask the service what it is.

        Raises:
            PreconditionFailed: nobody answers, or it serves no model.
        """
        listed = await self._json("/v1/models")
        cards = listed.get("data")
        if not isinstance(cards, list) or not cards or not isinstance(cards[0], dict):
            raise PreconditionFailed(f"{self.url}/v1/models lists no model")
        self.model = str(cards[0].get("id"))
        context = cards[0].get("max_model_len")
        try:
            info = await self._json("/server_info")
        except PreconditionFailed:
            info = {}  # services of other makes have none
        plan = info.get("plan")
        known = plan.get("model", {}) if isinstance(plan, dict) else {}
        vocab = known.get("vocab_size", DEFAULT_VOCAB)
        return ServiceFacts(self.model, context if isinstance(context, int) else None, int(vocab), _kept(info))

    async def tokenize(self, text: str) -> Sequence[int]:
        """The ids of a text, without special tokens at its ends.

        Raises:
            PreconditionFailed: the service has no /tokenize.
        """
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        said = await self._json("/tokenize", body)
        ids = said.get("tokens")
        if not isinstance(ids, list):
            raise PreconditionFailed(f"{self.url}/tokenize brought no tokens")
        return ids

    async def cache_counts(self) -> CacheCounts | None:
        """What /metrics says of the prefix cache; None where it doesn't."""
        try:
            answer = await self._http.get("/metrics")
        except httpx.HTTPError:
            return None
        if answer.status_code != httpx.codes.OK:
            return None
        for names in CACHE_COUNTERS:
            found = [_counter(answer.text, name) for name in names]
            if found[0] is not None and found[1] is not None:
                return CacheCounts(found[0], found[1])
        return None

    async def run(self, prompt: Prompt, origin_s: float, scheduled_s: float | None = None) -> Record:
        """Send one request and read its stream to the end; what goes wrong is in the record.

        Args:
            prompt: what to send.
            origin_s: on the client's clock, what the record's times count from.
            scheduled_s: when it was due, from the origin on; None: now.
        """
        body = request_body(self._api, self.model, prompt)
        sent_s = self.clock() - origin_s
        chunks: list[Chunk] = []
        try:
            async with self._http.stream("POST", self._api.path, json=body) as reply:
                if reply.status_code != httpx.codes.OK:
                    text = (await reply.aread()).decode(errors="replace")[:500]
                    answer = Answer((), 0, None, None, f"{self._api.path} answered {reply.status_code}: {text}")
                else:
                    # Nothing is parsed while tokens come: the client shares the machine with what it measures.
                    async for data in reply.aiter_raw():
                        chunks.append(Chunk(self.clock() - origin_s, data))
                    answer = read_answer(self._api, chunks)
        except httpx.HTTPError as error:
            answer = Answer((), 0, None, None, f"the connection broke: {error or type(error).__name__}")
        return Record(
            scheduled_s=sent_s if scheduled_s is None else scheduled_s,
            sent_s=sent_s,
            event_s=answer.event_s,
            prompt_tokens=len(prompt.ids),
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            error=answer.error or _miscounted(prompt, answer),
        )

    async def _json(self, path: str, body: object = None) -> dict[str, object]:
        try:
            answer = await (self._http.get(path) if body is None else self._http.post(path, json=body))
            said = answer.json() if answer.status_code == httpx.codes.OK else None
        except httpx.HTTPError as error:
            raise PreconditionFailed(f"{self.url} does not answer: {error or type(error).__name__}") from error
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise PreconditionFailed(f"{self.url}{path} answered {answer.status_code}: {answer.text[:300]}")
        return said


def _miscounted(prompt: Prompt, answer: Answer) -> str:
    """What differs between what was asked for and what the service counted."""
    if answer.output_tokens != prompt.output_tokens:
        return f"{prompt.output_tokens} output tokens were asked for, {answer.output_tokens} came"
    if answer.prompt_tokens not in (None, len(prompt.ids)):
        return f"{len(prompt.ids)} prompt tokens were sent, the service counted {answer.prompt_tokens}"
    return ""


def _kept(info: dict[str, object]) -> dict[str, object]:
    plan = info.get("plan")
    kept: dict[str, object] = {key: info[key] for key in ("version", "context_length") if key in info}
    if isinstance(plan, dict):
        kept |= {key: plan[key] for key in ("model", "backend", "scheduler") if key in plan}
    return kept


def _counter(page: str, name: str) -> float | None:
    """The sum over a counter's labels."""
    found = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)", page, re.MULTILINE)
    return sum(map(float, found)) if found else None


__all__ = ["CacheCounts", "LoadClient", "ServiceFacts"]
