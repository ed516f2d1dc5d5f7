"""Values of other types than bytes: one serializer for a log, chosen by name or given."""

from __future__ import annotations

import json
import pickle
import sys
from collections import ChainMap, UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from logstore.errors import InvalidConfig
from logstore.format.record import Record
from logstore.log.log import Log
from logstore.log.serializers import MessagePack, Serializer
from tests.logstore.logs import DIRECTORY
from tests.logstore.plain_logs import new_disk


@dataclass
class Item:
    name: str
    count: int


@dataclass
class Order:
    number: int
    items: list[Item]


class Paid(BaseModel):
    order: int
    amount: float


def opened(serializer: Any) -> Log:
    return Log.open(DIRECTORY, serializer=serializer, disk=new_disk())


def loaded(log: Log) -> list[Any]:
    assert log.serializer is not None
    return [log.serializer.loads(value or b"") for value in log.read_values()]


@pytest.fixture(params=["json", "msgpack"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    with opened(request.param) as log:
        yield log


def test_values_come_back(log: Log) -> None:
    values = ["text", "ü", 17, -1, 1.5, True, {"order": 17}, {}, ""]
    for value in values:
        log.append(value)
    assert loaded(log) == values
    assert [type(each) for each in loaded(log)] == [type(each) for each in values]


def test_dataclasses_and_models_become_objects(log: Log) -> None:
    log.append(Order(17, [Item("nut", 3)]), key=b"17")
    log.append(Paid(order=17, amount=2.5), key=b"17")
    log.append({"nested": Paid(order=1, amount=1)})
    assert loaded(log) == [
        {"number": 17, "items": [{"name": "nut", "count": 3}]},
        {"order": 17, "amount": 2.5},
        {"nested": {"order": 1, "amount": 1}},
    ]
    assert [record.key for record in log.read()] == [b"17", b"17", None]
    assert Paid.model_validate(loaded(log)[1]) == Paid(order=17, amount=2.5)


def test_mappings_of_any_type_become_objects(log: Log) -> None:
    """Only `dict` did, though `append` takes every mapping for one value."""
    log.append(MappingProxyType({"a": 1}))
    log.append({"inside": [UserDict(b=MappingProxyType({}))]})
    layers: list[dict[str, Any]] = [{"a": 2}, {"a": 1, "c": Item("nut", 3)}]
    log.append(ChainMap(*layers))
    assert loaded(log) == [{"a": 1}, {"inside": [{"b": {}}]}, {"a": 2, "c": {"name": "nut", "count": 3}}]


def test_a_tuple_is_one_value_and_one_of_two_is_a_pair(log: Log) -> None:
    log.append((1, 2, 3))
    log.append([(4,), (b"key", 5)])
    assert loaded(log) == [[1, 2, 3], [4], 5]


def test_many_values_in_one_call(log: Log) -> None:
    log.append([Item("a", 1), "b", 3])
    log.append(Item(name, 1) for name in "cd")
    log.append((b"key", {"v": 1}))
    log.append([(b"key", {"v": 2}), (b"key", None)])
    assert log.serializer is not None
    values = [value and log.serializer.loads(value) for value in log.read_values()]
    assert values == [
        {"name": "a", "count": 1},
        "b",
        3,
        {"name": "c", "count": 1},
        {"name": "d", "count": 1},
        {"v": 1},
        {"v": 2},
        None,
    ]


def test_bytes_records_and_tombstones_stay(log: Log) -> None:
    log.append(b"raw")
    log.append(None, key=b"k")
    log.append(Record(0, 5000, b"k", b"raw"))
    log.append([b"raw", bytearray(b"raw")])
    assert list(log.read_values()) == [b"raw", None, b"raw", b"raw", b"raw"]


def test_a_writer_serializes_too(log: Log) -> None:
    with log.writer(linger_ms=3_600_000) as writer:
        writer.append("text")
        writer.append(Item("a", 1), key=b"k")
        writer.append(b"raw")
        assert writer.append([1, 2]).written().offsets == range(3, 5)
    assert [batch.record_count for batch in log.read_batches()] == [3, 2]
    assert log[0].value in (b'"text"', b"\xa4text")
    assert log[1].key == b"k"


def test_pickle_only_if_the_module_is_given() -> None:
    with pytest.raises(InvalidConfig, match="runs code from the log; pass the module itself"):
        opened("pickle")
    with opened(pickle) as log:
        log.append({1, 2})  # an iterable: two values
        log.append(SimpleNamespace(a=1))
        assert loaded(log) == [1, 2, SimpleNamespace(a=1)]


def test_an_object_with_dumps_and_loads_is_a_serializer() -> None:
    class Upper:
        def dumps(self, value: Any, /) -> bytes:
            return str(value).upper().encode()

        def loads(self, data: bytes, /) -> Any:
            return data.decode()

    serializer: Serializer = Upper()
    with opened(serializer) as log:
        log.append("text")
        assert loaded(log) == ["TEXT"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "object cannot be appended: Json refuses it .* open the log with a serializer for it"),
        ({"a": object()}, "dict cannot be appended: Json refuses it .no form for object"),
        (float("nan"), "float cannot be appended: Json"),
        ({"a": b"raw"}, "dict cannot be appended: Json refuses it .no form for bytes"),
    ],
)
def test_a_value_that_the_serializer_refuses(value: Any, message: str) -> None:
    with opened("json") as log:
        with pytest.raises(TypeError, match=message):
            log.append(value)
        assert log.log_end_offset == 0


def test_integers_too_large_for_messagepack() -> None:
    """The reason was "no form for int", and of another type than `dumps` promises."""
    for value in (2**70, 1 << 64, -(2**63) - 1, 10**5000):
        with opened("msgpack") as log, pytest.raises(TypeError, match=r"int cannot .*64 bits"):
            log.append(value)
        with pytest.raises(OverflowError, match="64 bits"):
            MessagePack().dumps({"deep": [value]})
    assert MessagePack().loads(MessagePack().dumps([2**64 - 1, -(2**63)])) == [2**64 - 1, -(2**63)]


def test_without_a_serializer_the_error_says_how_to_get_one() -> None:
    with opened(None) as log:
        for value in ("text", 17, {"a": 1}, Item("a", 1), Paid(order=1, amount=1), 1.5):
            with pytest.raises(TypeError, match=f'{type(value).__name__} is not .*serializer="json"'):
                log.append(value)
        assert log.log_end_offset == 0


@pytest.mark.parametrize(
    ("serializer", "error", "message"),
    [
        ("yaml", InvalidConfig, "serializer 'yaml' is unknown: it is 'json' or 'msgpack', or an object"),
        (17, TypeError, "int is not a serializer"),
    ],
)
def test_a_wrong_choice_opens_nothing(serializer: Any, error: type[Exception], message: str) -> None:
    disk = new_disk()
    with pytest.raises(error, match=message):
        Log.open(DIRECTORY, serializer=serializer, disk=disk)
    with Log.open(DIRECTORY, disk=disk):
        pass


def test_the_json_module_is_pointed_to_the_name() -> None:
    with opened(json) as log, pytest.raises(TypeError, match=r'json.dumps returned str .* serializer="json"'):
        log.append({"a": 1})


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(ImportError, match=r"pip install 'pylogstore\[msgpack\]'"):
        opened("msgpack")
