"""The administrative changes of a request and its answer, for the audit log. Pure.

Changes of ACLs, users and quotas are audited where they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from logstore.broker.security.refused import refused_entry
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode

_Changes = Iterator[tuple[str, dict[str, object]]]
"""Events, and their facts."""

_MAY_BE_DONE: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
_RESOURCES: Final = {2: "TOPIC", 4: "BROKER", 8: "BROKER_LOGGER"}
_OPERATIONS: Final = ("set", "delete", "append", "subtract")


def changes_of(key: int, request: Any, answer: Any) -> _Changes:
    """Yield the changes that an answer confirms, or leaves open; `key` is one of `ADMINISTRATIVE`.

    Changes that were refused or only validated are left out. The client chooses how long it waits, so one
    whose time is over may have been made: it has the `error`.
    """
    if not getattr(request, "validate_only", False):
        yield from ADMINISTRATIVE[key](request, answer)


def in_doubt(request: Struct, kind: type[Struct]) -> Struct:
    """Return an answer of the type `kind` that leaves every change of a request to the controller open."""
    entries = [
        each
        for name, field in type(request).FIELDS.items()
        if field.is_array
        for each in getattr(request, name) or ()
    ]
    name, element = next((name, field.element) for name, field in kind.FIELDS.items() if field.is_array)
    return kind(**{name: [refused_entry(element, each, ErrorCode.REQUEST_TIMED_OUT) for each in entries]})


def _topics_created(request: Any, answer: Any) -> _Changes:
    wanted = {each.name: each for each in request.topics}
    for each in _done(answer.topics):
        topic = wanted[each.name]
        # -1 in the request is the default, whose number only some answers have.
        asked = len(topic.assignments) or topic.num_partitions
        count = next((number for number in (asked, each.num_partitions) if number > 0), "default")
        settings = {one.name: one.value for one in topic.configs}
        yield "topic created", {"topic": each.name, "partitions": count, "settings": settings, **_open(each)}


def _topics_deleted(request: Any, answer: Any) -> _Changes:
    for each in _done(answer.responses):
        topic = each.name if each.name is not None else each.topic_id.hex()
        yield "topic deleted", {"topic": topic, **_open(each)}


def _partitions_created(request: Any, answer: Any) -> _Changes:
    counts = {each.name: each.count for each in request.topics}
    for each in _done(answer.results):
        yield "partitions created", {"topic": each.name, "partitions": counts[each.name], **_open(each)}


def _settings_replaced(request: Any, answer: Any) -> _Changes:
    yield from _settings(request, answer, lambda each: each.value)


def _settings_changed(request: Any, answer: Any) -> _Changes:
    yield from _settings(request, answer, lambda each: {_OPERATIONS[each.config_operation]: each.value})


def _settings(request: Any, answer: Any, told: Callable[[Any], object]) -> _Changes:
    # Those of a change that was taken are settings of topics or throttles: none is secret.
    wanted = {(each.resource_type, each.resource_name): each.configs for each in request.resources}
    for each in _done(answer.responses):
        configs = wanted[each.resource_type, each.resource_name]
        resource = f"{_RESOURCES.get(each.resource_type, each.resource_type)}:{each.resource_name}"
        settings = {one.name: told(one) for one in configs}
        yield "settings changed", {"resource": resource, "settings": settings, **_open(each)}


def _reassigned(request: Any, answer: Any) -> _Changes:
    wanted = {(topic.name, one.partition_index): one for topic in request.topics for one in topic.partitions}
    if answer.error_code:
        return
    for topic in answer.responses:
        for each in _done(topic.partitions):
            replicas = wanted[topic.name, each.partition_index].replicas
            event = "reassignment cancelled" if replicas is None else "reassignment begun"
            partition = f"{topic.name}-{each.partition_index}"
            yield event, {"partition": partition, "replicas": replicas, **_open(each)}


def _log_dirs_altered(request: Any, answer: Any) -> _Changes:
    wanted = {
        (topic.name, index): each.path
        for each in request.dirs
        for topic in each.topics
        for index in topic.partitions
    }
    for topic in answer.results:
        for each in _done(topic.partitions):
            facts = {"partition": f"{topic.topic_name}-{each.partition_index}"}
            log_dir = wanted[topic.topic_name, each.partition_index]
            yield "move to log dir begun", {**facts, "log_dir": log_dir, **_open(each)}


def _markers_written(request: Any, answer: Any) -> _Changes:
    for marker, result in zip(request.markers, answer.markers, strict=True):
        outcome = "committed" if marker.transaction_result else "aborted"
        for topic in result.topics:
            for each in _done(topic.partitions):
                where = f"{topic.name}-{each.partition_index}"
                facts = {"partition": where, "producer_id": marker.producer_id, "outcome": outcome}
                yield "transaction ended", {**facts, **_open(each)}


def _leaders_elected(request: Any, answer: Any) -> _Changes:
    kind = "unclean" if request.election_type == 1 else "preferred"
    for topic in answer.replica_election_results:
        for each in _done(topic.partition_result):
            partition = f"{topic.topic}-{each.partition_id}"
            yield "leader elected", {"partition": partition, "election": kind, **_open(each)}


def _records_deleted(request: Any, answer: Any) -> _Changes:
    for topic in answer.topics:
        for each in _done(topic.partitions):
            partition = f"{topic.name}-{each.partition_index}"
            start = each.low_watermark
            yield "records deleted", {"partition": partition, "log_start_offset": start, **_open(each)}


def _groups_deleted(request: Any, answer: Any) -> _Changes:
    for each in _done(answer.results):
        yield "group deleted", {"group": each.group_id, **_open(each)}


def _offsets_deleted(request: Any, answer: Any) -> _Changes:
    if answer.error_code:
        return
    for topic in answer.topics:
        for each in _done(topic.partitions):
            partition = f"{topic.name}-{each.partition_index}"
            yield "offsets deleted", {"group": request.group_id, "partition": partition, **_open(each)}


def _done(entries: Any) -> list[Any]:
    return [each for each in entries if each.error_code in _MAY_BE_DONE]


def _open(entry: Any) -> dict[str, object]:
    """Return the error of a change that may have been made."""
    return {"error": ErrorCode(entry.error_code).name} if entry.error_code else {}


ADMINISTRATIVE: Final[Mapping[int, Callable[[Any, Any], _Changes]]] = {
    19: _topics_created,
    20: _topics_deleted,
    21: _records_deleted,
    27: _markers_written,
    33: _settings_replaced,
    34: _log_dirs_altered,
    37: _partitions_created,
    42: _groups_deleted,
    43: _leaders_elected,
    44: _settings_changed,
    45: _reassigned,
    47: _offsets_deleted,
}
"""By API key."""
