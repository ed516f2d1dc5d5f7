"""The parts of a model state: rules, bounds, the store, replicas, messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from logstore.replication.controller.election import Incarnation
from logstore.replication.messages import NO_EPOCH, NO_LEADER
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.replica import UNKNOWN_BROKER_EPOCH, UNKNOWN_OFFSET
from logstore.segment.epochs import UNDEFINED, EpochEndOffset, LeaderEpochCache

IDS = (0, 1, 2)
NAMES = "ABC"
STORE, COMMITTED, BUDGET, LATE = range(4)
REPLICA = 4
"""The first of the three replicas' parts."""
_CONTROLLER_EPOCH = 1


# --- what can be switched ---------------------------------------------------------------------


class Reconcile(Enum):
    """How a follower makes its log agree with a new leader's."""

    HIGH_WATERMARK = "cuts to its high watermark"
    EPOCH_END = "asks where its latest epoch ends (KIP-101)"
    NAMED_EPOCH_END = "asks, and the answer names its epoch (KIP-279)"
    FETCH = "every fetch names its latest epoch (KIP-320)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The protocol; the defaults are ours, at durability level D0 (`replicated`)."""

    reconcile: Reconcile = Reconcile.FETCH
    unclean_leaves_isr: bool = True
    """R1: an ISR member counts only as the incarnation on record."""
    unclean_last_waits: bool = True
    """R2: a member that may have lost records is not elected by itself."""
    unclean_needs_new_epoch: bool = True
    """R3 at the broker: a log that stopped unclean is not led in an epoch that it holds already."""
    roles_are_addressed: bool = True
    """R3 on the way: a role is for one life of a broker, the next one refuses it."""
    fetches_are_fenced: bool = True
    """R4: a leader answers, and counts, only who lives in its own epoch."""
    followers_start_unknown: bool = True
    """R5: where followers end is forgotten unless this leader's new epoch directly follows its old one."""
    epoch_start_gate: bool = True
    """R6: who joins the ISR has reached the start of the leader's epoch."""
    compare_and_set: bool = True
    """R7: an ISR is written only over the version that its leader knew."""
    maximal_isr_counts: bool = True
    """The high watermark waits for a proposed member too."""
    shrink_waits: bool = True
    """A smaller ISR counts only once it is confirmed."""
    wall_stands: bool = True
    """The high watermark does not move while fewer than `min_insync` are in the ISR."""
    remembers: bool = True
    """Who left an ISR that got too small to commit may lead (S64)."""
    small_isrs_only: bool = True
    """Who leaves an ISR that stays large enough is not remembered."""
    growth_forgets: bool = True
    """The write of an ISR that is large enough clears the memory."""
    lowering_forgets: bool = True
    """The write of a smaller number does."""
    leader_syncs: bool = False
    followers_sync: bool = False
    """Durability: a leader's own vote, a follower's fetch, cover only what is on the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may happen. What is not exhausted is not shown."""

    records: int = 2
    versions: int = 3
    """Writes of the state node: elections and ISR changes together."""
    kills: int = 0
    """Processes that die; the page cache stays."""
    power_cuts: int = 0
    """Machines that die: un-synced records are gone from some point on."""
    stops: int = 0
    """Orderly stops, which leave a mark."""
    expiries: int = 0
    """Sessions that end under a living broker, which goes on until it hears of it."""
    elections: int = 0
    """Times that the controller moves leadership to another ISR member without need."""
    shrinks: bool = True
    """Leaders may find members to lag."""
    late_roles: int = 2
    late_fetches: bool = False
    min_insync: int = 1
    settings: int = 0
    """Times that an operator sets `min.insync.replicas` to 1, or back."""
    one_is_spared: bool = False
    """A machine dies only while another ISR member is intact, and its last proposal with it."""
    settled: int = 0
    """Records that all replicas hold and know to be committed before anything happens."""
    comes_back: bool = False
    """Demand that the partition is never left to its operator."""


