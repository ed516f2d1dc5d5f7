"""AlterPartition, check by check: of several errors, the right one is returned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.disk.errors import ErrorCode
from logstore.replication.controller.alter_partition import Verdict, judge
from logstore.replication.controller.election import Incarnation
from logstore.replication.durability import Durability
from logstore.replication.messages import IsrProposal
from logstore.replication.metastore.layout import LeaderAndIsr

STATE = LeaderAndIsr(leader=1, leader_epoch=5, isr=(1, 2), controller_epoch=3, isr_broker_epochs=(10, 20))
VERSION = 7
LIVE = {1: Incarnation(10, True), 2: Incarnation(20, True), 3: Incarnation(30, True)}


def verdict(
    isr: tuple[int, ...],
    *,
    leader_epoch: int = 5,
    partition_epoch: int = VERSION,
    broker_epochs: tuple[int, ...] = (),
    state: LeaderAndIsr = STATE,
    sender: int = 1,
    live: dict[int, Incarnation] = LIVE,
    shutting_down: frozenset[int] = frozenset(),
    all_synced: bool = False,
) -> Verdict:
    return judge(
        IsrProposal(leader_epoch, partition_epoch, isr, broker_epochs, all_synced),
        state,
        VERSION,
        (1, 2, 3),
        sender=sender,
        live=live,
        shutting_down=shutting_down,
        controller_epoch=4,
    )


def test_expansion_and_shrink_keep_the_leader_epoch() -> None:
    grown = verdict((1, 2, 3)).write
    assert grown == replace(STATE, isr=(1, 2, 3), isr_broker_epochs=(10, 20, 30), controller_epoch=4)
    shrunk = verdict((1,)).write
    assert shrunk == replace(STATE, isr=(1,), isr_broker_epochs=(10,), controller_epoch=4)


def test_members_that_stay_keep_the_incarnation_on_record() -> None:
    """Member 2 restarted without the leader's knowledge: its new incarnation has proved nothing."""
    live = LIVE | {2: Incarnation(21, True)}
    grown = verdict((1, 2, 3), live=live).write
    assert grown is not None
    assert grown.isr_broker_epochs == (10, 20, 30)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        # Whoever knows more than we do proves that we are history, whatever else is wrong.
        ({"isr": (1, 9), "leader_epoch": 6, "sender": 2}, ErrorCode.NOT_CONTROLLER),
        ({"isr": (1, 9), "partition_epoch": 8, "leader_epoch": 4}, ErrorCode.NOT_CONTROLLER),
        ({"isr": (1, 9), "leader_epoch": 4, "partition_epoch": 6}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"isr": (1, 2), "sender": 2}, ErrorCode.INVALID_REQUEST),
        ({"isr": (2, 1), "partition_epoch": 6}, ErrorCode.NONE),
        ({"isr": (1, 9), "partition_epoch": 6}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"isr": (2,)}, ErrorCode.INVALID_REQUEST),
        ({"isr": ()}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 9)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 3, 3)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 3), "broker_epochs": (10,)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 2, 3), "live": {1: LIVE[1], 2: LIVE[2]}}, ErrorCode.INELIGIBLE_REPLICA),
        ({"isr": (1, 2, 3), "shutting_down": frozenset({3})}, ErrorCode.INELIGIBLE_REPLICA),
        ({"isr": (1, 2, 3), "broker_epochs": (10, 20, 29)}, ErrorCode.INELIGIBLE_REPLICA),
        ({"isr": (1, 3), "leader_epoch": 5, "state": replace(STATE, leader=-1)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_refusals_and_repeats_write_nothing(arguments: dict[str, object], error: ErrorCode) -> None:
    assert verdict(**arguments) == Verdict(error)  # type: ignore[arg-type]


def test_incarnations_that_agree_or_are_unknown_pass() -> None:
    assert verdict((1, 2, 3), broker_epochs=(10, 20, 30)).write is not None
    assert verdict((1, 2, 3), broker_epochs=(-1, 20, -1)).write is not None


def test_a_recovering_leader_recovers_with_its_first_report() -> None:
    """A leader elected outside the ISR confirms its ISR: the end of its recovery is written."""
    state = replace(STATE, isr=(1,), isr_broker_epochs=(10,), recovering=True)
    written = verdict((1,), state=state).write
    assert written is not None
    assert not written.recovering


def test_a_report_that_all_have_flushed_counts_for_the_switch_it_was_made_under() -> None:
    """A level switched off and on again changes the version: an earlier report is refused."""
    switched = replace(STATE, durability=Durability.SYNCED)
    written = verdict((1, 2), state=switched, all_synced=True).write
    assert written == replace(switched, all_synced=True, controller_epoch=4)
    late = verdict((1, 2), state=switched, partition_epoch=VERSION - 1, all_synced=True)
    assert late == Verdict(ErrorCode.INVALID_UPDATE_VERSION)
    assert verdict((1, 2), all_synced=True) == Verdict(ErrorCode.NONE), "not asked for: nothing is written"
    grown = verdict((1, 2, 3), all_synced=True).write
    assert grown is not None
    assert not grown.all_synced


def test_a_repeat_that_something_else_was_written_after_is_no_success() -> None:
    """The answer would tell the leader a version of which it has not heard the level: it took that for known,
    and the controller's word of it for a repeat (simulation, seed 147)."""
    assert verdict((1, 2), partition_epoch=VERSION - 1) == Verdict(ErrorCode.NONE)
    assert verdict((1, 2), partition_epoch=VERSION - 2) == Verdict(ErrorCode.INVALID_UPDATE_VERSION)
    switched_back = verdict((1, 2), partition_epoch=VERSION - 1, all_synced=True)
    assert switched_back == Verdict(ErrorCode.INVALID_UPDATE_VERSION), "that write was not the report"
