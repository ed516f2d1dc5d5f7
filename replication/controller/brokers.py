"""Brokers: start, stop, restart, failures of log dirs, controlled shutdown, and their settings.

The list of live brokers is read again at every event. The list before matters only to distinguish a known
broker from a new incarnation. A broker that re-registered (same id, later creation transaction) first
failed and then started, in this order, within one event: it leaves everything it was part of before it
joins anything. A broker whose log dir failed stays registered; it reports that with a node of its own in
the store.

A broker that is about to stop first hands over its leaderships and leaves the ISRs:

    ControlledShutdown ──► mark ──► all brokers learn of it: it joins no ISR any more
                            ├─ what it leads     the next in-sync replica of the assignment leads
                            └─ what it follows   StopReplica (nothing deleted), then out of the ISR
                                             ──► remaining: what it leads still

Partitions without another replica close with the broker and are not counted. A repeated request gets the
same answer. While a topic's node cannot be read, the broker may lead partitions of it: the known ones are
moved, and the broker must repeat its request. The mark belongs to this term and ends with the registration:
the broker must ask the next controller again.

Of the live settings of all brokers (`/config/brokers/<default>`) two matter here: `min.insync.replicas` and
`unclean.leader.election.enable`, which elects at once when it is switched on, but only where there is no
leader. A topic's own setting takes precedence.
"""

from __future__ import annotations

from logstore.arguments import whole_number
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import messages as m
from logstore.replication.controller import deletion, election
from logstore.replication.controller.channel import Channel
from logstore.replication.controller.context import (
    MIN_INSYNC_REPLICAS,
    UNCLEAN_ELECTION,
    Broker,
    Context,
    Steps,
)
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.procedure import (
    after_failures,
    check_term,
    out_of_date,
    read_notices,
    remove_notices,
    settle,
)
from logstore.replication.controller.reassignment import advance, stop_leaving
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.metastore.operations import Children, Get

# --- registrations ----------------------------------------------------------------------------


def read_brokers(context: Context) -> Steps[dict[int, Broker]]:
    """Return the registered brokers. The same read sets the watch, so no change falls between."""
    (listing,) = yield (Children(layout.BROKER_IDS_PATH, watch=True),)
    if listing.stat is None:
        raise MetadataConflict(f"{layout.BROKER_IDS_PATH} is missing")
    ids = [int(name) for name in listing.children if name.isascii() and name.isdecimal()]
    reads = yield tuple(Get(layout.broker_path(broker_id)) for broker_id in ids)
    found = {}
    for broker_id, read in sorted(zip(ids, reads, strict=True), key=lambda pair: pair[0]):
        # A broker with an unreadable registration cannot be reached: it counts as not alive.
        registered = context.parsed(layout.broker_path(broker_id), read, layout.parse_broker)
        if registered is not None and read.stat is not None:
            endpoint = m.BrokerEndpoint(
                broker_id,
                registered.host,
                registered.port,
                read.stat.created_txid,
                registered.rack,
                registered.endpoints,
            )
            facts = (registered.clean, registered.continues, registered.empty, registered.damaged)
            found[broker_id] = Broker(endpoint, *facts)
    return found


def brokers_changed(context: Context) -> Steps[None]:
    """React to every difference in `/brokers/ids`."""
    found = yield from read_brokers(context)
    for broker_id, broker in list(context.brokers.items()):
        if broker_id not in found or found[broker_id].endpoint.epoch != broker.endpoint.epoch:
            mark("brokers: one left, or restarted between two readings")
            forget_broker(context, broker_id)
    yield from _settle_out_of_date(context, _alive(context))
    meet_brokers(context, {key: broker for key, broker in found.items() if key not in context.brokers})
    # Addresses before roles: a follower that cannot find its leader would wait for another request.
    context.announce_brokers()
    # Roles only once the states account for the new brokers: a broker that came back with a loss takes
    # its first role as proof that the loss is recorded, and may stop cleanly afterwards.
    yield from _settle_out_of_date(context, _alive(context))
    if any(context.newcomers & set(assignment.leaving) for assignment in context.assignments.values()):
        # The leaving replicas are taken from the copy. A later controller may have brought these brokers
        # back before they restarted, which erased their memory of it. A controller elected after this
        # check contacts them first.
        yield from check_term(context)
    context.announce(context.replicas, to=context.newcomers, is_full=True)
    stop_leaving(context, to=context.newcomers)
    context.newcomers.clear()
    # A reassignment or a deletion may have waited for them.
    yield from advance(context)
    yield from deletion.resume(context)


