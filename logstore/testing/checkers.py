"""What must hold, whatever the faults: judges of what replicas, store and clients show. Pure.

The checkers are handed observations and raise `Violation`; they know no world, no node and no file, so a
test can hand them a history made by hand. Names of invariants, from the reliability plan:

    C1  one accepting broker for each (partition, epoch)   C5  failed sends never appear, nothing is invented
    C2  epochs never go back                               C6  offsets dense, a record committed once
    C3  replicas agree below any high watermark            C7  high watermark ≤ ends of the ISR, monotone;
    C4  what was acknowledged by acks=all is never lost        nothing above it is served
    C8  a consumer sees offsets rise, none skipped, and the same bytes for ever
    C10 a producer's numbers are committed without a gap, and once
    C11 a leader that is superseded, or whose session is over, acknowledges nothing
    C12 the store's writes are fenced by the controller's epoch, which never goes back; nor do its words
    C13 leader ∈ ISR ⊆ replicas, by fenced conditional writes only
    C14 whoever the store calls in sync holds all that is committed
    C16 what is remembered of epochs and producers is what the log says
    C17 nothing grows that nobody waits for                 C18 it heals in time
    C21 a broker that was let go leads nothing that others could lead, and joins no ISR
    C22 records that were said to be deleted are served by nobody in sync; nobody joins with what its leader
        has deleted, which can be compared with nothing
    I1–I7 what a restart finds on the disk it was left      I16 logs are where the store assigns them

Three facts carry most of the weight. `history`: a batch is named by (base offset, leader epoch), and that
name fixes its bytes *and* the batch before it, on every replica and for ever; hence two logs that agree
on one batch agree on all below it, and comparing logs is comparing one name. `committed`: every batch that
any leader's high watermark has ever covered; it only grows. And an election outside the ISR, where
allowed, cuts `committed` to what the new leader holds: `floor` is the lowest such cut. What leaders of
older epochs claim after that is void, and records acknowledged above the cut are declared lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from logstore.log.producer_state import ProducerEntry, ProducerStateConfig
from logstore.replication.messages import NO_LEADER
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.segment.epochs import EpochEntry

_HEADER = Struct(">qiiBiHi")
_PRODUCER = Struct(">qhi")
_PRODUCER_AT = 43
_TIME = Struct(">q")
_MAX_TIMESTAMP_AT = 35
_FORGOTTEN_AFTER_MS = ProducerStateConfig().producer_id_expiration_ms
_NOBODYS = -1
_OVERHEAD = 12
_UNSIGNED = 17  # the first bytes of a batch are its place in a log, not its content


_FENCED = (f"{layout.TOPICS_PATH}/", f"{layout.TOPIC_CONFIGS_PATH}/")


class Violation(Exception):
    """An invariant does not hold. `invariant` is its name, the message says who did what."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
        self.message = message