# --- the parts of a state ---------------------------------------------------------------------


class Record(NamedTuple):
    epoch: int
    serial: int
    """Which append this was: two records of one epoch at one offset are told apart."""


class Announcement(NamedTuple):
    """A state that was current once, on its way to the lives of brokers it was addressed to (-1: to none)."""

    state: LeaderAndIsr
    version: int
    addressed: tuple[int, ...]


class Store(NamedTuple):
    state: LeaderAndIsr
    version: int
    view: tuple[Incarnation | None, ...]
    """Who lives, as far as the controller has noticed."""
    late: tuple[Announcement, ...] = ()


class Committed(NamedTuple):
    """Whatever any leader's high watermark ever covered; `broken` names a rule that a step has broken."""

    records: tuple[Record, ...] = ()
    broken: str = ""


class Budget(NamedTuple):
    records: int
    kills: int
    power_cuts: int
    stops: int
    expiries: int
    elections: int
    settings: int


class Remote(NamedTuple):
    """A follower as its leader knows it."""

    log_end_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = UNKNOWN_BROKER_EPOCH


class Proposal(NamedTuple):
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]


class Replica(NamedTuple):
    log: tuple[Record, ...] = ()
    durable: int = 0
    high_watermark: int = 0
    latest_epoch: int = NO_EPOCH
    """Of the epoch cache: above the last record's if this leader has not written yet."""
    is_up: bool = True
    was_clean: bool = True
    """How it stopped before this life, or, while down, before the next one."""
    broker_epoch: int = 0
    first_broker_epoch: int = 0
    """Of this process: what it registered as before its session ended, it still is."""
    is_expired: bool = False
    epoch: int = NO_EPOCH
    leader: int = NO_LEADER
    partition_epoch: int = -1
    is_suspended: bool = False
    is_truncating: bool = False
    epoch_start: int = 0
    isr: tuple[int, ...] = ()
    min_insync: int = 0
    """Of the very state that the ISR is from."""
    pending: Proposal | None = None
    remote: tuple[Remote, ...] = ()

    @property
    def end(self) -> int:
        return len(self.log)

    @property
    def incarnation(self) -> Incarnation | None:
        if not self.is_up or self.is_expired:
            return None
        return Incarnation(
            self.broker_epoch, self.was_clean, tuple(range(self.first_broker_epoch, self.broker_epoch))
        )

    def acts_as_leader(self, me: int) -> bool:
        return self.is_up and self.leader == me and not self.is_suspended

    def is_life(self, broker_epoch: int) -> bool:
        """Whether this is the process that registered so, still running."""
        return self.is_up and self.first_broker_epoch <= broker_epoch <= self.broker_epoch

    def end_of(self, epoch: int) -> EpochEndOffset:
        cache = LeaderEpochCache((record.epoch, offset) for offset, record in enumerate(self.log))
        if self.latest_epoch > cache.latest_epoch:
            cache.assign(self.latest_epoch, self.end)
        return cache.end_offset_for(epoch, self.end)

    def cut(self, offset: int) -> Replica:
        """Without what lies past `offset`; epochs without records go too, as in `LeaderEpochCache`."""
        log = self.log[:offset]
        return self._replace(
            log=log,
            durable=min(self.durable, offset),
            high_watermark=min(self.high_watermark, offset),
            latest_epoch=log[-1].epoch if log else NO_EPOCH,
        )


class Fetch(NamedTuple):
    follower: int
    leader: int
    epoch: int
    offset: int
    latest_epoch: int
    broker_epoch: int


class FetchAnswer(NamedTuple):
    fetch: Fetch
    high_watermark: int
    records: tuple[Record, ...] = ()
    diverging: EpochEndOffset | None = None
    leader_end: int = UNDEFINED
    """Where the leader ends, if the fetch lies outside its log."""


class Late(NamedTuple):
    fetch: Fetch | None = None
    answer: FetchAnswer | None = None
