"""What is explored: the protocols of history, ours row by row, and ours without each of its rules.

A row that must hold is explored to the last state of its bounds. A row that must fail names the rule that
the shortest counterexample breaks. Long rows are for `make model`; the others are part of the test suite.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.model.explorer import Exploration
from tests.model.parts import Bounds, Reconcile, Rules
from tests.model.protocol import Protocol


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `breaks` is what must be found, nothing for a row that holds."""

    name: str
    title: str
    level: str
    rules: Rules
    bounds: Bounds
    breaks: str = ""
    at_least: int = 0
    """A holding row must have at least so many states: bounds that strangle the model show nothing."""
    is_long: bool = False

    def explore(self, max_states: int = 1 << 62) -> Exploration:
        return Protocol(self.rules, self.bounds).explorer().explore(max_states)

    def is_met_by(self, found: Exploration) -> bool:
        """Whether the exploration came out as this row says."""
        if self.breaks:
            return found.violation.startswith(self.breaks)
        return found.is_exhausted and found.states >= self.at_least


_OURS = Rules()
_SYNCED = Rules(leader_syncs=True, followers_sync=True)
_MOVED_TWICE = Bounds(records=1, versions=2, elections=2, shrinks=False)

_HISTORY = (
    Row(
        "truncate-to-hw",
        "a follower cuts its log to its high watermark (0.8)",
        "D0",
        Rules(reconcile=Reconcile.HIGH_WATERMARK, fetches_are_fenced=False, followers_start_unknown=False),
        Bounds(records=2, versions=2, kills=1),
        "I6",
    ),
    Row(
        "kip-101",
        "a leader answers where an epoch ends, and does not name it (KIP-101)",
        "D0",
        Rules(reconcile=Reconcile.EPOCH_END),
        Bounds(records=3, versions=2, elections=2, shrinks=False),
        "I4",
    ),
    Row(
        "kip-320-first",
        "fetches truncate, but are not fenced, and count across epochs (KIP-320, first attempt)",
        "D0",
        Rules(fetches_are_fenced=False, followers_start_unknown=False),
        _MOVED_TWICE,
        "I6",
    ),
)

_HOLDS = (
    Row(
        "kills",
        "processes are killed: nothing is lost",
        "D0",
        _OURS,
        Bounds(records=1, versions=4, kills=2, shrinks=False),
        at_least=77_000,
    ),
    Row(
        "spared",
        "power cuts that spare one ISR member: nothing is lost, nobody has to be asked",
        "D0",
        _OURS,
        Bounds(records=1, versions=3, power_cuts=2, one_is_spared=True, comes_back=True, shrinks=False),
        at_least=96_000,
    ),
    Row(
        "power",
        "all members lose power: no leader lacks a committed record",
        "D0",
        _OURS,
        Bounds(records=0, settled=1, versions=4, power_cuts=3),
        at_least=260_000,
    ),
    Row(
        "sessions",
        "a leader goes on after its session ended; orderly stops",
        "D0",
        _OURS,
        Bounds(records=1, versions=3, expiries=1, stops=1, shrinks=False),
        at_least=230_000,
    ),
    Row(
        "min-isr",
        "two replicas must be in sync for an acknowledgement",
        "D0",
        _OURS,
        Bounds(records=1, versions=2, kills=1, min_insync=2),
        at_least=51_000,
    ),
    Row(
        "last-standing",
        "the last member of an ISR too small to commit loses power: who left it leads (S64)",
        "D0",
        _OURS,
        Bounds(records=1, versions=4, power_cuts=1, min_insync=2, comes_back=True),
        at_least=370_000,
    ),
    Row(
        "last-standing-set",
        "a process is killed while `min.insync.replicas` is lowered",
        "D0",
        _OURS,
        Bounds(records=1, versions=3, kills=1, settings=1, min_insync=2),
        at_least=350_000,
    ),
    Row(
        "last-standing-all",
        "one after the other loses power: whoever lost something is eligible no more",
        "D0",
        _OURS,
        Bounds(records=0, settled=1, versions=5, power_cuts=2, min_insync=2),
        at_least=30_000,
    ),
    Row(
        "last-standing-long",
        "a process is killed while `min.insync.replicas` is lowered and raised",
        "D0",
        _OURS,
        Bounds(records=1, versions=4, kills=1, settings=2, min_insync=2),
        at_least=1_300_000,
        is_long=True,
    ),
    Row(
        "late",
        "leadership moves twice; a fetch and an answer are late",
        "D0",
        _OURS,
        replace(_MOVED_TWICE, late_fetches=True),
        at_least=600_000,
        is_long=True,
    ),
    Row(
        "kip-279",
        "a follower asks where its epoch ends, the answer names its epoch",
        "D0",
        Rules(reconcile=Reconcile.NAMED_EPOCH_END),
        Bounds(records=2, versions=2, elections=2, shrinks=False),
        at_least=100_000,
    ),
    Row(
        "synced",
        "power cuts of all: nothing is lost, and the partition comes back by itself",
        "D2",
        _SYNCED,
        Bounds(records=0, settled=1, versions=5, power_cuts=4, comes_back=True),
        at_least=400_000,
    ),
    Row(
        "synced-writes",
        "power cuts while a record is written, copied and synced",
        "D2",
        _SYNCED,
        Bounds(records=1, versions=3, power_cuts=2, comes_back=True, shrinks=False),
        at_least=140_000,
    ),
    Row(
        "kills-long",
        "two processes are killed under two records and a proposal of any kind",
        "D0",
        _OURS,
        Bounds(records=2, versions=2, kills=2),
        at_least=1_500_000,
        is_long=True,
    ),
    Row(
        "kills-three",
        "three processes are killed",
        "D0",
        _OURS,
        Bounds(records=1, versions=4, kills=3, shrinks=False),
        at_least=700_000,
        is_long=True,
    ),
    Row(
        "spared-long",
        "power cuts that spare one ISR member, and proposals of any kind",
        "D0",
        _OURS,
        Bounds(records=1, versions=3, power_cuts=2, one_is_spared=True, comes_back=True),
        at_least=800_000,
        is_long=True,
    ),
    Row(
        "synced-long",
        "power cuts of all while a record is written, copied and synced",
        "D2",
        _SYNCED,
        Bounds(records=1, versions=3, power_cuts=3, comes_back=True, shrinks=False),
        at_least=840_000,
        is_long=True,
    ),
)

