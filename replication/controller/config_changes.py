"""Settings of topics, changed while they are in use.

    AlterConfigs ──▶ /config/topics/<t>                 the settings, written over just what was read
                 └─▶ /config/changes/config_change_<n>  in the same Multi: says whose settings changed
    the watch on the settings ──▶ LeaderAndIsr with the new ones, to the replicas (`topics.py`)

The notification is what Kafka's own brokers and tools go by; a tool that writes one is heard as well,
whatever form it has. Old ones are removed when a new one comes, a quarter of an hour after they were first
seen: until then a broker that was away may still want to read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from logstore.config import LogConfig
from logstore.disk.errors import InvalidTopic
from logstore.disk.marks import mark
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.items import of_all, one_by_one
from logstore.replication.controller.notices import Notice, read_notices, remove_notices
from logstore.replication.controller.partition_states import ROUNDS, check_fence
from logstore.replication.controller.topics import topic_config_changed
from logstore.replication.errors import UnknownTopicOrPartition
from logstore.replication.messages import AdminResult, AlterConfigsRequest, AlterConfigsResponse
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Create, Get, Set

CHANGE_EXPIRATION_MS = 15 * 60 * 1000


def alter_configs(
    context: Context, request: AlterConfigsRequest, results: dict[str, AdminResult]
) -> Steps[AlterConfigsResponse]:
    """Change some settings of each topic; answered when they are in the store, the replicas hear at once."""
    carry_out = partial(_alter, context, validate_only=request.validate_only)
    yield from one_by_one(request.topics, results, carry_out)
    return answer(request, results)


def answer(request: AlterConfigsRequest, results: Mapping[str, AdminResult]) -> AlterConfigsResponse:
    """Also when the term ends half-way."""
    return AlterConfigsResponse(of_all(request.topics, results, AdminResult))


def _alter(
    context: Context, name: str, changes: Mapping[str, str | None], *, validate_only: bool
) -> Steps[None]:
    if name not in context.topics:
        raise UnknownTopicOrPartition(f"there is no topic {name!r}")
    if name in context.deletions:
        raise InvalidTopic(f"topic {name!r} is being deleted")
    path = layout.topic_config_path(name)
    for _ in range(ROUNDS):
        (read,) = yield (Get(path),)
        settings = layout.parse_topic_config(read.data) if read.stat is not None else {}
        wanted = {**settings, **{key: value for key, value in changes.items() if value is not None}}
        wanted = {key: value for key, value in wanted.items() if changes.get(key, value) is not None}
        LogConfig.from_kafka(wanted)
        if validate_only or wanted == settings:
            return  # asked for what is there, or written already and only the reply was lost
        data = layout.encode_topic_config(wanted)
        write = (
            Create(path, data, make_parents=True) if read.stat is None else Set(path, data, read.stat.version)
        )
        notice = Create(
            layout.CONFIG_CHANGE_PREFIX,
            layout.encode_config_change(name),
            sequential=True,
            make_parents=True,
        )
        (outcome,) = yield (context.fenced(write, notice),)
        check_fence(outcome)
        if outcome.error is None:
            return
        mark("configs: written by somebody else, or the reply was lost")
    raise MetadataConflict(f"the settings of {name} kept changing")


def changes_noticed(context: Context) -> Steps[None]:
    """React to `/config/changes`: read again what is named there, and remove what everybody has seen."""
    notices = yield from read_notices(context, layout.CONFIG_CHANGES_PATH)
    seen, now_ms = context.config_changes, context.now()
    expired: list[Notice] = []
    for notice in notices:
        if notice.path not in seen:
            topic = _topic_of(context, notice)
            if topic in context.topics and not context.is_being_deleted(topic):
                yield from topic_config_changed(context, topic)
            seen[notice.path] = now_ms  # only now: an event that starts again must not find it done
        elif now_ms - seen[notice.path] > CHANGE_EXPIRATION_MS:
            expired.append(notice)
    if expired:
        mark("configs: notifications that everybody has seen are removed")
    yield from remove_notices(context, expired)
    gone = seen.keys() - {notice.path for notice in notices} | {notice.path for notice in expired}
    for path in sorted(gone):
        del seen[path]


def note_changes(context: Context) -> Steps[None]:
    """Take note of what is there, the watch set: all settings have just been read anyway."""
    notices = yield from read_notices(context, layout.CONFIG_CHANGES_PATH)
    context.config_changes = {notice.path: context.now() for notice in notices}


def _topic_of(context: Context, notice: Notice) -> str | None:
    context.unreadable.pop(notice.path, None)
    try:
        return layout.parse_config_change(notice.data)
    except CorruptMetadata as error:
        context.unreadable[notice.path] = str(error)
        return None
