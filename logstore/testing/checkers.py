"""The invariants of one partition, whatever the faults. Pure.

The checkers are handed observations and raise `Violation`. They know no world, no node and no file, so a
test can hand them a history made by hand. The invariants:

    C1  one leader accepts writes for each (partition, epoch)   C5  a refused send never appears,
    C2  epochs never go back                                        nothing is invented
    C3  replicas agree below any high watermark                 C6  offsets have no gaps, a record is
    C4  a record acknowledged with acks=all is never lost           committed once
    C7  high watermark ≤ log end of every ISR member, never falls; nothing above it is served
    C8  a consumer sees rising offsets, without gaps, and the same bytes for ever
    C10 an idempotent producer's batches are committed without a gap, and once
    C11 a leader that is superseded, or whose session is over, acknowledges nothing, except what it learned
        from the leader that replaced it
    C12 the store's writes are fenced by the controller epoch, which never goes back (controller_checks.py)
    C13 leader ∈ ISR ⊆ replicas, written by fenced conditional writes only
    C14 every ISR member holds all committed batches
    C16, C17, I1–I7 one replica's files and memory (recovery_checks.py)
    C18 the cluster heals in time (runner.py)
    C21 a broker that completed its controlled shutdown leads nothing that others could lead, and joins no ISR
    C22 no ISR member serves records that DeleteRecords removed; no replica joins the ISR with records that
        its leader has deleted, which cannot be compared with anything
    C23 a batch that the current leader holds is not answered with NOT_LEADER_OR_FOLLOWER by its predecessor
    C26 a leader's receipt names no more disks than hold the record (observation.py)
    I16 logs are where the store assigns them (observation.py)

After an unclean election, claims of leaders of older epochs are void, and records acknowledged above the cut
are counted as declared lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence

from logstore.replication.messages import NO_LEADER
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.testing.histories import Committed, History
from logstore.testing.stored import ConsumerView, ReplicaView, Stored, Violation, base_of, find, name_of


class PartitionChecker:
    """Checks the invariants of one partition over a whole run.

    `unclean_allowed` returns whether an election outside the ISR is allowed now. `incarnation` returns the
    broker epoch that a node is registered with, -1 for none: an ISR member is judged only while it is the
    process that the store names.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[int],
        *,
        min_insync: int = 1,
        unclean_allowed: Callable[[], bool] = lambda: False,
        incarnation: Callable[[int], int] = lambda node: -1,
    ) -> None:
        self.name = name
        self.replicas = tuple(replicas)
        self._adding: tuple[int, ...] = ()
        self.asks_for(min_insync)
        self.unclean_allowed = unclean_allowed
        self.incarnation = incarnation
        self.state: LeaderAndIsr | None = None
        self.version = -1
        self.is_changing_replicas = False
        """A reassignment is under way."""
        self.is_being_deleted = False
        self.is_deleted_by_hand = False
        """Deletion requests may come and go unseen: a deletion that began continues if one is withdrawn."""
        self.is_retired = False
        """Its topic is deleted: nothing is promised any more."""
        self.topic_id = ""
        self.unclean_elections = 0
        self.acked: dict[int, bytes] = {}
        self.declared_lost = 0
        self.log_start = 0
        """The highest log start offset of any replica so far."""
        self.views: dict[int, ReplicaView] = {}
        self._committed = Committed(name)
        self._history = History(name)
        self._owners: dict[int, tuple[int, int]] = {}
        self._acted: set[int] = set()
        self._leader_watermarks: dict[tuple[int, int, int], int] = {}
        self._newest_epochs: dict[tuple[int, int], int] = {}
        self._unclean_epoch = -1
        self._deleted: dict[int, int] = {}
        """By leader epoch, the highest low watermark of an answered deletion: no leader of that or a later
        epoch brings the records below it back. One of an older epoch that wakes late may not know it."""
        self.is_cut_due = False
        """An unclean election happened, and its leader has not acted yet."""

    def _fail(self, invariant: str, message: str) -> None:
        raise Violation(invariant, f"{self.name}: {message}")

    @property
    def committed(self) -> Sequence[Stored]:
        """Every batch that any leader's high watermark has covered."""
        return self._committed.batches

    @property
    def committed_end(self) -> int:
        """One past the last offset that any leader reported as committed."""
        return self._committed.end

    @property
    def floor(self) -> int | None:
        """The lowest offset that an unclean election cut to; None: there was none."""
        return self._committed.floor

    @property
    def acting_leader(self) -> int | None:
        """The leader according to the store, if that node acts as the leader."""
        view = self.views.get(self.state.leader) if self.state is not None else None
        if self.state is None or view is None or not view.is_leader:
            return None
        return view.node if view.leader_epoch == self.state.leader_epoch else None

    @property
    def is_in_sync(self) -> bool:
        """Fully replicated and quiescent: led, all replicas in the ISR, equal, and wholly committed."""
        if self.acting_leader is None or self.state is None or set(self.state.isr) != set(self.replicas):
            return False
        if self.is_changing_replicas or self.is_being_deleted:
            return False
        views = [self.views.get(replica) for replica in self.replicas]
        ends = {(view.log_end, view.high_watermark) for view in views if view is not None}
        end, high_watermark = next(iter(ends), (0, -1))
        return None not in views and len(ends) == 1 and end == high_watermark

    # --- the store ----------------------------------------------------------------------------

    def assigned(self, replicas: Sequence[int], adding: Sequence[int] = ()) -> None:
        """The store has a new replica list; replicas that are being added need not be in sync."""
        self.replicas, self._adding = tuple(replicas), tuple(adding)
        self.asks_for(self._min_insync)

    def asks_for(self, min_insync: int) -> None:
        """acks=all needs this many in-sync replicas from now on."""
        self._min_insync = min_insync
        self.min_insync = min(min_insync, max(len(self.replicas) - len(self._adding), 1))

    def judge_assignment(self) -> None:
        """Call this after each write of the topic node, once a state written with it is known too."""
        if self.state is not None and not set(self.state.isr) <= set(self.replicas):
            self._fail("C13", f"the ISR {self.state.isr} is not among the new replicas {self.replicas}")

    def state_written(
        self,
        state: LeaderAndIsr,
        version: int,
        *,
        expected_version: int | None,
        controller_epoch: int,
        departing: Collection[int] = (),
    ) -> None:
        """The state node was written.

        `expected_version` was the condition (None: it was created), `controller_epoch` the content of
        `/controller_epoch` at that moment. `departing` are the brokers in controlled shutdown, as far as
        the writer knows.
        """
        old = self.state
        if state.leader != NO_LEADER and state.leader not in state.isr:
            self._fail("C13", f"leader {state.leader} is not in the ISR {state.isr}")
        if not state.isr or not set(state.isr) <= set(self.replicas):
            self._fail("C13", f"ISR {state.isr} is empty or not among the replicas {self.replicas}")
        if old is not None:
            if expected_version != self.version:
                self._fail("C13", f"version {self.version} was overwritten on condition {expected_version}")
            if state.leader_epoch < old.leader_epoch:
                self._fail("C2", f"leader epoch went from {old.leader_epoch} to {state.leader_epoch}")
            if state.leader != old.leader and state.leader_epoch == old.leader_epoch:
                self._fail(
                    "C2", f"epoch {state.leader_epoch} got a second leader {state.leader} after {old.leader}"
                )
        if state.controller_epoch != controller_epoch and (
            old is None or state.controller_epoch != old.controller_epoch
        ):
            self._fail(
                "C13", f"controller {state.controller_epoch} wrote after {controller_epoch} was elected"
            )
        joined = [member for member in state.isr if old is not None and member not in old.isr]
        if back := [member for member in joined if member in departing]:
            self._fail("C21", f"{back} shut down and joined the ISR {state.isr}")
        if old is not None and _is_unclean(old, state):
            if not self.unclean_allowed():
                self._fail("C13", f"{state.leader} was elected from outside the ISR {old.isr}")
            self.unclean_elections += 1
            self._unclean_epoch = state.leader_epoch
            self.is_cut_due = True
        self.state, self.version = state, version
        self._judge_members(state)

    def _judge_members(self, state: LeaderAndIsr) -> None:
        """Every in-sync or eligible process that is still that process holds all committed batches."""
        if self.is_cut_due or not self.committed:
            return
        last = self.committed[-1]
        for member, broker_epoch in (
            *((member, state.broker_epoch_of(member)) for member in state.isr),
            *state.eligible,
        ):
            view = self.views.get(member)
            if view is None or self.incarnation(member) != broker_epoch:
                continue
            if view.log_end < last.end:
                self._fail("C7", f"the ISR is {state.isr}, {last.end} is committed; {view}")
            if last.base >= view.log_start and name_of(view.holding(last.base)) != name_of(last):
                self._fail("C14", f"a member of the ISR {state.isr} holds uncommitted records; {view}")

    # --- replicas -----------------------------------------------------------------------------

    def replica_changed(
        self, view: ReplicaView, *, first_new: int, cut_to: int | None = None, high_watermark_before: int = 0
    ) -> None:
        """A replica shows new batches from slot `first_new` on, after a truncation to `cut_to`, if any."""
        self.views[view.node] = view
        if not 0 <= view.log_start <= view.high_watermark <= view.log_end:
            self._fail("C7", f"bounds out of order, log start {view.log_start}; {view}")
        self.log_start = max(self.log_start, view.log_start)
        newest = self._newest_epochs.get((view.node, view.life), -1)
        if view.leader_epoch < newest:
            self._fail("C2", f"went back from epoch {newest}; {view}")
        self._newest_epochs[view.node, view.life] = view.leader_epoch
        self._judge_batches(view, first_new)
        if view.is_leader:
            self._judge_leader(view, first_new)
        self._judge_watermark(view)
        # A leader holds everything committed: no follower gives up any of it to agree with its leader.
        is_below = cut_to is not None and cut_to < high_watermark_before
        if is_below and self.floor is None and not self.is_cut_due:
            self._fail(
                "C3", f"truncated to {cut_to}, below its high watermark {high_watermark_before}; {view}"
            )

    def _judge_batches(self, view: ReplicaView, first_new: int) -> None:
        batches = view.batches
        for slot in range(first_new, len(batches)):
            batch = batches[slot]
            previous = batches[slot - 1] if slot else None
            if previous is not None and batch.base != previous.end:
                self._fail("C6", f"offset {batch.base} follows {previous.end - 1}; {view}")
            if previous is not None and batch.epoch < previous.epoch:
                self._fail("C2", f"epoch {batch.epoch} after {previous.epoch} at {batch.base}; {view}")
            if batch.epoch > view.leader_epoch >= 0:
                self._fail("C2", f"offset {batch.base} has epoch {batch.epoch}, not known here yet; {view}")
            self._history.append(batch, previous, view)

    def _judge_leader(self, view: ReplicaView, first_new: int) -> None:
        epoch = view.leader_epoch
        owner = self._owners.setdefault(epoch, (view.node, view.life))
        if owner[0] != view.node:
            self._fail("C1", f"epoch {epoch} is led by node {owner[0]} and by {view}")
        if owner[1] != view.life and first_new < len(view.batches):
            appended = view.batches[first_new]
            if appended.epoch == epoch:
                self._fail("C1", f"continues an epoch of its former life at {appended.base}; {view}")
        if epoch not in self._acted:
            self._acted.add(epoch)
            if epoch >= self._unclean_epoch:
                if self.is_cut_due:
                    self.is_cut_due = False
                    self._deleted = {each: min(to, view.log_start) for each, to in self._deleted.items()}
                    end = self._committed.cut(view)
                    lost = [base for base in self.acked if base >= end]
                    for base in lost:
                        del self.acked[base]
                    self.declared_lost += len(lost)
                if (newest := self._committed.newest_before(epoch)) is not None:
                    self._check_holds(view, newest)
                deleted = max((to for each, to in self._deleted.items() if each <= epoch), default=0)
                if view.log_start < deleted:
                    text = f"leads with records from {view.log_start} on, deleted up to {deleted}"
                    self._fail("C22", f"{text}; {view}")
        key = view.node, view.life, epoch
        known = self._leader_watermarks.get(key, -1)
        if view.high_watermark < known:
            self._fail("C7", f"a leader's high watermark fell from {known}; {view}")
        if view.high_watermark > known:
            self._leader_watermarks[key] = view.high_watermark
            self._watermark_rose(view)

    def _check_holds(self, view: ReplicaView, batch: Stored) -> None:
        if batch.base >= view.log_start and name_of(view.holding(batch.base)) != name_of(batch):
            self._fail(
                "C4",
                f"offset {batch.end - 1} of epoch {batch.epoch} was committed, but its leader now holds "
                f"{name_of(view.holding(batch.base))} there; {view}",
            )

    def _watermark_rose(self, view: ReplicaView) -> None:
        if view.leader_epoch < self._unclean_epoch:
            return
        end = self.committed_end
        if view.high_watermark > end:
            slot = bisect_right(view.batches, end, key=base_of) - 1
            for batch in view.batches[max(slot, 0) :]:
                if batch.end > view.high_watermark:
                    break
                if batch.base >= end:
                    self._committed.append(batch, view, self.log_start)
            for other in self.views.values():
                if self.committed and other.is_leader and other.leader_epoch > view.leader_epoch:
                    self._check_holds(other, self.committed[-1])
        if self.state is not None:
            self._judge_members(self.state)

    def _judge_watermark(self, view: ReplicaView) -> None:
        """Check that the high watermark covers only committed batches, except in an abandoned history."""
        believed, end = view.high_watermark, self.committed_end
        if self.is_cut_due:
            return
        if believed > max(end, view.log_start):
            mine = view.holding(believed - 1)
            if mine is not None and mine.epoch >= self._unclean_epoch:
                self._fail("C7", f"no leader ever committed more than {end}; {view}")
        bound = min(believed, end)
        if bound <= view.log_start:
            return
        mine = view.holding(bound - 1)
        if name_of(mine) == name_of(find(self.committed, bound - 1)):
            return
        if self.floor is not None and mine is not None and mine.epoch < self._unclean_epoch:
            return  # the history that an unclean election gave up; the next fetch truncates it
        self._fail(
            "C3", f"below the high watermark, offset {bound - 1} differs from what was committed; {view}"
        )

    def replica_deleted(self, node: int) -> None:
        """A running process deleted its log: no ISR member may delete its log."""
        state = self.state
        if (
            state is not None
            and not (self.is_being_deleted or self.is_deleted_by_hand)
            and node in state.isr
            and self.incarnation(node) == state.broker_epoch_of(node)
        ):
            self._fail("C14", f"node {node} is in the ISR {state.isr} and deleted its log")
        self.replica_gone(node)

    def proposed(self, leader: ReplicaView, member: int, broker_epoch: int) -> None:
        """A leader proposes this incarnation of a follower for the ISR, and counts it from now on."""
        view = self.views.get(member)
        if view is None or self.incarnation(member) != broker_epoch:
            return
        if view.log_start < leader.log_start:
            self._fail("C22", f"about to join the ISR with records from before {leader.log_start}; {view}")

    def shutdown_allowed(self, node: int, remaining: Collection[str]) -> None:
        """The controller answered a broker's shutdown: `remaining` are the partitions that it still leads."""
        state = self.state
        if (
            state is not None
            and state.leader == node
            and len(self.replicas) > 1
            and not self.is_being_deleted
            and self.name not in remaining
        ):
            self._fail("C21", f"node {node} was allowed to stop, but leads at {state.leader_epoch}")

    def records_deleted(self, low_watermark: int, is_registered: Callable[[int, int], bool]) -> None:
        """DeleteRecords was answered: no live ISR member serves anything below `low_watermark`.

        `is_registered` tells whether a node is alive with a broker epoch.
        """
        state = self.state
        if state is None:
            return
        if not self.is_cut_due:
            known = self._deleted.get(state.leader_epoch, 0)
            self._deleted[state.leader_epoch] = max(known, low_watermark)
        for member, epoch in zip(state.isr, state.isr_broker_epochs, strict=True):
            view = self.views.get(member)
            if view is None or not is_registered(member, epoch) or self.incarnation(member) != epoch:
                continue
            if view.log_start < low_watermark:
                self._fail("C22", f"deleted up to {low_watermark}, starts at {view.log_start}; {view}")

    def replica_gone(self, node: int) -> None:
        """The process ended; its log is not judged until it is back."""
        self.views.pop(node, None)

    # --- clients ------------------------------------------------------------------------------

    def sent(self, identity: bytes) -> None:
        """A producer is about to send this."""
        self._history.sent.add(identity)

    def succeeds(self, other: PartitionChecker) -> None:
        """`other` judged a deleted topic of the same name: late sends to it may arrive here."""
        theirs = other._history
        self._history.sent |= theirs.sent - theirs.appended
        self._history.refused |= theirs.refused

    def acknowledged(
        self,
        identity: bytes,
        base_offset: int,
        view: ReplicaView,
        *,
        isr_size: int,
        is_leader: bool,
        is_registered: bool = True,
        is_learned: bool = False,
    ) -> None:
        """A leader acknowledged acks=all; `isr_size` is the size of its maximal ISR.

        A node that knows it is not registered leads nothing: others may lead in its place. `is_learned`: it
        led when it appended, and follows a leader whose log it has compared with its own.
        """
        if not is_learned and (not is_leader or not is_registered):
            self._fail("C11", f"offset {base_offset} was acknowledged by a superseded leader; {view}")
        if view.leader_epoch < self._unclean_epoch:
            self.declared_lost += 1
            return
        if not is_learned and isr_size < self.min_insync:
            self._fail("C4", f"acknowledged by {isr_size} replicas, {self.min_insync} required; {view}")
        batch = find(self.committed, base_offset)
        if batch is None or batch.base != base_offset or batch.identity != identity:
            self._fail("C4", f"offset {base_offset} was acknowledged but is not committed; {view}")
        self.acked[base_offset] = identity

    def refused(self, identity: bytes) -> None:
        """A send that was tried once failed with an error that guarantees that nothing was appended."""
        if identity in self._history.appended:
            self._fail("C5", "a send was refused but appended")
        self._history.refused.add(identity)

    def served(self, view: ReplicaView, batches: Sequence[Stored]) -> None:
        """A replica answered a consumer with these batches."""
        if batches and batches[-1].end > view.high_watermark:
            self._fail("C7", f"offset {batches[-1].end - 1} was served to a consumer; {view}")

    def consumed(
        self, consumer: ConsumerView, wanted: int, batches: Sequence[Stored], *, leader_epoch: int
    ) -> None:
        """A consumer that asked for `wanted` in its leader's epoch got these; its position moves on."""
        if leader_epoch < self._unclean_epoch or self.is_cut_due:
            return
        position = consumer.position
        if wanted != position:
            return
        for number, batch in enumerate(batches):
            if batch.base > position or (number and batch.base != position):
                self._fail("C8", f"a consumer at {position} got offset {batch.base}: some were skipped")
            if batch.end <= position:
                self._fail("C8", f"a consumer at {position} got offset {batch.base} again")
            if find(self.committed, batch.base) != batch:
                self._fail("C8", f"a consumer got another record at {batch.base} than was committed")
            position = batch.end
        consumer.position = position

    # --- the end ------------------------------------------------------------------------------

    def read_back(self, batches: Sequence[Stored]) -> None:
        """The whole log, as read from the healed cluster at the end."""
        start = batches[0].base if batches else self.log_start
        if start > self.log_start:
            self._fail("C4", f"read from {start}, but no log starts above {self.log_start}")
        committed = [batch for batch in self.committed if batch.end > start]
        if len(batches) < len(committed):
            self._fail("C4", f"{len(committed)} batches were committed, only {len(batches)} can be read")
        for batch, agreed in zip(batches, committed, strict=False):
            if batch != agreed:
                self._fail("C4", f"the batch at {agreed.base} differs from what was committed")
        for base, identity in self.acked.items():
            found = find(batches, base)
            if base >= start and (found is None or found.base != base or found.identity != identity):
                self._fail("C4", f"the batch acknowledged at {base} is missing")


