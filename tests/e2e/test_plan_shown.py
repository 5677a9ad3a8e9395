"""What a service shows is what its worker runs, and nobody else plans it: real processes, a vendor's wrong kernel."""

import os

import httpx
import pytest

from support import vendor_plugins
from support.machines import Machine, until
from support.processes import workers
from support.tiny_models import make_tiny

#: each probe is written down, by the module that the process runs: plans begin with one
WRITES_PROBES = """
def anychip_probe() -> Sequence[DeviceInfo]:
    import sys

    with open(os.environ["ACME_PROBES"], "a") as probes:
        probes.write(sys.orig_argv[sys.orig_argv.index("-m") + 1] + "\\n")
"""
SWAPPED = """

    def silu_mul_of_swapped_arguments(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return functional.silu(up) * gate

    registry.register("silu_mul", silu_mul_of_swapped_arguments, dtypes=FLOATS)
"""


@pytest.fixture
def machine(tmp_path):
    """A machine with a vendor's chip, whose kernel for silu_mul is wrong."""
    found = Machine(tmp_path)
    source = vendor_plugins.changed("\ndef anychip_probe() -> Sequence[DeviceInfo]:\n", WRITES_PROBES) + SWAPPED
    site = vendor_plugins.install(tmp_path / "site", source)
    found.environ["PYTHONPATH"] = os.pathsep.join([str(site), found.environ["PYTHONPATH"]])
    found.environ["ACME_PROBES"] = str(tmp_path / "probes")
    make_tiny(tmp_path / "model", "llama", tokenizer=True, max_position_embeddings=256)
    yield found
    found.run("down", "--all")


def test_a_refused_fusion_is_shown_as_refused_and_command_and_worker_plan_once_each(machine, tmp_path):
    fusion = {"policies": ["silu_mul"], "on_missing": "warn"}
    done = machine.run("apply", machine.write(backend={"name": "acme"}, fusion=fusion))
    assert done.returncode == 0, done.stderr
    assert "fusions  silu_mul" in done.stderr  # the command can't know: verification needs the device
    info = httpx.get(f"{machine.url}/server_info", trust_env=False, timeout=30).json()
    reason = "its outputs differ from the unfused graph's"
    assert info["plan"]["fusions"] == [{"policy": "silu_mul", "applied": 0, "refused": True, "reason": reason}]
    assert f"fusion silu_mul: refused: {reason}" in info["plan"]["warnings"]
    assert (info["model"], info["context_length"]) == ("tiny", 256)
    assert f"fusion silu_mul: refused: {reason}" in machine.run("logs", "tiny").stdout
    assert (tmp_path / "probes").read_text().split() == ["anychip", "anychip.engine.worker"]
    (worker,) = workers(machine.server())
    worker.kill()
    until(lambda: machine.health() == 503, 10)
    until(lambda: machine.health() == 200)
    assert (tmp_path / "probes").read_text().split() == ["anychip", *["anychip.engine.worker"] * 2]
    again = httpx.get(f"{machine.url}/server_info", trust_env=False, timeout=30).json()
    assert again["plan"]["fusions"] == info["plan"]["fusions"]


def test_a_worker_that_cannot_plan_tells_its_reason_through_the_command(machine):
    """Its variable keeps the backend from the worker alone, so that the command's plan succeeds."""
    machine.write(backend={"name": "acme"})
    path = machine.folder / "site" / "acme_chip.py"
    absent = 'if "anychip.engine.worker" in __import__("sys").orig_argv:\n        return []\n    memory = AcmeDevice()'
    path.write_text(path.read_text().replace("memory = AcmeDevice()", absent))
    done = machine.run("apply", machine.folder / "tiny.yaml")
    assert done.returncode == 5, done.stderr
    assert "the service ended while starting: " in done.stderr
    assert "acme" in done.stderr.partition("the service ended while starting: ")[2]
