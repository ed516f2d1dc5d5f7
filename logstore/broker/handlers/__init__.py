"""One API a file. A handler takes the call, the request's body, and the services that it may use.

It returns the answer; or None, and then `Services.ask` (or whatever it began) brings the answer later. What
it raises is a bug: the client loses its connection, the log tells which request it was. A new API is a
file with a `handle` and a line in `HANDLERS`; ApiVersions tells of it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from logstore.broker.call import Call
from logstore.broker.handlers import (
    acls,
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    nodes,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl,
    sync_group,
)
from logstore.broker.handlers.forwarding import at_the_controller
from logstore.broker.services import Services
from logstore.broker.wire.declarations import Struct

Handler: TypeAlias = Callable[[Call, Any, Services], Struct | None]

HANDLERS: Final[Mapping[int, Handler]] = {
    0: produce.handle,
    1: fetch.handle,
    2: list_offsets.handle,
    3: metadata.handle,
    4: nodes.handle,
    5: nodes.handle,
    6: nodes.handle,
    7: nodes.handle,
    8: offset_commit.handle,
    9: offset_fetch.handle,
    10: find_coordinator.handle,
    11: join_group.handle,
    12: heartbeat.handle,
    13: leave_group.handle,
    14: sync_group.handle,
    15: describe_groups.handle,
    16: list_groups.handle,
    17: sasl.handshake,
    18: api_versions.handle,
    19: at_the_controller(create_topics.handle),
    20: at_the_controller(delete_topics.handle),
    21: delete_records.handle,
    22: init_producer_id.handle,
    23: offset_for_leader_epoch.handle,
    29: acls.describe,
    30: acls.create,
    31: acls.delete,
    32: describe_configs.handle,
    33: alter_configs.replace,
    35: describe_log_dirs.handle,
    36: sasl.authenticate,
    37: at_the_controller(create_partitions.handle),
    42: delete_groups.handle,
    43: at_the_controller(elect_leaders.handle),
    44: alter_configs.change,
    45: at_the_controller(alter_partition_reassignments.handle),
    46: at_the_controller(list_partition_reassignments.handle),
    47: offset_delete.handle,
    56: nodes.handle,
    60: describe_cluster.handle,
}
"""By API key."""