class Stored(NamedTuple):
    """A batch as it lies in a log: offsets [base, end), the leader epoch, all of its bytes."""

    base: int
    end: int
    epoch: int
    data: bytes

    @property
    def identity(self) -> bytes:
        """What its producer sent: everything but offset, length and epoch."""
        return self.data[_UNSIGNED:]

    @property
    def max_timestamp(self) -> int:
        """The latest of its records' times, epoch milliseconds."""
        (found,) = _TIME.unpack_from(self.data, _MAX_TIMESTAMP_AT)
        assert isinstance(found, int)
        return found

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Producer id, producer epoch and first sequence; -1 each for a batch without numbers."""
        producer_id, epoch, sequence = _PRODUCER.unpack_from(self.data, _PRODUCER_AT)
        return producer_id, epoch, sequence


def parse(data: bytes) -> list[Stored]:
    """The batches that lie end to end in `data`; checks nothing but that they are whole."""
    found = []
    at, size = 0, len(data)
    while at < size:
        base, length, epoch, _, _, _, delta = _HEADER.unpack_from(data, at)
        end = at + _OVERHEAD + length
        assert end <= size, "a torn batch where whole ones are promised"
        found.append(Stored(base, base + delta + 1, epoch, data[at:end]))
        at = end
    return found


@dataclass(slots=True, eq=False)
class ReplicaView:
    """A replica as it shows itself; kept up to date by whoever observes it."""

    node: int
    life: int = 0
    leader_epoch: int = -1
    is_leader: bool = False
    log_start: int = 0
    high_watermark: int = 0
    log_end: int = 0
    batches: list[Stored] = field(default_factory=list)
    topic_id: str = ""

    def holding(self, offset: int) -> Stored | None:
        """The batch that holds `offset`."""
        return find(self.batches, offset)

    def __str__(self) -> str:
        role = "leads" if self.is_leader else "follows"
        return (
            f"node {self.node} ({role} at epoch {self.leader_epoch}, high watermark {self.high_watermark}, "
            f"end {self.log_end})"
        )


def find(batches: Sequence[Stored], offset: int) -> Stored | None:
    """The batch that holds `offset`, among batches in offset order."""
    slot = bisect_right(batches, offset, key=_base) - 1
    return batches[slot] if slot >= 0 and offset < batches[slot].end else None


def _base(batch: Stored) -> int:
    return batch.base


@dataclass(slots=True)
class ConsumerView:
    """A consumer's session: where it reads on."""

    position: int = 0


def _nobody(node: int) -> int:
    return -1


