"""Partition states that somebody else wrote: Kafka's brokers change their ISRs in the store themselves.

They leave a sequential node that lists the partitions. The states are read when the notice is served, not
when it was written (KAFKA-5879), everybody is told, then the notice goes. One that is lost costs nothing
but fresh metadata: no decision is made on the copy.
"""

from __future__ import annotations

from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.notices import read_notices, remove_notices
from logstore.replication.controller.partition_states import learn_state
from logstore.replication.controller.reassigning import advance
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Get


def isr_changed(context: Context) -> Steps[None]:
    """Read the listed states again and tell all brokers; a reassignment may have waited for just that.

    A notice that makes no sense is reported and removed.
    """
    notices = yield from read_notices(context, layout.ISR_NOTIFICATIONS_PATH)
    listed: set[TopicPartition] = set()
    for notice in notices:
        try:
            listed.update(layout.parse_partitions(notice.data))
        except CorruptMetadata as error:
            mark("isr notifications: one makes no sense")
            context.unreadable[layout.ISR_NOTIFICATIONS_PATH] = str(error)
    known = sorted(listed & context.replicas.keys())
    if known:
        mark("isr notifications: states are read again")
    reads = yield tuple(Get(layout.partition_state_path(each)) for each in known)
    for each, read in zip(known, reads, strict=True):
        learn_state(context, each, read)
        context.record(each, "reads a state again", "an ISR notification")
    context.announce_metadata(known)
    yield from advance(context, known)
    yield from remove_notices(context, notices)
