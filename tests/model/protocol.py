"""The replication protocol of one partition on three replicas, as steps that an explorer can take.

    parts of a state    store · committed records · budget · late messages · replica 0, 1, 2

What the engine decides by pure functions is decided here by the same functions, called: who leads
(`election.next_state`), what a leader may do to its ISR (`alter_partition.judge`), who may join and who
must go (`isr.may_join`, `members_to_drop`), how far the high watermark may go
(`isr.next_high_watermark`), whether two logs part and where to cut (`reconcile`), and what an epoch cache
answers. Written again, in short, is what shells do around them: roles, restarts, and the exchange of
messages (`partition.py`, `follower.py`, `brokers.py`).

Time is left out: whoever is not at the leader's end may be thrown out of the ISR at any moment. A role
may come late (several at once, each addressed to one life of a broker), answers to ISR proposals get
lost, and one fetch and one answer at a time may be late for as long as they like.

Every rule is a switch in `Rules`; a rule that is off gives the protocol that it was invented for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations

from logstore.disk.errors import ErrorCode
from logstore.replication.controller import alter_partition, election
from logstore.replication.controller.election import Incarnation, with_min_insync
from logstore.replication.isr import (
    CommittedIsr,
    IsrState,
    LagBounds,
    PendingExpand,
    PendingShrink,
    may_join,
    members_to_drop,
    next_high_watermark,
)
from logstore.replication.messages import NO_EPOCH, NO_LEADER, IsrProposal
from logstore.replication.metastore.layout import LOST_BROKER_EPOCH, Eligible, LeaderAndIsr
from logstore.replication.reconcile import divergence_of, truncation_for
from logstore.replication.replica import RemoteReplica
from logstore.segment.epochs import UNDEFINED, EpochEndOffset
from tests.model.explorer import Action, Explorer, Invariant, Parts, Steps
from tests.model.parts import (
    _CONTROLLER_EPOCH,
    BUDGET,
    COMMITTED,
    IDS,
    LATE,
    NAMES,
    REPLICA,
    STORE,
    Announcement,
    Bounds,
    Budget,
    Committed,
    Fetch,
    FetchAnswer,
    Late,
    Proposal,
    Reconcile,
    Record,
    Remote,
    Replica,
    Rules,
    Store,
)
from tests.model.transcript import decision, name_of, names_of, told

# --- the model --------------------------------------------------------------------------------


class Protocol:
    """The steps and the invariants under given rules and bounds."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds

    def explorer(self) -> Explorer:
        return Explorer(self.initial(), self.actions(), self.invariants())

    def initial(self) -> Parts:
        """A leads in epoch 0; all three are in sync, know it, and hold the settled records."""
        bounds = self.bounds
        records = tuple(Record(0, -1 - number) for number in range(bounds.settled))
        state = LeaderAndIsr(0, 0, IDS, _CONTROLLER_EPOCH, (0,) * len(IDS), min_insync=self._min_insync)
        end = len(records)
        known = Replica(
            log=records,
            durable=end if self.rules.followers_sync else 0,
            high_watermark=end,
            latest_epoch=0 if records else NO_EPOCH,
            epoch=0,
            leader=0,
            partition_epoch=0,
        )
        replicas = [known for _ in IDS]
        remote = Remote(end, 0) if records else Remote()
        replicas[0] = known._replace(
            durable=end if self._tracks_disk else 0,
            latest_epoch=0,
            isr=IDS,
            min_insync=self._min_insync,
            remote=(Remote(), remote, remote),
        )
        view = tuple(self._incarnation(replica) for replica in replicas)
        budget = Budget(
            bounds.records,
            bounds.kills,
            bounds.power_cuts,
            bounds.stops,
            bounds.expiries,
            bounds.elections,
            bounds.settings,
        )
        return (Store(state, 0, view), Committed(records), budget, Late(), *replicas)

    def actions(self) -> list[Action]:
        actions = []
        for me in IDS:
            mine = REPLICA + me
            actions += [
                Action((STORE, mine, COMMITTED), partial(self._hears_controller, me)),
                Action((mine, BUDGET, COMMITTED), partial(self._lives, me)),
            ]
            if self.bounds.late_fetches:
                actions.append(Action((mine, LATE, COMMITTED), partial(self._hears_late, me)))
            if self.bounds.one_is_spared:
                actions += [
                    Action((STORE, mine, REPLICA + other, BUDGET), partial(self._dies_alone, me, other))
                    for other in IDS
                    if other != me
                ]
        for me, other in combinations(IDS, 2):
            parts = REPLICA + me, REPLICA + other, COMMITTED
            actions.append(Action(parts, partial(self._exchange, me, other)))
        if self.bounds.elections:
            actions.append(Action((STORE, BUDGET), self._elects))
        if self.bounds.settings:
            actions.append(Action((STORE, BUDGET), self._sets_min_insync))
        return actions

    def invariants(self) -> list[Invariant]:
        return [
            *(Invariant((STORE, COMMITTED, REPLICA + me), partial(self._holds, me)) for me in IDS),
            *(
                Invariant((REPLICA + me, REPLICA + other), partial(_one_history, me, other))
                for me, other in combinations(IDS, 2)
            ),
        ]

    # --- the controller -----------------------------------------------------------------------

    def _incarnation(self, replica: Replica) -> Incarnation | None:
        """The registration as the controller reads it (`Context.live`)."""
        found = replica.incarnation
        if found is None:
            return None
        loses_nothing = self.rules.followers_sync or not self.rules.unclean_last_waits
        return replace(found, clean=found.clean or loses_nothing)

    def _notices(self, me: int, store: Store, replica: Replica) -> Iterator[tuple[str, Store]]:
        """One broker came, went, or came back: states are settled after each (`brokers_changed`)."""
        seen, now = store.view[me], self._incarnation(replica)
        if seen == now or (seen is not None and now is not None and seen.epoch == now.epoch):
            return
        name = NAMES[me]
        settled: Store | None = store
        if seen is not None and (now is None or self.rules.unclean_leaves_isr):
            settled = self._settle(self._seeing(store, me, None))
        if now is not None and settled is not None:
            settled = self._settle(self._seeing(settled, me, now))
        if settled is not None:
            what = f"that {name} is gone" if now is None else f"{name}, registered as {now.epoch}"
            yield f"controller notices {what}{decision(store, settled)}", settled

    def _seeing(self, store: Store, broker: int, now: Incarnation | None) -> Store:
        late = store.late
        if now is not None and self.rules.roles_are_addressed:
            late = _undelivered(late, broker, None)  # what is for a former life is refused by this one
        view = (*store.view[:broker], now, *store.view[broker + 1 :])
        return store._replace(view=view, late=late)

    def _live(self, store: Store) -> dict[int, Incarnation]:
        live = {each: incarnation for each, incarnation in enumerate(store.view) if incarnation is not None}
        if not self.rules.unclean_leaves_isr:
            # Whoever answers to the name of a member passes for that member.
            recorded = dict(zip(store.state.isr, store.state.isr_broker_epochs, strict=True))
            live = {each: replace(now, epoch=recorded.get(each, now.epoch)) for each, now in live.items()}
        return live

    def _settle(self, store: Store) -> Store | None:
        """The store after the controller's decision; None if no more writes are allowed."""
        state = election.next_state(store.state, IDS, self._live(store), _CONTROLLER_EPOCH)
        return store if state is None else self._write(store, state)

    def _write(self, store: Store, state: LeaderAndIsr) -> Store | None:
        if store.version >= self.bounds.versions:
            return None
        state = self._remembering(store.state, state)
        late = store.late
        if state.leader_epoch != store.state.leader_epoch:
            # Whoever has not heard of the state that ends here may still hear of it.
            addressed = tuple(-1 if each is None else each.epoch for each in store.view)
            late = (*late, Announcement(store.state, store.version, addressed))[-self.bounds.late_roles :]
        return store._replace(state=state, version=store.version + 1, late=late)

    @property
    def _min_insync(self) -> int:
        return self.bounds.min_insync if self.bounds.min_insync > 1 else 0

    def _remembering(self, before: LeaderAndIsr, after: LeaderAndIsr) -> LeaderAndIsr:
        """The write with the memory that it has where a rule is off."""
        rules, is_large = self.rules, len(after.isr) >= after.min_insync
        if not rules.remembers:
            return replace(after, eligible=())
        known = {*map(Eligible, before.isr, before.isr_broker_epochs), *before.eligible}
        kept = {each for each in known if each.replica not in after.isr and each.broker_epoch >= 0}
        is_smaller, is_larger = set(after.isr) < set(before.isr), set(after.isr) > set(before.isr)
        forgets = (
            rules.small_isrs_only or not (is_large and is_smaller),
            rules.growth_forgets or not (is_large and is_larger),
            rules.lowering_forgets or after.min_insync >= before.min_insync,
        )
        return after if all(forgets) else replace(after, eligible=tuple(sorted(kept)))

    def _sets_min_insync(self, store: Store, budget: Budget) -> Steps:
        """An operator changes the setting; the controller writes it before any leader hears of it."""
        if not budget.settings:
            return
        wanted = 0 if store.state.min_insync else self._min_insync
        written = self._write(store, with_min_insync(store.state, wanted, IDS, _CONTROLLER_EPOCH))
        if written is not None:
            spent = budget._replace(settings=budget.settings - 1)
            yield f"min.insync.replicas is set to {max(wanted, 1)}", (written, spent)

    def _elects(self, store: Store, budget: Budget) -> Steps:
        """Leadership moves to another ISR member: preferred election, rebalancing, reassignment."""
        if not budget.elections or store.state.leader == NO_LEADER:
            return
        for broker in store.state.isr:
            live = self._live(store)
            if broker == store.state.leader:
                continue
            if election.preferred_leader((broker,), store.state.isr, live) is None:
                continue
            state = replace(store.state, leader=broker, leader_epoch=store.state.leader_epoch + 1)
            written = self._write(store, state)
            if written is not None:
                yield (
                    "controller moves leadership" + decision(store, written),
                    (written, budget._replace(elections=budget.elections - 1)),
                )

    # --- roles, and the ISR -------------------------------------------------------------------

    def _hears_controller(self, me: int, store: Store, replica: Replica, committed: Committed) -> Steps:
        """All that passes between the controller and one broker."""
        for label, settled in self._notices(me, store, replica):
            yield label, (settled, replica, committed)
        yield from self._proposal_arrives(me, store, replica, committed)
        if replica.is_up:
            yield from self._takes_roles(me, store, replica, committed)

    def _takes_roles(self, me: int, store: Store, replica: Replica, committed: Committed) -> Steps:
        """A role arrives: the current one, or one that is late."""
        seen = store.view[me]
        current: tuple[Announcement, ...] = ()
        if seen is not None:
            current = (Announcement(store.state, store.version, (seen.epoch,) * len(IDS)),)
        for news in (*store.late, *current):
            addressed = news.addressed[me]
            if addressed < 0 or (self.rules.roles_are_addressed and addressed < replica.broker_epoch):
                continue
            taken = self._take_role(me, replica, news)
            if taken is None:
                continue
            following = store
            if self.rules.roles_are_addressed:
                following = store._replace(late=_undelivered(store.late, me, news.state.leader_epoch))
            state = news.state
            role = "leads" if state.leader == me else f"follows {name_of(state.leader)}"
            label = f"{NAMES[me]} {role} in epoch {state.leader_epoch}, ISR {names_of(state.isr)}"
            yield label, (following, *self._advance(me, taken, committed))

    def _take_role(self, me: int, replica: Replica, news: Announcement) -> Replica | None:
        """The replica in the role it is told (`orders.take_role`); None if it refuses or knows."""
        state, version = news.state, news.version
        if state.leader_epoch < replica.epoch:
            return None
        if state.leader_epoch == replica.epoch and (
            state.leader != replica.leader
            or version < replica.partition_epoch
            or (version == replica.partition_epoch and not replica.is_suspended)
        ):
            return None
        is_new = state.leader_epoch > replica.epoch
        resumes = state.leader == me and replica.epoch == NO_EPOCH
        if is_new and replica.latest_epoch > state.leader_epoch:
            return None
        if (
            self.rules.unclean_needs_new_epoch
            and resumes
            and replica.latest_epoch == state.leader_epoch
            and not replica.was_clean
        ):
            return None
        taken = replica._replace(
            epoch=state.leader_epoch, leader=state.leader, partition_epoch=version, is_suspended=False
        )
        if state.leader != me:
            taken = taken._replace(isr=(), min_insync=0, pending=None, remote=(), epoch_start=0)
            starts_over = is_new or replica.leader == me or replica.is_suspended
            return self._before_fetching(taken) if starts_over else taken
        if is_new or version > replica.partition_epoch:
            taken = taken._replace(isr=state.isr, min_insync=state.min_insync, pending=None)
        if is_new:
            directly = not self.rules.followers_start_unknown or state.leader_epoch == replica.epoch + 1
            keeps = replica.leader == me and replica.remote and directly
            taken = taken._replace(
                epoch_start=replica.end,
                latest_epoch=state.leader_epoch,
                is_truncating=False,
                remote=replica.remote if keeps else (Remote(),) * len(IDS),
            )
        return taken

    def _before_fetching(self, replica: Replica) -> Replica:
        match self.rules.reconcile:
            case Reconcile.HIGH_WATERMARK:
                return replica.cut(replica.high_watermark)
            case Reconcile.EPOCH_END | Reconcile.NAMED_EPOCH_END:
                return replica._replace(is_truncating=replica.latest_epoch != NO_EPOCH)
            case Reconcile.FETCH:
                return replica

    def _isr_state(self, replica: Replica) -> IsrState:
        last, pending = CommittedIsr(frozenset(replica.isr)), replica.pending
        if pending is None:
            return last
        proposal = IsrProposal(*pending)
        added = set(pending.isr) - last.isr
        if added:
            if not self.rules.maximal_isr_counts:
                return last
            return PendingExpand(last, proposal, added.pop())
        if not self.rules.shrink_waits:
            return CommittedIsr(frozenset(pending.isr))
        return PendingShrink(last, proposal, last.isr - set(pending.isr))

    def _advance(self, me: int, replica: Replica, committed: Committed) -> tuple[Replica, Committed]:
        """Move the leader's high watermark as far as the engine would; what it covers is committed."""
        if not replica.acts_as_leader(me) or replica.high_watermark == replica.end:
            return replica, committed
        state = self._isr_state(replica)
        min_insync = replica.min_insync if self.rules.wall_stands else 0
        moved = next_high_watermark(
            state,
            leader_id=me,
            leader_end_offset=replica.end,
            leader_safe_offset=replica.durable if self.rules.leader_syncs else replica.end,
            replicas=[
                RemoteReplica(each, remote.log_end_offset)
                for each, remote in enumerate(replica.remote)
                if each != me
            ],
            eligible=frozenset(),
            min_insync=min_insync,
            now_ms=0,
            lag_time_max_ms=0,
        )
        if moved is None or moved <= replica.high_watermark:
            return replica, committed
        return replica._replace(high_watermark=moved), _commit(
            committed, replica.log[:moved], has_enough=len(state.maximal) >= min_insync
        )

    def _shrinks(self, me: int, replica: Replica) -> Iterator[tuple[str, Replica]]:
        """Whoever is not at the leader's end may be found to lag."""
        if not self.bounds.shrinks or not replica.acts_as_leader(me) or replica.pending is not None:
            return
        lagging = sorted(
            members_to_drop(
                CommittedIsr(frozenset(replica.isr)),
                me,
                {
                    each: RemoteReplica(each, remote.log_end_offset)
                    for each, remote in enumerate(replica.remote)
                },
                replica.end,
                0,
                LagBounds(0),
            )
        )
        for size in range(1, len(lagging) + 1):
            for removed in combinations(lagging, size):
                isr = tuple(each for each in replica.isr if each not in removed)
                yield (
                    f"{NAMES[me]} proposes ISR {names_of(isr)}",
                    replica._replace(pending=self._propose(me, replica, isr)),
                )

    def _propose(self, me: int, replica: Replica, isr: tuple[int, ...]) -> Proposal:
        epochs = tuple(
            replica.broker_epoch if each == me else replica.remote[each].broker_epoch for each in isr
        )
        return Proposal(replica.epoch, replica.partition_epoch, isr, epochs)

    def _proposal_arrives(self, me: int, store: Store, replica: Replica, committed: Committed) -> Steps:
        """The controller judges a proposal; its answer comes, or is lost (`alter_partitions`)."""
        pending, seen = replica.pending, store.view[me]
        if pending is None:
            return
        name, wanted = NAMES[me], names_of(pending.isr)
        if not self.rules.compare_and_set:
            yield from self._overwrites(me, pending, store, replica, committed)
            return
        if seen is None or seen.epoch != replica.broker_epoch:
            return
        verdict = alter_partition.judge(
            IsrProposal(*pending),
            store.state,
            store.version,
            IDS,
            sender=me,
            live=self._live(store),
            shutting_down=(),
            controller_epoch=_CONTROLLER_EPOCH,
        )
        if verdict.error is ErrorCode.INELIGIBLE_REPLICA and replica.is_up:
            yield (
                f"{name} hears that ISR {wanted} is refused",
                (
                    store,
                    replica._replace(pending=None),
                    committed,
                ),
            )
        if verdict.error is not ErrorCode.NONE:
            return
        following = store
        if verdict.write is not None:
            written = self._write(store, verdict.write)
            if written is None:
                return
            following = written
            yield f"ISR {wanted} of {name} is written, the answer is lost", (following, replica, committed)
        if replica.is_up and replica.epoch == following.state.leader_epoch:
            confirmed = self._confirmed(replica, following.state, following.version)
            yield (
                f"ISR {wanted} of {name} is written and confirmed",
                (
                    following,
                    *self._advance(me, confirmed, committed),
                ),
            )

    def _overwrites(
        self, me: int, pending: Proposal, store: Store, replica: Replica, committed: Committed
    ) -> Steps:
        """Without R7: the leader's idea of the state replaces whatever is there."""
        state = replace(
            store.state,
            leader=me,
            leader_epoch=pending.leader_epoch,
            isr=pending.isr,
            isr_broker_epochs=tuple(max(epoch, 0) for epoch in pending.broker_epochs),
        )
        if state == store.state or store.version >= self.bounds.versions:
            return
        written = store._replace(state=state, version=store.version + 1)
        confirmed = self._confirmed(replica, state, written.version) if replica.is_up else replica
        label = f"{NAMES[me]} writes epoch {state.leader_epoch}, ISR {names_of(state.isr)}"
        yield label, (written, *self._advance(me, confirmed, committed))

    @staticmethod
    def _confirmed(replica: Replica, state: LeaderAndIsr, version: int) -> Replica:
        return replica._replace(
            isr=state.isr, min_insync=state.min_insync, partition_epoch=version, pending=None
        )

    # --- one replica by itself ----------------------------------------------------------------

    def _lives(self, me: int, replica: Replica, budget: Budget, committed: Committed) -> Steps:
        """What one broker does or suffers without another one."""
        name = NAMES[me]
        if not replica.is_up:
            epoch = replica.broker_epoch + 1
            risen = replica._replace(
                is_up=True,
                broker_epoch=epoch,
                first_broker_epoch=epoch,
                pending=None,
                durable=replica.end if self._tracks_disk else 0,
            )
            yield f"{name} starts as {epoch}", (risen, budget, committed)
            return
        if replica.acts_as_leader(me) and budget.records:
            serial = self.bounds.records - budget.records
            appended = replica._replace(
                log=(*replica.log, Record(replica.epoch, serial)), latest_epoch=replica.epoch
            )
            advanced, covered = self._advance(me, appended, committed)
            spent = budget._replace(records=budget.records - 1)
            yield f"{name} appends a record of epoch {replica.epoch}", (advanced, spent, covered)
        for label, proposing in self._shrinks(me, replica):
            advanced, covered = self._advance(me, proposing, committed)
            yield label, (advanced, budget, covered)
        if self._tracks_disk and replica.durable < replica.end:
            advanced, covered = self._advance(me, replica._replace(durable=replica.end), committed)
            yield f"{name} syncs", (advanced, budget, covered)
        if budget.expiries and not replica.is_expired:
            spent = budget._replace(expiries=budget.expiries - 1)
            yield (
                f"the session of {name} ends, it does not know",
                (
                    replica._replace(is_expired=True),
                    spent,
                    committed,
                ),
            )
        if replica.is_expired:
            epoch = replica.broker_epoch + 1
            suspended = replica._replace(
                is_expired=False,
                broker_epoch=epoch,
                is_suspended=replica.is_suspended or replica.leader == me,
            )
            yield f"{name} hears that its session ended, registers as {epoch}", (suspended, budget, committed)
        if budget.stops:
            stopped = self._down(replica, replica.log, is_clean=replica.was_clean or replica.epoch >= 0)
            spent = budget._replace(stops=budget.stops - 1)
            yield f"{name} stops in order", (stopped, spent, committed)
        if not self.bounds.one_is_spared:
            for label, died, spent in self._deaths(me, replica, budget):
                yield label, (died, spent, committed)

    @property
    def _tracks_disk(self) -> bool:
        """At D0 nothing depends on a sync: any record may be lost to a power cut."""
        return self.rules.leader_syncs or self.rules.followers_sync

    def _deaths(self, me: int, replica: Replica, budget: Budget) -> Iterator[tuple[str, Replica, Budget]]:
        name = NAMES[me]
        if budget.kills:
            killed = self._down(replica, replica.log, is_clean=False)
            yield f"{name} is killed", killed, budget._replace(kills=budget.kills - 1)
        if budget.power_cuts:
            spent = budget._replace(power_cuts=budget.power_cuts - 1)
            for kept in range(replica.durable, replica.end + 1):
                lost = replica.end - kept
                yield (
                    f"{name} loses power" + (f" and the last {lost} of its log" if lost else ""),
                    self._down(replica, replica.log[:kept], is_clean=False),
                    spent,
                )

    def _down(self, replica: Replica, log: tuple[Record, ...], *, is_clean: bool) -> Replica:
        """A machine that is off; a proposal that it sent may still arrive."""
        return Replica(
            log=log,
            durable=len(log) if self._tracks_disk else 0,
            high_watermark=min(replica.high_watermark, len(log)),
            latest_epoch=log[-1].epoch if log else NO_EPOCH,
            is_up=False,
            was_clean=is_clean,
            broker_epoch=replica.broker_epoch,
            pending=None if self.bounds.one_is_spared else replica.pending,
        )

    def _dies_alone(
        self, me: int, other: int, store: Store, replica: Replica, spared: Replica, budget: Budget
    ) -> Steps:
        state = store.state
        if not replica.is_up or other not in state.isr or not spared.is_life(state.broker_epoch_of(other)):
            return
        if replica.pending is not None and other not in replica.pending.isr:
            return
        for label, died, spent in self._deaths(me, replica, budget):
            yield f"{label}, {NAMES[other]} is spared", (store, died, spared, spent)

    # --- leader and follower ------------------------------------------------------------------

    def _exchange(self, me: int, other: int, mine: Replica, theirs: Replica, committed: Committed) -> Steps:
        """Either replica asks the other one, which answers at once; the answer may be lost."""
        for label, (leader, follower, covered) in self._asks(other, me, theirs, mine, committed):
            yield label, (follower, leader, covered)
        for label, (leader, follower, covered) in self._asks(me, other, mine, theirs, committed):
            yield label, (leader, follower, covered)

    def _asks(
        self, leading: int, following: int, leader: Replica, follower: Replica, committed: Committed
    ) -> Iterator[tuple[str, tuple[Replica, Replica, Committed]]]:
        if not follower.is_up or follower.leader != leading:
            return
        names = f"{NAMES[following]} asks {NAMES[leading]}"
        if follower.is_truncating:
            if not leader.acts_as_leader(leading) or self._is_fenced(leader, follower.epoch):
                return
            answer = leader.end_of(follower.latest_epoch)
            if self.rules.reconcile is Reconcile.EPOCH_END:
                answer = answer._replace(epoch=UNDEFINED)
            cut, broken = self._reconcile(follower, answer)
            label = f"{names} where epoch {follower.latest_epoch} ends ({answer.end_offset}), keeps {cut.end}"
            yield label, (leader, cut, _with(committed, broken))
            return
        fetch = self._fetch(following, follower)
        if fetch is None:
            return
        served = self._serve(leading, leader, fetch, committed)
        if served is None:
            return
        counted, answer_, covered = served
        label = f"{NAMES[following]} fetches at {fetch.offset} from {NAMES[leading]}"
        yield f"{label}, the answer is lost", (counted, follower, covered)
        taken, broken = self._take(follower, answer_)
        yield f"{label}: {told(answer_)}", (counted, taken, _with(covered, broken))

    def _is_fenced(self, leader: Replica, epoch: int) -> bool:
        return self.rules.fetches_are_fenced and epoch != leader.epoch

    def _fetch(self, me: int, replica: Replica) -> Fetch | None:
        """What a follower asks for next; None while it may not."""
        if not replica.is_up or replica.leader in (NO_LEADER, me) or replica.is_truncating:
            return None
        if self.rules.followers_sync and replica.durable < replica.end:
            return None
        return Fetch(
            me, replica.leader, replica.epoch, replica.end, replica.latest_epoch, replica.broker_epoch
        )

    def _serve(
        self, me: int, leader: Replica, fetch: Fetch, committed: Committed
    ) -> tuple[Replica, FetchAnswer, Committed] | None:
        """A leader's answer and what it learned (`reading.read`, `record_fetch`); None for an error."""
        if not leader.acts_as_leader(me) or self._is_fenced(leader, fetch.epoch):
            return None
        if fetch.broker_epoch < leader.remote[fetch.follower].broker_epoch:
            return None
        answer = FetchAnswer(fetch, leader.high_watermark)
        if self.rules.reconcile is Reconcile.FETCH and fetch.latest_epoch != NO_EPOCH:
            divergence = divergence_of(
                fetch_offset=fetch.offset,
                last_fetched_epoch=fetch.latest_epoch,
                log_start_offset=0,
                end_of=leader.end_of(fetch.latest_epoch),
            )
            if divergence.is_out_of_range:
                return leader, answer._replace(leader_end=leader.end), committed
            if divergence.diverging is not None:
                return leader, answer._replace(diverging=divergence.diverging), committed
        if fetch.offset > leader.end:
            return leader, answer._replace(leader_end=leader.end), committed
        answer = answer._replace(records=leader.log[fetch.offset : fetch.offset + 1])
        remote = (
            *leader.remote[: fetch.follower],
            Remote(fetch.offset, fetch.broker_epoch),
            *leader.remote[fetch.follower + 1 :],
        )
        counted = leader._replace(remote=remote)
        if counted.pending is None and may_join(
            RemoteReplica(fetch.follower, fetch.offset, 0, broker_epoch=fetch.broker_epoch),
            CommittedIsr(frozenset(counted.isr)),
            high_watermark=counted.high_watermark,
            epoch_start_offset=counted.epoch_start if self.rules.epoch_start_gate else 0,
            is_alive=True,
        ):
            isr = tuple(sorted((*counted.isr, fetch.follower)))
            counted = counted._replace(pending=self._propose(me, counted, isr))
        advanced, covered = self._advance(me, counted, committed)
        return advanced, answer, covered

    def _take(self, follower: Replica, answer: FetchAnswer) -> tuple[Replica, str]:
        """A follower with an answer to what it asked (`Followers._on_fetched`)."""
        if answer.leader_end != UNDEFINED:
            return _checked_cut(follower, min(answer.leader_end, follower.end))
        if answer.diverging is not None:
            return self._reconcile(follower, answer.diverging)
        taken = follower
        if answer.records:
            epoch = answer.records[-1].epoch
            if self.rules.fetches_are_fenced and epoch > follower.epoch:
                return follower, ""
            taken = follower._replace(log=follower.log + answer.records, latest_epoch=epoch)
        return taken._replace(high_watermark=min(answer.high_watermark, taken.end)), ""

    def _reconcile(self, follower: Replica, answer: EpochEndOffset) -> tuple[Replica, str]:
        decision = truncation_for(
            answer,
            log_end_offset=follower.end,
            high_watermark=follower.high_watermark,
            own_end_of=follower.end_of,
        )
        cut, broken = _checked_cut(follower, decision.offset)
        is_done = decision.is_final or cut.latest_epoch == NO_EPOCH
        return cut._replace(is_truncating=follower.is_truncating and not is_done), broken

    # --- late messages ------------------------------------------------------------------------

    def _hears_late(self, me: int, replica: Replica, late: Late, committed: Committed) -> Steps:
        """One request and one answer may be under way for as long as they like."""
        fetch, answer = late
        mine = self._fetch(me, replica)
        if mine is not None and fetch is None:
            yield (
                f"{NAMES[me]} fetches at {mine.offset} from {NAMES[mine.leader]}: the request will be late",
                (replica, late._replace(fetch=mine), committed),
            )
        if fetch is not None and fetch.leader == me:
            served = self._serve(me, replica, fetch, committed)
            if served is not None:
                counted, fresh, covered = served
                label = f"the late fetch of {NAMES[fetch.follower]} reaches {NAMES[me]}"
                yield f"{label}, its answer is lost", (counted, late._replace(fetch=None), covered)
                if answer is None:
                    yield f"{label}, its answer will be late", (counted, Late(None, fresh), covered)
        if answer is not None and answer.fetch.follower == me:
            label, heard = f"the late answer reaches {NAMES[me]}", late._replace(answer=None)
            if mine != answer.fetch:
                yield f"{label}, which has moved on", (replica, heard, committed)
                return
            taken, broken = self._take(replica, answer)
            yield f"{label}: {told(answer)}", (taken, heard, _with(committed, broken))

    # --- invariants ---------------------------------------------------------------------------

    def _holds(self, me: int, store: Store, committed: Committed, replica: Replica) -> str:
        """What must be true of the store, of what is committed, and of one replica."""
        lost = _holds_what_is_committed(me, store, committed, replica)
        return committed.broken or self._state_node(store) or lost

    def _state_node(self, store: Store) -> str:
        state = store.state
        if not state.isr or state.leader not in (NO_LEADER, *state.isr):
            return "I11: the leader is not in its ISR"
        is_lost = all(epoch == LOST_BROKER_EPOCH for epoch in state.isr_broker_epochs)
        if self.bounds.comes_back and state.leader == NO_LEADER and is_lost:
            return "offline: every ISR member may have lost records, the partition waits for its operator"
        return ""


