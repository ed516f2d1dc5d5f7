"""Entries of answers for what is refused of a request. They follow the declarations of both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode

_UNKNOWN: Final = frozenset(
    {
        "base_offset",
        "committed_offset",
        "end_offset",
        "high_watermark",
        "low_watermark",
        "node_id",
        "num_partitions",
        "offset",
        "port",
        "replication_factor",
        "timestamp",
    }
)
"""Fields that are -1 in an answer without a value."""
_DENIALS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the user lacks a permission on the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "the user lacks a permission on the group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "the user lacks a permission on the cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the user lacks a permission on the transactional id",
}


def error_of(kind: Any, code: ErrorCode) -> dict[str, Any]:
    """Return the fields of an error: its code, and for a denial what is missing, as far as there is room."""
    values = {"error_code": code, "error_message": _DENIALS.get(code)}
    return {name: value for name, value in values.items() if name in kind.FIELDS and value is not None}


def _without_value(kind: Any, code: ErrorCode) -> dict[str, Any]:
    """Return an error, and the fields that tell nothing beside one."""
    return {**{name: -1 for name in kind.FIELDS if name in _UNKNOWN}, **error_of(kind, code)}


def refused_entry(kind: Any, entry: Any, code: ErrorCode) -> Struct:
    """Return the answer's entry for a refused entry of the request: its names, the error, its partitions."""
    values = _without_value(kind, code)
    for name, field in kind.FIELDS.items():
        if field.is_array:
            if not isinstance(field.element, str) and "error_code" in field.element.FIELDS:
                values[name] = [_partition(field.element, each, code) for each in _partitions_of(entry)]
        elif isinstance(entry, str) and field.kind == "string" and not name.startswith("error"):
            values.setdefault(name, entry)
            entry = "" if name in ("name", "group_id", "key", "transactional_id") else entry
        elif name not in values and hasattr(entry, name):
            values[name] = getattr(entry, name)
    return kind(**values)  # type: ignore[no-any-return]


def _partitions_of(entry: Any) -> Iterable[int]:
    for name, field in type(entry).FIELDS.items():
        if field.is_array:
            for each in getattr(entry, name):
                yield each if isinstance(each, int) else getattr(each, _index_of(type(each)))
            return


def _index_of(kind: Any) -> Any:
    """Return the field with the partition's number: the first int32."""
    return next(name for name, field in kind.FIELDS.items() if field.kind == "int32")


def _partition(kind: Any, number: int, code: ErrorCode) -> Struct:
    return kind(**_without_value(kind, code), **{_index_of(kind): number})  # type: ignore[no-any-return]
