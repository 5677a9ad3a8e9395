"""What a process that lives and isn't ready is doing. Knows what /health says and the process; asks no service."""

from __future__ import annotations

from typing import Literal

import psutil

from anychip.deploy.client import PROBE_S, Health

LivingCondition = Literal["loading", "hung", "unhealthy"]


def condition_of(health: Health, pid: int, *, may_load: bool) -> tuple[LivingCondition, str]:
    """The condition, and what more there is to say.

    Args:
        health: what /health said.
        pid: of the service's process.
        may_load: nobody has seen the service ready yet.
    """
    if health.state in {"unreachable", "silent"} and _is_stopped(pid):
        return "hung", f"its process {pid} is stopped, by a signal or a debugger; kill -CONT {pid} lets it go on"
    if health.state == "silent":
        return "unhealthy", f"its process {pid} lives, but /health gave no answer for {PROBE_S:g} s"
    if health.state == "loading" or (health.state == "unreachable" and may_load):
        return "loading", health.stage or health.state
    said = f"{health.state}: {health.reason}" if health.reason else health.stage or health.state
    return ("hung", health.reason or health.state) if health.state == "hung" else ("unhealthy", said)


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    except psutil.NoSuchProcess:
        return False


__all__ = ["LivingCondition", "condition_of"]
