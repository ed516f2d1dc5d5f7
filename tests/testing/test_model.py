"""The model check: the protocol holds in every order of events within bounds, and no rule is idle."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import product

import pytest

from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record as LogRecord
from logstore.log.append import append_as_leader
from logstore.log.manager import LogManager
from logstore.replication.config import NodeConfig
from logstore.replication.errors import FencedLeaderEpoch
from logstore.replication.messages import NO_EPOCH, PartitionState
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.partition import Counters, Partition
from logstore.replication.reconcile import Divergence
from logstore.segment.epochs import LeaderEpochCache
from tests.model import ROWS, Action, Bounds, Explorer, Invariant, Protocol, Rules, transcript
from tests.model.__main__ import main
from tests.model.explorer import Parts, Steps
from tests.model.parts import IDS, Announcement, Record, Remote, Replica

TP = TopicPartition("t", 0)
HOLDING = [row for row in ROWS.values() if not row.breaks]
FAILING = [row for row in ROWS.values() if row.breaks]


# --- the rows -------------------------------------------------------------------------------------


@pytest.mark.simulation
@pytest.mark.parametrize(
    "name",
    [pytest.param(row.name, marks=[pytest.mark.slow] * row.is_long) for row in HOLDING],
)
@pytest.mark.timeout(3600)
def test_our_protocol_holds_to_the_last_state(name: str) -> None:
    """model/test_isr_rows: the durability rows of D0 and D2, exhausted."""
    row = ROWS[name]
    found = row.explore()
    assert not found.violation, f"{found.violation}\n{transcript(found.trace)}"
    assert found.is_exhausted
    assert found.states >= row.at_least


def test_the_suite_alone_exhausts_900_000_states() -> None:
    """A bar, kept by what each row must reach at least."""
    assert sum(row.at_least for row in HOLDING if not row.is_long) >= 900_000
    assert any(row.at_least >= 900_000 for row in HOLDING)


@pytest.mark.simulation
@pytest.mark.parametrize("name", [row.name for row in FAILING])
@pytest.mark.timeout(600)
def test_a_counterexample_is_found(name: str) -> None:
    """The old protocols, and ours without one rule: a rule that nothing needs would be no rule."""
    row = ROWS[name]
    found = row.explore()
    assert row.is_met_by(found), found
    assert found.trace[0].label == "at first"
    text = transcript(found.trace)
    assert len(found.trace) > 1
    assert all(move.label in text for move in found.trace)


@pytest.mark.parametrize("rule", [f"R{number}" for number in range(1, 8)])
def test_each_rule_has_its_row(rule: str) -> None:
    """R3 in both levels, as it is needed in both."""
    levels = {row.level for row in FAILING if row.name.startswith(f"without-{rule}")}
    assert levels == ({"D0", "D2"} if rule == "R3" else {"D0"})


def test_a_counterexample_reads_like_a_schedule() -> None:
    """S24: a smaller ISR that counts at once commits what a member of the persisted one lacks."""
    assert transcript(ROWS["shrink-at-once"].explore().trace).splitlines()[-3:] == [
        "  2  A proposes ISR {A}",
        "       committed: 0",
        "       A = 0 | hw 1  leads e0, ISR {A,B,C}, proposed {A}",
    ]


# --- the explorer ---------------------------------------------------------------------------------


def _plainly(protocol: Protocol) -> tuple[int, int, int]:
    """States, transitions and depth by the textbook: no packing, no memo."""
    actions = protocol.actions()
    seen = {protocol.initial()}
    frontier = list(seen)
    transitions = depth = 0
    while frontier:
        reached: list[Parts] = []
        for state in frontier:
            for parts, steps in actions:
                following = set()
                for _, values in steps(*(state[slot] for slot in parts)):
                    after = list(state)
                    for slot, value in zip(parts, values, strict=True):
                        after[slot] = value
                    following.add(tuple(after))
                following.discard(state)
                transitions += len(following)
                reached += following - seen
                seen |= following
        frontier = reached
        depth += bool(reached)
    return len(seen), transitions, depth


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(records=0, settled=1, versions=2, kills=1),
        Bounds(records=1, versions=1, elections=1, shrinks=False),
        Bounds(records=0, versions=1, elections=1, shrinks=False, late_fetches=True),
        Bounds(records=0, settled=1, versions=1, power_cuts=1, one_is_spared=True),
    ],
)
def test_packed_and_memoised_is_the_same_as_plain(bounds: Bounds) -> None:
    """The memo is a shortcut; walking every state is the definition."""
    protocol = Protocol(Rules(), bounds)
    found = protocol.explorer().explore()
    assert found.is_exhausted
    assert (found.states, found.transitions, found.depth) == _plainly(protocol)


def _counter(top: int) -> Action:
    def steps(value: int) -> Steps:
        for step in (1, 3):
            if value + step <= top:
                yield f"+{step}", (value + step,)

    return Action((1,), steps)


def test_the_shortest_way_to_a_violation_is_told() -> None:
    never_seven = Invariant((1,), lambda value: "seven" if value == 7 else "")
    found = Explorer(("beside", 0), [_counter(9)], [never_seven]).explore()
    assert found.violation == "seven"
    assert [move.state[1] for move in found.trace] in ([0, 1, 4, 7], [0, 3, 4, 7], [0, 3, 6, 7])
    assert not found.is_exhausted


def test_an_exploration_that_was_stopped_does_not_claim_the_rest() -> None:
    found = Explorer(("beside", 0), [_counter(1000)], []).explore(max_states=100)
    assert not found.is_exhausted
    assert 100 <= found.states < 1001
    assert Explorer(("beside", 0), [_counter(1000)], []).explore().states == 1001


def test_a_bad_start_is_noticed() -> None:
    found = Explorer((7,), [], [Invariant((0,), lambda value: "seven")]).explore()
    assert (found.violation, len(found.trace)) == ("seven", 1)


def test_bounds_too_small_to_show_anything_do_not_pass() -> None:
    """A row without its violation, or with too few states, is not met."""
    assert not ROWS["without-R1"].is_met_by(Protocol(Rules(), Bounds(records=0)).explorer().explore())
    assert not ROWS["kills"].is_met_by(Protocol(Rules(), Bounds(records=0)).explorer().explore())


# --- the model is of our code ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "mistake", "bounds", "breaks"),
    [
        (
            "next_high_watermark",
            lambda state, **facts: facts["leader_end_offset"],
            Bounds(records=1, versions=0),
            "I6",
        ),
        (
            "may_join",
            lambda replica, state, **facts: replica.replica_id not in state.isr,
            Bounds(records=1, versions=2),
            "I6",
        ),
        (
            "divergence_of",
            lambda **facts: Divergence(None, False),
            Bounds(records=3, versions=1, elections=1, shrinks=False),
            "I4",
        ),
    ],
)
def test_a_mistake_in_the_engine_is_a_counterexample(
    decision: str, mistake: object, bounds: Bounds, breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model asks the engine: what it decides wrongly, the model finds."""
    monkeypatch.setattr(f"tests.model.protocol.{decision}", mistake)
    assert Protocol(Rules(), bounds).explorer().explore(100_000).violation.startswith(breaks)


