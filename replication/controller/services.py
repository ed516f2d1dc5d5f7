"""What the active controller can be asked: one line a request, its procedure and its refusal.

A procedure fills `results`, by item, as the fate of each item becomes certain, and returns the answer. A
term may end half-way: then `refuse` answers with what is certain and NOT_CONTROLLER for the rest. An event
that starts again finds the results of its first try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from logstore.disk.errors import ErrorCode
from logstore.replication.controller import (
    config_changes,
    controlled_shutdown,
    elect_leaders,
    isr_changes,
    partition_creation,
    reassigning,
    topic_creation,
    topic_deletion,
)
from logstore.replication.controller.context import Context, Steps
from logstore.replication.messages import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    RequestBody,
    ResponseBody,
)


class Service(NamedTuple):
    """`serve(context, request, results)` does the work; `refuse(request, results)` answers without it."""

    name: str
    serve: Callable[[Context, Any, dict[Any, Any]], Steps[ResponseBody]]
    refuse: Callable[[Any, dict[Any, Any]], ResponseBody]


SERVICES: Mapping[type[RequestBody], Service] = {
    AlterPartitionRequest: Service(
        "alter partition",
        isr_changes.alter_partitions,
        lambda request, results: AlterPartitionResponse(ErrorCode.NOT_CONTROLLER),
    ),
    ControlledShutdownRequest: Service(
        "controlled shutdown", controlled_shutdown.shut_down, controlled_shutdown.refuse
    ),
    CreateTopicsRequest: Service("create topics", topic_creation.create_topics, topic_creation.answer),
    CreatePartitionsRequest: Service(
        "create partitions", partition_creation.create_partitions, partition_creation.answer
    ),
    AlterConfigsRequest: Service("alter configs", config_changes.alter_configs, config_changes.answer),
    DeleteTopicsRequest: Service("delete topics", topic_deletion.delete_topics, topic_deletion.answer),
    ElectLeadersRequest: Service("elect leaders", elect_leaders.elect_leaders, elect_leaders.refuse),
    AlterPartitionReassignmentsRequest: Service(
        "alter reassignments", reassigning.alter_reassignments, reassigning.answer
    ),
    ListPartitionReassignmentsRequest: Service(
        "list reassignments",
        reassigning.list_reassignments,
        lambda request, results: ListPartitionReassignmentsResponse(ErrorCode.NOT_CONTROLLER),
    ),
}
