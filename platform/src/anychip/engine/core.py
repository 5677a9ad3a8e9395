"""The engine's heart: schedule, plan, run, commit. Knows the step; knows no tensor, no process and no text.

Where the scheduler allows it, the next step is scheduled and submitted before anybody waits for the one that runs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import NamedTuple

import structlog

from anychip.engine.admission import SchedulerConfig
from anychip.engine.batch import Batch
from anychip.engine.laps import STEP_PARTS, Laps
from anychip.engine.loader import LoadedModel, Report, load_model
from anychip.engine.messages import ModelFacts, Progress
from anychip.engine.model_facts import model_facts
from anychip.engine.pace import Pace
from anychip.engine.pulse import Pulse
from anychip.engine.request import GenerateRequest, SamplingParams, TokenEvent
from anychip.engine.runner import Pending, Runner
from anychip.engine.scheduler import Scheduler
from anychip.engine.step_cost import StepCost, measured_cost, predicted_cost
from anychip.engine.step_planner import StepPlanner
from anychip.plan.make import prepare
from anychip.plan.plan import Decision, Plan
from anychip.recipe import load as load_recipe
from anychip.recipe.schema import Recipe
from anychip_sdk.errors import CheckpointInvalid, UsageError

log = structlog.get_logger("anychip.engine")

WARM_UP_ID = "warm-up"
#: of a worker, in which a kernel may be compiled for a shape that the warm-up didn't have
FIRST_STEPS, FIRST_STEP_S = 32, 6.0
MEASURED_TOKENS = 64  #: of the prompt by which the pace of prompts is measured; few cost more each than many


class _Flight(NamedTuple):
    """A step that was submitted and not committed."""

    batch: Batch
    pending: Pending
    started_s: float  #: when its scheduling began


class EngineCore:
    """Owns the device. Not thread safe: one loop drives it."""

    def __init__(self, model: LoadedModel) -> None:
        self.plan = model.plan
        self._model = model
        self._pace = Pace(model.plan.scheduler.tpot_p95_s, model.plan.scheduler.chunked_prefill_size.value)
        self._scheduler = self._new_scheduler()
        self._planner = StepPlanner()
        self._runner = Runner(model)
        self._laps = self._runner.laps
        self._flights: deque[_Flight] = deque()
        self._last_result_s = 0.0
        self._pulse, self._cost = Pulse(), StepCost()
        self._submitted, self._behind_s = 0, 0.0

    @property
    def model(self) -> ModelFacts:
        return model_facts(self.plan)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    def cost(self) -> StepCost:
        """What steps are expected to take."""
        return self._cost

    def watch(self, pulse: Pulse) -> None:
        """From now on tell there how long each step may be expected to take."""
        self._pulse = pulse

    def expect(self, predicted: StepCost) -> None:
        """Expect steps to take what the warm-up's let expect, or what is predicted where that is more."""
        self._cost = measured_cost(self.plan, self._pace).at_least(predicted)

    def add(self, request: GenerateRequest) -> None:
        self._scheduler.add(request)

    def abort(self, request_id: str) -> list[TokenEvent]:
        events = self._scheduler.abort(request_id)
        self._drop_idle()
        return events

    def stop(self, request_id: str, index: int) -> None:
        """End one completion whose text is whole by what only its reader knows."""
        self._scheduler.stop(request_id, index)
        self._drop_idle()

    def step(self) -> list[TokenEvent]:
        """One forward over all running sequences; what it brought. Another may run when this returns."""
        self._laps.start()
        if not self._flights and not self._submit():
            return []
        if self.plan.scheduler.overlap.value:
            self._submit()  # what comes behind it, if that can be said already: the device goes on meanwhile
        flight = self._flights.popleft()
        result = flight.pending.wait()
        events = self._scheduler.commit(flight.batch, result.drawn)
        self._laps.lap("commit")
        self._observe(flight)
        self._drop_idle()
        return events

    def fail_all(self, reason: str) -> list[TokenEvent]:
        self._flights.clear()
        return self._scheduler.fail_all(reason)

    def flush_cache(self) -> bool:
        return self._scheduler.flush_cache()

    def stats(self) -> dict[str, float]:
        """The scheduler's numbers, and where the time of all steps went (seconds)."""
        numbers = {name: float(value) for name, value in self._scheduler.stats()._asdict().items()}
        return {
            **numbers,
            "decode_step_seconds": self._pace.decode_s,
            "prompt_token_seconds": self._pace.token_s,
            "page_size": float(self.plan.scheduler.page_size.value),
            "step_seconds": sum(self._laps.totals_s.values()),
            **{f"{part}_seconds": total_s for part, total_s in self._laps.totals_s.items()},
            "weight_bytes": float(self._model.weight_bytes),
            **self._weight_errors(),
            "device_bytes_free": float(self._model.device.memory().bytes_free),
        }

    def _submit(self) -> bool:
        """Start the next step, if there is one that can be scheduled now."""
        started_s = time.perf_counter()
        batch = self._scheduler.schedule()
        if batch is None:
            return False
        self._tell(batch)
        plan = self._planner.plan(batch)
        self._laps.lap("schedule")
        self._flights.append(_Flight(batch, self._runner.submit(plan), started_s))
        return True

    def _tell(self, batch: Batch) -> None:
        """How long the step and the one before it, which may run still, are expected to take."""
        cost_s = self._cost.decodes_s
        if len(batch.rows) > batch.decode_rows:
            cost_s = self._cost.of(batch.tokens - batch.decode_rows)
        if self._submitted < FIRST_STEPS:
            self._submitted += 1
            cost_s += FIRST_STEP_S
        self._pulse.expect(cost_s + self._behind_s)
        self._behind_s = cost_s

    def _observe(self, flight: _Flight) -> None:
        """Tell the pace how long a step took: from the result before it on, where it was submitted earlier."""
        now_s, batch = time.perf_counter(), flight.batch
        seconds = now_s - max(flight.started_s, self._last_result_s)
        self._last_result_s = now_s
        self._pace.observe(batch.decode_rows, batch.tokens - batch.decode_rows, seconds)

    def _drop_idle(self) -> None:
        """Forget a step whose sequences have all ended. It runs on; what is submitted later comes behind it."""
        if self._flights and not self._scheduler.has_work:
            self._flights.clear()
            self._scheduler.discard()

    def _weight_errors(self) -> dict[str, float]:
        """How far quantized matrices are from their numbers, relative; nothing where none is quantized."""
        errors = self._model.weight_errors.values()
        if not errors:
            return {}
        return {"weight_error_mean": sum(errors) / len(errors), "weight_error_max": max(errors)}

    def close(self) -> None:
        self._model.close()

    def warm_up(self) -> None:
        """Run what a first request would be the first to run: prefill, decode, greedy and drawn tokens.

        Where a time per output token is promised, a longer prompt follows, by which the pace of prompts is measured.

        Raises:
            CheckpointInvalid: logits are not finite; with the first op that makes such numbers.
        """
        self._warm_up(32, 0.0)
        self._warm_up(32, 1.0)
        if self.plan.scheduler.tpot_p95_s is not None:
            self._warm_up(MEASURED_TOKENS, 0.0)
        self._scheduler = self._new_scheduler()  # its counters start at 0
        self._laps = self._runner.laps = Laps(STEP_PARTS)
        self._submitted = 0

    def _warm_up(self, tokens: int, temperature: float) -> None:
        plan = self.plan
        room = min(plan.model.context_length.value, plan.scheduler.kv_tokens)
        prompt = [token % plan.model.config.vocab_size for token in range(min(tokens, room // 2))]
        params = SamplingParams(temperature=temperature, seed=0, max_tokens=3, ignore_eos=True)
        self.add(GenerateRequest(WARM_UP_ID, prompt, params))
        while self.has_work:
            for event in self.step():
                if event.error is not None:
                    raise self._unusable(event.error)
        self.flush_cache()

    def _unusable(self, reason: str) -> CheckpointInvalid:
        """The error of a model that can't answer the first request."""
        origin = self._runner.origin()
        where = "" if origin is None else f"; {origin}"
        return CheckpointInvalid(
            f"{self.plan.model.path}: at warm-up the model computes NaN or infinity: {reason}{where}",
            hint="the weights are damaged, or too large for the dtype: try model.dtype: float32 or bfloat16",
        )

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(scheduler_config(self.plan), self._model.pool, self._pace)


def scheduler_config(plan: Plan) -> SchedulerConfig:
    """What the plan says of scheduling by the same names, and the model's facts that requests are checked against."""
    names = {field.name for field in fields(SchedulerConfig)}
    planned = {name: value for name, value in vars(plan.scheduler).items() if name in names}
    return SchedulerConfig(
        **{name: value.value if isinstance(value, Decision) else value for name, value in planned.items()},
        context_length=plan.model.context_length.value,
        vocab_size=plan.model.config.vocab_size,
        eos_token_ids=plan.model.config.eos_token_ids,
    )


def build_core(recipe: Recipe, report: Report) -> EngineCore:
    """Plan, load and warm up: a core that is ready for requests."""
    laps = Laps()
    prepared = prepare(recipe)
    laps.lap("plan")
    model = load_model(prepared, report)
    laps.totals_s.update(model.timings_s)
    core = EngineCore(model)
    try:
        report("warm-up", 0, 1, "")
        laps.start()
        core.warm_up()
        core.expect(predicted_cost(model.plan, prepared.backend, recipe.backend.plugin_path))
        laps.lap("warm_up")
    except BaseException:
        core.close()
        raise
    report("warm-up", 1, 1, "")
    _log_stages(model.plan, laps.totals_s)
    return core


def _log_stages(plan: Plan, seconds: Mapping[str, float]) -> None:
    """What was loaded, how long each stage took, and which ops have no kernel of the backend."""
    fallbacks = sorted({row.op for row in plan.ops if row.is_fallback})
    times = {f"{stage}_s": round(took_s, 3) for stage, took_s in seconds.items()}
    say = log.warning if fallbacks else log.info
    say("model loaded", fallback_ops=len(fallbacks), fallbacks=fallbacks, **times)


def from_recipe_file(argument: object, send: Callable[[Progress], None]) -> EngineCore:
    """The worker's factory: the path of a resolved recipe in, a warm core out."""
    if not isinstance(argument, str):
        message = f"expected the path of a resolved recipe, not {argument!r}"
        raise UsageError(message)
    last_s = 0.0

    def report(stage: str, done: int, total: int, what: str) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if done == total or now_s - last_s > 0.1:
            last_s = now_s
            send(Progress(stage, done, total, what))

    return build_core(load_recipe(argument, env={}).recipe, report)


__all__ = ["EngineCore", "build_core", "from_recipe_file", "scheduler_config"]
