"""Serve a stub core as a real process: `python serve_stub.py OPTIONS_JSON`. Prints the port on its first line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from anychip.server.serve import serve
from anychip.server.settings import ServerSettings
from support.stub_text import VOCAB, StubTemplate, StubTokenizer


def main() -> int:
    options = json.loads(sys.argv[1])
    settings = ServerSettings(
        served_name="stub", context_length=4000, vocab_size=VOCAB, **{"port": 0, **options.get("settings", {})}
    )
    return serve(
        settings,
        ("support.stub_core:make", options.get("core", {})),
        StubTokenizer(options.get("pieces", ())),
        StubTemplate(thinking=True),
        on_listening=lambda _host, port: sys.stdout.write(f"{port}\n") and sys.stdout.flush(),
    )


if __name__ == "__main__":
    raise SystemExit(main())
