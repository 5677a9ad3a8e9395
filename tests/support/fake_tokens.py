"""A server of tokens whose latencies are known, in a thread or, as `python fake_tokens.py REVISION`, as a service.

Knows the two wire formats that benchmarks use; knows no model.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from anychip.deploy.launch import Launch, Planned
from anychip.deploy.leash import follow_leash
from anychip.deploy.running import FLAG


@dataclass
class Behaviour:
    """How the server answers.

    Args:
        first_s: from a request to its first token.
        gap_s: between tokens.
        context: the model's context length.
        short_prompts: numbers, from 1 on, of the prompts whose answers lack a token; None: all of them.
        error_at: a stream's event in whose place an error comes.
        status: of the answers to prompts.
        cached: tokens of each prompt that are said to be cached.
    """

    first_s: float = 0.0
    gap_s: float = 0.0
    context: int = 4096
    short_prompts: tuple[int, ...] | None = ()
    error_at: int | None = None
    status: int = 200
    cached: int = 0
    bodies: list = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    left: int = 0  #: streams whose client went away
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def prompts(self):
        return [body.get("prompt") or body.get("input_ids") for body in self.bodies]


@contextlib.contextmanager
def fake_tokens(**options):
    """The server in a thread: its URL and its behaviour."""
    behaviour = Behaviour(**options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(behaviour))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", behaviour
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def handler(behaviour):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            sent = sum(map(len, behaviour.prompts))
            cached = behaviour.cached * len(behaviour.bodies)
            if self.path == "/v1/models":
                self.reply({"data": [{"id": "fake", "max_model_len": behaviour.context}]})
            elif self.path == "/server_info":
                self.reply({"version": "1", "plan": {"model": {"vocab_size": 500}, "backend": {"name": "fake"}}})
            elif self.path == "/metrics":
                page = f"anychip:cached_tokens_total {cached}.0\nanychip:prompt_tokens_total {sent}.0\n"
                self.send(200, page.encode())
            else:
                self.reply({"status": "ready"})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                self.reply({"tokens": list(body["prompt"].encode())})
            elif not body.get("stream"):
                self.reply({"usage": {"completion_tokens": 1}})
            elif behaviour.status != 200:
                self.send(behaviour.status, b'{"error": {"message": "not today"}}')
            else:
                with behaviour.lock:
                    behaviour.bodies.append(body)
                    number = len(behaviour.bodies)
                    behaviour.running += 1
                    behaviour.most_running = max(behaviour.most_running, behaviour.running)
                try:
                    self.stream(body, number)
                except (BrokenPipeError, ConnectionResetError):
                    behaviour.left += 1
                finally:
                    with behaviour.lock:
                        behaviour.running -= 1

        def stream(self, body, number):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            is_generate = self.path == "/generate"
            count = body["sampling_params"]["max_new_tokens"] if is_generate else body["max_tokens"]
            count -= behaviour.short_prompts is None or number in behaviour.short_prompts
            prompt_tokens = len(body.get("prompt") or body["input_ids"])
            time.sleep(behaviour.first_s)
            for done in range(1, count + 1):
                if done > 1:
                    time.sleep(behaviour.gap_s)
                if done == behaviour.error_at:
                    self.event({"error": {"message": "the engine died"}})
                    return
                counts = {"prompt_tokens": prompt_tokens, "completion_tokens": done, "cached_tokens": behaviour.cached}
                self.event({"text": "x", "meta_info": counts} if is_generate else {"choices": [{"text": "x"}]})
            if not is_generate:
                self.event({"choices": [], "usage": usage(prompt_tokens, count, behaviour.cached)})
            self.wfile.write(b"data: [DONE]\n\n")

        def event(self, value):
            self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

        def reply(self, value):
            self.send(200, json.dumps(value).encode())

        def send(self, status, data):
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            return

    return Handler


def token_launch(**options):
    """Launches the server as a service."""
    return Launch(
        command=lambda revision: [sys.executable, __file__, json.dumps(options), FLAG, str(revision)],
        plan=lambda loaded: Planned("fake", "the plan"),
        poll_s=0.01,
    )


def usage(prompt_tokens, completion_tokens, cached):
    details = {"cached_tokens": cached}
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": details,
    }


def main(options, revision_path):
    server = json.loads(Path(revision_path).read_bytes())["recipe"]["server"]
    follow_leash()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    listening = ThreadingHTTPServer((server["host"], server["port"]), handler(Behaviour(**json.loads(options))))
    listening.daemon_threads = True
    listening.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3])
