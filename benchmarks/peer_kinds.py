"""Find the other servers that are installed, start one, and end it. Knows how each is called; measures nothing."""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from anychip.bench.target import Target
from anychip.deploy import supervisor
from anychip.deploy.ports import require_free
from anychip_sdk.errors import NotReady

WRAPPER = str(Path(__file__).with_name("peer_server.py"))
READY_S = 600.0
CONTEXT, POOL_TOKENS, SEQUENCES = 4096, 24576, 32  #: what every side is given, where it can be said

Options = Mapping[str, str]

#: What users would try, by peer: options as `Wanted` takes them; '' is what a peer does when nothing is said.
TUNING: dict[str, tuple[str, ...]] = {
    "llama.cpp": ("", "fa=off", "np=4", "np=4,fa=off", "np=1", "np=1,fa=off", "np=4,ub=256", "np=4,ub=1024"),
    "openvino": ("", "KV_CACHE_PRECISION=bf16", "max_num_batched_tokens=256", "max_num_batched_tokens=1024"),
    "transformers": ("",),
    "vllm": ("", "max-num-batched-tokens=512", "max-num-batched-tokens=4096"),
}


@dataclass(frozen=True)
class Search:
    """What peers are looked for with.

    Attributes:
        folder: the model as a Hugging Face folder; None: not there. So for the next three.
        gguf: as a GGUF file.
        openvino: as a folder exported for OpenVINO.
        vllm: as a folder for vLLM, where that isn't the Hugging Face folder.
        venvs: environments to look into, before this one and the path.
        threads: that each server computes with.
    """

    folder: str | None
    gguf: str | None
    openvino: str | None
    vllm: str | None
    venvs: Sequence[Path]
    threads: int

    def program(self, name: str) -> str | None:
        folders = [*(str(venv / "bin") for venv in self.venvs), os.environ["PATH"]]
        return shutil.which(name, path=os.pathsep.join(folders))

    def python_with(self, module: str) -> str | None:
        """The interpreter of an environment that has the module."""
        for venv in self.venvs:
            if any(venv.glob(f"lib/python*/site-packages/{module}")):
                return str(venv / "bin" / "python")
        return sys.executable if importlib.util.find_spec(module) is not None else None


@dataclass(frozen=True)
class Wanted:
    """A peer and the options that it differs in from what `PEERS` starts: `llama.cpp/np=4,fa=off`."""

    kind: str
    options: Options

    @classmethod
    def read(cls, text: str) -> Wanted:
        """Raises ValueError: there is no such peer, or an option has no value."""
        kind, _, rest = text.partition("/")
        if kind not in PEERS:
            raise ValueError(f"no peer '{kind}', expected one of {', '.join(PEERS)}")
        options = {}
        for one in filter(None, rest.split(",")):
            name, is_given, value = one.partition("=")
            if not is_given:
                raise ValueError(f"'{one}' of '{text}' is no option, expected NAME=VALUE")
            options[name] = value
        return cls(kind, options)

    @property
    def name(self) -> str:
        said = ",".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.kind}/{said}" if said else self.kind


@dataclass(frozen=True)
class Peer:
    """A server that can run.

    Attributes:
        command: that starts it on a port.
        variables: of its environment.
        is_slow_to_start: it takes minutes, so it stays up between rounds.
    """

    name: str
    command: Callable[[int], Sequence[str]]
    variables: Mapping[str, str] = field(default_factory=dict)
    is_slow_to_start: bool = False


class Skipped(Exception):
    """Why a peer can't run here."""


def find(wanted: Wanted, search: Search) -> Peer:
    """The peer as it is started here.

    Raises:
        Skipped: it isn't installed, or the model isn't there in its format.
    """
    return PEERS[wanted.kind](search, wanted)


