"""Compares two responses field by field. Pure.

Fields that always differ are named here: texts, ports, the time of an append. Ids that a broker chooses are
compared up to renaming: one id of Kafka's is always the same one of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import EngineError
from logstore.format.batch import Batch, TimestampType, walk

_OURS_ALONE: Final = 10_000
"""Tags from here on are this library's."""
_NOT_COMPARED: Final = frozenset({"throttle_time_ms", "port", "cluster_id", "usable_bytes"})
_NULL_OR_NOT: Final = frozenset({"error_message", "batch_index_error_message", "documentation"})
"""Texts: the words differ, but both sides have some, or neither."""
_TIMES: Final = frozenset({"log_append_time_ms", "transaction_start_time_ms"})
"""Clocks of a broker: -1 on both sides, or a time on both."""
_TIMES_OR_NOT: Final = frozenset(
    {
        *("timestamp", "last_timestamp", "max_timestamp_ms", "expiry_timestamp_ms", "issue_timestamp_ms"),
        *("issue_timestamp", "expiry_timestamp", "max_timestamp"),
    }
)
_OF_A_CLOCK: Final = 1_750_000_000_000
"""Times of records are a story's, before this one, or a broker's."""
_IDS: Final = frozenset(
    {"topic_id", "member_id", "leader", "producer_id", "session_id", "token_id", "hmac", "log_dir"}
)
_NO_ID: Final = ("", -1, 0, bytes(16), None)
_NAMES: Final = (
    *("name", "topic", "topic_name", "topic_id", "partition_index", "index", "partition", "api_key"),
    *("group_id", "resource_name", "config_name", "user", "producer_id", "client_id", "transactional_id"),
)
"""Lists of structs are in the order of these fields: Kafka's order is often that of a hash map."""


class Named(str):
    """An id that a response told, by the name under which the story keeps it."""


def plain(value: Any, version: int, names: Mapping[Any, str], name: str = "") -> Any:
    """Return a response as dicts and lists, with what must differ taken out."""
    if isinstance(value, Struct):
        return {
            each: plain(getattr(value, each), version, names, each)
            for each, declared in value.FIELDS.items()
            if version in declared.versions
            and (declared.tag or 0) < _OURS_ALONE
            and each not in _NOT_COMPARED
        }
    if name == "records":
        return _batches(value, names)
    if name == "synonyms":
        return {str(each.source): plain(each, version, names) for each in value}
    if isinstance(value, list):
        found = _merged([plain(each, version, names, name) for each in value])
        return sorted(found, key=_order) if value and isinstance(value[0], Struct) else found
    if name in _NULL_OR_NOT:
        return value is not None
    if name in _TIMES or (name in _TIMES_OR_NOT and value > _OF_A_CLOCK):
        return value if value == -1 else "a time"
    if name in _IDS and value not in _NO_ID and value in names:
        return Named(names[value])
    return value


def _merged(found: list[Any]) -> list[Any]:
    """Return the entries of a topic as one: a broker may list its partitions in several."""
    if not all(isinstance(each, dict) and "partitions" in each for each in found):
        return found
    topics: dict[str, Any] = {}
    for each in found:
        head = repr([value for name, value in each.items() if name != "partitions"])
        if head in topics:
            topics[head]["partitions"] = sorted(topics[head]["partitions"] + each["partitions"], key=_order)
        else:
            topics[head] = each
    return list(topics.values())


def _order(each: dict[str, Any]) -> str:
    told = {name: value for name, value in each.items() if name not in _IDS or isinstance(value, Named)}
    return repr(([told.get(name) for name in (*_NAMES, "entity")], told))


def _batches(buffer: Any, names: Mapping[Any, str]) -> Any:
    """Return the whole batches of fetched bytes, unpacked; Kafka may cut the last one."""
    if buffer is None:
        return None
    found: list[Any] = []
    try:
        for batch in walk(memoryview(bytes(buffer))):
            found.append(_batch(batch, names))
    except EngineError as error:
        found.append(type(error).__name__)
    return found


def _batch(batch: Batch, names: Mapping[Any, str]) -> dict[str, Any]:
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME or batch.is_control
    batch.check_crc()
    return {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "leader_epoch": batch.leader_epoch,
        "attributes": batch.attributes,
        "base_timestamp": "a time" if is_append_time else batch.base_timestamp_ms,
        "max_timestamp": "a time" if is_append_time else batch.max_timestamp_ms,
        "producer_id": names.get(batch.producer_id, batch.producer_id),
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "record_count": batch.record_count,
        "records": [
            [each.offset, None if is_append_time else each.timestamp_ms, each.key, each.value, each.headers]
            for each in batch.records()
        ],
    }


def _by_key(value: Any) -> dict[Any, Any] | None:
    """Return a list's structs by the first field that names them; None if that does not tell them apart."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        return None
    found = {next((each[name] for name in _NAMES if name in each), None): each for each in value}
    return found if len(found) == len(value) else None


@dataclass
class Renaming:
    """The ids of one story that nothing named: one of Kafka's for each of ours."""

    _ours: dict[tuple[str, Any], Any] = field(default_factory=dict)
    _kafkas: dict[tuple[str, Any], Any] = field(default_factory=dict)

    def is_same(self, name: str, kafka: Any, ours: Any) -> bool:
        if name not in _IDS or kafka in _NO_ID or ours in _NO_ID or isinstance(kafka, Named):
            return bool(kafka == ours)
        name = "member_id" if name == "leader" else name
        ours_then = self._ours.setdefault((name, kafka), ours)
        kafkas_then = self._kafkas.setdefault((name, ours), kafka)
        return bool(ours_then == ours and kafkas_then == kafka)


def is_other_code(kafka: Any, ours: Any) -> bool:
    both = isinstance(kafka, dict) and isinstance(ours, dict)
    return both and "error_code" in kafka and kafka["error_code"] != ours.get("error_code")


def differences(kafka: Any, ours: Any, renaming: Renaming, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each field that differs: its path, Kafka's value and ours. Where codes differ, only them."""
    if is_other_code(kafka, ours):
        yield f"{path}.error_code".lstrip("."), kafka["error_code"], ours["error_code"]
    elif isinstance(kafka, dict) and isinstance(ours, dict) and kafka.keys() == ours.keys():
        for name in kafka:
            yield from differences(kafka[name], ours[name], renaming, f"{path}.{name}" if path else name)
    elif (
        (mine := _by_key(kafka)) is not None
        and (others := _by_key(ours)) is not None
        and mine.keys() != others.keys()
    ):
        for key in sorted({**mine, **others}, key=repr):
            if key in mine and key in others:
                yield from differences(mine[key], others[key], renaming, f"{path}[]")
            else:
                yield f"{path}[{key}]", mine.get(key), others.get(key)
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for one, other in zip(kafka, ours, strict=True):
            yield from differences(one, other, renaming, f"{path}[]")
    elif not renaming.is_same(path.rpartition(".")[2].removesuffix("[]"), kafka, ours):
        yield path, kafka, ours
