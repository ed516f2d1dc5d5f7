"""A broker in a separate thread, for programs without an event loop.

Threads do not survive a fork: in a forked child the broker's calls raise `BrokerStopped`. Start brokers in
the child, or start children with the spawn method.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Final, TypeAlias, TypeVar

from logstore.arguments import as_config
from logstore.broker.blocking import BlockingCalls
from logstore.broker.embedded import AsyncBroker, BrokerConfig, not_started, started_already
from logstore.broker.errors import BrokerFailed, BrokerStopped
from logstore.broker.limits import Address
from logstore.broker.loop import fastest_loop
from logstore.broker.loop_calls import LoopCall
from logstore.broker.threads import check_is_no_greenlet
from logstore.disk.reentry import Flag
from logstore.log.log_dir_snapshot import LogDirSnapshot

T = TypeVar("T")
_Outcome: TypeAlias = list[AsyncBroker | BaseException]
"""The result of a start: empty, then the broker or the error."""
_AT_THE_END: Final = (
    "the program is over, and the broker's thread with it; stop the broker earlier. The next start recovers "
    "its logs"
)


class Broker(BlockingCalls):
    """A broker in its own thread. Any thread may call; calls block.

    `with` starts it, waits until it is ready, and stops it at the end. `async with` runs it on the caller's
    event loop instead and returns the `AsyncBroker`, whose calls are awaited.
    """

    def __init__(self, config: BrokerConfig | None = None) -> None:
        """Prepare a broker; nothing is started yet. Raises `TypeError` for another config."""
        self.config = as_config(config, BrokerConfig)
        self._inner: AsyncBroker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process_id = -1

    def __repr__(self) -> str:
        if self._inner is None:
            return f"Broker({self.node_id}, not started)"
        return repr(self._inner).removeprefix("Async")

    # --- starting and stopping --------------------------------------------------------------------

    def start(self) -> None:
        """Open the logs, listen, and begin to join the cluster; see `wait_until_ready`.

        Raises `InvalidConfig`, `ValueError` for a bad `listen`, `EngineError` and `OSError`; `RuntimeError`
        for a broker that was started before, and where threads are greenlets.
        """
        if self._inner is not None:
            raise started_already(self.node_id)
        self._process_id = os.getpid()
        started, outcome = Flag(), _Outcome()
        self._thread = threading.Thread(
            target=self._run,
            args=(threading.get_native_id(), started, outcome),
            name=f"broker-{self.config.node_id}",
            daemon=True,
        )
        self._thread.start()
        try:
            started.wait()
            if isinstance(outcome[0], BaseException):
                raise outcome[0]
            self._inner = outcome[0]
        except BaseException:
            started.wait()  # behind an interrupt; another one leaves the broker to the end of the process
            if isinstance(outcome[0], AsyncBroker):
                self._inner = outcome[0]
                self.kill("its start was interrupted")
            self._thread.join()
            raise

    def _run(self, starter: int, started: Flag, outcome: _Outcome) -> None:
        try:
            check_is_no_greenlet(starter)
            runner = asyncio.Runner(loop_factory=fastest_loop())
            self._loop = runner.get_loop()
        except BaseException as error:
            outcome.append(error)
            started.set()
            return
        with runner:
            try:
                runner.run(self._live(started, outcome))
            except BaseException as error:
                # `SystemExit` in a callback, or a handler of asyncio's logger that raises: they end the loop.
                self._lose_loop(runner, error, started, outcome)

    def _lose_loop(
        self, runner: asyncio.Runner, error: BaseException, started: Flag, outcome: _Outcome
    ) -> None:
        """Fail like a broker with a bug: calls that wait are told, and the logs are let go."""
        if not outcome:
            outcome.append(error)
            started.set()
        elif isinstance(outcome[0], AsyncBroker):
            runner.run(outcome[0].fail(error))

    async def _live(self, started: Flag, outcome: _Outcome) -> None:
        try:
            inner = AsyncBroker(self.config)
            await inner.start()
            outcome.append(inner)
        except BaseException as error:
            outcome.append(error)
            return
        finally:
            started.set()
        await inner.down.wait()

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Wait until the broker is ready: see `AsyncBroker.wait_until_ready`."""
        self._wait(self._client.wait_until_ready(timeout))

    def stop(self, reason: str = "") -> None:
        """Shut down and wait for the end: see `AsyncBroker.stop`."""
        if (inner := self._inner) is not None:
            self._finish(inner.stop(reason))

    def kill(self, reason: str = "") -> None:
        """Stop at once, as if the process had been killed: see `AsyncBroker.kill`."""
        if (inner := self._inner) is not None:
            self._finish(inner.kill(reason))

    def snapshot(self, path: str | os.PathLike[str]) -> LogDirSnapshot:
        """Put this broker's logs into the new log dir `path`: see `AsyncBroker.snapshot`."""
        return self._wait(self._client.snapshot(path))

    def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        thread = self._thread
        if thread is None or os.getpid() != self._process_id:
            work.close()  # a forked copy, or never started
            return
        if sys.is_finalizing() and not self._client.down.is_set():
            work.close()
            raise RuntimeError(_AT_THE_END)
        try:
            if self._client.down.is_set():
                work.close()
            else:
                self._in_thread(work)
        except BrokerStopped:
            pass  # another thread stopped it meanwhile
        finally:
            thread.join()

    def __enter__(self) -> Broker:
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill("it did not become ready")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except BrokerFailed:
            pass  # raised below, together with an earlier error
        if self._inner is not None:
            self._inner.tell_at_exit(error)

    async def __aenter__(self) -> AsyncBroker:
        if self._inner is not None:
            raise started_already(self.node_id)
        self._inner = AsyncBroker(self.config)
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    # --- calls --------------------------------------------------------------------------------

    @property
    def _client(self) -> AsyncBroker:
        if self._inner is None:
            raise not_started(self.node_id)
        return self._inner

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            if self._thread is not None and os.getpid() != self._process_id:
                raise BrokerStopped("the broker runs in the parent process; start a broker after the fork")
            if sys.is_finalizing():
                raise BrokerStopped(_AT_THE_END)
            self._client.check()
            if self._thread is None:
                raise BrokerStopped("this broker runs on an event loop: await the calls of its `async with`")
        except BaseException:
            work.close()
            raise
        return self._in_thread(work)

    def _in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None, "it was started"
        assert self._thread is not None, "it was started"
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call on the broker's own thread would wait for itself")
        try:
            return LoopCall(work, self._loop, self._thread).result()
        except CancelledError:
            self._client.check()  # its loop ended before it got there, or meanwhile
            if self._thread.is_alive():
                raise
            raise BrokerFailed(f"the thread of broker {self.node_id} has ended") from None

    # --- facts ------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """Return the broker's node id."""
        return self.config.node_id

    @property
    def address(self) -> Address:
        """The address for clients and brokers: the advertised one, else the one it listens on."""
        return self._client.address

    @property
    def bootstrap(self) -> str:
        """The `bootstrap.servers` of Kafka's clients: host:port."""
        return self._client.bootstrap

    @property
    def listeners(self) -> dict[str, Address]:
        """The addresses of the named listeners; empty for a single plain one."""
        return self._client.listeners

    @property
    def is_ready(self) -> bool:
        """Whether the broker is registered and running."""
        return self._inner is not None and self._inner.is_ready
