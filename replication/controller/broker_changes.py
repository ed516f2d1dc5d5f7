"""Brokers that came, went, or came back so fast that nobody saw them go.

The list of live brokers is read anew at every event; what it was before does not matter, except to
tell an old acquaintance from a new incarnation. A broker that re-registered (same id, later creation
transaction) has failed first and started then, in this order, within one event: it leaves what it
was part of before it is a member of anything again.

A broker whose log dir failed stays registered; it says so with a node of its own in the store.
"""

from __future__ import annotations

from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import topic_deletion
from logstore.replication.controller.context import Broker, Context, Steps
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.notices import read_notices, remove_notices
from logstore.replication.controller.partition_states import after_failures, check_term, out_of_date, settle
from logstore.replication.controller.reassigning import advance, stop_leaving
from logstore.replication.messages import BrokerEndpoint
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Children, Get, Outcome


def read_brokers(context: Context) -> Steps[dict[int, Broker]]:
    """Who is registered now. The watch is set by the very read, so no change falls between."""
    (listing,) = yield (Children(layout.BROKER_IDS_PATH, watch=True),)
    if listing.stat is None:
        raise MetadataConflict(f"{layout.BROKER_IDS_PATH} is gone")
    names = [name for name in listing.children if name.isascii() and name.isdecimal()]
    reads = yield tuple(Get(layout.broker_path(int(name))) for name in names)
    found = ((int(name), _parse(context, int(name), read)) for name, read in zip(names, reads, strict=True))
    return {broker_id: broker for broker_id, broker in sorted(found) if broker is not None}


def _parse(context: Context, broker_id: int, read: Outcome) -> Broker | None:
    path = layout.broker_path(broker_id)
    context.unreadable.pop(path, None)
    if read.stat is None:
        return None
    try:
        registration = layout.parse_broker(read.data)
    except CorruptMetadata as error:
        # Nobody could reach it: as good as dead, until it registers properly.
        context.unreadable[path] = str(error)
        return None
    endpoint = BrokerEndpoint(
        broker_id, registration.host, registration.port, read.stat.created_txid, registration.rack
    )
    return Broker(
        endpoint, registration.clean, registration.continues, registration.empty, registration.damaged
    )


def brokers_changed(context: Context) -> Steps[None]:
    """React to whatever is different in `/brokers/ids`."""
    found = yield from read_brokers(context)
    for broker_id, broker in list(context.brokers.items()):
        if broker_id not in found or found[broker_id].endpoint.epoch != broker.endpoint.epoch:
            mark("brokers: one left, or came back so fast that nobody saw it go")
            forget_broker(context, broker_id)
    # Going by states, not by who just left: an event that failed half-way and starts again must
    # find the same work.
    decide = after_failures(context)
    yield from settle(context, out_of_date(context, decide), decide)
    meet_brokers(context, {key: broker for key, broker in found.items() if key not in context.brokers})
    # Addresses before roles: a follower that cannot find its leader would wait for another message.
    context.announce_brokers()
    # Roles only once the states account for the newcomers: a broker that came back with a loss takes
    # its first role as proof that this is on record, and may stop cleanly afterwards.
    decide = after_failures(context)
    yield from settle(context, out_of_date(context, decide), decide)
    if any(context.newcomers & set(assignment.leaving) for assignment in context.assignments.values()):
        # Who leaves is taken from the copy, while a later controller may have brought these brokers back
        # before they restarted; they have forgotten it. One that comes after this check will be heard first.
        yield from check_term(context)
    context.announce(context.states, to=context.newcomers, is_full=True)
    stop_leaving(context, to=context.newcomers)
    context.newcomers.clear()
    # They may be what a reassignment or a deletion waits for.
    yield from advance(context)
    yield from topic_deletion.resume(context)


def forget_broker(context: Context, broker_id: int) -> None:
    del context.brokers[broker_id]
    context.shutting_down.discard(broker_id)
    context.offline_replicas.pop(broker_id, None)
    context.refusing.pop(broker_id, None)
    context.newcomers.discard(broker_id)
    for deletion in context.deletions.values():
        deletion.broker_gone(broker_id)
    context.channels.close(broker_id)


def meet_brokers(context: Context, new: dict[int, Broker]) -> None:
    """Open a channel to each; they are to be told everything, see `Context.newcomers`."""
    context.brokers.update(new)
    context.newcomers.update(new)
    for broker_id, broker in sorted(new.items()):
        if broker.damaged:
            # It counts as one that lost something, and is not elected from outside either until it has taken
            # a role: whoever is elected and refuses has pushed all others out of the ISR.
            mark("brokers: one says that a log is damaged when it registers")
            context.refusing[broker_id] = set(broker.damaged)
        context.channels.open(broker_id, broker.endpoint.epoch)


def log_dirs_failed(context: Context) -> Steps[None]:
    """Brokers lost log dirs: they are asked for all their roles again, and refuse those that they lost."""
    notices = yield from read_notices(context, layout.LOG_DIR_EVENTS_PATH)
    senders = set()
    for notice in notices:
        try:
            senders.add(layout.parse_log_dir_event(notice.data))
        except CorruptMetadata as error:
            context.unreadable[layout.LOG_DIR_EVENTS_PATH] = str(error)
    if senders:
        mark("brokers: one tells that a log failed, or works again")
    context.announce(context.states, to=senders)
    stop_leaving(context, to=senders)
    yield from topic_deletion.resume(context, again=senders & context.brokers.keys())
    yield from remove_notices(context, notices)


def replicas_failed(
    context: Context, broker_id: int, broker_epoch: int, failed: frozenset[TopicPartition]
) -> Steps[None]:
    """A live broker cannot use these logs: for these partitions it is as good as dead."""
    broker = context.brokers.get(broker_id)
    if broker is None or broker.endpoint.epoch != broker_epoch:
        mark("brokers: a failure told by an incarnation that is gone")
        return  # said by an incarnation that is gone
    context.offline_replicas.setdefault(broker_id, set()).update(failed)
    told: set[TopicPartition] = set()
    yield from settle(context, failed, after_failures(context), on_change=told.add)
    # What it refused may have been overtaken: told that nobody counts on it, it may cut a damaged log and
    # follow. Once only, as another refusal would bring us here again.
    refusing = context.refusing.get(broker_id, set())
    context.announce((refusing & failed) - told, to=(broker_id,))
    refusing.difference_update(failed)


def replicas_returned(
    context: Context, broker_id: int, broker_epoch: int, returned: frozenset[TopicPartition]
) -> Steps[None]:
    """A live broker has taken these roles after all: it had no room, or a damaged log."""
    broker = context.brokers.get(broker_id)
    if broker is None or broker.endpoint.epoch != broker_epoch:
        return
    mark("controller: a replica that could not serve can again")
    context.offline_replicas.get(broker_id, set()).difference_update(returned)
    yield from settle(context, returned, after_failures(context))
