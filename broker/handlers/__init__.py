"""One API a file. A handler takes the call, the request's body, and the services that it may use.

It returns the answer; or None, and then `Services.ask` (or whatever it began) brings the answer later. What
it raises is a bug: the client loses its connection, the log tells which request it was. A new API is a
file with a `handle` and a line in `HANDLERS`; ApiVersions tells of it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from broker.call import Call
from broker.handlers import (
    acls,
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    elect_leaders,
    fetch,
    init_producer_id,
    list_offsets,
    list_partition_reassignments,
    metadata,
    nodes,
    offset_for_leader_epoch,
    produce,
)
from broker.services import Services
from broker.wire.declarations import Struct

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
    18: api_versions.handle,
    19: create_topics.handle,
    20: delete_topics.handle,
    21: delete_records.handle,
    22: init_producer_id.handle,
    23: offset_for_leader_epoch.handle,
    29: acls.describe,
    30: acls.create,
    31: acls.delete,
    32: describe_configs.handle,
    33: alter_configs.replace,
    35: describe_log_dirs.handle,
    37: create_partitions.handle,
    43: elect_leaders.handle,
    44: alter_configs.change,
    45: alter_partition_reassignments.handle,
    46: list_partition_reassignments.handle,
    56: nodes.handle,
    60: describe_cluster.handle,
}
"""By API key."""
