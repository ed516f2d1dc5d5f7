"""Objects to bytes and back: the encoding of values that are not bytes in `Log.append`.

    Log.open(path, serializer="json")       str, numbers, lists, mappings, dataclasses, pydantic models
    Log.open(path, serializer="msgpack")    the same in fewer bytes, and bytes inside of them
    Log.open(path, serializer=orjson)       any object or module with `dumps` and `loads`

A log keeps bytes: nothing in its files names the serializer, and each program states its own. There is no
default, and pickle has no name here, because `pickle.loads` runs what it reads. A program that trusts every
writer of its log passes the module itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, Protocol, TypeAlias

from logstore.errors import InvalidConfig
from logstore.format.batch import Batch
from logstore.format.record import Record
from logstore.log.outgoing import Appendable, is_one_value

Serializable: TypeAlias = object
"""A value of a type that the log's serializer knows."""

_READY: Final = (bytes, bytearray, memoryview, Record, Batch, type(None))


class Serializer(Protocol):
    """Turns values into bytes and back."""

    def dumps(self, value: Any, /) -> bytes:
        """Return `value` as bytes. Raises `TypeError` or `ValueError` for a value that has no such form."""

    def loads(self, data: bytes, /) -> Any:
        """Return the value encoded in `data`. Raises `ValueError` for invalid bytes."""


class Json:
    """JSON in UTF-8, without spaces. Mappings, dataclasses, pydantic models become objects; tuples lists."""

    def dumps(self, value: Any, /) -> bytes:
        """Return `value` as JSON. Raises `TypeError` for other types, `ValueError` for NaN and infinities."""
        text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()

    def loads(self, data: bytes, /) -> Any:
        """Return the value of this JSON text. Raises `ValueError`."""
        return json.loads(data)


class MessagePack:
    """MessagePack, with the extra `msgpack`. What is an object in JSON becomes a map; tuples arrays."""

    def __init__(self) -> None:
        try:
            import msgpack
        except ImportError as error:
            raise ImportError(
                "the serializer msgpack needs an extra: pip install 'pylogstore[msgpack]'"
            ) from error
        self._packb, self._unpackb = msgpack.packb, msgpack.unpackb

    def dumps(self, value: Any, /) -> bytes:
        """Return `value` as MessagePack. Raises `TypeError`, and `OverflowError` for too large integers."""
        packed: bytes = self._packb(value, default=_plain)
        return packed

    def loads(self, data: bytes, /) -> Any:
        """Return the value of these bytes. Raises `ValueError`."""
        return self._unpackb(data, strict_map_key=False)


_NAMED: Final[dict[str, Callable[[], Serializer]]] = {"json": Json, "msgpack": MessagePack}


def serializer_of(chosen: Serializer | str) -> Serializer:
    """Return the serializer of this name, or the given one.

    Raises `InvalidConfig` for another name, `TypeError` for an object without `dumps` and `loads`, and
    `ImportError` without the extra `msgpack`.
    """
    if isinstance(chosen, str):
        if chosen in _NAMED:
            return _NAMED[chosen]()
        advice = "pass the module itself, serializer=pickle, if you trust every writer of the log"
        names = " or ".join(map(repr, _NAMED))
        raise InvalidConfig(
            f"serializer {chosen!r} is unknown: it is {names}, or an object with dumps and loads"
            + (f". Reading a pickle runs code from the log; {advice}" if chosen == "pickle" else "")
        )
    if not (hasattr(chosen, "dumps") and hasattr(chosen, "loads")):
        raise TypeError(f"{type(chosen).__name__} is not a serializer: it has no dumps and loads")
    return chosen


def serialized(serializer: Serializer, given: Any) -> Appendable | Iterator[Appendable]:
    """Return the argument of an append with its values as bytes: one item, or an iterator of many.

    bytes, None, `Record`s and `Batch`es stay; of a (key, value) pair the value is serialized. Text, mappings,
    dataclasses, models and other tuples are one value; other iterables are many. Raises `TypeError` for a
    value that the serializer refuses; of an iterator, when it gets there.
    """
    if isinstance(given, Iterable) and not isinstance(given, (*_READY, tuple)) and not is_one_value(given):
        return (_item(serializer, each) for each in given)
    return _item(serializer, given)


def _item(serializer: Serializer, value: Any) -> Appendable:
    if isinstance(value, _READY):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        key, inner = value
        return key, inner if inner is None or isinstance(inner, bytes) else _dumped(serializer, inner)
    return _dumped(serializer, value)


def _dumped(serializer: Serializer, value: object) -> bytes:
    name = getattr(serializer, "__name__", type(serializer).__name__)
    try:
        data: object = serializer.dumps(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"{type(value).__name__} cannot be appended: {name} refuses it ({error}); append bytes, or open "
            "the log with a serializer for it"
        ) from error
    if not isinstance(data, bytes):
        raise TypeError(
            f"{name}.dumps returned {type(data).__name__} for {type(value).__name__}, not bytes"
            + ('; use serializer="json"' if name == json.__name__ else "")
        )
    return data


def _plain(value: Any) -> Any:
    """Return what stands for an object inside of JSON or MessagePack."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, int):
        raise OverflowError("an integer does not fit 64 bits")
    raise TypeError(f"no form for {type(value).__name__}")
