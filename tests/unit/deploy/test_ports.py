"""Ports: tried before anything is started, their holders named."""

import os
import socket

import pytest

from anychip.deploy.ports import holder, require_free
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