class PartitionChecker:
    """Everything that must hold for one partition over a whole run.

    `unclean_allowed` says whether an election outside the ISR may happen now. `incarnation` gives the
    broker epoch that a node is registered as, -1 for none: an ISR member is judged only while it is
    the very process that the store names.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[int],
        *,
        min_insync: int = 1,
        unclean_allowed: Callable[[], bool] = lambda: False,
        incarnation: Callable[[int], int] = _nobody,
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
        """Requests to delete it may come and go unseen: what had begun goes on when one is called off."""
        self.is_retired = False
        """Its topic is deleted: nothing is promised any more."""
        self.topic_id = ""
        self.committed: list[Stored] = []
        self.floor: int | None = None
        self.unclean_elections = 0
        self.acked: dict[int, bytes] = {}
        self.declared_lost = 0
        self.log_start = 0
        """The highest log start offset of any replica so far."""
        self.views: dict[int, ReplicaView] = {}
        self._commit_epochs: list[int] = []
        self._committed_ids: dict[bytes, int] = {}
        self._next_sequences: dict[tuple[int, int], tuple[int, int]] = {}
        """By producer id and epoch: the sequence that comes next, and the last offset so far."""
        self._history: dict[tuple[int, int], tuple[bytes, tuple[int, int] | None]] = {}
        self._owners: dict[int, tuple[int, int]] = {}
        self._acted: set[int] = set()
        self._leader_watermarks: dict[tuple[int, int, int], int] = {}
        self._newest_epochs: dict[tuple[int, int], int] = {}
        self._sent: set[bytes] = set()
        self._refused: set[bytes] = set()
        self._appended: set[bytes] = set()
        self._unclean_epoch = -1
        self._cut_is_due = False

    def _fail(self, invariant: str, message: str) -> None:
        raise Violation(invariant, f"{self.name}: {message}")

    @property
    def committed_end(self) -> int:
        """One past the last offset that any leader claimed to be committed."""
        return self.committed[-1].end if self.committed else 0

    @property
    def acting_leader(self) -> int | None:
        """The node that the store calls the leader, if it acts as such."""
        view = self.views.get(self.state.leader) if self.state is not None else None
        if self.state is None or view is None or not view.is_leader:
            return None
        return view.node if view.leader_epoch == self.state.leader_epoch else None

    @property
    def is_in_sync(self) -> bool:
        """It is led, its replicas are all in the ISR, equal and wholly committed, and nothing goes on."""
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
        """The store names these as its replicas from now on; those that are `adding` need not be in sync."""
        self.replicas, self._adding = tuple(replicas), tuple(adding)
        self.asks_for(self._min_insync)

    def asks_for(self, min_insync: int) -> None:
        """So many have to be in sync for an acks=all."""
        self._min_insync = min_insync
        self.min_insync = min(min_insync, max(len(self.replicas) - len(self._adding), 1))

    def judge_assignment(self) -> None:
        """The topic node was written, and the state with it if that was to change too."""
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
        """The state node was written: `expected_version` is the condition (None: it was created),
        `controller_epoch` what `/controller_epoch` said at that moment. `departing` are the brokers that
        shut down, as far as the writer knows."""
        old = self.state
        if state.leader != NO_LEADER and state.leader not in state.isr:
            self._fail("C13", f"leader {state.leader} is not in the ISR {state.isr}")
        if not state.isr or not set(state.isr) <= set(self.replicas):
            self._fail("C13", f"ISR {state.isr} is empty or not among the replicas {self.replicas}")
        if old is not None:
            if expected_version != self.version:
                self._fail("C13", f"written over version {self.version} on condition {expected_version}")
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
                "C13", f"controller {state.controller_epoch} wrote while {controller_epoch} had been elected"
            )
        joined = [member for member in state.isr if old is not None and member not in old.isr]
        if back := [member for member in joined if member in departing]:
            self._fail("C21", f"{back} shut down and were taken into the ISR {state.isr}")
        self._judge_election(old, state)
        self.state, self.version = state, version
        self._judge_members(state)

    def _judge_election(self, old: LeaderAndIsr | None, state: LeaderAndIsr) -> None:
        if old is None or state.leader == NO_LEADER or state.leader_epoch == old.leader_epoch:
            return
        on_record = dict(old.eligible) | dict(zip(old.isr, old.isr_broker_epochs, strict=True))
        is_outside = state.leader not in on_record
        # A member that came back with a loss is as good as outside; the mark stays while it leads on.
        has_lost = state.recovering and (
            is_outside or state.broker_epoch_of(state.leader) != on_record[state.leader]
        )
        if not is_outside and not has_lost:
            return
        if not self.unclean_allowed():
            self._fail("C13", f"{state.leader} was elected from outside the ISR {old.isr}")
        self.unclean_elections += 1
        self._unclean_epoch = state.leader_epoch
        self._cut_is_due = True

    def _judge_members(self, state: LeaderAndIsr) -> None:
        if not self._cut_is_due:
            for member in state.isr:
                self._check_member(state, member, state.broker_epoch_of(member))
            for member, broker_epoch in state.eligible:
                self._check_member(state, member, broker_epoch)

    def _check_member(self, state: LeaderAndIsr, member: int, broker_epoch: int) -> None:
        """Whoever is in sync or eligible, and still that process, holds all that any leader committed."""
        view = self.views.get(member)
        if not self.committed or view is None or self.incarnation(member) != broker_epoch:
            return
        last = self.committed[-1]
        if view.log_end < last.end:
            self._fail("C7", f"the ISR is {state.isr}, {last.end} is committed; {view}")
        if last.base >= view.log_start and _name(view.holding(last.base)) != _name(last):
            self._fail("C14", f"a member of the ISR {state.isr} holds other records than committed; {view}")

    # --- replicas -----------------------------------------------------------------------------

    def replica_changed(
        self, view: ReplicaView, *, first_new: int, cut_to: int | None = None, high_watermark_before: int = 0
    ) -> None:
        """A replica shows something new: batches from slot `first_new` on, after a cut to `cut_to` if any."""
        self.views[view.node] = view
        if not 0 <= view.log_start <= view.high_watermark <= view.log_end:
            self._fail("C7", f"bounds out of order, log start {view.log_start}; {view}")
        self.log_start = max(self.log_start, view.log_start)
        self._judge_epoch(view)
        self._judge_batches(view, first_new)
        if view.is_leader:
            self._judge_leader(view, first_new)
        self._judge_belief(view)
        self._judge_agreement(view)
        if cut_to is not None:
            self._judge_cut(view, cut_to, high_watermark_before)

    def _judge_epoch(self, view: ReplicaView) -> None:
        key = view.node, view.life
        newest = self._newest_epochs.get(key, -1)
        if view.leader_epoch < newest:
            self._fail("C2", f"went back from epoch {newest}; {view}")
        self._newest_epochs[key] = view.leader_epoch

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
                self._fail("C2", f"offset {batch.base} is of epoch {batch.epoch}, not known here yet; {view}")
            known = self._history.get((batch.base, batch.epoch))
            if known is None:
                identity = batch.identity
                if identity in self._refused:
                    self._fail("C5", f"a refused send appeared at {batch.base}; {view}")
                if identity not in self._sent:
                    self._fail("C5", f"nobody sent what lies at {batch.base}; {view}")
                self._appended.add(identity)
                self._history[batch.base, batch.epoch] = batch.data, _name(previous)
            elif known[0] != batch.data:
                self._fail("C3", f"offset {batch.base} of epoch {batch.epoch} has two contents; {view}")
            elif known[1] is None:  # its first holder had deleted what lies before it
                self._history[batch.base, batch.epoch] = batch.data, _name(previous)
            elif previous is not None and known[1] != _name(previous):
                self._fail(
                    "C3",
                    f"before offset {batch.base} of epoch {batch.epoch} lies one of epoch {previous.epoch}, "
                    f"elsewhere {known[1]}; {view}",
                )

    def _judge_leader(self, view: ReplicaView, first_new: int) -> None:
        epoch = view.leader_epoch
        owner = self._owners.setdefault(epoch, (view.node, view.life))
        if owner[0] != view.node:
            self._fail("C1", f"epoch {epoch} is led by node {owner[0]} and by {view}")
        if owner[1] != view.life and first_new < len(view.batches):
            appended = view.batches[first_new]
            if appended.epoch == epoch:
                self._fail("C1", f"an epoch of its former life goes on at {appended.base}; {view}")
        if epoch not in self._acted:
            self._acted.add(epoch)
            self._leadership_begins(view)
        key = view.node, view.life, epoch
        known = self._leader_watermarks.get(key, -1)
        if view.high_watermark < known:
            self._fail("C7", f"a leader's high watermark fell from {known}; {view}")
        if view.high_watermark > known:
            self._leader_watermarks[key] = view.high_watermark
            self._watermark_rose(view)

    def _leadership_begins(self, view: ReplicaView) -> None:
        epoch = view.leader_epoch
        if epoch < self._unclean_epoch:
            return
        if self._cut_is_due:
            self._cut_is_due = False
            self._cut_committed(view)
        for slot in range(len(self.committed) - 1, -1, -1):
            if self._commit_epochs[slot] < epoch:
                self._check_holds(view, self.committed[slot])
                return

    def _cut_committed(self, view: ReplicaView) -> None:
        keep = len(self.committed)
        # It serves the batch that its log start lies in whole: deleted is only what ends before that one. Of
        # a batch that ends later it holds nothing if its log began anew inside, or is of another history.
        first = view.holding(view.log_start)
        begins = view.log_start if first is None else first.base
        while keep:
            last = self.committed[keep - 1]
            if last.end <= begins or _name(view.holding(last.base)) == _name(last):
                break
            keep -= 1
        self._next_sequences.clear()  # what a producer's numbers go on from is not certain any more
        del self.committed[keep:], self._commit_epochs[keep:]
        self._committed_ids = {batch.identity: batch.base for batch in self.committed}
        end = self.committed_end
        self.floor = end if self.floor is None else min(self.floor, end)
        lost = [base for base in self.acked if base >= end]
        for base in lost:
            del self.acked[base]
        self.declared_lost += len(lost)

    def _check_holds(self, view: ReplicaView, batch: Stored) -> None:
        if batch.base >= view.log_start and _name(view.holding(batch.base)) != _name(batch):
            self._fail(
                "C4",
                f"offset {batch.end - 1} of epoch {batch.epoch} was committed, its leader now has "
                f"{_name(view.holding(batch.base))} there; {view}",
            )

    def _watermark_rose(self, view: ReplicaView) -> None:
        if view.leader_epoch < self._unclean_epoch:
            return
        end = self.committed_end
        state = self.state
        if view.high_watermark > end:
            slot = bisect_right(view.batches, end, key=_base) - 1
            for batch in view.batches[max(slot, 0) :]:
                if batch.end > view.high_watermark:
                    break
                if batch.base >= end:
                    self._commit(batch, view)
            for other in self.views.values():
                if self.committed and other.is_leader and other.leader_epoch > view.leader_epoch:
                    self._check_holds(other, self.committed[-1])
        if state is not None:
            self._judge_members(state)

    def _commit(self, batch: Stored, view: ReplicaView) -> None:
        identity = batch.identity
        first = self._committed_ids.get(identity)
        if first is not None and first >= self.log_start:
            # Of what retention has deleted a restarted replica knows nothing: sent again, it is new to it.
            self._fail("C6", f"sent once, committed at {first} and at {batch.base}; {view}")
        self._committed_ids[identity] = batch.base
        self._judge_numbers(batch)
        self.committed.append(batch)
        self._commit_epochs.append(view.leader_epoch)

    def _judge_numbers(self, batch: Stored) -> None:
        """A producer with numbers sends one batch at a time: of it nothing is missing, and nothing twice."""
        producer_id, epoch, sequence = batch.numbers
        if producer_id == _NOBODYS:
            return
        expected, last_offset = self._next_sequences.get((producer_id, epoch), (sequence, batch.base))
        # Of what was deleted a restarted replica may know nothing.
        if sequence != expected and last_offset >= self.log_start:
            self._fail(
                "C10",
                f"producer {producer_id} in epoch {epoch}: sequence {sequence} at offset {batch.base}, "
                f"{expected} comes next",
            )
        self._next_sequences[producer_id, epoch] = sequence + batch.end - batch.base, batch.end - 1

    def _judge_belief(self, view: ReplicaView) -> None:
        """Nobody calls committed what no leader ever did, but for a history that was given up."""
        believed = view.high_watermark
        if believed <= max(self.committed_end, view.log_start) or self._cut_is_due:
            return
        mine = view.holding(believed - 1)
        if mine is not None and mine.epoch >= self._unclean_epoch:
            self._fail("C7", f"no leader ever had more than {self.committed_end} committed; {view}")

    def _judge_agreement(self, view: ReplicaView) -> None:
        bound = min(view.high_watermark, self.committed_end)
        if bound <= view.log_start:
            return
        mine, agreed = view.holding(bound - 1), find(self.committed, bound - 1)
        if _name(mine) == _name(agreed):
            return
        if self.floor is not None and mine is not None and mine.epoch < self._unclean_epoch:
            return  # the other history, which an unclean election gave up; it is cut at the next fetch
        if self._cut_is_due:
            return
        self._fail(
            "C3", f"below the high watermark, offset {bound - 1} differs from what was committed; {view}"
        )

    def _judge_cut(self, view: ReplicaView, cut_to: int, high_watermark: int) -> None:
        """Whoever leads holds all that is committed: to agree with it nobody gives up any of that."""
        if cut_to < high_watermark and self.floor is None and not self._cut_is_due:
            self._fail("C3", f"cut to {cut_to}, below the high watermark {high_watermark} it had; {view}")

    def replica_deleted(self, node: int) -> None:
        """The process goes on without its log: nobody may delete what the store counts on."""
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
            self._fail("C22", f"about to join, with records from before {leader.log_start}; {view}")

    def let_go(self, node: int, remaining: Collection[str]) -> None:
        """The controller told a broker that it leads no more than `remaining` of what others could lead."""
        state = self.state
        if (
            state is not None
            and state.leader == node
            and len(self.replicas) > 1
            and not self.is_being_deleted
            and self.name not in remaining
        ):
            self._fail("C21", f"node {node} was told that it may stop, and leads at {state.leader_epoch}")

    def records_deleted(self, low_watermark: int, is_registered: Callable[[int, int], bool]) -> None:
        """DeleteRecords was answered: no live replica serves anything below; `is_registered` says of a node
        and a broker epoch whether it is alive as that. Judged are those that the store counts on."""
        state = self.state
        if state is None:
            return
        for member, epoch in zip(state.isr, state.isr_broker_epochs, strict=True):
            view = self.views.get(member)
            if view is None or not is_registered(member, epoch) or self.incarnation(member) != epoch:
                continue
            if view.log_start < low_watermark:
                self._fail("C22", f"{low_watermark} was said to be the start, it is {view.log_start}; {view}")

    def replica_gone(self, node: int) -> None:
        """The process ended; its log is not looked at until it is back."""
        self.views.pop(node, None)

    # --- clients ------------------------------------------------------------------------------

    def sent(self, identity: bytes) -> None:
        """A producer is about to send this."""
        self._sent.add(identity)

    def succeeds(self, other: PartitionChecker) -> None:
        """`other` judged a deleted namesake: what was sent to it and is under way may arrive here."""
        self._sent |= other._sent - other._appended
        self._refused |= other._refused

    def acknowledged(
        self,
        identity: bytes,
        base_offset: int,
        view: ReplicaView,
        *,
        isr_size: int,
        is_leader: bool,
        is_registered: bool = True,
    ) -> None:
        """A leader answered acks=all with success; `isr_size` counts the maximal ISR it holds.

        Whoever is not registered, as far as it knows itself, is nobody's leader: others may lead by now.
        """
        if not is_leader or not is_registered:
            self._fail("C11", f"offset {base_offset} was acknowledged after its leader had to go; {view}")
        if view.leader_epoch < self._unclean_epoch:
            self.declared_lost += 1
            return
        if isr_size < self.min_insync:
            self._fail("C4", f"acknowledged by {isr_size} replicas, {self.min_insync} are asked for; {view}")
        batch = find(self.committed, base_offset)
        if batch is None or batch.base != base_offset or batch.identity != identity:
            self._fail("C4", f"offset {base_offset} was acknowledged and is not committed; {view}")
        self.acked[base_offset] = identity

    def refused(self, identity: bytes) -> None:
        """A send that was tried once met an error that says that nothing was appended."""
        if identity in self._appended:
            self._fail("C5", "a send was refused and appended all the same")
        self._refused.add(identity)

    def served(self, view: ReplicaView, batches: Sequence[Stored]) -> None:
        """A replica answered a consumer with these."""
        if batches and batches[-1].end > view.high_watermark:
            self._fail("C7", f"offset {batches[-1].end - 1} was served to a consumer; {view}")

    def consumed(
        self, consumer: ConsumerView, wanted: int, batches: Sequence[Stored], *, leader_epoch: int
    ) -> None:
        """A consumer that asked for `wanted` in its leader's epoch got these; its position moves on."""
        if leader_epoch < self._unclean_epoch or self._cut_is_due:
            return
        position = consumer.position
        if wanted != position:
            return
        for number, batch in enumerate(batches):
            if batch.base > position or (number and batch.base != position):
                self._fail("C8", f"a consumer at {position} was given offset {batch.base}: some are skipped")
            if batch.end <= position:
                self._fail("C8", f"a consumer at {position} was given offset {batch.base} again")
            if find(self.committed, batch.base) != batch:
                self._fail("C8", f"a consumer was given another record at {batch.base} than was committed")
            position = batch.end
        consumer.position = position

    # --- the end ------------------------------------------------------------------------------

    def read_back(self, batches: Sequence[Stored]) -> None:
        """The whole log as it was read at the end, everything being healed."""
        start = batches[0].base if batches else self.log_start
        if start > self.log_start:
            self._fail("C4", f"read from {start}, no log starts above {self.log_start}")
        committed = [batch for batch in self.committed if batch.end > start]
        if len(batches) < len(committed):
            self._fail("C4", f"{len(committed)} batches were committed, {len(batches)} can be read")
        for batch, agreed in zip(batches, committed, strict=False):
            if batch != agreed:
                self._fail("C4", f"what was committed at {agreed.base} is not what can be read there")
        for base, identity in self.acked.items():
            if base < start:
                continue
            found = find(batches, base)
            if found is None or found.base != base or found.identity != identity:
                self._fail("C4", f"what was acknowledged at {base} is not there")


