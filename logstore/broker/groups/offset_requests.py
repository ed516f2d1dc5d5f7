"""OffsetCommit, OffsetFetch, OffsetDelete, DeleteGroups and expiry, over what a coordinator serves.

Offsets are valid once their append is committed; a group is removed once its tombstones are.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from logstore.broker.groups import sessions
from logstore.broker.groups.group import CONSUMER, Group, State
from logstore.broker.groups.records import (
    OffsetAndMetadata,
    encode_group_key,
    encode_offset,
    encode_offset_key,
    fits,
)
from logstore.broker.groups.requests import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartition,
)
from logstore.broker.groups.served import (
    Commit,
    Entry,
    GroupDeletion,
    OffsetDeletion,
    Removal,
    Served,
    Tombstones,
)
from logstore.config import MAX_LONG
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import LONGEST_TOPIC_NAME, TopicPartition

_PIECE_BYTES: Final = 1 << 16
"""Keys of one batch of tombstones: far below `max.message.bytes`, which is 1 MiB by default."""

COMMIT_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.LEADER_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
"""The error that a client gets for a failed append; errors not listed pass unchanged."""

GENERATION_ERRORS: Final = COMMIT_ERRORS | {
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The same for the append of a generation."""


def commit(served: Served, request: OffsetCommitRequest, token: Hashable, now_ms: int) -> None:
    error, entry = served.find(request.group_id, or_empty=True)
    if not error and entry is not None:
        error = entry.group.commit_error(request, now_ms)
    elif not error and request.generation_id >= 0:
        error = ErrorCode.ILLEGAL_GENERATION
    errors = {each: error or offset_error(served, each, value) for each, value in request.partitions.items()}
    values = {
        each: _as_recorded(value, request.retention_time_ms, now_ms)
        for each, value in request.partitions.items()
        if not errors[each]
    }
    if not values:
        served.answer(token, OffsetCommitResponse(errors))
        return
    entry = entry or served.make(request.group_id, now_ms)
    records = [
        (encode_offset_key(request.group_id, each), encode_offset(value)) for each, value in values.items()
    ]
    entry.offsets.stage(values)
    served.append(records, Commit(entry, token, values, errors), now_ms)


def offset_error(served: Served, topic_partition: TopicPartition, value: OffsetCommitPartition) -> ErrorCode:
    metadata = value.committed_metadata or ""
    if len(topic_partition.topic) > LONGEST_TOPIC_NAME or not fits(topic_partition.topic):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if not fits(metadata) or _utf16_units(metadata) > served.config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def finish_commit(served: Served, write: Commit, error: ErrorCode, base_offset: int) -> None:
    if error:
        mark("groups: a commit could not be written")
        write.entry.offsets.fail(write.values)
    else:
        write.entry.offsets.complete(write.values, base_offset)
    told = dict.fromkeys(write.values, COMMIT_ERRORS.get(error, error))
    served.answer(write.token, OffsetCommitResponse(write.errors | told))


def fetch(served: Served, asked: OffsetFetchGroup, require_stable: bool) -> OffsetFetchGroupResponse:
    error, entry = served.find(asked.group_id, or_empty=True)
    if error:
        return OffsetFetchGroupResponse(group_id=asked.group_id, error_code=error)
    if entry is None:
        found = dict.fromkeys(asked.partitions or (), OffsetFetchPartition())
    else:
        found = entry.offsets.fetch(asked.partitions, require_stable=require_stable)
    return OffsetFetchGroupResponse(group_id=asked.group_id, partitions=found)


def delete_offsets(served: Served, request: OffsetDeleteRequest, token: Hashable, now_ms: int) -> None:
    error, entry = served.find(request.group_id)
    if not error and entry is not None:
        error = _offset_deletion_error(entry.group)
    if error or entry is None:
        served.answer(token, OffsetDeleteResponse(error_code=error or ErrorCode.GROUP_ID_NOT_FOUND))
        return
    group, known = entry.group, set(entry.offsets.partitions)
    errors = {
        each: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        if group.state is not State.EMPTY and group.reads(each.topic)
        else ErrorCode.NONE
        for each in request.partitions
    }
    removable = [each for each, error in errors.items() if not error and each in known]
    if removable:
        remove(served, entry, removable, OffsetDeletion(token, errors), now_ms)
    else:
        served.answer(token, OffsetDeleteResponse(partitions=errors))


# --- removal ------------------------------------------------------------------------------


def delete_groups(served: Served, request: DeleteGroupsRequest, token: Hashable, now_ms: int) -> None:
    group_ids = tuple(dict.fromkeys(request.groups_names))
    if not group_ids:
        served.answer(token, DeleteGroupsResponse({}))
    asked = GroupDeletion(token, len(group_ids))
    for group_id in group_ids:
        error, entry = served.find(group_id, or_empty=True)
        if error or entry is None:
            decide(served, asked, group_id, error or ErrorCode.GROUP_ID_NOT_FOUND)
        elif error := _deletion_error(entry.group):
            decide(served, asked, group_id, error)
        else:
            remove(served, entry, entry.offsets.partitions, asked, now_ms, is_deletion=True)


