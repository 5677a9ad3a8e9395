"""A service's process: `python -m anychip.deploy.service --revision FILE`. Plans the revision, then serves it.

Knows how the parts are put together; knows no command and no state file.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

import anychip
from anychip.deploy.launch import Failure, failure_path, recipe_of
from anychip.deploy.secrets import read_secret
from anychip.deploy.state import read_revision, write_recipe
from anychip.deploy.supervisor import follow_leash
from anychip.engine.chat_template import ChatTemplate
from anychip.engine.logs import configure_logs
from anychip.engine.request import namespace_of
from anychip.engine.tokenizer import Tokenizer
from anychip.plan.explain import as_json
from anychip.plan.make import make_plan
from anychip.plan.plan import Plan
from anychip.recipe import Recipe
from anychip.server.serve import serve
from anychip.server.settings import ServerSettings
from anychip.weights.checkpoint import open_checkpoint
from anychip_sdk.errors import AnychipError

CORE_FACTORY = "anychip.engine.core:from_recipe_file"
#: What a model's generation_config may choose for requests that don't.
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

log = structlog.get_logger("anychip.service")


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m anychip.deploy.service")
    parser.add_argument("--revision", type=Path, required=True, metavar="FILE", help="what was applied")
    path: Path = parser.parse_args(arguments).revision
    follow_leash()
    configure_logs()
    try:
        return run(path)
    except AnychipError as error:
        log.error("the service cannot be started", reason=str(error))
        _leave(path, Failure(error.message, error.hint, error.exit_code))
        return error.exit_code
    except Exception as error:
        log.exception("the service cannot be started")
        _leave(path, Failure(f"{type(error).__name__}: {error}"))
        return 1


def run(revision_path: Path) -> int:
    """Plan a revision and serve it."""
    revision = read_revision(revision_path)
    recipe = recipe_of(revision)
    plan = make_plan(recipe)
    for warning in plan.warnings:
        log.warning(warning)
    with open_checkpoint(plan.model.path) as checkpoint:
        tokenizer = Tokenizer.from_checkpoint(checkpoint)
        template = ChatTemplate.from_checkpoint(checkpoint, tokenizer.special_tokens)
        defaults = sampling_defaults(checkpoint.generation_config)
    recipe_path = write_recipe(revision_path.with_suffix(".recipe.json"), revision.recipe)
    settings = _settings(recipe, plan, defaults)
    log.info("starting", revision=revision.revision, recipe=revision.recipe_path, model=str(plan.model.path))
    environment = {**plan.backend.environment, **os.environ}
    return serve(settings, (CORE_FACTORY, str(recipe_path)), tokenizer, template, env=environment)


def sampling_defaults(generation_config: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a generation_config that apply to requests which name none."""
    found = {name: generation_config.get(name) for name in SAMPLING_FIELDS}
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}


def _settings(recipe: Recipe, plan: Plan, defaults: Mapping[str, float]) -> ServerSettings:
    return ServerSettings(
        served_name=plan.model.served_name,
        context_length=plan.model.context_length.value,
        vocab_size=plan.model.config.vocab_size,
        host=recipe.server.host,
        port=recipe.server.port,
        api_key=read_secret(recipe.server.api_key, "server.api_key"),
        thinking=recipe.model.thinking,
        namespace=namespace_of(model=str(plan.model.path), revision=recipe.model.revision or ""),
        sampling_defaults=defaults,
        plan=as_json(plan),
        emulated=plan.backend.emulated,
        version=anychip.__version__,
        created_s=int(time.time()),
    )


def _leave(revision_path: Path, failure: Failure) -> None:
    """Leave the reason where the command that started this process looks for it."""
    failure_path(revision_path).write_bytes(msgspec.json.encode(failure))


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["main", "run", "sampling_defaults"]
