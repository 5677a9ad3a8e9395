"""Read API keys from where a recipe says they are. Keeps none."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from anychip.recipe.schema import SecretRef
from anychip.server.keys import ApiKey, KeysInvalid, parse_keys, problem_of
from anychip_sdk.errors import PreconditionFailed

KEY = "server.api_key"
MAX_FILE_BYTES = 1024 * 1024


def read_keys(ref: SecretRef | None, environ: Mapping[str, str] | None = None) -> tuple[ApiKey, ...]:
    """The keys that clients may use, at least one; none where the recipe names none.

    Args:
        ref: the recipe's `server.api_key`.
        environ: None: the process's own.

    Raises:
        PreconditionFailed: the variable or the file is missing, or holds no key or a wrong one; no key is shown.
    """
    if ref is None:
        return ()
    if ref.env is not None:
        return (key_in_variable(ref.env, environ),)
    return _from_file(Path(ref.file or ""))


def key_in_variable(name: str, environ: Mapping[str, str] | None = None, said_by: str = KEY) -> ApiKey:
    """The key that an environment variable holds; spaces at its ends don't count.

    Raises:
        PreconditionFailed: there is none, or it is no key; `said_by` is what names the variable.
    """
    secret = (os.environ if environ is None else environ).get(name, "").strip()
    if not secret:
        raise _problem(f"the environment variable {name} is not set or empty", said_by)
    if problem := problem_of(secret):
        raise _problem(f"the environment variable {name} has {problem}", said_by)
    return ApiKey(name, secret)


def first_key(ref: SecretRef | None, environ: Mapping[str, str] | None = None) -> str | None:
    """A key for this machine's own commands; None where the recipe names none. Raises PreconditionFailed likewise."""
    keys = read_keys(ref, environ)
    return keys[0].secret if keys else None


def shell_reference(ref: SecretRef) -> str:
    """What a shell replaces by the first key, for a command line to paste."""
    if ref.env is not None:
        return f"${ref.env}"
    path = shlex.quote(ref.file or "")
    try:
        is_bare = len(Path(ref.file or "").read_text(encoding="utf-8-sig").split()) == 1
    except (OSError, ValueError):
        is_bare = True
    first = "/^[[:space:]]*[^#[:space:]]/{s/^[^:]*:[[:space:]][[:space:]]*//;s/[[:space:]]*$//;p;q;}"
    return f"$(cat {path})" if is_bare else f"$(sed -n '{first}' {path})"


def _from_file(path: Path) -> tuple[ApiKey, ...]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise KeysInvalid([f"it has more than {MAX_FILE_BYTES} bytes"])
        return parse_keys(content.decode("utf-8-sig"))
    except OSError as error:
        raise _problem(f"the file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _problem(f"the file {path} is not UTF-8 text, from byte {error.start} on") from None
    except KeysInvalid as error:
        raise _problem(f"the file {path}: {error}") from None


def _problem(message: str, said_by: str = KEY) -> PreconditionFailed:
    hint = f"mend that, or remove {KEY} from the recipe" if said_by == KEY else None
    return PreconditionFailed(f"{said_by}: {message}", hint=hint)


__all__ = ["first_key", "key_in_variable", "read_keys", "shell_reference"]
