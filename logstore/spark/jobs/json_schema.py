"""From a JSON Schema of an object to Spark's DDL. Pure.

    {"type": "object", "required": ["id"],               id BIGINT NOT NULL,
     "properties": {"id": {"type": "integer"},            at TIMESTAMP,
                    "at": {"type": "string", "format": "date-time"},
                    "tags": {"type": "array", "items": {"type": "string"}}}}     tags ARRAY<STRING>

Types, `required`, `format` of times and dates, `properties` and `items` are read. Other keywords are rules
about values, which a table's types cannot say; they are refused by name rather than ignored, except for those
that describe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from logstore.spark.errors import InvalidOption

_SIMPLE: Final = {"integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN", "string": "STRING"}
_FORMATS: Final = {"date-time": "TIMESTAMP", "date": "DATE"}
_READ: Final = frozenset({"type", "properties", "required", "items", "format"})
_DESCRIBE: Final = frozenset(
    {"$schema", "$id", "title", "description", "default", "examples", "$comment", "additionalProperties"}
)


def ddl_of(text: str) -> str:
    """Return the columns of the object that a JSON Schema describes. Raises `InvalidOption`."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise InvalidOption(f"--json-schema is not JSON: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "object" or not schema.get("properties"):
        raise InvalidOption("--json-schema must describe an object with properties")
    return _fields(schema, "", " ")


def _fields(schema: Mapping[str, Any], where: str, separator: str) -> str:
    _check(schema, where)
    required = set(schema.get("required", ()))
    return ", ".join(
        f"`{name}`{separator}{_type(each, f'{where}{name}')}" + (" NOT NULL" if name in required else "")
        for name, each in schema.get("properties", {}).items()
    )


def _type(schema: Any, where: str) -> str:
    if not isinstance(schema, dict):
        raise InvalidOption(f"--json-schema: {where} is {schema!r}, not a schema")
    _check(schema, where)
    kind = schema.get("type")
    if isinstance(kind, list):  # ["string", "null"]
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else kind
    match kind:
        case "object" if schema.get("properties"):
            return f"STRUCT<{_fields(schema, f'{where}.', ': ')}>"
        case "array" if "items" in schema:
            return f"ARRAY<{_type(schema['items'], f'{where}[]')}>"
        case "string":
            return _FORMATS.get(schema.get("format", ""), "STRING")
        case str() if kind in _SIMPLE:
            return _SIMPLE[kind]
    raise InvalidOption(
        f"--json-schema: {where} has type {kind!r}; use integer, number, boolean, string, array with items, "
        "or object with properties"
    )


def _check(schema: Mapping[str, Any], where: str) -> None:
    if unknown := sorted(set(schema) - _READ - _DESCRIBE):
        raise InvalidOption(
            f"--json-schema: {unknown[0]} of {where or 'the object'} is not supported; remove it, and check "
            "values in the table"
        )
