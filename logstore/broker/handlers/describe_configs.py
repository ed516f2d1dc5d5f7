"""DescribeConfigs: settings of topics (2), of this broker (4, its number), of all brokers (4, no name).

A topic's settings are read from the metadata store, so that any broker can tell of any topic. Those of
another broker have error 42: clients are to ask that one.
"""

from __future__ import annotations

from typing import Final

from logstore.broker import configs
from logstore.broker.call import Call
from logstore.broker.config_nodes import read_all_brokers, read_topic
from logstore.broker.configs import Entry, InvalidConfigChange
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError
from logstore.disk.topic_partition import check_topic_name
from logstore.replication.errors import UnknownTopicOrPartition

TOPIC: Final = 2
BROKER: Final = 4


def handle(call: Call, body: t.DescribeConfigsRequest, services: Services) -> None:
    services.begin(call, _describe(call, body, services))


async def _describe(
    call: Call, body: t.DescribeConfigsRequest, services: Services
) -> t.DescribeConfigsResponse:
    results = []
    for resource in body.resources:
        result = t.DescribeConfigsResponseDescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            entries = await _entries(resource, services)
            wanted = resource.configuration_keys
            result.configs = [
                _config(each, body) for each in entries if wanted is None or each.name in wanted
            ]
        except EngineError as error:
            result.error_code, result.error_message = error.code, str(error)
        results.append(result)
    return t.DescribeConfigsResponse(throttle_time_ms=call.throttle_ms, results=results)


async def _entries(
    resource: t.DescribeConfigsRequestDescribeConfigsResource, services: Services
) -> list[Entry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        check_known(services, name)
        own = await read_topic(services.ask_store, name)
        of_brokers = await read_all_brokers(services.ask_store)
        return configs.describe_topic(own, of_brokers, services.settings)
    if resource.resource_type == BROKER:
        of_brokers = await read_all_brokers(services.ask_store)
        if not name:
            return configs.describe_all_brokers(of_brokers)
        if name == str(services.node.node_id):
            return configs.describe_broker(of_brokers, services.settings)
        raise InvalidConfigChange(f"this is broker {services.node.node_id}; ask broker {name} itself")
    raise InvalidConfigChange(f"resources of type {resource.resource_type} have no settings here")


def check_known(services: Services, topic: str) -> None:
    """Raise `InvalidTopic` or `UnknownTopicOrPartition` for what is no topic."""
    check_topic_name(topic)
    if topic not in services.metadata.topic_ids and not any(
        each.topic == topic for each in services.metadata.partitions
    ):
        raise UnknownTopicOrPartition(f"there is no topic {topic!r}")


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
