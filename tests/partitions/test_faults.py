"""Which flows each kind of partition cuts."""

from __future__ import annotations

import pytest

from tests.partitions.faults import KINDS, STORE, flows_of
from tests.partitions.network import CLIENTS


@pytest.mark.parametrize(
    ("kind", "cut"),
    [
        ("alone", "1>2 2>1 1>3 3>1 1>store store>1 1>clients clients>1"),
        ("cluster", "1>2 2>1 1>3 3>1 1>store store>1"),
        ("store", "1>store store>1"),
        ("brokers", "1>2 2>1 1>3 3>1"),
        ("clients", "1>clients clients>1"),
        ("mute", "1>2 1>3 1>store 1>clients"),
        ("deaf", "2>1 3>1 store>1 clients>1"),
        ("pair", "1>2 2>1"),
        ("all-store", "1>store store>1 2>store store>2 3>store store>3"),
    ],
)
def test_flows(kind: str, cut: str) -> None:
    names = {"clients": CLIENTS, "store": STORE}
    wanted = {tuple(names.get(each, each) for each in flow.split(">")) for flow in cut.split()}
    assert flows_of(kind, "1", ("2", "3")) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_cuts_the_victim(kind: str) -> None:
    assert any("2" in flow for flow in flows_of(kind, "2", ("1", "3")))