_LOGS = [
    epochs for size in range(4) for epochs in product(range(3), repeat=size) if list(epochs) == sorted(epochs)
]


@pytest.mark.parametrize("noted", [NO_EPOCH, 0, 1, 2, 3])
def test_epochs_are_kept_as_the_epoch_cache_keeps_them(noted: int) -> None:
    """Every log of up to three records and three epochs, every cut, every question."""
    for epochs in _LOGS:
        latest = max(noted, *epochs, NO_EPOCH) if epochs else noted
        replica = Replica(log=tuple(Record(epoch, 0) for epoch in epochs), latest_epoch=latest)
        for offset in range(len(epochs) + 1):
            cache = LeaderEpochCache((epoch, place) for place, epoch in enumerate(epochs))
            if noted > cache.latest_epoch:
                cache.assign(noted, len(epochs))
            assert [replica.end_of(each) for each in range(-1, 5)] == [
                cache.end_offset_for(each, len(epochs)) for each in range(-1, 5)
            ]
            cache.truncate_from_end(offset)
            cut = replica.cut(offset)
            assert cut.latest_epoch == cache.latest_epoch
            assert [cut.end_of(each) for each in range(-1, 5)] == [
                cache.end_offset_for(each, offset) for each in range(-1, 5)
            ]


def _partition(epochs: tuple[int, ...], *, was_clean: bool) -> Partition:
    logs = LogManager(["data"], disk=MemoryDisk(), clock=lambda: 0, random=random.Random(0))
    log = logs.get_or_create(TP)
    for epoch in epochs:
        append_as_leader(
            log.partition, encode_batch([LogRecord(0, 0, None, b"")]), leader_epoch=epoch, now_ms=0
        )
    config = NodeConfig(node_id=0)
    return Partition(log.partition, config, MetadataCache(), Counters(), was_clean=was_clean)


