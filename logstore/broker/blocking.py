"""The calls of `Client` for programs without an event loop: the same names, but each call blocks."""

from __future__ import annotations

import asyncio
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from logstore.broker.client import Client
from logstore.broker.errors import RequestFailed, RequestUnanswered
from logstore.broker.limits import Address, Limits, addresses_of
from logstore.broker.loop import SteadyLoop
from logstore.broker.security.client import ClientSecurity
from logstore.broker.threads import alone, check_is_no_greenlet
from logstore.broker.topics import Topic
from logstore.disk.closing import Closing, OfThisProcess
from logstore.disk.reentry import Flag
from logstore.format.record import Record

P = ParamSpec("P")
T = TypeVar("T")
_COROUTINE = "Coroutine[Any, Any, "


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingCalls, P], T]:
    """Return a method of `Client`, or what a subclass has in its place, as a method that waits for it."""

    @wraps(method)
    def call(self: BlockingCalls, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work: Coroutine[Any, Any, T] = getattr(self._client, method.__name__)(*args, **kwargs)
        return self._wait(work)

    # `help` shows what the caller gets: some methods of `Client` are functions that return a coroutine.
    signature = inspect.signature(method)
    awaited = str(signature.return_annotation).removeprefix(_COROUTINE)
    if awaited != signature.return_annotation:
        signature = signature.replace(return_annotation=awaited.removesuffix("]"))
    vars(call).update(__signature__=signature)
    call.__module__, call.__qualname__ = __name__, f"BlockingCalls.{method.__name__}"
    return call


class BlockingCalls(OfThisProcess, ABC):
    """The calls of a `Client`, blocking. They raise what `Client` raises."""

    @property
    @abstractmethod
    def _client(self) -> Client: ...

    @abstractmethod
    def _wait(self, work: Coroutine[Any, Any, T]) -> T: ...

    def topic(self, name: str) -> Topic:
        """Return the topic of this name, whose partitions are read in the words of a log (`topics.py`)."""
        return Topic(self, name)

    append = _blocking(Client.append)
    """Append a value with its `key` and `headers`, or many records: see `Client.append`."""
    read = _blocking(Client.read)
    """Return committed records from `offset` on: see `Client.read`."""

    def scan(
        self, topic: str, partition: int = 0, offset: int | None = None, *, follow: bool = False
    ) -> Iterator[Record]:
        """Yield committed records: see `Client.scan`."""
        return self._each(self._client.pages(topic, partition, offset, follow=follow))

    def _each(self, pages: AsyncIterator[list[Record]]) -> Iterator[Record]:
        async def next_page() -> list[Record]:
            return await anext(pages, [])

        while page := self._wait(next_page()):
            yield from page

    create_topic = _blocking(Client.create_topic)
    """Create a topic and wait until every broker knows its leaders: see `Client.create_topic`."""
    delete_topic = _blocking(Client.delete_topic)
    """Delete a topic and wait until no broker lists it: see `Client.delete_topic`."""
    topics = _blocking(Client.topics)
    """Return the partition count of every topic."""
    topic_settings = _blocking(Client.topic_settings)
    """Return a topic's effective settings by Kafka's names."""
    offset = _blocking(Client.offset)
    """Return an offset of a partition by time: see `Client.offset`."""
    offsets = _blocking(Client.offsets)
    """Return offsets of many partitions by time: see `Client.offsets`."""
    delete_records = _blocking(Client.delete_records)
    """Delete the records of a partition below an offset: see `Client.delete_records`."""
    commit = _blocking(Client.commit)
    """Commit the next offsets of a group: see `Client.commit`."""
    committed = _blocking(Client.committed)
    """Return the offsets that a group has committed."""
    cluster_id = _blocking(Client.cluster_id)
    """Return the id of the cluster."""
    leader = _blocking(Client.leader)
    """Return the id of a partition's leader; -1 without one."""
    durability = _blocking(Client.durability)
    """Return the receipt of a record: see `Client.durability`."""
    wait_for = _blocking(Client.wait_for)
    """Wait until a record is on so many replicas: see `Client.wait_for`."""


class BlockingClient(BlockingCalls, Closing):
    """A `Client` with its own event loop, which runs during calls only. Belongs to one thread.

    A call during another one raises `RequestFailed`.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[Address | str],
        *,
        limits: Limits | None = None,
        timeout_s: float = 60.0,
        security: ClientSecurity | None = None,
    ) -> None:
        """Check the arguments. Raises `TypeError`, and `ValueError` for a bootstrap without a broker."""
        if not (addresses := addresses_of(bootstrap)):
            raise ValueError('bootstrap names no broker; give "host:port" of at least one')
        self._inner = Client(addresses, limits=limits, timeout_s=timeout_s, security=security)
        self._runner = asyncio.Runner(loop_factory=SteadyLoop)
        self._calls: dict[None, object] = {}

    def __repr__(self) -> str:
        return f"Blocking{self._inner!r}"

    def close(self) -> None:
        """Close all connections. In a forked child do nothing: they are the parent's."""
        try:
            self._inner.check()
        except RequestUnanswered:
            return  # closed before, or a forked copy
        self._run(self._inner.close())
        _where_no_loop_runs(self._runner.close, lambda: None)

    @property
    def _client(self) -> Client:
        return self._inner

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._inner.check()
        except BaseException:
            work.close()
            raise
        return self._run(work)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        def refuse() -> T:
            work.close()
            raise RequestFailed("this client is in another call; make a client for each thread")

        return alone(self._calls, partial(self._run_alone, work), refuse)

    def _run_alone(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            loop = self._runner.get_loop()
        except BaseException:  # the process has no free descriptors
            work.close()
            raise
        task = loop.create_task(work)

        async def outcome() -> T:
            return await task

        try:
            return _where_no_loop_runs(
                lambda: self._runner.run(outcome()), partial(loop.call_soon_threadsafe, task.cancel)
            )
        finally:
            task.cancel()  # if it has not begun: the next call would begin it

    metadata = _blocking(Client.metadata)
    """Return the metadata of the best informed broker: see `Client.metadata`."""
    produce = _blocking(Client.produce)
    """Append one batch: see `Client.produce`."""
    fetch = _blocking(Client.fetch)
    """Return batches below the high watermark: see `Client.fetch`."""
    of_controller = _blocking(Client.of_controller)
    """Send a request to the controller: see `Client.of_controller`."""


def _where_no_loop_runs(action: Callable[[], T], cancel: Callable[[], object]) -> T:
    """Return `action()`, which runs an event loop; call `cancel` if the wait for it is interrupted.

    A thread runs one loop at a time. In a coroutine, or a cell of a notebook, another thread does it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return action()
    ended, results, errors = Flag(), list[T](), list[BaseException]()
    caller = threading.get_native_id()

    def act() -> None:
        try:
            check_is_no_greenlet(caller)
            results.append(action())
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=act, name="logstore-client")
    thread.start()
    try:
        ended.wait()
    except BaseException:
        cancel()
        raise
    finally:
        thread.join()
    if errors:
        raise errors[0]
    return results[0]
