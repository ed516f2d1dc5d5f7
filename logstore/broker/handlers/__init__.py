"""The handlers of all APIs, by subject. A handler takes the call, the request's body and the services.

It returns the answer, or None if `Services.ask` (or other work that it began) answers later. An exception is
a bug: the client loses its connection, and the log names the request. A new API needs a handler and a line in
`HANDLERS`. `docs/reference/protocol-traps.md` lists the rules of the protocol that clients depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from logstore.broker.dispatch import Handler
from logstore.broker.handlers import (
    acls,
    configs,
    fetch,
    groups,
    log_dirs,
    metadata,
    nodes,
    offsets,
    produce,
    quotas,
    sessions,
    tokens,
    topics,
    transactions,
    users,
)
from logstore.broker.handlers.forwarding import at_the_controller, later

HANDLERS: Final[Mapping[int, Handler]] = {
    0: produce.handle,
    1: fetch.handle,
    2: offsets.list_offsets,
    3: metadata.handle,
    **dict.fromkeys((4, 5, 6, 7, 56), nodes.handle),
    8: groups.offset_commit,
    9: groups.offset_fetch,
    10: groups.find_coordinator,
    11: groups.join,
    12: groups.heartbeat,
    13: groups.leave,
    14: groups.sync,
    15: groups.describe,
    16: groups.list_groups,
    17: sessions.sasl_handshake,
    18: sessions.api_versions,
    19: at_the_controller(topics.create),
    20: at_the_controller(topics.delete),
    21: offsets.delete_records,
    22: later(sessions.init_producer_id),
    23: offsets.offset_for_leader_epoch,
    27: transactions.write_txn_markers,
    29: acls.describe,
    30: later(acls.create),
    31: later(acls.delete),
    32: later(configs.describe),
    33: configs.replace,
    34: log_dirs.alter,
    35: log_dirs.describe,
    36: sessions.sasl_authenticate,
    37: at_the_controller(topics.create_partitions),
    38: later(tokens.create),
    39: later(tokens.renew),
    40: later(tokens.expire),
    41: later(tokens.describe),
    42: groups.delete,
    43: at_the_controller(topics.elect_leaders),
    44: configs.change,
    45: at_the_controller(topics.alter_reassignments),
    46: at_the_controller(topics.list_reassignments),
    47: groups.offset_delete,
    48: later(quotas.describe),
    49: later(quotas.alter),
    50: later(users.describe),
    51: later(users.alter),
    60: metadata.describe_cluster,
    61: transactions.describe_producers,
    65: transactions.describe_transactions,
    66: transactions.list_transactions,
    68: groups.consumer_heartbeat,
}
"""By API key."""
