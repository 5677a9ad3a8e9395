"""Whether greedy tokens are right, judged one by one by the exact logits. Knows truths and answers; runs no engine.

A token is right if, in front of its own text, its exact logit is within twice the logit bound of the largest. So every
token counts, also behind a place where rounding rightly decided, and two right answers differ only at such places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from anychip.conformance.service import Answer, Model, Serving, allowed_error, forced_logits
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import expect

MEASURED = 2.0  #: how much further off than on the measured text another text may be


def logit_bound(model: Model, served: Serving, text: Sequence[int]) -> float:
    """How far this backend's logits are off, measured on a text; never more than what rounding explains."""
    exact = model.exact.logits(text)
    measured = float((forced_logits(served.loaded, text, len(text)) - exact).abs().max())
    one_rounding = torch.finfo(model.dtype).eps * float(exact.abs().max())
    allowed = allowed_error(model, text)
    return min(MEASURED * measured + one_rounding, allowed) if math.isfinite(measured) else allowed


def judge(
    context: Context,
    model: Model,
    bound: float,
    prompts: Sequence[Sequence[int]],
    answers: Mapping[tuple[str, int], Answer],
    what: str,
) -> None:
    """Raise at the first token that no rounding explains; note how many steps had one right token only."""
    decided, steps = 0, 0
    for (name, index), answer in answers.items():
        prompt = list(prompts[int(name.removeprefix("r"))])
        exact = model.exact.logits([*prompt, *answer.tokens[:-1]])[len(prompt) - 1 :]
        chosen = exact.gather(1, torch.tensor(answer.tokens).unsqueeze(1)).squeeze(1)
        best = exact.topk(2).values
        short = best[:, 0] - chosen
        at = int(short.argmax())
        expect(
            float(short[at]) <= 2 * bound,
            f"{what}: request {name}, answer {index}: token {at} is {answer.tokens[at]}, the exact model says "
            f"{int(exact[at].argmax())} by {float(short[at]):.3g}; logits are within {bound:.3g}",
            prompt=prompt,
            got=answer.tokens,
            expected=exact.argmax(dim=1),
            bound=2 * bound,
        )
        decided += int((best[:, 0] - best[:, 1] > 2 * bound).sum())
        steps += len(answer.tokens)
    context.measured["steps"] = context.measured.get("steps", 0) + steps
    context.measured["steps_decided"] = context.measured.get("steps_decided", 0) + decided


__all__ = ["judge", "logit_bound"]
