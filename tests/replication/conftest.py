"""Schedules run over networks that repeat messages too; see `copies.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.replication.copies import Copies, Network

_OVER_A_NETWORK = {"Stage", "World", "InProcessCluster", "Scene", "cluster"}
"""What a module of schedules has that it plays them on."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test named for a schedule, where there is a network, runs once for each kind of network."""
    name = metafunc.function.__name__
    if re.match(r"test_s\d", name) and _OVER_A_NETWORK & vars(metafunc.module).keys():
        metafunc.fixturenames.append("copies")
        metafunc.parametrize("copies", list(Network), ids=lambda network: network.value, indirect=True)
    elif re.match(r"test_r\d", name) and metafunc.module.__name__.endswith("test_reassignment"):
        metafunc.fixturenames.append("copies")
        metafunc.parametrize("copies", [Network.ONCE, Network.LATE], ids=["once", "late"], indirect=True)


@pytest.fixture
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copies | None]:
    if request.param is Network.ONCE:
        yield None
        return
    made = Copies(request.param, monkeypatch)
    yield made
    made.finish()
    assert made.count, "no message was repeated: what is there to see?"
