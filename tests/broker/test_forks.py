"""A child that was forked beside an embedded broker, and lives longer."""

from __future__ import annotations

import os
import socket
import warnings

import pytest

from logstore.broker import Broker, BrokerConfig
from logstore.cli.ports import free_ports

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is there on POSIX alone")


def test_a_stopped_broker_listens_no_more_and_its_port_is_free() -> None:
    """Clients were connected to the child's copy of the listener, where nobody answered."""
    mine, of_child = os.pipe()
    with Broker(BrokerConfig(listen=f"127.0.0.1:{free_ports(1)[0]}")) as broker:
        address = broker.address
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:  # pragma: no cover
            os.close(of_child)
            os.read(mine, 1)  # until the parent has closed its end
            os._exit(0)
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address.host, address.port))
        with Broker(BrokerConfig(listen=str(address))) as again:
            assert again.address == address
    finally:
        os.close(of_child)
        os.close(mine)
        os.waitpid(child, 0)
