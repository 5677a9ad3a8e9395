"""API keys: read from text, matched in constant time, changed while the service runs. Knows no file and no recipe."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from anychip.server.access import PROBES
from anychip.server.errors import error_response
from anychip.server.record import current
from anychip_sdk.errors import RequestInvalid

MAX_KEY_CHARS = 4096
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.@-]{0,63})\s*:\s+(?P<secret>.*)")


@dataclass(frozen=True)
class ApiKey:
    """A key and the name that logs show in its stead."""

    name: str
    secret: str = field(repr=False)


class KeysInvalid(ValueError):
    """Every problem of a text with keys; none of them shows a key."""

    def __init__(self, problems: Collection[str]) -> None:
        super().__init__("; ".join(problems))


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """The keys in a file's text: one a line, `name: key` or the key alone; empty lines and `# comments` don't count.

    Raises:
        KeysInvalid: there is none, or a line is no key, or a key or a name is there twice.
    """
    keys, problems = [], []
    for number, written in enumerate(text.split("\n"), 1):
        line = written.strip()
        if not line or line.startswith("#"):
            continue
        named = _NAMED.fullmatch(line)
        key = ApiKey(named["name"], named["secret"]) if named else ApiKey(f"line-{number}", line)
        problem = problem_of(key.secret) or ("" if named or ":" not in line else _COLON)
        if problem:
            problems.append(f"line {number}: {problem}")
        else:
            keys.append(key)
    problems += _repeated(keys)
    if not keys and not problems:
        problems = ["it holds no key"]
    if problems:
        raise KeysInvalid(problems)
    return tuple(keys)


_COLON = "a colon in a key; write `name: key`, with a space, or give this key a name too"


def problem_of(secret: str) -> str:
    """What keeps a text from being a key; empty where nothing does."""
    if not secret.isascii():
        return "a character that is not ASCII, which no HTTP header carries"
    if not re.fullmatch(r"[!-~]+", secret):
        return "a space or a control character within a key; a comment takes a line of its own, beginning with #"
    return f"more than {MAX_KEY_CHARS} characters" if len(secret) > MAX_KEY_CHARS else ""


def _repeated(keys: list[ApiKey]) -> list[str]:
    by_name: dict[str, ApiKey] = {}
    by_secret: dict[str, ApiKey] = {}
    problems = []
    for key in keys:
        if key.name in by_name:
            problems.append(f"the name {key.name} stands there twice")
        if key.secret in by_secret:
            problems.append(f"{by_secret[key.secret].name} and {key.name} are the same key")
        by_name[key.name] = by_secret[key.secret] = key
    return problems


class KeyRing:
    """The keys that are good now; it holds their digests only."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._digests: tuple[tuple[str, bytes], ...] = ()
        self.replace(keys)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._digests)

    def replace(self, keys: Iterable[ApiKey]) -> bool:
        """Let only these keys be good from now on; False where nothing changes."""
        digests = tuple((key.name, _digest(key.secret.encode())) for key in keys)
        has_changed = digests != self._digests
        self._digests = digests
        return has_changed

    def name_of(self, secret: bytes) -> str | None:
        """The key's name; None where it is no good. Takes as long whatever is given, but for hashing it."""
        given, found = _digest(secret), None
        for name, digest in self._digests:
            if hmac.compare_digest(given, digest):
                found = name
        return found


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


class KeyCheck:
    """Lets requests with a good key through, and those that only look whether the service is well."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PROBES:
            kind, _, secret = Headers(scope=scope).get("authorization", "").partition(" ")
            name = self._keys.name_of(secret.strip().encode("latin-1")) if kind.lower() == "bearer" else None
            if name is None:
                refused = RequestInvalid("the API key is missing or wrong", code="invalid_api_key", status=401)
                await error_response(refused)(scope, receive, send)
                return
            current().key = name
        await self._app(scope, receive, send)


__all__ = ["ApiKey", "KeyCheck", "KeyRing", "KeysInvalid", "parse_keys", "problem_of"]