def _engine_takes(partition: Partition, leader: int, epoch: int) -> bool:
    state = PartitionState(1, leader, epoch, IDS, epoch, IDS)
    try:
        if leader == 0:
            partition.become_leader(state, 0)
        else:
            partition.become_follower(state)
    except FencedLeaderEpoch:
        return False
    return True


@pytest.mark.parametrize("was_clean", [True, False])
@pytest.mark.parametrize("before", [None, 0, 1])
def test_roles_are_taken_as_the_engine_takes_them(before: int | None, was_clean: bool) -> None:
    """Restarted, leader or follower of epoch 1: is the next role refused, and what is left of the old one?"""
    for epochs, leader, epoch in product([(), (0,), (0, 1), (0, 3)], (0, 1), (1, 2, 3)):
        if before is not None and (epoch == 1 or 3 in epochs):
            continue  # same epoch: the replica manager's matter; epoch 3: it would not have epoch 1 now
        partition = _partition(epochs, was_clean=was_clean)
        replica = Replica(
            log=tuple(Record(each, 0) for each in epochs),
            latest_epoch=epochs[-1] if epochs else NO_EPOCH,
            was_clean=was_clean,
        )
        if before is not None:
            # Both come to epoch 1 as if they had been told so while they were clean.
            told = _told(before, 1)
            partition._was_clean = True
            assert _engine_takes(partition, before, 1)
            partition._was_clean = was_clean
            taken = Protocol(Rules(), Bounds())._take_role(0, replica._replace(was_clean=True), told)
            assert taken is not None
            replica = taken._replace(was_clean=was_clean)
        if before == 0:
            known = partition.remote_replicas[1].fetched(2, log_start_offset=0, leader_end_offset=2, now_ms=0)
            partition.remote_replicas[1] = known
            replica = replica._replace(remote=(Remote(), Remote(2, -1), Remote()))
        taken = Protocol(Rules(), Bounds())._take_role(0, replica, _told(leader, epoch))
        assert _engine_takes(partition, leader, epoch) == (taken is not None), (epochs, leader, epoch)
        if taken is None:
            continue
        assert taken.latest_epoch == partition.log.latest_epoch
        assert (taken.epoch, taken.leader) == (partition.leader_epoch, partition.leader_id)
        ends = {each: remote.log_end_offset for each, remote in enumerate(taken.remote) if each != 0}
        assert ends == {each: known.log_end_offset for each, known in partition.remote_replicas.items()}
        if leader == 0:
            assert taken.epoch_start == partition.epoch_start_offset


def _told(leader: int, epoch: int) -> Announcement:
    return Announcement(LeaderAndIsr(leader, epoch, IDS, 1, (0, 0, 0)), epoch, (0, 0, 0))


# --- the command ----------------------------------------------------------------------------------


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(list(arguments))
    return status, capsys.readouterr().out


def test_the_command_prints_the_table_and_the_counterexample(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = _run(capsys, "--row", "shrink-at-once")
    assert status == 0
    assert "fails after 2 steps: I6" in out
    assert "A proposes ISR {A}" in out


def test_the_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = _run(capsys, "--row", "shrink-at-once", "--json")
    facts = json.loads(out)
    assert status == 0
    assert facts["steps"] == 2
    assert facts["as_expected"]


def test_the_command_fails_if_a_row_comes_out_otherwise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that nobody reads must still stop the build."""
    monkeypatch.setitem(ROWS, "shrink-at-once", replace(ROWS["shrink-at-once"], breaks="I4"))
    status, out = _run(capsys, "--row", "shrink-at-once")
    assert status == 1
    assert "UNEXPECTED" in out
