"""A service that answers like a real one within milliseconds, and fails in the ways asked for.

Run as `python fake_service.py MODE --revision REVISION [--stand-by]`; MODE: well, slow (never ready), stillborn (it
ends before it could take over), crash, failure, mute (its smoke request brings no token), child (starts a child that
outlives SIGTERM).
"""

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def follow_leash(stand_by: bool) -> None:
    if stand_by:
        from anychip.deploy.leash import follow_leash

        follow_leash(5.0, stand_by=True)
        return

    def watch() -> None:
        with os.fdopen(os.dup(0), "rb") as said:
            line = said.readline()
            if line == b"keep\n":  # it ends with the command
                line = said.readline()
        if line != b"detach\n":
            os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def main(mode: str, revision_path: str, stand_by: bool) -> None:
    revision = json.loads(Path(revision_path).read_bytes())
    sys.stderr.write(f"fake service, revision {revision['revision']}, mode {mode}\n")
    if mode == "stillborn":
        sys.exit(7)
    follow_leash(stand_by)
    if mode == "crash":
        sys.stderr.write("the chip is on fire\n")
        sys.exit(7)
    if mode == "failure":
        failure = {"message": "the pool does not fit", "hint": "take less", "exit_code": 4}
        Path(revision_path).with_suffix(".failure.json").write_text(json.dumps(failure))
        sys.exit(4)
    if mode == "child":
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code])
        sys.stderr.write(f"child {child.pid}\n")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = revision["recipe"]["server"]
    ThreadingHTTPServer((server["host"], server["port"]), handler(mode)).serve_forever()


def handler(mode: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health" and mode == "slow":
                progress = {"stage": "weights", "done": 3, "total": 10, "detail": ""}
                self.reply(503, {"status": "loading", "progress": progress})
            elif self.path == "/v1/models":
                self.reply(200, {"data": [{"id": "tiny"}]})
            elif self.path == "/server_info":
                stats = {"running": 2, "waiting": 1, "pages_total": 10, "pages_free": 5, "pages_evictable": 1}
                self.reply(200, {"stats": stats, "restarts": 0})
            else:
                self.reply(200, {"status": "ready"})

        def do_POST(self) -> None:
            self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/v1/completions":
                self.reply(200, {"usage": {"completion_tokens": 0 if mode == "mute" else 1}})
            else:
                self.stream()

        def stream(self) -> None:
            said = self.body["messages"][-1]["content"]
            if said == "fail":
                self.reply(400, {"error": {"message": "no", "type": "invalid_request_error"}})
                return
            deltas = [{"role": "assistant"}, {"reasoning_content": "Hm."}, {"content": "You said "}, {"content": said}]
            if said == "forever":
                self.stream_on()
                return
            lines = [f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in deltas]
            if said == "break":
                lines.append('data: {"error": {"message": "the engine died"}}\n\n')
            data = "".join([*lines, "data: [DONE]\n\n"]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def stream_on(self) -> None:
            """Answer until the client leaves."""
            self.send_response(200)
            self.end_headers()
            line = f"data: {json.dumps({'choices': [{'delta': {'content': 'on '}}]})}\n\n".encode()
            try:
                while not threading.Event().wait(0.01):
                    self.wfile.write(line)
            except (BrokenPipeError, ConnectionResetError):
                sys.stderr.write("the client left\n")

        def reply(self, status: int, body: dict[str, object]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            return

    return Handler


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3], sys.argv[-1] == "--stand-by")
