"""The way of a campaign's clients to the brokers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from kafka.errors import KafkaConnectionError

from tests.access import resilient_context
from tests.broker.security.authority import stores


def test_a_socket_that_fails_before_tls_is_an_error_of_kafka_pythons(tmp_path: Path) -> None:
    """Else its loop of metadata ends, and its producer waits for ever."""
    context = resilient_context(stores(tmp_path)["ssl.truststore.location"])
    broken = socket.socket()
    broken.close()
    with pytest.raises(KafkaConnectionError):
        context.wrap_socket(broken, server_hostname="localhost", do_handshake_on_connect=False)
