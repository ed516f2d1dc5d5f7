"""Each check that the stage makes after every action fails on a node whose rule is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logstore.replication.delayed import DelayedOperation
from logstore.replication.follower import Followers
from logstore.replication.isr_channel import IsrChannel
from logstore.replication.partition import ACKS_ALL
from logstore.segment.epochs import LeaderEpochCache
from logstore.testing.stage import Stage
from logstore.testing.stored import Violation
from tests.replication import test_topics


def answered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """I14: what was answered once is ready once more."""

    def forgetful(self: DelayedOperation, now_ms: int) -> bool:
        self.on_complete(now_ms)
        return True

    monkeypatch.setattr(DelayedOperation, "force_complete", forgetful)


def epochs_outlive_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """I18: an entry past the log's end."""
    monkeypatch.setattr(LeaderEpochCache, "truncate_from_end", lambda self, offset, **how: False)


def a_proposal_outlives_its_isr(monkeypatch: pytest.MonkeyPatch) -> None:
    """I20: a newer word of the controller does not end what was to be asked."""
    monkeypatch.setattr(IsrChannel, "withdraw", lambda self, topic_partition: None)


def a_leader_goes_on_fetching(monkeypatch: pytest.MonkeyPatch) -> None:
    """I21: its fetcher is not stopped when it begins to lead."""
    monkeypatch.setattr(Followers, "remove", lambda self, topic_partition: None)


def a_follower_begins_no_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """I21: it is not noticed."""
    monkeypatch.setattr(Followers, "add", lambda self, partition: None)


def incarnations_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """I17: only the name counts."""
    monkeypatch.setattr("logstore.replication.orders.is_of_another_incarnation", lambda *ids: False)


def write_and_commit(stage: Stage) -> None:
    stage.elect("A", isr="AB")
    stage.append("A", acks=ACKS_ALL)
    stage.fetch("B")
    stage.fetch("B")
    stage.advance(60_000)


def lose_what_others_lack(stage: Stage) -> None:
    stage.elect("A", isr="AB")
    stage.append("A", 2)
    stage.replicate("B")
    stage.append("A")
    stage.elect("A", isr="AB", to="A")
    stage.append("A")
    stage.elect("B", isr="AB")
    stage.fetch("A")


def overtake_a_proposal(stage: Stage) -> None:
    stage.elect("A", isr="A")
    stage.append("A")
    stage.replicate("B", rounds=2)
    stage.elect("A", isr="A")


def lead_in_turn(stage: Stage) -> None:
    stage.elect("A", isr="AB")
    stage.append("A")
    stage.replicate("B")
    stage.elect("B", isr="AB")


@pytest.mark.parametrize(
    ("invariant", "plant", "schedule"),
    [
        ("answered twice", answered_again, write_and_commit),
        ("I18", epochs_outlive_a_cut, lose_what_others_lack),
        ("I20", a_proposal_outlives_its_isr, overtake_a_proposal),
        ("I21", a_leader_goes_on_fetching, lead_in_turn),
        ("I21", a_follower_begins_no_fetch, lead_in_turn),
    ],
)
def test_a_broken_rule_is_seen_by_the_stage(
    invariant: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    schedule: Callable[[Stage], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule(Stage("AB"))
    plant(monkeypatch)
    with pytest.raises((AssertionError, Violation), match=invariant):
        schedule(Stage("AB"))


def test_i17_a_broker_that_goes_by_names_deletes_another_topics_log(monkeypatch: pytest.MonkeyPatch) -> None:
    incarnations_are_one(monkeypatch)
    with pytest.raises(AssertionError, match="INCONSISTENT_TOPIC_ID"):
        test_topics.test_s60_a_late_order_to_delete_names_another_incarnation(True)