def _name(batch: Stored | None) -> tuple[int, int] | None:
    return None if batch is None else (batch.base, batch.epoch)


# --- the store of one replica -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remains:
    """A log as it was when its process or its machine died.

    `durable_end`: everything below it had been synced. `cache_survived`: only the process died.
    `disk_died`: calls failed before; one that did may have moved the log start all the same.
    """

    name: str
    batches: tuple[Stored, ...]
    log_start: int
    durable_end: int
    cache_survived: bool
    disk_died: bool = False

    @property
    def log_end(self) -> int:
        return self.batches[-1].end if self.batches else self.log_start


def check_recovery(
    before: Remains,
    after: Sequence[Stored] | None,
    *,
    log_start: int,
    log_end: int,
    epochs: Iterable[EpochEntry],
) -> None:
    """I1–I7: what a restart found (`after`; None if it could not open the log) against what was left."""
    name = before.name
    if after is None:
        if before.durable_end > before.log_start or before.cache_survived:
            raise Violation("I1", f"{name}: the log could not be opened")
        return
    end = after[-1].end if after else log_start
    if log_end != end:
        raise Violation("I7", f"{name}: the log ends at {log_end}, its last batch at {end}")
    if log_start != before.log_start and not (before.disk_died and before.log_start < log_start <= end):
        raise Violation("I6", f"{name}: the log started at {before.log_start}, now at {log_start}")
    held = [batch for batch in before.batches if batch.end > log_start]
    if end < before.durable_end:
        raise Violation("I7", f"{name}: synced up to {before.durable_end}, recovered up to {end}")
    if before.cache_survived and end != before.log_end:
        raise Violation(
            "I7", f"{name}: only the process died; the log ended at {before.log_end}, now at {end}"
        )
    for slot, batch in enumerate(after):
        if slot >= len(held):
            raise Violation("I3", f"{name}: offset {batch.base} was never written")
        if batch != held[slot]:
            which = "I2" if held[slot].base < before.durable_end else "I3"
            raise Violation(which, f"{name}: offset {held[slot].base} is not what was written")
    for one, following in pairwise(after):
        if one.end != following.base:
            raise Violation("I4", f"{name}: offset {following.base} follows {one.end - 1}")
    check_epochs(name, after, epochs)


