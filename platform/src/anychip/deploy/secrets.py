"""Read a secret from where a recipe says it is. Keeps none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from anychip.recipe.schema import SecretRef
from anychip_sdk.errors import PreconditionFailed


def read_secret(ref: SecretRef | None, key: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The secret itself; None where the recipe names none.

    Args:
        ref: the recipe's reference.
        key: the recipe's key that holds it, for messages.
        environ: None: the process's own.

    Raises:
        PreconditionFailed: the variable or the file is missing or empty.
    """
    if ref is None:
        return None
    environ = os.environ if environ is None else environ
    if ref.env is not None:
        value = environ.get(ref.env, "")
        where = f"the environment variable {ref.env}"
    else:
        path = Path(ref.file or "").expanduser()
        where = f"the file {path}"
        try:
            value = path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise PreconditionFailed(f"{key}: {where} cannot be read: {error.strerror}") from error
    if not value:
        raise PreconditionFailed(
            f"{key}: {where} is not set or empty", hint="set it, or remove the key from the recipe"
        )
    return value


def shell_reference(ref: SecretRef) -> str:
    """What a shell replaces by the secret, for a command line to paste."""
    return f"${ref.env}" if ref.env is not None else f"$(cat {ref.file})"


__all__ = ["read_secret", "shell_reference"]
