"""Find the other servers that are installed, start one, and end it. Knows how each is called; measures nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from anychip.bench.target import Target
from anychip.deploy import supervisor
from anychip.deploy.ports import require_free
from anychip_sdk.errors import NotReady

WRAPPER = str(Path(__file__).with_name("peer_server.py"))
READY_S = 600.0


@dataclass(frozen=True)
class Setting:
    """What peers are looked for with.

    Attributes:
        folder: the model as a Hugging Face folder; None: not there. So for the next two.
        gguf: as a GGUF file.
        openvino: as a folder exported for OpenVINO.
        venvs: environments to look into, before this one and the path.
        threads: that each server computes with.
    """

    folder: str | None
    gguf: str | None
    openvino: str | None
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
class Peer:
    """A server that can run: the command that starts it on a port."""

    name: str
    command: Callable[[int], Sequence[str]]
    variables: dict[str, str] = field(default_factory=dict)


class Skipped(Exception):
    """Why a peer can't run here."""


def llama_cpp(setting: Setting) -> Peer:
    server, python = setting.program("llama-server"), setting.python_with("xllamacpp")
    if server is None and python is None:
        raise Skipped("neither llama-server nor xllamacpp is installed")
    model, threads = _given(setting.gguf, "--gguf"), str(setting.threads)
    if server is None:
        return _wrapped("llama.cpp", str(python), model, threads)
    options = ("-t", threads, "-tb", threads, "-np", "16", "-c", "24576", "-kvu", "--no-webui")
    return Peer("llama.cpp", lambda port: (server, "-m", model, "--port", str(port), *options))


def vllm(setting: Setting) -> Peer:
    program = setting.program("vllm")
    if program is None:
        raise Skipped("vllm is not installed")
    model = _given(setting.folder, "--model")
    options = ("--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "32", "--enable-prefix-caching")
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{setting.threads - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Peer("vllm", lambda port: (program, "serve", model, "--port", str(port), *options), variables)


def openvino(setting: Setting) -> Peer:
    python = setting.python_with("openvino_genai")
    if python is None:
        raise Skipped("openvino-genai is not installed")
    return _wrapped(
        "openvino", python, _given(setting.openvino or setting.gguf, "--openvino or --gguf"), str(setting.threads)
    )


def transformers(setting: Setting) -> Peer:
    python = setting.python_with("transformers")
    if python is None:
        raise Skipped("transformers is not installed")
    model = _given(setting.folder or setting.gguf, "--model or --gguf")
    return _wrapped("transformers", python, model, str(setting.threads))


PEERS: dict[str, Callable[[Setting], Peer]] = {
    "llama.cpp": llama_cpp,
    "vllm": vllm,
    "openvino": openvino,
    "transformers": transformers,
}


def _wrapped(kind: str, python: str, model: str, threads: str) -> Peer:
    return Peer(kind, lambda port: (python, WRAPPER, kind, model, str(port), threads))


def _given(model: str | None, option: str) -> str:
    if model is None:
        raise Skipped(f"it needs the model by {option}")
    return model


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