_LEVELS = (
    Row(
        "offline",
        "all members lose power: the partition waits for its operator, loudly",
        "D0",
        _OURS,
        Bounds(records=0, settled=1, versions=4, power_cuts=3, comes_back=True),
        "offline",
    ),
    Row(
        "without-memory",
        "nobody remembers who left an ISR too small to commit: the partition waits for its operator",
        "D0",
        replace(_OURS, remembers=False),
        Bounds(records=1, versions=4, power_cuts=1, min_insync=2, comes_back=True),
        "offline",
    ),
    Row(
        "leader-only",
        "only the leader syncs: weak, as said",
        "D1",
        Rules(leader_syncs=True, unclean_last_waits=False),
        Bounds(records=0, settled=1, versions=4, power_cuts=3),
        "I6",
    ),
)

_WITHOUT = (
    Row(
        "without-R1",
        "a restarted member counts as the one it was",
        "D0",
        replace(_OURS, unclean_leaves_isr=False),
        Bounds(records=0, settled=1, versions=2, power_cuts=1, kills=1),
        "I5",
    ),
    Row(
        "without-R2",
        "the last member is elected though it may have lost records",
        "D0",
        replace(_OURS, unclean_last_waits=False),
        Bounds(records=0, settled=1, versions=4, power_cuts=3),
        "I6",
    ),
    Row(
        "without-R3",
        "a leader that stopped unclean resumes in its old epoch",
        "D0",
        replace(_OURS, unclean_needs_new_epoch=False, roles_are_addressed=False),
        Bounds(records=2, versions=2, power_cuts=1),
        "I5",
    ),
    Row(
        "without-R3-synced",
        "the same with every acknowledged record on disk",
        "D2",
        replace(_SYNCED, unclean_needs_new_epoch=False, roles_are_addressed=False),
        Bounds(records=2, versions=2, power_cuts=1),
        "I4",
    ),
    Row(
        "without-R4",
        "a leader serves and counts fetches of other epochs",
        "D0",
        replace(_OURS, fetches_are_fenced=False),
        Bounds(records=1, versions=2, kills=1, elections=1, late_fetches=True, shrinks=False),
        "I6",
    ),
    Row(
        "without-R5",
        "a leader that missed an epoch goes by where its followers ended before it",
        "D0",
        replace(_OURS, followers_start_unknown=False),
        _MOVED_TWICE,
        "I6",
    ),
    Row(
        "without-R6",
        "a follower joins the ISR short of the start of the leader's epoch",
        "D0",
        replace(_OURS, epoch_start_gate=False),
        Bounds(records=1, versions=3, elections=1),
        "I6",
    ),
    Row(
        "without-R7",
        "a leader writes its ISR over whatever the store says",
        "D0",
        replace(_OURS, compare_and_set=False),
        Bounds(records=2, versions=2, expiries=1),
        "I5",
    ),
    Row(
        "committed-isr-only",
        "a proposed member does not count for the high watermark",
        "D0",
        replace(_OURS, maximal_isr_counts=False),
        Bounds(records=1, versions=4, kills=1),
        "I6",
    ),
    Row(
        "shrink-at-once",
        "a smaller ISR counts before it is confirmed",
        "D0",
        replace(_OURS, shrink_waits=False),
        Bounds(records=1, versions=2, kills=1),
        "I6",
    ),
    Row(
        "remembers-without-wall",
        "who left a small ISR is remembered, though the high watermark moves on without it",
        "D0",
        replace(_OURS, wall_stands=False),
        Bounds(records=1, versions=2, kills=1, min_insync=2),
        "I6",
    ),
    Row(
        "remembers-from-large",
        "who left an ISR that stayed large enough is remembered",
        "D0",
        replace(_OURS, small_isrs_only=False),
        Bounds(records=1, versions=3, kills=2, min_insync=2),
        "I6",
    ),
    Row(
        "remembers-over-growth",
        "the memory outlives an ISR that is large enough again",
        "D0",
        replace(_OURS, growth_forgets=False),
        Bounds(records=1, versions=4, kills=2, min_insync=2),
        "I6",
    ),
    Row(
        "remembers-over-lowering",
        "the memory outlives a lower `min.insync.replicas`",
        "D0",
        replace(_OURS, lowering_forgets=False),
        Bounds(records=1, versions=3, kills=1, settings=1, min_insync=2),
        "I6",
    ),
    Row(
        "without-addresses",
        "half of R3: a role that was sent to a broker's former life is taken",
        "D0",
        replace(_OURS, roles_are_addressed=False),
        Bounds(records=2, versions=2, power_cuts=1),
        "I5",
    ),
)

ROWS = {row.name: row for row in (*_HISTORY, *_HOLDS, *_LEVELS, *_WITHOUT)}
