"""Each parameter of each public method with wrong values: a clear error, unless the value is taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from inspect import Parameter, signature
from itertools import islice
from typing import Any

import pytest

from logstore import Log, LogReader, Queue, QueueConfig
from logstore.broker import BrokerConfig
from logstore.disk.errors import EngineError
from logstore.log.writer import Writer
from logstore.testing import CrashLab, Fault, MemoryDisk, RequestFailed, SimulatedCluster, Stage

WRONG: list[Any] = [
    "x", "", "0", b"x", -1, 1.5, 1 << 70, -(1 << 70), float("nan"), float("inf"), True, None, object(),
    [], {}, (1, 2), [None], datetime(2020, 1, 1), id,  # noqa: DTZ001
]  # fmt: skip
RAW = re.compile(
    r"object has no attribute|not supported between|unsupported operand|object is not (iterable|callable|sub)"
    r"|unhashable|cannot be interpreted|has no len|to unpack|cannot unpack|too large to convert|list index"
    r"|must be real number|invalid literal|could not convert|required argument is not"
)
"""Python's own errors, raised far from the call that passed the value."""
EXPLAINED = "keys, values and header values must be bytes or None"
GIVEN: dict[str, Any] = {
    "records": b"v", "batches": b"", "value": b"v", "values": [b"v"], "messages": [],
    "offset": 0, "before_offset": 0, "start_offset": 0, "timestamp_ms": 0, "delay_ms": 1,
    "producer_id": 1, "producer_epoch": 0, "commit": True, "most": 1, "timeout": 0, "limit_ms": 100,
    "node": 0, "name": "A", "topic": "t", "path": "/new-0", "callback": len, "predicate": lambda: True,
}  # fmt: skip
WAITS = (None, 1.5, 1 << 70, float("inf"), True)
"""Right values of a timeout."""
METHODS: dict[type[object], str] = {
    Log: "append append_batches compact cursor delete_records end_transaction follow get is_synced maintain "
    "offset_for_timestamp read read_arrow read_batches read_bytes read_keys_values read_reverse read_values "
    "scrub snapshot truncate_to writer",
    Writer: "append",
    LogReader: "follow seek",
    Queue: "put put_many get get_many peek ack ack_many nack extend",
    SimulatedCluster: "create_topic delete_topic run_until at leader isr producer produce consumer consume "
    "kill restart pause partition full_disk expire_session",
    Stage: "advance kill start values consume",
}
CALLS = [(kind, name) for kind, names in METHODS.items() for name in names.split()]
CONSTRUCTORS: list[type[object]] = [QueueConfig, BrokerConfig, Fault, CrashLab, SimulatedCluster]


@pytest.fixture
def made() -> Iterator[dict[str, object]]:
    disk = MemoryDisk()
    with Log.open("/orders-0", disk=disk) as log, Queue("/jobs", disk=disk) as queue, log.writer() as writer:
        log.append([b"a", b"b", b"c"])
        queue.put(b"a")
        cluster = SimulatedCluster()
        cluster.create_topic("t")
        cluster.produce("t", b"a")
        stage = Stage("AB")
        stage.elect("A", isr="AB")
        reader = LogReader("/orders-0", disk=disk)
        yield {type(each).__name__: each for each in (log, queue, writer, cluster, stage, reader)}


def refusals(call: Callable[..., object]) -> Iterator[tuple[str, Exception]]:
    """Yield the error of each wrong value of each parameter."""
    parameters = [
        each for each in signature(call).parameters.values() if each.kind is not Parameter.VAR_KEYWORD
    ]
    needed = {
        each.name: GIVEN[each.name]
        for each in parameters
        if each.name in ("timeout", "limit_ms") or (each.default is each.empty and each.name in GIVEN)
    }
    for parameter in parameters:
        for value in WRONG:
            if parameter.name == "limit_ms" or (parameter.name == "timeout" and value in WAITS):
                continue
            is_one_of_many = parameter.kind is Parameter.VAR_POSITIONAL
            arguments = {} if is_one_of_many else {parameter.name: value}
            try:
                result = call(*([value] if is_one_of_many else ()), **{**needed, **arguments})
                if isinstance(result, Iterator):
                    list(islice(result, 2))
            except Exception as error:
                yield f"{parameter.name}={value!r:.40}", error


def judge(call: Callable[..., object]) -> None:
    for given, error in refusals(call):
        assert isinstance(error, TypeError | ValueError | EngineError | OSError | RequestFailed), given
        text = str(error)
        assert EXPLAINED in text or not RAW.search(text), f"{given}: {text}"


@pytest.mark.parametrize(("kind", "name"), CALLS, ids=lambda each: getattr(each, "__name__", each))
def test_a_wrong_value_is_named(made: dict[str, object], kind: type[object], name: str) -> None:
    judge(getattr(made[kind.__name__], name))


@pytest.mark.parametrize("kind", CONSTRUCTORS, ids=lambda kind: kind.__name__)
def test_a_wrong_setting_is_named(kind: type[object]) -> None:
    judge(kind)


def test_a_function_that_returns_no_settings_is_named() -> None:
    """It was a trace about the argument `node_id`."""
    with pytest.raises(TypeError, match="configure returned None; it must return a NodeConfig"):
        SimulatedCluster(configure=lambda config: None)  # type: ignore[arg-type, return-value]


def test_the_judge_sees_a_raw_error() -> None:
    def planted(offset: int) -> int:
        return offset + 1

    with pytest.raises(AssertionError, match="offset="):
        judge(planted)
