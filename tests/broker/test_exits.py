"""A broker in a program that ends."""

from __future__ import annotations

import threading

import pytest

from logstore.broker import Broker, BrokerConfig


def test_a_stop_that_can_start_no_thread_any_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the exit of the program: in a callback of `atexit` it waited for ever."""
    broker = Broker(BrokerConfig())
    broker.start()
    assert broker._inner is not None
    let_go = broker._inner._let_go

    async def refused() -> None:
        await let_go()
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(broker._inner, "_let_go", refused)
    errors: list[str] = []

    def stop() -> None:
        try:
            broker.stop()
        except RuntimeError as error:
            errors.append(str(error))

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    stopping.join(5)
    assert errors == ["cannot schedule new futures after shutdown"]