def _alive(context: Context) -> str:
    return f"the live brokers are {', '.join(map(str, sorted(context.brokers))) or 'none'}"


def _settle_out_of_date(context: Context, reason: str, *, note: bool = False) -> Steps[None]:
    # Judged by states, not by the brokers that just left: an event that failed half-way and starts again
    # must find the same work.
    decide = after_failures(context)
    concerned = out_of_date(context, decide)
    if note and concerned:
        mark("broker defaults: a partition is elected because the setting changed")
    yield from settle(context, concerned, decide, reason=reason, from_copy=True)


def forget_broker(context: Context, broker_id: int) -> None:
    del context.brokers[broker_id]
    context.shutting_down.discard(broker_id)
    context.offline_replicas.pop(broker_id, None)
    context.refusing.pop(broker_id, None)
    context.newcomers.discard(broker_id)
    for pending in context.deletions.values():
        pending.broker_gone(broker_id)
    context.channels.pop(broker_id, None)


def meet_brokers(context: Context, new: dict[int, Broker]) -> None:
    """Open a channel to each new broker; each must get all of its roles, see `Context.newcomers`."""
    context.brokers.update(new)
    context.newcomers.update(new)
    for broker_id, broker in sorted(new.items()):
        if broker.damaged:
            # It counts as having lost records, and is not elected from outside the ISR either until it has
            # taken a role: an elected replica that refuses has already pushed all others out of the ISR.
            mark("brokers: one registers with a damaged log")
            context.refusing[broker_id] = set(broker.damaged)
        context.channels[broker_id] = Channel(broker_id, broker.endpoint.epoch, context.config)


# --- logs that cannot be used -----------------------------------------------------------------


def log_dirs_failed(context: Context) -> Steps[None]:
    """React to failed log dirs: their brokers get all their roles again, and refuse the lost ones."""
    notices = yield from read_notices(context, layout.LOG_DIR_EVENTS_PATH)
    parsed = (
        context.parsed(
            notice.path, notice.outcome(), layout.parse_log_dir_event, report_as=layout.LOG_DIR_EVENTS_PATH
        )
        for notice in notices
    )
    senders = {broker_id for broker_id in parsed if broker_id is not None}
    if senders:
        mark("brokers: one reports that a log failed, or works again")
    context.announce(context.states, to=senders, is_full=True)
    stop_leaving(context, to=senders)
    yield from deletion.resume(context, again=senders & context.brokers.keys())
    yield from remove_notices(context, notices)


def replicas_failed(
    context: Context, broker_id: int, broker_epoch: int, failed: frozenset[TopicPartition]
) -> Steps[None]:
    """Treat a live broker as down for the partitions whose logs it cannot use."""
    if not context.has_incarnation(broker_id, broker_epoch):
        mark("brokers: a failure reported by a former incarnation")
        return
    context.offline_replicas.setdefault(broker_id, set()).update(failed)
    told: set[TopicPartition] = set()
    reason = f"broker {broker_id} cannot use its replica"
    yield from settle(context, failed, after_failures(context), reason=reason, on_change=told.add)
    # The role that it refused may be outdated: once it learns that it is outside the ISR, it may cut a
    # damaged log and follow. Only once, because another refusal would lead here again.
    refusing = context.refusing.get(broker_id, set())
    context.announce((refusing & failed) - told, to=(broker_id,))
    refusing.difference_update(failed)


