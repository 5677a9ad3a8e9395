"""A machine to run the command line on: a home, a recipe, a port, temporary files. Knows processes; knows no test."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil

from support.deploying import free_port
from support.tiny_models import make_tiny
from support.waiting import START_S, until


class Machine:
    """A home, a folder for temporary files and a recipe; the command line in processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.environ = {
            **os.environ,
            "ANYCHIP_HOME": str(folder / "home"),
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self, file="tiny.yaml", **sections):
        recipe = {
            "version": 1,
            "name": "tiny",
            "model": {"source": str(self.folder / "model"), "dtype": "float32", "context_length": 256},
            "backend": {"name": "cpu", "threads": 1},
            "memory": {"kv_tokens": 1024},
            "server": {"port": self.port, "served_name": "tiny"},
        }
        for section, keys in sections.items():
            recipe[section] = {**recipe.get(section, {}), **keys} if isinstance(keys, dict) else keys
        path = self.folder / file
        path.write_text(json.dumps(recipe))
        return path

    def run(self, *arguments, timeout_s=START_S):
        command = [sys.executable, "-m", "anychip", *map(str, arguments)]
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=timeout_s, check=False)

    def popen(self, *arguments):
        command = [sys.executable, "-m", "anychip", *map(str, arguments)]
        return subprocess.Popen(command, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def status(self):
        return json.loads(self.run("status", "-o", "json").stdout)["services"][0]

    def server(self):
        return psutil.Process(self.status()["pid"])

    def health(self):
        try:
            return httpx.get(f"{self.url}/health", trust_env=False, timeout=2).status_code
        except httpx.HTTPError:
            return None

    def complete(self, prompt="hello", **more):
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0, **more}
        return httpx.post(f"{self.url}/v1/completions", json=body, trust_env=False, timeout=60)

    def is_listening(self):
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", self.port)) == 0

    def require_clean(self, processes):
        """No process, no port, no temporary file."""
        until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes), 10)
        until(lambda: not self.is_listening(), 10)  # a killed process is a zombie a moment before its port is free
        until(lambda: not [one for one in self.temporary.iterdir() if one.name.startswith("anychip")], 5)


def family(process):
    return [process, *process.children(recursive=True)]


@contextlib.contextmanager
def machine_with_a_model(folder):
    """A machine with a recipe and a model of a few kilobytes; whatever runs in the end is ended."""
    found = Machine(folder)
    make_tiny(found.folder / "model", "llama", tokenizer=True, max_position_embeddings=256)
    yield found
    found.run("down", "--all")
