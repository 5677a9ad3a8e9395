"""Talk to a running service over HTTP. Knows its endpoints; knows no process."""

from __future__ import annotations

import json
import ssl
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

import httpx

from anychip_sdk.errors import AnychipError

PROBE_S = 2.0  #: more than a service that is well ever takes to say so
SMOKE_PROMPT = "Hello"


class Health(NamedTuple):
    """What /health said; `state` is "unreachable" where nobody answers, "silent" where nobody did in time."""

    state: str
    stage: str = ""
    done: int = 0
    total: int = 0
    detail: str = ""
    reason: str = ""  #: why it isn't ready, where that has one

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"


class Delta(NamedTuple):
    """One piece of an answer."""

    reasoning: str
    content: str


class ServiceError(AnychipError):
    """The service answered with an error, or not at all."""


class ServiceClient:
    """A connection to one service; proxies of the environment are passed by.

    Args:
        host: where it listens, as the recipe says; 0.0.0.0 is reached on this machine.
        port: where it listens.
        api_key: its key, if it wants one.
        trust: for https, what its certificate is checked by; None: plain HTTP.
    """

    def __init__(self, host: str, port: int, api_key: str | None = None, trust: ssl.SSLContext | None = None) -> None:
        self.url = endpoint(host, port, is_tls=trust is not None)
        headers = {} if api_key is None else _authorization(api_key)
        verify = True if trust is None else trust
        self._http = httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=PROBE_S, verify=verify)

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def health(self) -> Health:
        """Never raises."""
        try:
            answer = self._http.get("/health")
            body = answer.json()
        except httpx.ReadTimeout:
            return Health("silent")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return Health("unreachable")
        if answer.status_code == httpx.codes.OK:
            return Health("ready")
        progress = body.get("progress") or {} if isinstance(body, dict) else {}
        if not isinstance(progress, dict):
            progress = {}
        return Health(
            str(body.get("status", "loading")) if isinstance(body, dict) else "loading",
            str(progress.get("stage", "")),
            int(progress.get("done", 0)),
            int(progress.get("total", 0)),
            str(progress.get("detail", "")),
            str(body.get("reason", "")) if isinstance(body, dict) else "",
        )

    def model(self) -> str:
        """The model's name in the API."""
        models = self._get("/v1/models").get("data")
        if not isinstance(models, list) or not models:
            raise ServiceError(f"{self.url} serves no model")
        return str(models[0]["id"])

    def takes(self, api_key: str) -> bool:
        """Whether the service lets this key through; also where it wants none, or doesn't answer."""
        try:
            answer = self._http.get("/v1/models", headers=_authorization(api_key))
        except httpx.HTTPError:
            return True
        return answer.status_code != httpx.codes.UNAUTHORIZED

    def info(self) -> Mapping[str, object]:
        """What /server_info tells."""
        return self._get("/server_info")

    def smoke(self, model: str, timeout_s: float) -> None:
        """Generate one token, for real.

        Raises:
            ServiceError: it did not work.
        """
        body = {"model": model, "prompt": SMOKE_PROMPT, "max_tokens": 1, "temperature": 0}
        answer = self._send(self._http.build_request("POST", "/v1/completions", json=body, timeout=timeout_s))
        usage = answer.get("usage")
        if not isinstance(usage, dict) or usage.get("completion_tokens") != 1:
            raise ServiceError(f"the smoke request to {self.url} brought no token: {json.dumps(answer)[:500]}")

    def chat(
        self, model: str, messages: Sequence[Mapping[str, str]], max_tokens: int | None = None
    ) -> Generator[Delta, None, None]:
        """The answer piece by piece; leaving the iterator early makes the service stop generating."""
        body: dict[str, object] = {"model": model, "messages": list(messages), "stream": True}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body, timeout=None) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    raise _refused(answer)
                yield from _deltas(answer.iter_lines())
        except httpx.HTTPError as error:
            raise ServiceError(f"the connection to {self.url} broke: {error or type(error).__name__}") from error

    def _get(self, path: str) -> Mapping[str, object]:
        return self._send(self._http.build_request("GET", path))

    def _send(self, request: httpx.Request) -> Mapping[str, object]:
        try:
            answer = self._http.send(request)
        except httpx.HTTPError as error:
            raise ServiceError(f"{self.url} does not answer: {error or type(error).__name__}") from error
        if answer.status_code != httpx.codes.OK:
            raise _refused(answer)
        try:
            body = answer.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise ServiceError(f"{request.url} answered with something that is no JSON object: {answer.text[:200]}")
        return body


def endpoint(host: str, port: int, *, is_tls: bool = False) -> str:
    """The URL under which this machine reaches a service that listens there."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    name = f"[{reachable}]" if ":" in reachable else reachable
    return f"{'https' if is_tls else 'http'}://{name}:{port}"


def _authorization(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"}


def _deltas(lines: Iterator[str]) -> Iterator[Delta]:
    for line in lines:
        if not line.startswith("data: "):
            continue
        if (data := line.removeprefix("data: ")) == "[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise ServiceError(str(chunk["error"].get("message", chunk["error"])))
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta", {})
            piece = Delta(delta.get("reasoning_content") or "", delta.get("content") or "")
            if any(piece):
                yield piece


def _refused(answer: httpx.Response) -> ServiceError:
    try:
        error = answer.json()["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        text = answer.text[:500]
    return ServiceError(f"{answer.request.url} answered {answer.status_code}: {text}")


__all__ = ["PROBE_S", "Delta", "Health", "ServiceClient", "ServiceError", "endpoint"]