def check_producers(
    name: str, batches: Sequence[Stored], producers: Iterable[ProducerEntry], now_ms: int
) -> None:
    """C16, I9: what is remembered of producers is what their batches say, for each that has any left.

    Who wrote nothing for a day, by the times of its batches, may be forgotten.
    """
    remembered = {entry.producer_id: entry for entry in producers}
    last: dict[int, Stored] = {}
    for batch in batches:
        last[batch.numbers[0]] = batch
    for producer_id, batch in last.items():
        if producer_id == _NOBODYS:
            continue
        _, epoch, sequence = batch.numbers
        entry = remembered.get(producer_id)
        newest = entry.batches[-1] if entry is not None and entry.batches else None
        found = (entry.epoch, newest.last_sequence, newest.last_offset) if entry and newest else None
        wanted = epoch, sequence + batch.end - 1 - batch.base, batch.end - 1
        if found is None and now_ms - batch.max_timestamp >= _FORGOTTEN_AFTER_MS:
            continue
        if found != wanted:
            raise Violation(
                "C16",
                f"{name}: of producer {producer_id} the log says epoch, sequence, offset {wanted}, "
                f"memory says {found}",
            )


class StoreChecker:
    """C12: what nodes write to the metadata store, one after the other.

    Controllers' epochs never go back. Whoever writes to topics or their settings proves, in the same Multi,
    that the controller's epoch is what it thinks it is.
    """

    def __init__(self) -> None:
        self.controller_epoch = 0

    def written(self, paths: Sequence[str], *, is_fenced: bool, controller_epoch: int) -> None:
        """One operation that succeeded wrote to these paths; the store then named `controller_epoch`."""
        if controller_epoch < self.controller_epoch:
            raise Violation(
                "C12", f"the controller's epoch went from {self.controller_epoch} to {controller_epoch}"
            )
        self.controller_epoch = controller_epoch
        for path in paths:
            if path.startswith(_FENCED) and not is_fenced:
                raise Violation("C12", f"{path} was written by somebody who need not be the controller")