def replicas_returned(
    context: Context, broker_id: int, broker_epoch: int, returned: frozenset[TopicPartition]
) -> Steps[None]:
    """Count replicas again that their live broker could not use before, for lack of space or for damage."""
    if not context.has_incarnation(broker_id, broker_epoch):
        return
    mark("controller: an unusable replica is usable again")
    context.offline_replicas.get(broker_id, set()).difference_update(returned)
    reason = f"broker {broker_id} can use its replica again"
    yield from settle(context, returned, after_failures(context), reason=reason)


# --- controlled shutdown ----------------------------------------------------------------------


def shut_down(
    context: Context, request: m.ControlledShutdownRequest, results: dict[None, None]
) -> Steps[m.ControlledShutdownResponse]:
    """Move the broker's leaderships away; the answer names those that remain."""
    broker_id = request.broker_id
    broker = context.brokers.get(broker_id)
    if broker is None or request.broker_epoch > broker.endpoint.epoch:
        # Its registration, or its present one, is still on its way to us.
        mark("controlled shutdown: requested by a broker that is not known yet")
        return m.ControlledShutdownResponse(ErrorCode.BROKER_NOT_AVAILABLE)
    if m.NO_EPOCH < request.broker_epoch < broker.endpoint.epoch:
        return m.ControlledShutdownResponse(ErrorCode.STALE_BROKER_EPOCH)
    if broker_id not in context.shutting_down:
        context.shutting_down.add(broker_id)
        # First of all: no leader may wait for it, or propose it again.
        context.announce_brokers()
    concerned = [
        each
        for each in sorted(context.states)
        if broker_id in context.replicas[each]
        and len(context.replicas[each]) > 1
        and not context.is_being_deleted(each.topic)
    ]
    followed = {
        each: m.StopReplicaPartition(state.leader_epoch, delete=False)
        for each in concerned
        if (state := context.states[each].state).leader != broker_id
    }
    if followed:
        context.channels[broker_id].enqueue(m.StopReplicaRequest, followed)

    def decide(each: TopicPartition, state: LeaderAndIsr | None) -> LeaderAndIsr | None:
        return state and election.state_after_shutdown(
            state, context.replicas[each], context.live(each), context.shutting_down, context.epoch
        )

    yield from settle(context, concerned, decide, reason=f"broker {broker_id} shuts down", from_copy=True)
    remaining = tuple(
        each
        for each in concerned
        if (known := context.states.get(each)) is not None and known.state.leader == broker_id
    )
    if remaining:
        mark("controlled shutdown: no other replica can lead a partition")
    if set(context.unreadable_topics) - context.topics.keys():
        # It may lead partitions of those: it must ask again in a while.
        mark("controlled shutdown: a topic that cannot be read may be led by the broker")
        return m.ControlledShutdownResponse(ErrorCode.UNKNOWN_SERVER_ERROR, remaining)
    return m.ControlledShutdownResponse(ErrorCode.NONE, remaining)


# --- settings of all brokers ------------------------------------------------------------------


def load_broker_defaults(context: Context) -> Steps[None]:
    """Read the node, the watch set again. An invalid one is reported and changes nothing."""
    path = layout.BROKER_DEFAULTS_PATH
    (node,) = yield (Get(path, watch=True),)
    settings = context.parsed(path, node, layout.parse_broker_defaults)
    if node.stat is None:
        context.broker_defaults = {}
    elif settings is not None:
        word, least = settings.get(UNCLEAN_ELECTION, "false"), settings.get(MIN_INSYNC_REPLICAS, "1")
        if word.lower() not in ("true", "false"):
            context.unreadable[path] = f"{UNCLEAN_ELECTION} is {word!r}; allowed are true and false"
        elif whole_number(least, 1) is None:
            context.unreadable[path] = f"{MIN_INSYNC_REPLICAS} is {least!r}; it must be at least 1"
        else:
            context.broker_defaults = settings


def broker_defaults_changed(context: Context) -> Steps[None]:
    """Elect leaders for partitions whose unclean election has just been allowed."""
    yield from load_broker_defaults(context)
    yield from _settle_out_of_date(context, "the brokers' settings changed", note=True)