def decide(served: Served, asked: GroupDeletion, group_id: str, result: ErrorCode) -> None:
    asked.results[group_id] = result
    asked.undecided -= 1
    if not asked.undecided:
        served.answer(asked.token, DeleteGroupsResponse(asked.results))


def remove(
    served: Served,
    entry: Entry,
    partitions: list[TopicPartition],
    asked: GroupDeletion | OffsetDeletion | None,
    now_ms: int,
    *,
    is_deletion: bool = False,
) -> None:
    """Write tombstones, in batches that any topic takes: all at once, so that a later commit follows them.

    The group's own tombstone is the last one. What cannot be written stays, until it is tried again.
    """
    group = entry.group
    pieces = _pieces(group.group_id, partitions) or [{}]
    # A group that never had members has no metadata in the log.
    has_key = is_deletion and group.generation > 0
    if is_deletion:
        sessions.set_deleting(group, True)
    removal = Removal(is_deletion, asked, undecided=len(pieces))
    for number, piece in enumerate(pieces, 1):
        records: list[tuple[bytes, bytes | None]] = [(key, None) for key in piece.values()]
        if has_key and number == len(pieces):
            records.append((encode_group_key(group.group_id), None))
        write = Tombstones(entry, list(piece), removal)
        if records:
            served.append(records, write, now_ms)
        else:
            finish_tombstones(served, write, ErrorCode.NONE, -1)


def _pieces(group_id: str, partitions: list[TopicPartition]) -> list[dict[TopicPartition, bytes]]:
    """Cut the partitions into runs, with their keys, which are small together; at least one in each."""
    pieces: list[dict[TopicPartition, bytes]] = []
    size = _PIECE_BYTES
    for each in partitions:
        key = encode_offset_key(group_id, each)
        size += len(key)
        if size > _PIECE_BYTES:
            pieces.append({})
            size = len(key)
        pieces[-1][each] = key
    return pieces


def finish_tombstones(served: Served, write: Tombstones, error: ErrorCode, base_offset: int) -> None:
    entry, removal = write.entry, write.removal
    if error:
        mark("groups: tombstones could not be written")
        entry.to_bury.update(set(write.partitions).difference(entry.offsets.partitions))
        removal.error = removal.error or error
    else:
        entry.offsets.remove(write.partitions, base_offset)
    removal.results |= dict.fromkeys(write.partitions, COMMIT_ERRORS.get(error, error))
    removal.undecided -= 1
    if removal.undecided:
        return
    if removal.is_deletion and removal.error:
        sessions.set_deleting(entry.group, False)
        served.schedule(entry)
    elif removal.is_deletion:
        served.drop(entry)
    match removal.asked:
        case OffsetDeletion(token, errors):
            served.answer(token, OffsetDeleteResponse(partitions=errors | removal.results))
        case GroupDeletion() as asked:
            told = COMMIT_ERRORS.get(removal.error, removal.error)
            decide(served, asked, entry.group.group_id, told)


def clean(served: Served, entry: Entry, now_ms: int) -> None:
    """Remove expired offsets, those of deleted topics, and the group if nothing is left of it."""
    if entry.group.state is State.DEAD:
        return
    expired = entry.offsets.expired(entry.group, now_ms, served.config.offsets_retention_ms)
    known = entry.offsets.partitions
    to_bury = entry.to_bury.difference(known)
    entry.to_bury.clear()
    is_deletion = entry.group.is_vacant and len(expired) == len(known)
    if is_deletion:
        mark("groups: nothing is left of a group")
    elif expired:
        mark("groups: some offsets of a group expire")
    if is_deletion or expired or to_bury:
        remove(served, entry, [*expired, *to_bury], None, now_ms, is_deletion=is_deletion)


def _as_recorded(asked: OffsetCommitPartition, retention_ms: int, now_ms: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(
        asked.committed_offset,
        asked.committed_leader_epoch,
        asked.committed_metadata or "",
        asked.commit_timestamp_ms if asked.commit_timestamp_ms >= 0 else now_ms,
        min(now_ms + retention_ms, MAX_LONG) if retention_ms >= 0 else -1,
    )


def _offset_deletion_error(group: Group) -> ErrorCode:
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def _deletion_error(group: Group) -> ErrorCode:
    if group.state is State.DEAD:
        # Another request is deleting it, and may still fail.
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE if group.state is State.EMPTY else ErrorCode.NON_EMPTY_GROUP


def _utf16_units(text: str) -> int:
    """Return the length of a text as Kafka counts it: UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
