"""The ports of a local cluster: nobody gets them by chance while it is stopped."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from logstore.cli import local_cluster, ports
from logstore.cli.ports import free_ports


@pytest.fixture
def ephemeral(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the range of the system's own ports."""
    made = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(ports, "_RANGE", made)
    return made


def test_they_are_below_the_ports_that_anybody_may_be_given(ephemeral: Path) -> None:
    """`cluster start` could find a port of the cluster taken by another program's connection."""
    ephemeral.write_text("20000\t60999\n")
    found = {port for _ in range(20) for port in free_ports(10)}
    assert min(found) >= 10_000
    assert max(found) < 20_000
    assert len(found) > 180
    planned = local_cluster._planned(3, "", is_secured=True)
    used = [each for node in planned.nodes for each in (node.port, node.http_port, node.brokers_port)]
    assert len(set(used)) == 9
    assert max(used) < 20_000


@pytest.mark.parametrize("told", [None, "", "no number", "1024 65535"])
def test_any_range_will_do(ephemeral: Path, told: str | None) -> None:
    if told is not None:
        ephemeral.write_text(told)
    assert len(set(free_ports(5))) == 5


def test_ports_in_use_are_left_out(ephemeral: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(ports.random, "sample", lambda *_: [port, port + 1, port])  # type: ignore[attr-defined]
    with socket.create_server(("127.0.0.1", port)):
        assert free_ports(1) == [port + 1]
        with pytest.raises(OSError, match=r"no 2 ports of 127\.0\.0\.1 are free from 10000 to"):
            free_ports(2)
