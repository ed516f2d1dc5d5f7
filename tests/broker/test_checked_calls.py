"""Wrong arguments are named where the call is made; the broker does not see them."""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from logstore.arguments import as_seconds
from logstore.broker import (
    AsyncBroker,
    BlockingClient,
    Broker,
    BrokerCluster,
    BrokerConfig,
    Client,
    RequestRefused,
)
from logstore.broker.checked_calls import checked
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import OffsetOutOfRange
from logstore.format.record import Record

TP: Final = TopicPartition("t", 0)
SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(BrokerConfig(settings=SETTINGS, timeout_s=20)) as broker:
        broker.create_topic("t")
        yield broker


WRONG: Final[list[tuple[str, str, tuple[Any, ...], dict[str, Any]]]] = [
    *(("topic", "create_topic", (each,), {}) for each in (None, b"x", 5, ["a"])),
    *(("partitions", "create_topic", ("a", each), {}) for each in ("3", 1.5, None, 2**40)),
    ("replication_factor", "create_topic", ("a",), {"replication_factor": "1"}),
    ("settings", "create_topic", ("a",), {"settings": "retention.ms"}),
    ("retention.ms", "create_topic", ("a",), {"settings": {"retention.ms": None}}),
    *(("topic", "append", (each, b"x"), {}) for each in (None, b"t", 5)),
    ("partition", "append", ("t", b"x"), {"partition": "0"}),
    ("header", "append", ("t", b"x"), {"headers": [("a", "b")]}),
    ("header", "append", ("t", b"x"), {"headers": [(b"a", b"b")]}),
    ("headers", "append", ("t", b"x"), {"headers": ["a"]}),
    ("headers", "append", ("t", b"x"), {"headers": 5}),
    ("headers", "append", ("t", b"x"), {"headers": {"a": b""}}),
    ("header", "append", ("t", [Record(0, 1, None, b"x", (("a", "b"),))]), {}),  # type: ignore[arg-type]
    ("timestamp_ms", "append", ("t", [Record(0, 2**70, None, b"x")]), {}),
    ("timestamp_ms", "append", ("t", Record(0, -2, None, b"x")), {}),
    ("timestamp_ms", "append", ("t", Record(0, "1", None, b"x")), {}),  # type: ignore[arg-type]
    ("values", "append", ("t", Record(0, 1, "k", b"x")), {}),  # type: ignore[arg-type]
    *(("timeout", "append", ("t", b"x"), {"timeout": each}) for each in (-1, math.nan, "1")),
    ("acks", "append", ("t", b"x"), {"acks": 2}),
    ("topic", "read", (None,), {}),
    ("partition", "read", ("t", None), {}),
    ("partition", "read", ("t", "0"), {}),
    *(("offset", "read", ("t", 0, each), {}) for each in ("x", 1.0, 2**70)),
    ("max_bytes", "read", ("t",), {"max_bytes": -1}),
    *(("wait", "read", ("t",), {"wait": each}) for each in (-1, None, "x", math.nan)),
    ("offset", "scan", ("t", 0, "x"), {}),
    ("topic", "leader", (None,), {}),
    ("partition", "leader", ("t", "0"), {}),
    ("offset", "durability", ("t", 0, None), {}),
    ("level", "wait_for", ("t", 0, 0, "synced"), {}),
    ("timeout", "wait_for", ("t", 0, 0), {"timeout": -1}),
    ("timeout", "topics", (), {"timeout": -1}),
]
"""The argument that the error names, the call, its positional and its keyword arguments."""


@pytest.mark.parametrize(("named", "call", "args", "settings"), WRONG)
def test_a_wrong_argument_is_named_by_every_face(
    broker: Broker, named: str, call: str, args: tuple[Any, ...], settings: dict[str, Any]
) -> None:
    """A topic name that was no text stopped the whole broker; others were retried for a minute."""
    remote = BlockingClient(broker.bootstrap)
    faces: tuple[Any, ...] = (broker, remote, AsyncBroker(), Client([]))
    for face in faces:
        with pytest.raises((TypeError, ValueError), match=named):
            getattr(face, call)(*args, **settings)
    remote.close()
    assert broker.topics() == {"t": 1}
    assert broker.read("t", wait=0) == []


