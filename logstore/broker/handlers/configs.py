"""Settings of topics and brokers: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

Resources are topics (type 2), this broker (type 4, its number) and all brokers (type 4, no name). Another
broker's settings are INVALID_REQUEST (42): clients must ask that broker. AlterConfigs replaces all settings
of a topic; IncrementalAlterConfigs changes those that it names.

Settings are in the metadata store, so any broker describes and changes any topic; the controller learns of a
change from the store, and brokers of their rates and of the defaults of topics' settings. A broker's other
settings are set where it is started.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from logstore.broker import configs
from logstore.broker.config_nodes import (
    Settings,
    change_entity,
    read_live,
)
from logstore.broker.configs import Entry, InvalidConfigChange, Live, Operation
from logstore.broker.dispatch import Call, Services
from logstore.broker.store_reads import read_many
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import check_topic_name
from logstore.loggers import logger_of
from logstore.replication.errors import UnknownTopicOrPartition
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Outcome

_TOPIC: Final = 2
_BROKER: Final = 4

Changes: TypeAlias = Sequence[tuple[str, int, str | None]]
"""Name, number of the operation, value."""
Change: TypeAlias = Callable[[Settings], Settings]


class Plan(NamedTuple):
    """The changes of one resource's settings, for each kind of resource that it may be."""

    of_topic: Change
    of_all_brokers: Change
    of_broker: Change


A = TypeVar("A", bound=Struct)

_log = logger_of(__name__)


async def describe(
    call: Call, body: t.DescribeConfigsRequest, services: Services
) -> t.DescribeConfigsResponse:
    results, resources = [], _wanted(body)
    stored = await _read(services, [name for kind, name in resources if kind == _TOPIC])
    for (kind, name), wanted in resources.items():
        await asyncio.sleep(0)
        result = t.DescribeConfigsResponseDescribeConfigsResult(resource_type=kind, resource_name=name)
        try:
            entries = _entries(kind, name, services, stored)
            result.configs = [
                _config(each, body) for each in entries if wanted is None or each.name in wanted
            ]
        except EngineError as error:
            result.error_code, result.error_message = error.code, str(error)
        results.append(result)
    return t.DescribeConfigsResponse(results=results)


def _wanted(body: t.DescribeConfigsRequest) -> dict[tuple[int, str], set[str] | None]:
    """Return the keys that are asked for, by resource; None for all, which an empty list asks for, too."""
    wanted: dict[tuple[int, str], set[str] | None] = {}
    for resource in body.resources:
        key = resource.resource_type, resource.resource_name
        keys = wanted.setdefault(key, set())
        if keys is None or not resource.configuration_keys:
            wanted[key] = None
        else:
            keys.update(resource.configuration_keys)
    return wanted


class _Stored(NamedTuple):
    """Settings read from the store: the live ones of this broker, and those of topics by path."""

    live: Live
    of_topics: Mapping[str, Outcome]


async def _read(services: Services, topics: Iterable[str]) -> _Stored | EngineError:
    """Read the store once for all resources of a request; return the error if that fails."""
    ids, known = services.metadata.topic_ids, services.metadata.topics
    paths = [layout.topic_config_path(name) for name in topics if name in ids or name in known]
    try:
        live = await read_live(services.ask_store, services.node.node_id)
        return _Stored(live, await read_many(services.ask_store, paths, "settings"))
    except EngineError as error:
        return error


def _entries(kind: int, name: str, services: Services, stored: _Stored | EngineError) -> list[Entry]:
    if kind == _TOPIC:
        _check_known(services, name)
    elif kind != _BROKER:
        raise InvalidConfigChange(f"resources of type {kind} have no settings")
    elif name:
        _check_own(services, name)
    if isinstance(stored, EngineError):
        raise stored
    if kind == _TOPIC:
        node = stored.of_topics.get(layout.topic_config_path(name))
        own = layout.parse_topic_config(node.data) if node is not None and node.stat is not None else {}
        return configs.describe_topic(own, stored.live, services.settings)
    if not name:
        return configs.describe_all_brokers(stored.live.of_all)
    return configs.describe_broker(stored.live, services.settings, services.node.logs.log_dirs)


def _check_own(services: Services, broker: str) -> None:
    if broker != str(services.node.node_id):
        raise InvalidConfigChange(f"this is broker {services.node.node_id}; ask broker {broker}")


def _check_known(services: Services, topic: str) -> None:
    """Raise `InvalidTopic` or `UnknownTopicOrPartition` unless the topic exists."""
    check_topic_name(topic)
    if topic not in services.metadata.topic_ids and topic not in services.metadata.topics:
        raise UnknownTopicOrPartition(f"topic {topic!r} does not exist")


