"""What of a plan leaves the worker: plain data for the service. Knows plans; decides nothing."""

from __future__ import annotations

import json

from anychip.engine.messages import ModelFacts
from anychip.plan.explain import as_json
from anychip.plan.plan import Plan


def model_facts(plan: Plan) -> ModelFacts:
    """The plan that is run, as a service tells it and goes by it."""
    return ModelFacts(
        served_name=plan.model.served_name,
        path=str(plan.model.path),
        context_length=plan.model.context_length.value,
        vocab_size=plan.model.config.vocab_size,
        thinking=plan.model.thinking.value,
        emulated=plan.backend.emulated,
        warnings=plan.warnings,
        # what a backend gives as texts may be of a class of its own, as torch's version is: a message takes plain ones
        plan=json.loads(json.dumps(as_json(plan))),
    )


__all__ = ["model_facts"]