@pytest.mark.parametrize("name", [None, b"t", 5.0])
def test_names_of_topics_and_cursors_are_text(broker: Broker, name: Any) -> None:
    async def test() -> None:
        client = Client(broker.bootstrap)
        with pytest.raises(TypeError, match="group"):
            await client.committed(name, (TP,))
        with pytest.raises(TypeError, match="group"):
            await client.commit(name, {TP: 0})
        await client.close()
        with pytest.raises(TypeError, match="name of a topic"):
            AsyncBroker().topic(name)

    asyncio.run(test())
    with pytest.raises(TypeError, match="name of a topic"):
        broker.topic(name)
    with pytest.raises(TypeError, match="cursor's name"):
        broker.topic("t").partition(0).cursor(name)
    with pytest.raises(ValueError, match="cursor's name"):
        broker.topic("t").partition(0).cursor("")
    with pytest.raises(TypeError, match="timestamp_ms"):
        broker.topic("t").partition(0).offset_for_timestamp(name)


def test_a_cursor_commits_no_offset_outside_of_its_partition(broker: Broker) -> None:
    """As the cursor of a log."""
    broker.create_topic("cursors")
    partition = broker.topic("cursors").partition(0)
    partition.append([b"1", b"2"])
    cursor = partition.cursor("billing")
    for offset in (-1, 3, 10**6, 2**70):
        with pytest.raises(OffsetOutOfRange, match=str(offset)):
            cursor.commit(offset)
    with pytest.raises(TypeError, match="offset"):
        cursor.commit("1")  # type: ignore[arg-type]
    cursor.position = -1
    with pytest.raises(ValueError, match="-1"):
        cursor.commit()
    assert cursor.committed is None
    assert cursor.commit(2) == cursor.committed == 2
    for timeout in (-1, math.nan, "1"):
        with pytest.raises((TypeError, ValueError), match="timeout"):
            partition.follow(timeout=timeout)  # type: ignore[arg-type]


def test_a_scan_that_begins_past_the_end_is_refused(broker: Broker) -> None:
    """As `read` refuses it, and `Log.read`; at the end there is nothing to refuse."""
    broker.create_topic("scanned")
    broker.append("scanned", [b"1", b"2"])
    assert list(broker.scan("scanned", 0, 2)) == []
    for call in (broker.scan, broker.read):
        with pytest.raises(RequestRefused) as caught:
            list(call("scanned", 0, 10**6))
        assert caught.value.error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_long_times_are_no_error(broker: Broker) -> None:
    broker.create_topic("patient", settings={"retention.ms": 5_000_000, "preallocate": False})
    assert broker.append("patient", b"x", timeout=1e300).offset == 0
    assert [each.value for each in broker.read("patient", wait=1e300, timeout=10**400)] == [b"x"]
    assert [each.value for each in broker.read("patient", wait=math.inf, timeout=math.inf)] == [b"x"]
    broker.wait_until_ready(1e300)
    assert broker.topic("patient").partition(0).read_bytes(0, 1 << 40).next_offset == 1
    assert next(broker.topic("patient").partition(0).follow(timeout=math.inf)).value == b"x"


@pytest.mark.parametrize("seconds", [-1, math.nan, "5", None])
def test_a_default_timeout_is_checked(seconds: Any) -> None:
    makers: tuple[Callable[..., object], ...] = (BrokerConfig, BrokerCluster, lambda **x: Client([], **x))
    for make in makers:
        with pytest.raises((TypeError, ValueError), match="timeout_s"):
            make(timeout_s=seconds)


def test_a_snapshot_goes_to_a_path(tmp_path: Path) -> None:
    config = BrokerConfig(log_dirs=(str(tmp_path / "data"),))
    with Broker(config) as broker, pytest.raises(TypeError, match="path"):
        broker.snapshot(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("face", [AsyncBroker, Client])
def test_schedulers_see_that_calls_are_awaited(face: type[Client]) -> None:
    """They run other functions in a thread, and drop the coroutine that one returns: nothing was appended."""
    is_awaited = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    awaited = {name for name in dir(face) if is_awaited(getattr(face, name))}
    calls = {name for name in dir(Broker) if not name.startswith("_") and callable(getattr(Broker, name))}
    assert calls & vars(Client).keys() - {"scan", "topic", "check"} <= awaited
    assert {"append", "read", "create_topic", "commit", "close"} <= awaited


def test_none_is_taken_where_it_is_the_default() -> None:
    @checked
    def call(topic: str, offset: int | None = None, *, wait: float = 1.0) -> tuple[object, ...]:
        return topic, offset, wait

    assert call("t") == call("t", None) == call(topic="t", offset=None) == ("t", None, 1.0)
    for args, named in (((None,), "topic"), (("t", "x"), "offset")):
        with pytest.raises(TypeError, match=named):
            call(*args)
    with pytest.raises(TypeError, match="wait"):
        call("t", wait=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected"):
        call("t", patience=1)  # type: ignore[call-arg]
    assert as_seconds(10**400, "timeout") == as_seconds(math.inf, "timeout") == 1e9
