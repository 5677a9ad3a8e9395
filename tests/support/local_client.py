"""The engine client's interface over a core in this process, and an app around it to ask. Knows no worker."""

from __future__ import annotations

import asyncio
import contextlib
import json

import httpx
import msgspec

from anychip.engine.mailbox import Generation
from anychip.engine.messages import ModelFacts, Progress
from anychip.server.app import create_app
from anychip.server.settings import ServerSettings
from support.networks import network_from
from support.stub_core import StubCore
from support.stub_text import StubTemplate, StubTokenizer


class LocalClient:
    """Steps the core in the event loop, one step an iteration."""

    def __init__(self, core):
        self.core = core
        self.model = core.model
        self.state = "ready"
        self.progress = Progress("weights", 1, 2, "half")
        self.problem = ""
        self.restarts = 0
        self.hangs = 0
        self.load_s = 1.5
        self.pauses = True
        self._generations = {}
        self._pump = None

    async def open(self, requests):
        generation = Generation({request.id: request.params.n for request in requests}, self.abort, self.core.stop)
        for request in requests:
            self._generations[request.id] = generation
            try:
                self.core.add(request)
            except Exception:
                generation.abort()
                raise
            generation.accept(request.id)
        await generation.accepted()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._run())
        return generation

    def abort(self, request_id):
        self._generations.pop(request_id, None)
        self.core.abort(request_id)

    def fail_all(self, error):
        for request_id, generation in list(self._generations.items()):
            self.abort(request_id)
            generation.fail(error)

    async def stats(self, patience_s=None):
        return self.core.stats()

    def last_stats(self):
        return self.core.stats()

    async def flush_cache(self):
        return self.core.flush_cache()

    async def _run(self):
        await asyncio.sleep(0)
        while self.core.has_work:
            try:
                events = self.core.step()
            except Exception as error:
                events = self.core.fail_all(f"{type(error).__name__}: {error}")
            for event in events:
                if event.request_id in self._generations:
                    self._generations[event.request_id].deliver(event)
            await asyncio.sleep(0)


class Asker:
    """An application over a stub core, asked without sockets; settings are the server's, or facts of the model."""

    def __init__(self, pieces=(), template=None, core=None, **settings):
        self.tokenizer = StubTokenizer(pieces)
        self.template = template or StubTemplate()
        self.core = core or StubCore(self.tokenizer.reply() if pieces else None)
        self.client = LocalClient(self.core)
        facts = {name: settings.pop(name) for name in ModelFacts.__struct_fields__ if name in settings}
        self.client.model = msgspec.structs.replace(self.core.model, **{"context_length": 100, **facts})
        self.network = network_from(settings)
        texts = self.tokenizer, self.template, self.template.thinking
        self.app = create_app(ServerSettings(**settings), self.client, *texts, self.network)
        self.service = self.app.state.service

    def ask(self, method, path, **arguments):
        """One request, whole."""
        return asyncio.run(self._ask(method, path, arguments))

    async def _ask(self, method, path, arguments):
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://stub") as client:
            return await client.request(method, path, **arguments)

    def post(self, path, body, **arguments):
        return self.ask("POST", path, json=body, **arguments)

    def chat(self, content="hi", **fields):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    def complete(self, prompt="hi", **fields):
        return self.post("/v1/completions", {"prompt": prompt, **fields})


def events_of(response):
    """The decoded frames of a stream without [DONE], and whether it was there."""
    frames = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in response.text.split("\n\n") if line)
    return [json.loads(frame, parse_constant=_refuse) for frame in frames if frame != "[DONE]"], "[DONE]" in frames


def _refuse(constant):
    raise ValueError(f"{constant} is not JSON")


class RawRequest:
    """One request driven by hand through ASGI, whose client can leave at any moment."""

    def __init__(self, asker, path, body):
        self._asker = asker
        self._path = path
        self._body = json.dumps(body).encode()
        self._sent_body = False
        self.left = asyncio.Event()
        self.got = asyncio.Queue()

    async def receive(self):
        if not self._sent_body:
            self._sent_body = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.got.put(message)

    @contextlib.asynccontextmanager
    async def running(self):
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": self._path,
            "raw_path": self._path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        task = asyncio.create_task(self._asker.app(scope, self.receive, self.send))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