def judge_disowned(checker: PartitionChecker, identity: bytes, view: ReplicaView) -> None:
    """A send that was tried once was answered with NOT_LEADER_OR_FOLLOWER.

    The client sends it again; behind a later batch that met a gap, under a new producer epoch. So the leader
    that both the node and the store know must not hold it.
    """
    state = checker.state
    leader = checker.views.get(state.leader) if state is not None else None
    if state is None or leader is None or checker.is_cut_due:
        return
    is_settled = view.leader_epoch == leader.leader_epoch == state.leader_epoch and leader.is_leader
    if is_settled and any(batch.identity == identity for batch in leader.batches):
        raise Violation("C23", f"{checker.name}: answered as led elsewhere, and {leader} holds it; {view}")


def _is_unclean(old: LeaderAndIsr, state: LeaderAndIsr) -> bool:
    """Whether the new state elects a leader that may lack committed records."""
    if state.leader == NO_LEADER or state.leader_epoch == old.leader_epoch:
        return False
    on_record = dict(old.eligible) | dict(zip(old.isr, old.isr_broker_epochs, strict=True))
    if state.leader not in on_record:
        return True
    # A member that came back with a loss counts as outside; the mark stays while it leads on.
    return state.recovering and state.broker_epoch_of(state.leader) != on_record[state.leader]
