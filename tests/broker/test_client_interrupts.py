"""Ctrl-C, or an exception of a signal's handler, at every moment of a call of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from logstore.broker import BlockingClient, Broker
from logstore.broker.client import Client
from logstore.spark.client import ClientThread
from tests.logstore.test_interrupts import done_by_another, interrupted

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap


def test_a_client_thread_goes_on_behind_an_interrupted_call(bootstrap: str) -> None:
    """The lock of the call's future stayed taken: the client's thread waited for it for ever."""
    thread = ClientThread(lambda: Client(bootstrap))
    for at in range(1, 1000):
        was_interrupted = interrupted(lambda: thread.wait(Client.cluster_id), at)
        assert done_by_another(lambda: thread.wait(Client.cluster_id)), f"moment {at}"
        if not was_interrupted:
            thread.close()
            return
    raise AssertionError("a call has more moments")


def test_a_client_that_cannot_be_made() -> None:
    """The start waited for ever: a Spark task whose host has no certificate hung."""

    def fails() -> Client:
        raise FileNotFoundError("no certificate")

    def start() -> None:
        with pytest.raises(FileNotFoundError, match="no certificate"):
            ClientThread(fails)

    assert done_by_another(start)


def test_a_blocking_client_in_a_coroutine_goes_on_behind_an_interrupted_call(bootstrap: str) -> None:
    async def call_and_call_again() -> bool:
        with closing(BlockingClient(bootstrap)) as client:
            was_interrupted = interrupted(client.cluster_id, at)
            assert client.cluster_id()
            return was_interrupted

    found: list[bool] = []
    for at in range(1, 1000):
        assert done_by_another(lambda: found.append(asyncio.run(call_and_call_again()))), f"moment {at}"
        if not found[-1]:
            assert len(found) == at
            return
    raise AssertionError("a call has more moments")