class NewsChecker:
    """C12: what controllers tell a process never goes back.

    Whoever obeyed a controller obeys no earlier one: it would ask that one for its ISRs. A registration that
    a controller has seen end is over: told by the same one that it lives, a process has taken an old word for
    a new one. A later controller may begin with an older list, since it read the store by itself.
    """

    def __init__(self) -> None:
        self._news: dict[tuple[int, int], _News] = {}

    def obeys(self, process: tuple[int, int], controller_epoch: int) -> None:
        """A process (node, life) goes by the words of this controller."""
        news = self._news.get(process)
        if news is None or controller_epoch > news.controller_epoch:
            self._news[process] = _News(controller_epoch)
        elif controller_epoch < news.controller_epoch:
            raise Violation(
                "C12", f"node {process[0]} obeys controller {controller_epoch} after {news.controller_epoch}"
            )

    def heard(self, process: tuple[int, int], live: Mapping[int, int]) -> None:
        """The controller that it obeys told it that these live: broker epochs by id."""
        news = self._news[process]
        for broker_id, epoch in live.items():
            if epoch <= news.ended.get(broker_id, -1):
                raise Violation(
                    "C12",
                    f"node {process[0]} was told by controller {news.controller_epoch} that "
                    f"broker {broker_id} lives as {epoch}, after that one had gone",
                )
        news.ended.update({each: epoch for each, epoch in news.live.items() if live.get(each) != epoch})
        news.live = live