def _commit(committed: Committed, records: tuple[Record, ...], *, has_enough: bool) -> Committed:
    if not has_enough:
        return committed._replace(broken="I13: acknowledged with too few in-sync replicas")
    both = min(len(records), len(committed.records))
    if records[:both] != committed.records[:both]:
        return committed._replace(broken="I5: another record is committed where one was committed before")
    return committed if both == len(records) else committed._replace(records=records)


def _with(committed: Committed, broken: str) -> Committed:
    return committed._replace(broken=broken) if broken else committed


def _checked_cut(replica: Replica, offset: int) -> tuple[Replica, str]:
    below = offset < replica.high_watermark
    return replica.cut(offset), "I15: a log is cut below its own high watermark" if below else ""


def _holds_what_is_committed(me: int, store: Store, committed: Committed, replica: Replica) -> str:
    state = store.state
    if replica.log[: len(committed.records)] == committed.records:
        return ""
    if replica.acts_as_leader(me) and state.leader == me and replica.epoch == state.leader_epoch:
        return f"I5: {NAMES[me]} leads without a committed record"
    # A member that is not the life on record is none any more, it is only not noticed yet.
    if me in state.isr and replica.is_life(state.broker_epoch_of(me)):
        return f"I6: {NAMES[me]} is in the ISR without a committed record"
    if replica.is_life(dict(state.eligible).get(me, -1)):
        return f"I6: {NAMES[me]} is eligible without a committed record"
    return ""


def _one_history(me: int, other: int, mine: Replica, theirs: Replica) -> str:
    if mine.acts_as_leader(me) and theirs.acts_as_leader(other) and mine.epoch == theirs.epoch:
        return f"I2: {NAMES[me]} and {NAMES[other]} lead in one epoch"
    agree = True
    for left, right in zip(mine.log, theirs.log, strict=False):
        agree = agree and left == right
        if left.epoch == right.epoch and not agree:
            return f"I4: {NAMES[me]} and {NAMES[other]} differ at or below a record of one epoch"
    return ""


def _undelivered(
    late: tuple[Announcement, ...], broker: int, up_to_epoch: int | None
) -> tuple[Announcement, ...]:
    """Without what this broker would refuse from now on: all of it, or what is no news any more."""
    left = []
    for each in late:
        if up_to_epoch is None or each.state.leader_epoch <= up_to_epoch:
            addressed = (*each.addressed[:broker], -1, *each.addressed[broker + 1 :])
            each = each._replace(addressed=addressed)
        if max(each.addressed) >= 0:
            left.append(each)
    return tuple(left)
