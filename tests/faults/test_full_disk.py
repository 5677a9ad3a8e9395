"""A file system without room for another byte: running services go on, nothing is lost, everything can be ended."""

import contextlib
import errno
import os
import subprocess

import pytest

from support.machines import Machine, until
from support.tiny_models import make_tiny

SIZE_BYTES = 4 << 20


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own; mounting it takes root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system can't be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def machine(tmp_path, disk):
    """Its state is on the small file system, the model and temporary files are not."""
    found = Machine(tmp_path)
    found.environ["ANYCHIP_HOME"] = str(disk / "home")
    make_tiny(found.folder / "model", "llama", tokenizer=True, max_position_embeddings=256)
    yield found
    (disk / "ballast").unlink(missing_ok=True)
    found.run("down", "--all")


def fill(disk):
    """Leave no room, not even in the pages that are there."""
    with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        (disk / "more").write_bytes(b"x")
    (disk / "more").unlink(missing_ok=True)


def test_a_service_on_a_full_disk_goes_on_and_can_be_looked_at_and_ended(machine, disk):
    assert machine.run("apply", machine.write()).returncode == 0
    processes = machine.server()
    fill(disk)
    for _ in range(20):
        assert machine.complete().status_code == 200
    assert machine.status()["condition"] == "running"
    refused = machine.run("apply", machine.write("changed.yaml", scheduler={"policy": "fcfs"}))
    assert refused.returncode == 4, refused.stderr
    assert "No space left on device" in refused.stderr
    assert str(disk) in refused.stderr
    assert machine.status()["pid"] == processes.pid
    assert machine.complete().status_code == 200
    done = machine.run("down", "--all")
    assert (done.returncode, done.stdout) == (0, "'tiny' stopped\n"), done.stderr
    assert machine.status()["condition"] == "stopped"
    until(lambda: not machine.is_listening(), 10)


def test_down_all_on_a_full_disk_ends_what_runs_beside_damaged_states(machine, disk):
    assert machine.run("apply", machine.write()).returncode == 0
    services = disk / "home" / "services"
    (services / "tiny" / "state.json").write_text('{"name": "tiny", "pid": -1')
    (services / "broken").mkdir()
    (services / "broken" / "state.json").mkdir()
    fill(disk)
    done = machine.run("down", "--all")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "'broken' had ended by itself; cleaned up\n'tiny' stopped\n"
    until(lambda: not machine.is_listening(), 10)
    for name in ("broken", "tiny"):
        assert [one.name for one in (services / name).glob("state*")] == ["state.json.damaged"]


@pytest.mark.parametrize("moment", ["stopping revision 1", "starting revision 2"])
def test_a_disk_that_fills_up_while_a_service_is_replaced_loses_no_service(machine, disk, moment):
    assert machine.run("apply", machine.write()).returncode == 0
    with machine.popen("apply", machine.write("changed.yaml", scheduler={"policy": "fcfs"})) as command:
        until(lambda: moment in command.stderr.readline())
        fill(disk)
        command.communicate()
    told = machine.status()
    assert (told["condition"], told["revision"]) == ("running", 2 if command.returncode == 0 else 1)
    assert machine.complete().status_code == 200
    assert machine.run("down").returncode == 0
    assert machine.status()["condition"] == "stopped"
