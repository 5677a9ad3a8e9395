"""Ports: tried before anything is started, their holders named."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from anychip.deploy.ports import holder, require_free, wait_free
from anychip_sdk.errors import PortTaken, PreconditionFailed


def listening(host="127.0.0.1"):
    taken = socket.create_server((host, 0))
    return taken, taken.getsockname()[1]


def test_a_taken_port_names_its_holder():
    taken, port = listening()
    with taken, pytest.raises(PortTaken) as caught:
        require_free("127.0.0.1", port)
    assert f"port {port} on 127.0.0.1 is taken by " in caught.value.message
    assert f"(pid {os.getpid()})" in caught.value.message
    assert caught.value.exit_code == 4


def test_a_port_taken_on_all_addresses_is_taken_on_each():
    taken, port = listening("0.0.0.0")
    with taken, pytest.raises(PortTaken):
        require_free("127.0.0.1", port)


def test_port_zero_becomes_a_free_one():
    assert require_free("127.0.0.1", 0) > 0


def test_the_trial_leaves_the_port_free():
    port = require_free("127.0.0.1", 0)
    assert require_free("127.0.0.1", port) == port
    assert holder(port) is None


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(PreconditionFailed, match=r"cannot listen on 192\.0\.2\.1 port 8000"):
        require_free("192.0.2.1", 8000)


def test_a_host_that_is_no_address_is_refused():
    with pytest.raises(PreconditionFailed, match=r"server\.host 'not an address' is not an address"):
        require_free("not an address", 8000)


LISTENS = """
import socket, sys
one = socket.create_server((sys.argv[1], int(sys.argv[2])))
print(one.getsockname()[1], flush=True)
sys.stdin.read()
"""


def listening_elsewhere(host, port=0):
    """A process that listens, and its port."""
    command = [sys.executable, "-c", LISTENS, host, str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("held", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("wanted", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_its_own_service_gives_up_is_as_good_as_free(held, wanted):
    taken, port = listening(held)
    with taken:
        assert require_free(wanted, port, except_for=[os.getpid()]) == port
        with pytest.raises(PortTaken):
            require_free(wanted, port)


def test_a_port_of_a_process_that_the_service_started_is_given_up_too():
    child, port = listening_elsewhere("127.0.0.1")
    with child:
        assert require_free("0.0.0.0", port, except_for=[os.getpid()]) == port
        with pytest.raises(PortTaken):
            require_free("0.0.0.0", port, except_for=[1 << 30])


def test_a_port_that_somebody_else_holds_as_well_stays_taken():
    mine, port = listening_elsewhere("127.0.0.1")
    with mine:
        other, _ = listening_elsewhere("127.0.0.2", port)
        with other:
            with pytest.raises(PortTaken):
                require_free("0.0.0.0", port, except_for=[mine.pid])
            assert require_free("127.0.0.1", port, except_for=[mine.pid]) == port


def test_a_port_is_waited_for_until_it_is_given_back():
    taken, port = listening()
    threading.Timer(0.2, taken.close).start()
    wait_free("127.0.0.1", port, 10)
    assert require_free("127.0.0.1", port) == port
