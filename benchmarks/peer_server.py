"""Put an engine that has no server for token ids behind /v1/completions, so that one client measures all alike.

    python peer_server.py {openvino,transformers} MODEL PORT OPTIONS

Runs in the peer's own environment, so it needs nothing but the standard library and the peer. Each event of a stream
carries the tokens that one step brought; their text is not needed by anybody and left out. OPTIONS is a JSON object:
threads, pool_tokens, sequences, and what each engine reads below.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import queue
import sys
import threading
from collections.abc import Iterator
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Protocol

CONTEXT = 8192
CHUNK = 512
PAGE = 256

Options = dict[str, Any]


class Engine(Protocol):
    @property
    def facts(self) -> dict[str, str]:
        """What it tells about how it computes."""
        ...

    def generate(self, ids: list[int], count: int) -> Iterator[int]:
        """How many tokens have newly come, whenever some have."""
        ...


class Request(NamedTuple):
    """What the thread that steps is told."""

    ids: list[int]
    count: int
    events: queue.Queue[int]  #: numbers of tokens that have newly come


class OpenVino:
    """OpenVINO GenAI's continuous batching with its prefix cache. MODEL: an exported model's folder, or a GGUF file.

    Options are fields of SchedulerConfig, and properties of the plugin, which have upper-case names.
    """

    def __init__(self, model: str, options: Options) -> None:
        import openvino_genai as genai

        self._genai = genai
        self._properties = properties = {name: value for name, value in options.items() if name.isupper()}
        properties["INFERENCE_NUM_THREADS"] = options.pop("threads")
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 3  # GiB
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = CHUNK
        scheduler.max_num_seqs = options.pop("sequences")
        del options["pool_tokens"]
        for name in options.keys() - properties.keys():
            setattr(scheduler, name, json.loads(options[name]))
        self._folder = exported(model) if model.endswith(".gguf") else model
        self._pipeline = genai.ContinuousBatchingPipeline(self._folder, scheduler, "CPU", properties)
        self._arrived: queue.Queue[Request] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    @cached_property
    def facts(self) -> dict[str, str]:
        """Asked of another process, so that the memory it takes is not counted to this one."""
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(executed, (self._folder, self._properties))

    def generate(self, ids: list[int], count: int) -> Iterator[int]:
        events: queue.Queue[int] = queue.Queue()
        self._arrived.put(Request(ids, count, events))
        left = count
        while left > 0:
            tokens = events.get(timeout=600)
            left -= tokens
            yield tokens

    def _run(self) -> None:
        """One thread adds requests and steps, so that no request waits for more than the step that runs."""
        running: list[tuple[Any, queue.Queue[int]]] = []
        numbers = itertools.count()
        while True:
            while not running or not self._arrived.empty():
                running.append(self._add(self._arrived.get(), next(numbers)))
            self._pipeline.step()
            for handle, events in running:
                while handle.can_read():
                    for output in handle.read().values():
                        events.put(len(output.generated_ids))
            running = [one for one in running if one[0].get_status() == self._genai.GenerationStatus.RUNNING]

    def _add(self, request: Request, number: int) -> tuple[Any, queue.Queue[int]]:
        import numpy
        import openvino

        config = self._genai.GenerationConfig(max_new_tokens=request.count, ignore_eos=True, do_sample=False)
        tensor = openvino.Tensor(numpy.array([request.ids], dtype=numpy.int64))
        return self._pipeline.add_request(number, tensor, config), request.events


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


def executed(folder: str, properties: Options) -> dict[str, str]:
    """What OpenVINO's plugin says that it computes the model with."""
    import openvino

    model = openvino.Core().compile_model(f"{folder}/openvino_model.xml", "CPU", properties)
    named = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE", "EXECUTION_MODE_HINT")
    said = {name: str(model.get_property(name)) for name in (*named, "INFERENCE_NUM_THREADS")}
    return {"name": "openvino", "version": openvino.__version__, **said}


class Transformers:
    """transformers' continuous batching with paged attention. MODEL: a folder, or a GGUF file, which is expanded.

    Options are fields of ContinuousBatchingConfig.
    """

    def __init__(self, model: str, options: Options) -> None:
        import torch
        import transformers
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

        torch.set_num_threads(options.pop("threads"))
        del options["sequences"]
        folder, _, file = model.rpartition("/") if model.endswith(".gguf") else (model, "", None)
        loaded = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=file, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
        # left to itself, it takes most of the memory for pages and computes whole batches of padding
        pages = {"num_blocks": options.pop("pool_tokens") // PAGE, "page_size": PAGE, "max_batch_tokens": CHUNK}
        paging = ContinuousBatchingConfig(**pages, **{name: json.loads(value) for name, value in options.items()})
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1)
        self._facts = {"name": "transformers", "version": transformers.__version__, "dtype": str(loaded.dtype)}
        self._manager = loaded.init_continuous_batching(greedy, paging)
        self._manager.start()
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    @property
    def facts(self) -> dict[str, str]:
        return self._facts

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


def handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    def known(path: str) -> object:
        if path == "/v1/models":
            return {"data": [{"id": "model", "max_model_len": CONTEXT}]}
        if path == "/server_info":
            return {"version": engine.facts["version"], "plan": {"backend": engine.facts}}
        return None

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = known(self.path)
            if content is None:
                self.send_error(404)
                return
            data = json.dumps(content).encode()
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


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # all of a load may connect at once


def main() -> None:
    kind, model, port, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    engines: dict[str, type[OpenVino] | type[Transformers]] = {"openvino": OpenVino, "transformers": Transformers}
    Server(("127.0.0.1", port), handler(engines[kind](model, options))).serve_forever()


if __name__ == "__main__":
    main()