def llama_cpp(search: Search, wanted: Wanted) -> Peer:
    server = search.program("llama-server")
    if server is None:
        raise Skipped("llama-server is not installed")
    model, threads = _given(search.gguf, "--gguf"), str(search.threads)
    options = {"t": threads, "tb": threads, "np": "16", "c": str(POOL_TOKENS), "fa": "on"} | wanted.options
    flags = [part for name, value in options.items() for part in (f"-{name}", value)]
    return Peer(
        wanted.name, lambda port: (server, "-m", model, "--port", str(port), "-kvu", "--no-webui", "--offline", *flags)
    )


def vllm(search: Search, wanted: Wanted) -> Peer:
    program = search.program("vllm")
    if program is None:
        raise Skipped("vllm is not installed")
    model = _given(search.vllm or search.folder, "--vllm or --model")
    options = {"dtype": "bfloat16", "max-model-len": str(CONTEXT), "max-num-seqs": str(SEQUENCES)} | wanted.options
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{search.threads - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    preloaded = [*_tcmalloc(), *map(str, Path(program).parents[1].glob("lib/libiomp5.so"))]
    if preloaded:
        variables["LD_PRELOAD"] = ":".join(preloaded)
    return Peer(
        wanted.name,
        lambda port: (program, "serve", model, "--port", str(port), "--enable-prefix-caching", *flags),
        variables,
        is_slow_to_start=True,
    )


def openvino(search: Search, wanted: Wanted) -> Peer:
    python = search.python_with("openvino_genai")
    if python is None:
        raise Skipped("openvino-genai is not installed")
    return _wrapped(wanted, python, _given(search.openvino or search.gguf, "--openvino or --gguf"), search.threads)


def transformers(search: Search, wanted: Wanted) -> Peer:
    python = search.python_with("transformers")
    if python is None:
        raise Skipped("transformers is not installed")
    return _wrapped(wanted, python, _given(search.folder or search.gguf, "--model or --gguf"), search.threads)


PEERS: dict[str, Callable[[Search, Wanted], Peer]] = {
    "llama.cpp": llama_cpp,
    "vllm": vllm,
    "openvino": openvino,
    "transformers": transformers,
}


def _wrapped(wanted: Wanted, python: str, model: str, threads: int) -> Peer:
    said = json.dumps({"threads": threads, "pool_tokens": POOL_TOKENS, "sequences": SEQUENCES, **wanted.options})
    return Peer(wanted.name, lambda port: (python, WRAPPER, wanted.kind, model, str(port), said))


def _given(model: str | None, option: str) -> str:
    if model is None:
        raise Skipped(f"it needs the model by {option}")
    return model


def _tcmalloc() -> Iterator[str]:
    """The allocator that vLLM's manual asks for, where the system has it."""
    found = ctypes.util.find_library("tcmalloc_minimal")
    if found is not None:
        yield found


@contextlib.contextmanager
def served(peer: Peer, log: Path) -> Iterator[Target]:
    """The peer on a free port, ready; it ends with the context."""
    port = require_free("127.0.0.1", 0)
    url = f"http://127.0.0.1:{port}"
    with log.open("ab") as output:
        process = subprocess.Popen(
            peer.command(port),
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env={**os.environ, **peer.variables},
            start_new_session=True,
        )
    started = supervisor.identify(process.pid)
    try:
        _wait_ready(url, process, peer.name, log)
        yield Target("url", peer.name, url, pid=process.pid)
    finally:
        supervisor.stop(started)
        process.wait()


def _wait_ready(url: str, process: subprocess.Popen[bytes], name: str, log: Path) -> None:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise NotReady(f"{name} ended with {process.returncode}:\n{log.read_text(errors='replace')[-2000:]}")
        with contextlib.suppress(httpx.TransportError):  # nobody listens yet
            if httpx.get(f"{url}/v1/models", trust_env=False).status_code == httpx.codes.OK:
                return
        time.sleep(0.2)
    raise NotReady(f"{name} is not ready after {READY_S:g} s")
