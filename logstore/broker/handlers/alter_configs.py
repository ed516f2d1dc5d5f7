"""AlterConfigs replaces all settings of a topic; IncrementalAlterConfigs changes those that it names.

Any broker takes either: they are written to the metadata store, and the controller hears of it there. For
all brokers (type 4 without a name) what they can take while they run is changed; one broker's own settings
are given where it is started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from logstore.broker.call import Call
from logstore.broker.config_nodes import Settings, change_all_brokers, change_topic
from logstore.broker.configs import (
    InvalidConfigChange,
    Operation,
    changed,
    changed_for_all_brokers,
    replaced,
)
from logstore.broker.handlers.describe_configs import BROKER, TOPIC, check_known
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode

Changes: TypeAlias = Sequence[tuple[str, int, str | None]]
"""Name, number of the operation, value."""
Change: TypeAlias = Callable[[Settings], Settings]
Resource: TypeAlias = (
    t.AlterConfigsRequestAlterConfigsResource | t.IncrementalAlterConfigsRequestAlterConfigsResource
)


def replace(call: Call, body: t.AlterConfigsRequest, services: Services) -> None:
    """AlterConfigs."""
    services.begin(call, _replace(call, body, services))


def change(call: Call, body: t.IncrementalAlterConfigsRequest, services: Services) -> None:
    """IncrementalAlterConfigs."""
    services.begin(call, _change(call, body, services))


async def _replace(call: Call, body: t.AlterConfigsRequest, services: Services) -> t.AlterConfigsResponse:
    responses = []
    for resource in body.resources:
        settings = [(each.name, each.value) for each in resource.configs]
        changes = [(name, int(Operation.SET), value) for name, value in settings]
        error, message = await _fate(
            services,
            resource,
            of_topic=partial(_all_of, settings),
            of_brokers=partial(_of_brokers, changes, from_nothing=True),
            validate_only=body.validate_only,
        )
        responses.append(
            t.AlterConfigsResponseAlterConfigsResourceResponse(
                error_code=error,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return t.AlterConfigsResponse(throttle_time_ms=call.throttle_ms, responses=responses)


async def _change(
    call: Call, body: t.IncrementalAlterConfigsRequest, services: Services
) -> t.IncrementalAlterConfigsResponse:
    responses = []
    for resource in body.resources:
        changes = [(each.name, each.config_operation, each.value) for each in resource.configs]
        error, message = await _fate(
            services,
            resource,
            of_topic=partial(_some_of, changes),
            of_brokers=partial(_of_brokers, changes, from_nothing=False),
            validate_only=body.validate_only,
        )
        responses.append(
            t.IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                error_code=error,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return t.IncrementalAlterConfigsResponse(throttle_time_ms=call.throttle_ms, responses=responses)


async def _fate(
    services: Services,
    resource: Resource,
    *,
    of_topic: Change,
    of_brokers: Change,
    validate_only: bool,
) -> tuple[ErrorCode, str | None]:
    """Change one resource's settings; the error and its message."""
    try:
        if resource.resource_type == TOPIC:
            check_known(services, resource.resource_name)
            await change_topic(
                services.ask_store, resource.resource_name, of_topic, validate_only=validate_only
            )
        elif resource.resource_type != BROKER:
            raise InvalidConfigChange(f"resources of type {resource.resource_type} have no settings here")
        elif resource.resource_name:
            raise InvalidConfigChange("a broker's own settings are given where it is started")
        else:
            await change_all_brokers(services.ask_store, of_brokers, validate_only=validate_only)
    except EngineError as error:
        return error.code, str(error)
    return ErrorCode.NONE, None


def _all_of(settings: Sequence[tuple[str, str | None]], now: Settings) -> Settings:
    return replaced(settings)


def _some_of(changes: Changes, now: Settings) -> Settings:
    return changed(now, _checked(changes))


def _of_brokers(changes: Changes, now: Settings, *, from_nothing: bool) -> Settings:
    return changed_for_all_brokers({} if from_nothing else now, _checked(changes))


def _checked(changes: Changes) -> list[tuple[str, Operation, str | None]]:
    unknown = sorted({operation for _, operation, _ in changes} - set(Operation))
    if unknown:
        raise InvalidConfigChange(f"operation {unknown[0]} is unknown; there are 0 to 3")
    return [(name, Operation(operation), value) for name, operation, value in changes]
