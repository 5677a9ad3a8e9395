"""What the imitated tools print."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
import torch

from anychip_kunlun.stack import Stack


def test_a_line_has_32_fields_for_a_shell_and_33_for_split(open_host) -> None:
    stack = open_host(cards=2)
    lines = stack.run(["xpu-smi", "-m"]).splitlines()
    assert [len(shlex.split(line)) for line in lines] == [32, 32]
    assert len(lines[0].split()) == 33
    fields = shlex.split(lines[1])
    assert (fields[1], fields[18], fields[21]) == ("1", "64", "P800 OAM")


def test_the_tools_count_what_is_allocated(host: Stack) -> None:
    held = host.empty((20 << 20,), torch.uint8, 0)
    assert shlex.split(host.run(["xpu-smi", "-m"]))[17] == "20"
    assert "Used                  : 20 MiB" in host.run(["xpu-smi", "-q", "-i", "0"])
    assert held.numel() == 20 << 20


@pytest.mark.parametrize(
    ("smi", "driver", "runtime"),
    [("plain", "5.0.21.26", "5.0.21"), ("no-runtime", "515.58", "N/A"), ("cuda-runtime", "5.0.21.26", "10.2")],
)
def test_variants_differ_in_what_the_header_says(open_host, smi: str, driver: str, runtime: str) -> None:
    table = open_host(smi=smi).run(["xpu-smi"])
    assert f"Driver Version: {driver} " in table
    assert f"XPU-RT Version: {runtime} " in table


def test_older_tools_print_fewer_fields_or_refuse(open_host) -> None:
    assert len(shlex.split(open_host(smi="short").run(["xpu-smi", "-m"]))) == 22
    with pytest.raises(subprocess.CalledProcessError):
        open_host(smi="no-machine-readable").run(["xpu-smi", "-m"])
    with pytest.raises(FileNotFoundError):
        open_host(smi="missing").run(["xpu-smi"])


def test_one_card_can_be_asked_for(open_host) -> None:
    stack = open_host(cards=3)
    assert stack.run(["xpu-smi", "-q", "--id=2"]).count("Product Name") == 1
    assert stack.run(["xpu-smi", "-q"]).count("Product Name") == 3
    assert stack.run(["xpu-smi", "-L"]).splitlines()[2] == "XPU 2: P800 OAM"


def test_the_topology_shows_the_missing_switch(open_host) -> None:
    assert "PHB" in open_host(cards=2, has_address_windows=False).run(["xpu-smi", "topo", "-m"])
    assert "PHB" not in open_host(cards=2).run(["xpu-smi", "topo", "-m"])


def test_the_doctor_tells_of_every_component(open_host) -> None:
    stack = open_host(driver="4.0.25")
    found = json.loads(stack.run([sys.executable, "-m", "torch_xmlir", "--doctor"]))
    assert found["driver"] == "4.0.25"
    assert found["kunlun_ops"] == "0.1.58"


@pytest.mark.parametrize(("chip", "product"), [("P800", "P800 OAM"), ("R300", "R300"), ("R200", "R200")])
def test_chips_have_their_names(open_host, chip: str, product: str) -> None:
    assert shlex.split(open_host(chip=chip).run(["xpu-smi", "-m"]))[21] == product


def test_device_nodes_are_there_as_the_profile_says(open_host) -> None:
    def nodes(stack: Stack) -> set[str]:
        return {path.name for path in (stack.root / "dev").iterdir()}

    assert nodes(open_host(cards=2)) == {"xpu0", "xpu1", "xpuctrl"}
    assert nodes(open_host(nodes="no-control")) == {"xpu0"}
    bare = open_host(nodes="none")
    assert nodes(bare) == set()
    assert not (bare.root / "proc/kunlun/version").exists()
    assert not bare.accelerator.is_available()
