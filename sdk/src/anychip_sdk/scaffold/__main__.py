"""`python -m anychip_sdk.scaffold NAME`: a new backend's package where only the SDK is installed. Knows arguments."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from anychip_sdk.errors import AnychipError
from anychip_sdk.scaffold import scaffold


def main(arguments: list[str] | None = None) -> int:
    """Write the package and name its files; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m anychip_sdk.scaffold", description=__doc__)
    parser.add_argument("name", help="the backend's name in recipes, e.g. acme")
    parser.add_argument("--directory", type=Path, default=None, help="where the package's folder goes; default: here")
    given = parser.parse_args(arguments)
    try:
        written = scaffold(given.name, given.directory)
    except AnychipError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write("".join(f"{written.folder / file}\n" for file in written.files))
    return 0


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["main"]
