"""Put an engine that has no server for token ids behind /v1/completions, so that one client measures all alike.

    python peer_server.py {openvino,transformers,llama.cpp} MODEL PORT THREADS

Runs in the peer's own environment, so it needs nothing but the standard library and the peer. Each event of a stream
carries the tokens that one step brought; their text is not needed by anybody and left out.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

CONTEXT = 8192
POOL_TOKENS = 24576
SEQUENCES = 32
CHUNK = 512
PAGE = 256


class Engine(Protocol):
    def generate(self, ids: list[int], count: int) -> Iterator[int]:
        """How many tokens have newly come, whenever some have."""
        ...


class OpenVino:
    """OpenVINO GenAI's continuous batching with its prefix cache. MODEL: an exported model's folder, or a GGUF file."""

    def __init__(self, model: str, threads: int) -> None:
        import openvino_genai as genai

        self._genai = genai
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = CHUNK
        scheduler.max_num_seqs = SEQUENCES
        folder = exported(model) if model.endswith(".gguf") else model
        self._pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self._numbers = itertools.count()
        self._handles: dict[int, tuple[Any, queue.Queue[int]]] = {}
        self._work = threading.Condition()
        threading.Thread(target=self._step, daemon=True).start()

    def generate(self, ids: list[int], count: int) -> Iterator[int]:
        import numpy
        import openvino

        config = self._genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        events: queue.Queue[int] = queue.Queue()
        with self._work:
            number = next(self._numbers)
            tensor = openvino.Tensor(numpy.array([ids], dtype=numpy.int64))
            self._handles[number] = (self._pipeline.add_request(number, tensor, config), events)
            self._work.notify()
        left = count
        while left > 0:
            tokens = events.get(timeout=600)
            left -= tokens
            yield tokens
        with self._work:
            del self._handles[number]

    def _step(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(self._pipeline.has_non_finished_requests)
                self._pipeline.step()
                for handle, events in self._handles.values():
                    while handle.can_read():
                        for output in handle.read().values():
                            events.put(len(output.generated_ids))


def exported(gguf: str) -> str:
    """The folder that OpenVINO makes of a GGUF file; it is written beside a link to the file, in the current folder."""
    import openvino_genai

    folder = Path("openvino-model").absolute()
    if not folder.exists():
        folder.mkdir()
        link = folder / Path(gguf).name
        link.symlink_to(Path(gguf).absolute())
        openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    return str(folder)


class Transformers:
    """transformers' continuous batching with paged attention. MODEL: a folder, or a GGUF file, which is expanded."""

    def __init__(self, model: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

        torch.set_num_threads(threads)
        folder, _, file = model.rpartition("/") if model.endswith(".gguf") else (model, "", None)
        loaded = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=file, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
        # left to itself, it takes most of the memory for pages and computes whole batches of padding
        paging = ContinuousBatchingConfig(num_blocks=POOL_TOKENS // PAGE, page_size=PAGE, max_batch_tokens=CHUNK)
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1)
        self._manager = loaded.init_continuous_batching(greedy, paging)
        self._manager.start()
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def generate(self, ids: list[int], count: int) -> Iterator[int]:
        outputs: queue.Queue[Any] = queue.Queue()
        name = f"r{next(self._numbers)}"

        async def begin() -> None:
            self._manager.register_result_handler(name, outputs.put)
            self._manager.add_request(ids, name, max_new_tokens=count, streaming=True, eos_token_id=-1)

        asyncio.run_coroutine_threadsafe(begin(), self._loop).result()
        done = 0
        while done < count:
            output = outputs.get(timeout=600)
            if output.error:
                raise RuntimeError(output.error)
            if len(output.generated_tokens) > done:
                yield len(output.generated_tokens) - done
                done = len(output.generated_tokens)


def serve_llama(model: str, port: int, threads: int) -> None:
    """llama.cpp's own server, from the package xllamacpp. MODEL: a GGUF file."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_ctx, params.n_parallel, params.kv_unified = POOL_TOKENS, 16, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    threading.Event().wait()


def handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/v1/models":
                self.send_error(404)
                return
            data = json.dumps({"data": [{"id": "model", "max_model_len": CONTEXT}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            ids, count = body["prompt"], body["max_tokens"]
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            done = 0
            try:
                for tokens in engine.generate(ids, count):
                    done += tokens
                    self.event({"choices": [{"index": 0, "text": ""}]})
                self.event({"choices": [], "usage": {"prompt_tokens": len(ids), "completion_tokens": done}})
            except Exception as error:
                self.event({"error": {"message": f"{type(error).__name__}: {error}"}})
                raise
            self.wfile.write(b"data: [DONE]\n\n")

        def event(self, value: object) -> None:
            self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

        def log_message(self, *arguments: object) -> None:
            return

    return Handler


def main() -> None:
    kind, model, port, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if kind == "llama.cpp":
        serve_llama(model, port, threads)
        return
    engines: dict[str, type[OpenVino] | type[Transformers]] = {"openvino": OpenVino, "transformers": Transformers}
    server = ThreadingHTTPServer(("127.0.0.1", port), handler(engines[kind](model, threads)))
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