def _config(
    entry: Entry, body: t.DescribeConfigsRequest
) -> t.DescribeConfigsResponseDescribeConfigsResourceResult:
    synonyms = [
        t.DescribeConfigsResponseDescribeConfigsSynonym(
            name=each.name, value=each.value, source=int(each.source)
        )
        for each in entry.synonyms
    ]
    return t.DescribeConfigsResponseDescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=int(entry.source),
        synonyms=synonyms if body.include_synonyms else [],
        config_type=int(entry.kind),
        documentation=entry.documentation if body.include_documentation else None,
    )


# --- changing ---------------------------------------------------------------------------------


def replace(call: Call, body: t.AlterConfigsRequest, services: Services) -> None:
    """Handle AlterConfigs."""

    def plan(resource: Any) -> Plan:
        settings = [(each.name, each.value) for each in resource.configs]
        changes = [(name, int(Operation.SET), value) for name, value in settings]
        return Plan(
            lambda _: configs.replaced(settings),
            lambda _: configs.changed_for_all_brokers({}, _checked(changes)),
            lambda _: configs.changed_for_broker({}, _checked(changes)),
        )

    kinds = t.AlterConfigsResponse, t.AlterConfigsResponseAlterConfigsResourceResponse
    services.begin(call, _alter(body, services, plan, *kinds))


def change(call: Call, body: t.IncrementalAlterConfigsRequest, services: Services) -> None:
    """Handle IncrementalAlterConfigs."""

    def plan(resource: Any) -> Plan:
        changes = [(each.name, each.config_operation, each.value) for each in resource.configs]
        return Plan(
            lambda now: configs.changed(now, _checked(changes)),
            lambda now: configs.changed_for_all_brokers(now, _checked(changes)),
            lambda now: configs.changed_for_broker(now, _checked(changes)),
        )

    kinds = (
        t.IncrementalAlterConfigsResponse,
        t.IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
    )
    services.begin(call, _alter(body, services, plan, *kinds))


async def _alter(
    body: t.AlterConfigsRequest | t.IncrementalAlterConfigsRequest,
    services: Services,
    plan: Callable[[Any], Plan],
    response: Callable[..., A],
    result: Callable[..., Any],
) -> A:
    """Change each resource as `plan` says. One that is listed twice is INVALID_REQUEST (42)."""
    results = []
    listed = Counter((each.resource_type, each.resource_name) for each in body.resources)
    for resource in body.resources:
        is_once = listed[resource.resource_type, resource.resource_name] == 1
        error, message = await _change(
            services, resource, plan(resource) if is_once else None, validate_only=body.validate_only
        )
        results.append(
            result(
                error_code=error,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return response(responses=results)


async def _change(
    services: Services, resource: Any, plan: Plan | None, *, validate_only: bool
) -> tuple[ErrorCode, str | None]:
    """Change one resource's settings; return the error and its message. `plan` None: listed twice."""
    try:
        if plan is None:
            raise InvalidConfigChange("the resource is listed more than once")
        if resource.resource_type == _TOPIC:
            _check_known(services, resource.resource_name)
            entity = f"topics/{resource.resource_name}"
            await change_entity(services.ask_store, entity, plan.of_topic, validate_only=validate_only)
        elif resource.resource_type != _BROKER:
            raise InvalidConfigChange(f"resources of type {resource.resource_type} have no settings")
        elif resource.resource_name:
            _check_own(services, resource.resource_name)
            await _change_live(services, resource.resource_name, plan.of_broker, validate_only)
        else:
            await _change_live(services, layout.DEFAULT_ENTITY, plan.of_all_brokers, validate_only)
    except EngineError as error:
        return error.code, str(error)
    return ErrorCode.NONE, None


async def _change_live(services: Services, broker: str, change: Change, validate_only: bool) -> None:
    """Change the settings of a broker or of all; they count here at once.

    Together with the other ones of this broker they must be valid, or none of them would be in force.
    """
    entity, is_of_all = f"brokers/{broker}", broker == layout.DEFAULT_ENTITY
    live = await read_live(services.ask_store, services.node.node_id)

    def checked(now: Settings) -> Settings:
        wanted = change(now)
        together = live._replace(of_all=wanted) if is_of_all else live._replace(of_broker=wanted)
        configs.live_defaults(services.settings.logs, together)
        return wanted

    await change_entity(services.ask_store, entity, checked, validate_only=validate_only)
    if not validate_only:
        try:
            await services.quotas.refresh(entity)
        except EngineError as error:
            _log.error("changed settings are in the store but not in effect here: %s", error)


def _checked(changes: Changes) -> list[tuple[str, Operation, str | None]]:
    unknown = sorted({operation for _, operation, _ in changes} - set(Operation))
    if unknown:
        raise InvalidConfigChange(f"unknown operation {unknown[0]} (0 to 3)")
    return [(name, Operation(operation), value) for name, operation, value in changes]
