"""Schedules run over networks that repeat messages too; see `copies.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.replication.copies import Copies, Network

_OVER_A_NETWORK = {"Stage", "World", "InProcessCluster", "Scene", "cluster"}
"""What a module of schedules has that it plays them on."""
_WITHOUT_ONE = {
    "test_s24_a_planted_bug_is_found",  # wrong on purpose
    "test_s43_an_order_of_a_former_controller_deletes_nothing",  # one broker, handed its orders by the script
    "test_s45_an_order_that_was_overtaken_by_a_role_is_fenced",
    "test_s60_a_late_order_to_delete_names_another_incarnation",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test named for a schedule once for each kind of network."""
    name = metafunc.function.__name__
    if name in _WITHOUT_ONE:
        return
    if re.match(r"test_s\d", name) and _OVER_A_NETWORK & vars(metafunc.module).keys():
        metafunc.parametrize("copies", list(Network), ids=lambda network: network.value, indirect=True)
    elif re.match(r"test_r\d", name) and metafunc.module.__name__.endswith("test_reassignment"):
        # At every single store call, late copies will do: there are many of them.
        is_each_call = "fate" in metafunc.fixturenames
        networks = [Network.ONCE, Network.LATE] if is_each_call else list(Network)
        metafunc.parametrize("copies", networks, ids=lambda network: network.value, indirect=True)


@pytest.fixture(autouse=True)
def copies(request: pytest.FixtureRequest) -> Iterator[Copies | None]:
    """The network's copies while the test runs; None if messages arrive once."""
    network: Network = getattr(request, "param", Network.ONCE)
    if network is Network.ONCE:
        yield None
        return
    with pytest.MonkeyPatch.context() as patches:
        made = Copies(network, patches)
        yield made
        made.finish()
    assert made.count, "no message was repeated: what is there to see?"
