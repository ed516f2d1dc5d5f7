"""Random messages, and kio's idea of the same ones."""

from __future__ import annotations

import dataclasses
import datetime
import random
import string
import types
import typing
import uuid
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from logstore.broker.wire.apis import APIS
from logstore.broker.wire.declarations import Field, Kind, Struct

NO_UUID = bytes(16)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXT = string.ascii_letters + "äß€😀\0"
NOT_IN_KIO = frozenset({4, 5, 6, 7})
"""Keys of what is declared by hand."""

KINDS = [kind for api in APIS.values() for kind in (api.request, api.response)]
"""Every message; `VERSIONS` of each are those served."""


def name_of(kind: type[Struct]) -> str:
    return kind.__name__


class Generator:
    """Draws messages that say something in every field of a version, and nothing in others."""

    def __init__(self, seed: str, *, ours: bool, small: bool = False) -> None:
        """`ours`: also in the tags that only our nodes know. `small`: a few hundred bytes at most."""
        self._random = random.Random(seed)
        self._ours = ours
        self._small = small

    def message(self, kind: type[Struct], version: int) -> Any:
        values = {
            name: self.field(name, field, version)
            for name, field in kind.FIELDS.items()
            if version in field.versions and (self._ours or (field.tag or 0) < 10_000)
        }
        return kind(**values)

    def field(self, name: str, field: Field, version: int) -> Any:
        draw = self._random
        if field.tag is not None and draw.random() < 0.4:
            return field.factory() if field.factory else field.default
        if version in field.nullable and draw.random() < 0.3:
            return None
        if field.is_array:
            counts = [0, 0, 1, 1, 2, 3, 17, 200] if isinstance(field.element, str) else range(4)
            if self._small:
                counts = range(3)
            count = draw.choice(counts)
            return [self._value(name, field.element, version) for _ in range(count)]
        value = self._value(name, field.element, version)
        if isinstance(value, Struct) and value == type(value)():
            return None  # a tagged struct that says nothing is not sent
        return value

    def _value(self, name: str, kind: Kind, version: int) -> Any:
        draw = self._random
        if not isinstance(kind, str):
            return self.message(kind, version)
        if name == "error_code" or name.endswith("_error_code"):
            return draw.choice(list(ErrorCode)).value
        if name.endswith("_timestamp_ms") or name == "transaction_start_time_ms":
            return draw.choice([0, draw.randrange(1 << 31)])  # kio reads none below
        if name.endswith("_ms"):
            return draw.choice([-1, 0, draw.randrange(1 << 31)])
        match kind:
            case "bool":
                return draw.random() < 0.5
            case "string":
                sizes = [0, 1, 5] if self._small else [0, 1, 5, 40, 60]
                return "".join(draw.choices(_TEXT, k=draw.choice(sizes)))
            case "bytes" | "records":
                sizes = [0, 1, 5] if self._small else [0, 1, 126, 127, 128, 20_000]
                return draw.randbytes(draw.choice(sizes))
            case "float64":
                return draw.choice([0.0, -1.5, draw.random() * 1e12])
            case "uuid":
                return draw.choice([NO_UUID, draw.randbytes(16)])
        bits = _BITS[kind]
        return draw.choice([0, -1, draw.randrange(-(1 << bits - 1), 1 << bits - 1)])


def kio_type(kind: type[Struct], version: int) -> Any:
    load = load_request_schema if kind.__name__.endswith("Request") else load_response_schema
    return load(kind.KEY, version)


def to_kio(message: Any, entity: Any) -> Any:
    """The same message as kio has it."""
    return entity(
        **{
            each.name: _to_kio(
                getattr(message, _our_name(each)), each.type, each.metadata.get("kafka_type", "")
            )
            for each in dataclasses.fields(entity)
        }
    )


def _our_name(field: Any) -> str:
    return field.name + "_ms" if "time" in field.metadata.get("kafka_type", "") else str(field.name)


def _to_kio(value: Any, declared: Any, kafka_type: str) -> Any:
    if is_nullable := isinstance(declared, types.UnionType):
        (declared,) = (each for each in typing.get_args(declared) if each is not type(None))
    if isinstance(value, list):
        (inner, _) = typing.get_args(declared)
        return tuple(_to_kio(each, inner, kafka_type) for each in value)
    if dataclasses.is_dataclass(declared):
        if value is None:
            return None if is_nullable else declared()  # type: ignore[operator]
        return to_kio(value, declared)
    if value is None:
        return None
    match kafka_type:
        case "error_code":
            return ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else EPOCH + datetime.timedelta(milliseconds=value)
        case "uuid":
            return None if value == NO_UUID else uuid.UUID(bytes=value)
        case "records" | "bytes":
            return bytes(value)
    return value


def kio_bytes(entity: Any) -> bytes:
    pieces: list[bytes] = []

    class Target:
        write = staticmethod(pieces.append)

    entity_writer(type(entity))(Target(), entity)  # type: ignore[arg-type]
    return b"".join(pieces)


def kio_decode(entity: Any, data: bytes) -> tuple[Any, int]:
    found: tuple[Any, int] = entity_reader(entity)(data, 0)
    return found