@dataclass(slots=True)
class _News:
    """What a controller has said to one process."""

    controller_epoch: int
    live: Mapping[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)


def check_bounds(name: str, sizes: Mapping[str, int], limits: Mapping[str, int]) -> None:
    """C17: in a cluster at rest, nothing waits that nobody waits for."""
    for what, size in sizes.items():
        if size > limits[what]:
            raise Violation("C17", f"{name}: {size} {what}, {limits[what]} would do")


def check_epochs(name: str, batches: Sequence[Stored], epochs: Iterable[EpochEntry]) -> None:
    """I5: epochs never go back, and the epoch checkpoint says of every batch what its header says."""
    end = batches[-1].end if batches else 0
    entries = [entry for entry in epochs if entry.start_offset < end]
    transitions = [
        EpochEntry(batch.epoch, batch.base)
        for slot, batch in enumerate(batches)
        if slot == 0 or batch.epoch != batches[slot - 1].epoch
    ]
    for one, following in pairwise(transitions):
        if following.epoch < one.epoch:
            raise Violation("I5", f"{name}: epoch {following.epoch} after {one.epoch}")
    if entries and batches and batches[0].base < entries[0].start_offset < batches[0].end:
        # Records were deleted up to the middle of a batch: the log starts there, and so does the epoch.
        transitions[0] = EpochEntry(transitions[0].epoch, entries[0].start_offset)
    if [tuple(entry) for entry in entries] != [tuple(entry) for entry in transitions]:
        raise Violation("I5", f"{name}: the epoch checkpoint says {entries}, the batches say {transitions}")
