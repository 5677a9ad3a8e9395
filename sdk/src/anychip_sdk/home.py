"""The folder in which anychip keeps what it knows of this machine. Knows no file in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

HOME_VARIABLE = "ANYCHIP_HOME"


def home(environ: Mapping[str, str] | None = None) -> Path:
    """$ANYCHIP_HOME, or the user's folder for state."""
    environ = os.environ if environ is None else environ
    chosen = environ.get(HOME_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    try:
        import platformdirs
    except ImportError:  # it comes with the platform; a vendor may have the SDK alone
        return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "anychip"
    return Path(platformdirs.user_state_dir("anychip"))


__all__ = ["HOME_VARIABLE", "home"]
