"""Avro values as rows: a schema's columns, and the decoding of each value or the reason why there is no row.

    plain        the value is one datum, written with the schema of the reader
    registry     0x00, the schema's id (four bytes, big-endian), one datum written with that schema

Schemas of writers come from a registry and are resolved against the reader's, as Avro says: added fields take
their defaults, removed ones are dropped, `int` becomes `long`. `fastavro` decodes; Spark takes a value of a
wrong type for null without a word, so each is checked here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

from logstore.spark.errors import InvalidOption
from logstore.spark.schema_registry import Registry, UnknownSchema

MAGIC: Final = 0
"""The first byte of a value that names its schema."""
_HEAD_BYTES: Final = 5

_SIMPLE: Final = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "string": "STRING", "bytes": "BINARY", "fixed": "BINARY", "enum": "STRING",
}  # fmt: skip
_LOGICAL: Final = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
}
_CLASSES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "BOOLEAN": bool, "INT": int, "BIGINT": int, "FLOAT": (float, int), "DOUBLE": (float, int), "STRING": str,
    "BINARY": bytes, "DATE": date, "TIMESTAMP": datetime, "TIMESTAMP_NTZ": datetime,
}  # fmt: skip
_LARGEST: Final = {"INT": 2**31 - 1, "BIGINT": 2**63 - 1}
_MOST_DIGITS: Final = 38


class _NoRow(ValueError):
    """A value that is no row of this schema. The message is the reason."""


# --- the columns of a schema --------------------------------------------------------------------------------


def ddl_of(schema: str) -> str:
    """Return the columns of an Avro record as Spark's DDL. Raises `InvalidOption`."""
    return _columns(_parsed(schema), "", " ")


