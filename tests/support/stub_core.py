"""A core that plays back a script instead of running a model, in this process or in a worker's. Knows no tensors."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from anychip.engine.messages import ModelFacts, Progress
from anychip.engine.request import TokenEvent
from anychip_sdk.errors import CheckpointInvalid, QueueFull, RequestInvalid
from support.stub_text import EOS, VOCAB

MODEL = {"served_name": "stub", "path": "/models/stub", "context_length": 4000, "vocab_size": VOCAB}


class Playback:
    """One choice of one request."""

    def __init__(self, request, index, reply, endless):
        self.request, self.index = request, index
        self.script = itertools.cycle(reply) if endless else iter(reply)
        self.done = 0

    def next(self):
        """The next event."""
        params = self.request.params
        tokens, finish, stop = [], None, None
        for token in next(self.script, [EOS]):
            self.done += 1
            if (token == EOS and not params.ignore_eos) or token in params.stop_token_ids:
                finish, stop = "stop", token
                break
            tokens.append(token)
            if self.done == params.max_tokens:
                finish = "length"
                break
        return self.event(tokens, finish, stop)

    def event(self, tokens, finish, stop=None, error=None):
        return TokenEvent(
            request_id=self.request.id,
            index=self.index,
            token_ids=tokens,
            finish_reason=finish,
            stop_token_id=stop,
            prompt_tokens=len(self.request.prompt_ids),
            cached_tokens=min(1, len(self.request.prompt_ids)),
            completion_tokens=self.done,
            error=error,
        )


class StubCore:
    """Plays `reply` (token lists, one an event) for every choice; without one it echoes the prompt, token by token.

    Args:
        model: what it says of its model, laid over MODEL.
        reply: the script. After its end comes EOS.
        endless: the script starts again at its end.
        step_s: how long a step takes.
        max_queued: more requests than this are refused.
        fail_steps: numbers of steps that raise.
        die_at_step: the process kills itself at that step.
        hang: (number of a step that never ends, whether it keeps Python's lock).
    """

    def __init__(
        self,
        reply=None,
        endless=False,
        step_s=0.0,
        max_queued=100,
        fail_steps=(),
        die_at_step=None,
        model=None,
        hang=(None, False),
    ):
        self.model = ModelFacts(**{**MODEL, **(model or {})})
        self.reply, self.endless, self.step_s, self.max_queued = reply, endless, step_s, max_queued
        self.fail_steps, self.die_at_step = set(fail_steps), die_at_step
        self.hang_at_step, self.keeps_lock = hang
        self.steps = 0
        self.aborted = []
        self.stopped = []
        self.computed = 0
        self.added = []
        self.running = []
        self.closed = False

    @property
    def has_work(self):
        return bool(self.running)

    def watch(self, pulse):
        self.pulse = pulse

    def add(self, request):
        if len({play.request.id for play in self.running}) >= self.max_queued:
            raise QueueFull(f"{self.max_queued} requests wait already", retry_after_s=2)
        if any(token == 999 for token in request.prompt_ids):
            raise RequestInvalid("999 is not to the core's taste", param="prompt")
        if any(token == 998 for token in request.prompt_ids):
            raise ZeroDivisionError("unforeseen")
        self.added.append(request)
        reply = self.reply or [[token] for token in request.prompt_ids]
        self.running += [Playback(request, index, reply, self.endless) for index in range(request.params.n)]

    def step(self):
        self.steps += 1
        time.sleep(self.step_s)
        if self.steps == self.die_at_step:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.steps == self.hang_at_step:
            (ctypes.PyDLL if self.keeps_lock else ctypes.CDLL)(None).sleep(600)
        if self.steps in self.fail_steps:
            raise ValueError(f"step {self.steps} fails")
        events = [play.next() for play in self.running]
        self.computed += len(events)
        self.running = [play for play, event in zip(self.running, events, strict=True) if event.finish_reason is None]
        return events

    def abort(self, request_id):
        gone = [play for play in self.running if play.request.id == request_id]
        self.running = [play for play in self.running if play.request.id != request_id]
        if gone:
            self.aborted.append(request_id)
        return [play.event([], "abort") for play in gone]

    def stop(self, request_id, index):
        self.stopped.append((request_id, index))
        self.running = [play for play in self.running if (play.request.id, play.index) != (request_id, index)]

    def fail_all(self, reason):
        gone, self.running = self.running, []
        return [play.event([], "error", error=reason) for play in gone]

    def stats(self):
        return {
            "running": float(len({play.request.id for play in self.running})),
            "waiting": 0.0,
            "steps": float(self.steps),
            "aborted": float(len(self.aborted)),
            "pages_total": 10.0,
            "pages_free": 10.0 - len(self.running),
        }

    def flush_cache(self):
        return not self.running

    def close(self):
        self.closed = True


def make(argument, report):
    """The factory for worker processes; `argument` holds StubCore's, and how loading goes.

    `load_error` fails it; `models` are what the first load says of its model, what the second says ..., and `loads`
    is a file in which loads are counted. `reload_s` is how long later ones say nothing at first. With `child` the
    worker has a child that ends for no signal but SIGKILL, whose pid is written to that file.
    """
    options = dict(argument)
    error, load_s = options.pop("load_error", None), options.pop("load_s", 0.0)
    models, loads = options.pop("models", None), options.pop("loads", None)
    reload_s, child = options.pop("reload_s", 0.0), options.pop("child", None)
    if child is not None:
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        Path(child).write_text(str(subprocess.Popen([sys.executable, "-c", code]).pid), encoding="utf-8")
    if reload_s:
        counted = Path(loads)
        if counted.exists():
            time.sleep(reload_s)
        counted.touch()
    for done in range(3):
        report(Progress("weights", done, 2, f"tensor {done}"))
    time.sleep(load_s)
    if error is not None:
        raise CheckpointInvalid(error, hint="use another")
    if models is not None:
        with Path(loads).open("a+", encoding="utf-8") as file:
            file.seek(0)
            options["model"] = models[len(file.readlines())]
            file.write("loaded\n")
    return StubCore(**options)
