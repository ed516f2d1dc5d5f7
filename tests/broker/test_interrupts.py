"""Ctrl-C, or an exception of a signal's handler, at every moment of a call of an embedded broker."""

from __future__ import annotations

import threading

import pytest

from logstore.broker import Broker
from tests.logstore.test_interrupts import done_by_another, interrupted

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_broker_goes_on_behind_an_interrupted_call() -> None:
    """The lock of the call's future stayed taken: the broker waited for it for ever, and served nobody."""
    with Broker() as broker:
        broker.create_topic("orders")
        for at in range(1, 1000):
            was_interrupted = interrupted(lambda: broker.append("orders", b"first"), at)
            assert done_by_another(lambda: broker.append("orders", b"second")), f"moment {at}"
            if not was_interrupted:
                return
    raise AssertionError("a call has more moments")


def test_an_interrupted_start_leaves_no_broker() -> None:
    """It waited for the end of the broker that it had started, for ever."""
    before = set(threading.enumerate())
    for at in range(1, 100):
        broker = Broker()
        if not interrupted(broker.start, at):
            broker.stop()
            return
        assert set(threading.enumerate()) <= before, f"moment {at}"
    raise AssertionError("a start has more moments")
