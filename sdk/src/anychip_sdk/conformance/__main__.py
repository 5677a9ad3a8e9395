"""The suite's command line for a vendor who has the SDK alone; `platform conformance` is the same with a progress bar.

Knows arguments; knows no check.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from anychip_sdk.conformance import command
from anychip_sdk.conformance.command import Answer
from anychip_sdk.conformance.requirements import LEVELS
from anychip_sdk.conformance.results import CaseResult
from anychip_sdk.conformance.run.runner import Options
from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import AnychipError
from anychip_sdk.profiles import PROFILES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; its exit code."""
    given = _parser().parse_args(arguments)
    try:
        answer = _answer(given)
    except AnychipError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    text = json.dumps(answer.value, indent=2, ensure_ascii=False) if given.output == "json" else answer.text
    sys.stdout.write(text + "\n")
    return answer.code


def _answer(given: argparse.Namespace) -> Answer:
    if given.verb == "list":
        return command.list_requirements(given.profile)
    if given.verb == "report":
        return command.report(given.folder)
    if given.verb == "verify":
        return command.check(given.folder, given.public_key)
    if given.verb == "diff":
        return command.compare(given.old, given.new)
    if given.verb == "selftest":
        return command.self_test(given.only, _say)
    options = Options(
        profile=given.profile,
        level=given.level,
        only=tuple(given.only),
        resume=given.resume,
        timeout_s=given.timeout,
        repeat=given.repeat,
        device=given.device,
        config=DeviceConfig(emulate=given.emulate, threads=1),
    )
    return command.conduct(
        given.name, options, out=given.out, claims=given.claims, key=given.sign_key, listen=_case_ended
    )


def _case_ended(case: CaseResult, done: int, of: int) -> None:
    if case.status == "failed" or done % 50 == 0 or done == of:
        _say(f"{done}/{of} {case.id} {case.status}")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m anychip_sdk.conformance", description=command.__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    shown = argparse.ArgumentParser(add_help=False)
    shown.add_argument("--output", "-o", choices=("text", "json"), default="text")
    listing = verbs.add_parser("list", parents=[shown], help="every requirement")
    listing.add_argument("--profile", choices=PROFILES)
    run = verbs.add_parser("run", parents=[shown], help="test a backend")
    run.add_argument("name", help="an installed backend, module:attribute, or the path of a shared object")
    run.add_argument("--profile", choices=PROFILES, default="bringup")
    run.add_argument("--level", choices=LEVELS, default="std")
    run.add_argument("--only", action="append", default=[], help="a glob over cases, requirements or tracks")
    run.add_argument("--out", type=Path)
    run.add_argument("--resume", type=Path)
    run.add_argument("--timeout", type=float, help="seconds for one case")
    run.add_argument("--repeat", type=int, default=1)
    run.add_argument("--device")
    run.add_argument("--emulate", action="store_true")
    run.add_argument("--claims", type=Path)
    run.add_argument("--sign-key", type=Path)
    for verb, text in (("report", "write the reports again"), ("verify", "recompute verdict and digests")):
        one = verbs.add_parser(verb, parents=[shown], help=text)
        one.add_argument("folder", type=Path)
        if verb == "verify":
            one.add_argument("--public-key", type=Path)
    diff = verbs.add_parser("diff", parents=[shown], help="compare two runs")
    diff.add_argument("old", type=Path)
    diff.add_argument("new", type=Path)
    selftest = verbs.add_parser("selftest", parents=[shown], help="let the suite catch broken devices")
    selftest.add_argument("--only", action="append", default=[])
    return parser


if __name__ == "__main__":
    sys.exit(main())