@lru_cache(maxsize=16)
def _parsed(text: str) -> Any:
    """Return a reader's schema with its named types written out. Raises `InvalidOption`."""
    from fastavro.schema import expand_schema

    try:
        schema = expand_schema(_understood(json.loads(text)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidOption(f"--avro-schema is not an Avro schema: {error!r:.300}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InvalidOption("--avro-schema must be a record, whose fields are the columns")
    return schema


def _understood(schema: Any) -> Any:
    """Return a schema without the logical types that have no column type here: their plain type is read."""
    if isinstance(schema, list):
        return [_understood(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: each if name == "default" else _understood(each) for name, each in schema.items()}
    if made.get("logicalType") not in (*_LOGICAL, "decimal"):
        made.pop("logicalType", None)
    return made


def _columns(record: Any, where: str, separator: str) -> str:
    fields = record.get("fields")
    if not fields:
        raise InvalidOption(f"--avro-schema: {where or 'the record'} has no fields")
    found = []
    for each in fields:
        name = each["name"]
        inner, is_nullable = _nullable(each["type"], f"{where}{name}")
        kind = _type(inner, f"{where}{name}")
        found.append(f"`{name}`{separator}{kind}" + ("" if is_nullable else " NOT NULL"))
    return ", ".join(found)


def _nullable(schema: Any, where: str) -> tuple[Any, bool]:
    """Return the type of a union with null and whether there is null in it. Raises `InvalidOption`."""
    if not isinstance(schema, list):
        return schema, False
    kinds = [each for each in schema if each != "null"]
    if len(kinds) != 1:
        raise InvalidOption(
            f"--avro-schema: {where} is a union of {len(kinds)} types; a column has one, with or without null"
        )
    return kinds[0], len(kinds) < len(schema)


def _type(schema: Any, where: str) -> str:
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _type(_nullable(kind, where)[0], where)
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical == "decimal":
        precision = schema.get("precision", 0)
        if not 0 < precision <= _MOST_DIGITS:
            raise InvalidOption(f"--avro-schema: {where} has {precision} digits; Spark has at most 38")
        return f"DECIMAL({precision},{schema.get('scale', 0)})"
    if logical is not None:
        return _LOGICAL[logical]
    match kind:
        case "record":
            return f"STRUCT<{_columns(schema, f'{where}.', ': ')}>"
        case "array":
            return f"ARRAY<{_type(_nullable(schema['items'], where)[0], f'{where}[]')}>"
        case "map":
            return f"MAP<STRING, {_type(_nullable(schema['values'], where)[0], f'{where}{{}}')}>"
        case str() if kind in _SIMPLE:
            return _SIMPLE[kind]
    raise InvalidOption(f"--avro-schema: {where} is {kind}, for which Spark has no column type")


# --- values -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AvroDecoder:
    """Decodes values by `schema`, an Avro record as JSON; `registry`: None if values name no schema.

    Tasks get copies. What they parse is kept for as long as their process lives.
    """

    schema: str
    registry: Registry | None = None

    @property
    def columns(self) -> str:
        """The columns as Spark's DDL. Raises `InvalidOption`."""
        return ddl_of(self.schema)

    def __call__(self, value: bytes | None) -> tuple[dict[str, Any] | None, str | None]:
        """Return the row, or None and the reason.

        Raises `RegistryUnavailable`, because a value whose schema cannot be asked for is not a bad one.
        """
        if value is None:
            return None, "its value is null"
        try:
            return self._row(bytes(value)), None
        except (_NoRow, UnknownSchema) as error:
            return None, str(error)

    def _row(self, value: bytes) -> dict[str, Any]:
        from fastavro import schemaless_reader

        reader = writer = _reader(self.schema)
        start = 0
        if self.registry is not None:
            if len(value) < _HEAD_BYTES or value[0] != MAGIC:
                raise _NoRow("it does not begin with 0x00 and the id of a schema")
            writer = _writer(self.registry, int.from_bytes(value[1:_HEAD_BYTES], "big"))
            start = _HEAD_BYTES
        content = BytesIO(value)
        content.seek(start)
        try:
            datum = schemaless_reader(content, writer, None if writer is reader else reader)
        except Exception as error:  # whatever bytes do to the library: the row is refused with it
            raise _NoRow(f"it cannot be decoded: {type(error).__name__} {error!s:.200}".rstrip()) from error
        if content.tell() != len(value):
            raise _NoRow(f"{len(value) - content.tell()} bytes follow its last field")
        row: dict[str, Any] = _checker(self.schema)(datum)
        return row


@lru_cache(maxsize=16)
def _reader(text: str) -> Any:
    """Return a reader's schema as the library decodes by it; it was checked when its columns were made."""
    from fastavro.schema import parse_schema

    return parse_schema(_understood(json.loads(text)))


@lru_cache(maxsize=1024)
def _writer(registry: Registry, number: int) -> Any:
    """Return a writer's schema. Raises `UnknownSchema` and `RegistryUnavailable`; neither is kept."""
    from fastavro.schema import parse_schema

    text = registry.schema(number)
    try:
        return parse_schema(_understood(json.loads(text)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnknownSchema(f"schema {number} is not an Avro schema: {error!r:.200}") from error


_Check = Callable[[Any], Any]


@lru_cache(maxsize=16)
def _checker(schema: str) -> _Check:
    return _check_of(_parsed(schema), "")


def _check_of(schema: Any, where: str) -> _Check:
    """Return what turns a decoded datum into what Spark takes. It raises `_NoRow`."""
    inner, is_nullable = _nullable(schema, where)
    check = _check_of_type(inner, where)
    if is_nullable:
        return lambda value: None if value is None else check(value)
    return check


def _check_of_type(schema: Any, where: str) -> _Check:
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind:
        case "record":
            prefix = f"{where}." if where else ""
            fields = [
                (each["name"], _check_of(each["type"], f"{prefix}{each['name']}"))
                for each in schema["fields"]
            ]
            return lambda value: {name: check(value[name]) for name, check in fields}
        case "array":
            item = _check_of(schema["items"], f"{where}[]")
            return lambda value: [item(each) for each in value]
        case "map":
            entry = _check_of(schema["values"], f"{where}{{}}")
            return lambda value: {name: entry(each) for name, each in value.items()}
        case dict() | list():
            return _check_of(kind, where)
    column = _type(schema, where)
    if column.startswith("DECIMAL"):
        return _decimal(schema["precision"], schema.get("scale", 0), where)
    classes, largest = _CLASSES[column], _LARGEST.get(column)

    def check(value: Any) -> Any:
        is_wrong = not isinstance(value, classes)
        if is_wrong or (largest is not None and not -largest - 1 <= value <= largest):
            raise _NoRow(f"{where} is {value!r:.50}, not {column}")
        return value

    return check


def _decimal(precision: int, scale: int, where: str) -> _Check:
    def check(value: Any) -> Any:
        is_fit = isinstance(value, Decimal) and value == round(value, scale)
        if not is_fit or abs(value) >= 10 ** (precision - scale):
            raise _NoRow(f"{where} is {value!r:.50}, not DECIMAL({precision},{scale})")
        return value

    return check


# --- for Spark ----------------------------------------------------------------------------------------------


def avro_decoder(
    schema: str | AvroDecoder, registry: str | None = None, credentials: str | None = None
) -> Any:
    """Return a function of Spark that turns Avro values into `struct<row: struct<…>, reason: string>`.

    `schema` is an Avro record as JSON. `registry` is the URL of a schema registry, or a directory of files
    `ID.avsc` which all executors see: values then begin with a zero byte and the id of their schema. One of
    `row` and `reason` is null. `credentials` are `user:password`. Raises `InvalidOption`.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    if isinstance(schema, AvroDecoder):
        decoder = schema
    else:
        if not isinstance(schema, str):
            raise InvalidOption(f"schema is JSON text: pass json.dumps(schema), not {schema!r:.100}")
        decoder = AvroDecoder(schema, None if registry is None else Registry.at(registry, credentials))
    columns = _columns(_parsed(decoder.schema), "", ": ")
    kind = StructType.fromDDL(f"row STRUCT<{columns}>, reason STRING")
    # Spark may move a function that it takes for deterministic, and call it twice.
    return f.udf(decoder, kind, useArrow=False).asNondeterministic()
