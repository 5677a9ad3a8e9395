"""`python -m anychip_sdk.check NAME|WHEEL`: check a plugin where only the SDK is installed. Knows arguments."""

from __future__ import annotations

import argparse
import json
import sys

from anychip_sdk.check import as_text, check_plugins, exit_code
from anychip_sdk.errors import AnychipError

SCHEMA_VERSION = 1


def main(arguments: list[str] | None = None) -> int:
    """Check and report; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m anychip_sdk.check", description=__doc__)
    parser.add_argument("subject", nargs="*", help="installed backends or wheels; none: every installed backend")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    given = parser.parse_args(arguments)
    try:
        reports = [report for subject in given.subject or [None] for report in check_plugins(subject)]
    except AnychipError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    if given.output == "json":
        document = {"schema_version": SCHEMA_VERSION, "plugins": [report.as_json() for report in reports]}
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("\n".join(map(as_text, reports)) + "\n")
    return exit_code(reports)


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["main"]
