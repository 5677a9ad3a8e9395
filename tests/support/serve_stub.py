"""Serve a stub core as a real process: `python serve_stub.py OPTIONS_JSON`. Prints the port on its first line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from anychip.recipe.watchdog import WatchdogLimits
from anychip.server.serve import serve
from anychip.server.settings import Served, ServerSettings
from anychip_sdk.errors import AnychipError, CheckpointInvalid
from support.networks import network_from
from support.stub_text import StubTemplate, StubTokenizer


def main() -> int:
    options = json.loads(sys.argv[1])
    given = dict(options.get("settings", {}))
    port = given.pop("port", 0)
    network = network_from(given)

    def prepare() -> Served:
        time.sleep(options.get("prepare_s", 0.0))
        if "prepare_error" in options:
            raise CheckpointInvalid(options["prepare_error"])
        tokenizer, template = StubTokenizer(options.get("pieces", ())), StubTemplate(thinking=True)
        return Served(ServerSettings(**given), tokenizer, template, template.thinking)

    return serve(
        "127.0.0.1",
        port,
        ("support.stub_core:make", options.get("core", {})),
        prepare,
        network=network,
        watchdog=WatchdogLimits(**options["limits"]) if "limits" in options else None,
        on_listening=lambda _host, port: sys.stdout.write(f"{port}\n") and sys.stdout.flush(),
    )


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except AnychipError as error:
        raise SystemExit(error.exit_code) from error
