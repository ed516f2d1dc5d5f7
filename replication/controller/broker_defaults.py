"""Settings of all brokers that are changed while they run: `/config/brokers/<default>`.

One of them matters to the controller: `unclean.leader.election.enable`. Switched on, it elects at once,
but only where nobody leads; a topic that has a word of its own on the matter keeps it.
"""

from __future__ import annotations

from logstore.disk.marks import mark
from logstore.replication.controller.context import UNCLEAN_ELECTION, Context, Steps
from logstore.replication.controller.partition_states import after_failures, out_of_date, settle
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Get


def load_broker_defaults(context: Context) -> Steps[None]:
    """Read the node, watch set again. One that makes no sense is reported and changes nothing."""
    path = layout.BROKER_DEFAULTS_PATH
    (node,) = yield (Get(path, watch=True),)
    context.unreadable.pop(path, None)
    if node.stat is None:
        context.broker_defaults = {}
        return
    try:
        settings = layout.parse_broker_defaults(node.data)
    except CorruptMetadata as error:
        context.unreadable[path] = str(error)
        return
    word = settings.get(UNCLEAN_ELECTION, "false").lower()
    if word not in ("true", "false"):
        context.unreadable[path] = f"{UNCLEAN_ELECTION} is {word!r}; it takes true or false"
        return
    context.broker_defaults = settings


def broker_defaults_changed(context: Context) -> Steps[None]:
    """Unclean election may just have been allowed: elect for the partitions concerned."""
    yield from load_broker_defaults(context)
    decide = after_failures(context)
    concerned = out_of_date(context, decide)
    if concerned:
        mark("broker defaults: a partition is elected because the setting changed")
    yield from settle(context, concerned, decide, reason="the brokers' settings changed")
