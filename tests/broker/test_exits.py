"""A broker in a program that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from logstore.broker import Broker, BrokerConfig, BrokerFailed


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


LEFT_TO_A_FINALIZER = """
from logstore.broker import Broker

class Service:
    def __init__(self):
        self.broker = Broker()
        self.broker.start()
        self.broker.create_topic("orders")

    def __del__(self):
        try:
            self.broker.append("orders", b"placed")
        except Exception as error:
            print(type(error).__name__, flush=True)
        self.broker.stop()

service = Service()
"""


def test_a_broker_that_a_finalizer_stops_at_the_exit_is_no_hang() -> None:
    """Its thread runs no more by then: from Python 3.13 on each call waited for ever."""
    done = subprocess.run(
        [sys.executable, "-c", LEFT_TO_A_FINALIZER], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (0, "BrokerStopped\n")
    assert "RuntimeError: the program is over" in done.stderr


STANDARD_STREAMS_CLOSED = """
import os, sys
from pathlib import Path
for descriptor in range(3):
    os.close(descriptor)
from logstore.broker import BlockingClient, Broker
with Broker() as broker, BlockingClient([broker.bootstrap]) as client:
    client.topics()
    found = [os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in range(3)]
Path(sys.argv[1]).write_text(" ".join(found))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux lists descriptors there")
@pytest.mark.parametrize("is_fast", [True, False], ids=["uvloop", "asyncio"])
def test_no_socket_gets_the_number_of_a_standard_stream(tmp_path: Path, is_fast: bool) -> None:
    """libuv aborted the process at the end: "uv__close: Assertion `fd > STDERR_FILENO' failed"."""
    code = (
        STANDARD_STREAMS_CLOSED
        if is_fast
        else f"import sys; sys.modules['uvloop'] = None\n{STANDARD_STREAMS_CLOSED}"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "found")], timeout=30, check=False)
    assert done.returncode == 0
    assert (tmp_path / "found").read_text() == "/dev/null /dev/null /dev/null"


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_loop_that_ends_is_a_failure_of_its_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_fast: bool
) -> None:
    """A `SystemExit` in a callback ends a loop, also if code of the application raised it: a handler of the
    logger of asyncio, say. Each call raised `CancelledError` from then on, and the logs stayed locked."""
    if not is_fast:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    config = BrokerConfig(log_dirs=(str(tmp_path),))
    broker = Broker(config)
    broker.start()
    broker.create_topic("orders")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(broker.read, "orders", 0, 0, wait=60)
        assert broker._loop is not None
        broker._loop.call_soon_threadsafe(sys.exit, "a handler ends the program")
        with pytest.raises(BrokerFailed, match="broker 1 failed: a handler ends the program"):
            waiting.result()
    with pytest.raises(BrokerFailed, match="a handler ends the program"):
        broker.topics()
    broker.stop()
    with Broker(config) as another:
        assert another.topics() == {"orders": 1}
