"""Each invariant, broken by hand once: a checker that never fails is not a checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.testing.checkers import PartitionChecker, judge_disowned
from logstore.testing.stored import ConsumerView, ReplicaView, Stored, Violation, parse

STATE = LeaderAndIsr(
    leader=0, leader_epoch=0, isr=(0, 1, 2), controller_epoch=1, isr_broker_epochs=(10, 11, 12)
)


def stored(base: int, text: str, *, epoch: int = 0, count: int = 1) -> Stored:
    """A batch of `count` records at `base`; `text` makes it unlike others."""
    records = [Record(base + slot, 0, None, text.encode()) for slot in range(count)]
    (batch,) = parse(encode_batch(records, base_offset=base, leader_epoch=epoch))
    return batch


A, B, C = stored(0, "a"), stored(1, "b"), stored(2, "c")


class History:
    """A partition of three replicas, whose story a test tells."""

    def __init__(self, *, min_insync: int = 1, unclean: bool = False) -> None:
        self.checker = PartitionChecker(
            "t-0",
            (0, 1, 2),
            min_insync=min_insync,
            unclean_allowed=lambda: unclean,
            incarnation=lambda node: 10 + node,
        )
        self.version = -1
        self.write(STATE)

    def write(self, state: LeaderAndIsr, *, over: int | None = None, controller_epoch: int = 1) -> None:
        """The state node is written, on the condition that it has version `over` (default: the right one)."""
        expected = self.version if over is None else over
        self.version += 1
        self.checker.state_written(
            state,
            self.version,
            expected_version=expected if self.version else None,
            controller_epoch=controller_epoch,
        )

    def send(self, *batches: Stored) -> None:
        for batch in batches:
            self.checker.sent(batch.identity)

    def show(
        self,
        node: int,
        *batches: Stored,
        leads: bool = False,
        epoch: int = 0,
        hw: int = 0,
        life: int = 1,
        cut_to: int | None = None,
        hw_before: int = 0,
    ) -> ReplicaView:
        """A replica shows that it holds exactly these batches."""
        self.send(*batches)
        before = self.checker.views.get(node)
        view = ReplicaView(node, life, epoch, leads, 0, hw, batches[-1].end if batches else 0, list(batches))
        first_new = 0
        if before is not None and before.life == life:
            for one, other in zip(before.batches, batches, strict=False):
                if one != other:
                    break
                first_new += 1
        self.checker.replica_changed(
            view, first_new=first_new, cut_to=cut_to, high_watermark_before=hw_before
        )
        return view

    def all_hold(self, *batches: Stored, hw: int) -> ReplicaView:
        """Leader 0 and both followers hold these, committed up to `hw`."""
        self.show(1, *batches)
        self.show(2, *batches)
        return self.show(0, *batches, leads=True, hw=hw)


def elect(
    history: History, leader: int, isr: tuple[int, ...], epoch: int = 1, *, recovering: bool = False
) -> LeaderAndIsr:
    state = LeaderAndIsr(leader, epoch, isr, 1, tuple(10 + member for member in isr), recovering)
    history.write(state)
    return state


# --- stories that break one rule each ---------------------------------------------------------


def two_leaders_in_one_epoch(history: History) -> None:
    history.show(0, A, leads=True)
    history.show(1, leads=True)


def an_epoch_goes_on_after_a_restart(history: History) -> None:
    history.show(0, A, leads=True)
    history.checker.replica_gone(0)
    history.show(0, A, B, leads=True, life=2)


def the_stores_epoch_goes_back(history: History) -> None:
    elect(history, 1, (1, 2), epoch=2)
    elect(history, 1, (1, 2), epoch=1)


def an_epoch_gets_a_second_leader(history: History) -> None:
    history.write(replace(STATE, leader=1))


def a_replica_goes_back_an_epoch(history: History) -> None:
    history.show(1, epoch=3)
    history.show(1, epoch=2)


def epochs_fall_inside_a_log(history: History) -> None:
    history.show(1, stored(0, "a", epoch=2), stored(1, "b", epoch=1), epoch=2)


def a_batch_of_an_epoch_yet_to_come(history: History) -> None:
    history.show(1, stored(0, "a", epoch=5), epoch=4)


def two_contents_at_one_place(history: History) -> None:
    history.show(0, A, leads=True)
    history.show(1, stored(0, "other"))


def the_same_batch_behind_another(history: History) -> None:
    history.show(0, A, stored(1, "b", epoch=2), epoch=2)
    history.show(1, stored(0, "other", epoch=1), stored(1, "b", epoch=2), epoch=2)


def a_follower_differs_below_its_watermark(history: History) -> None:
    history.all_hold(A, hw=1)
    history.show(1, stored(0, "other", epoch=1), epoch=1, hw=1)


def a_follower_cuts_what_was_committed(history: History) -> None:
    history.all_hold(A, B, hw=2)
    history.show(1, A, cut_to=1, hw_before=2)


def acknowledged_before_it_is_committed(history: History) -> None:
    view = history.show(0, A, leads=True)
    history.checker.acknowledged(A.identity, 0, view, isr_size=3, is_leader=True)


def acknowledged_for_another_record(history: History) -> None:
    view = history.all_hold(A, hw=1)
    history.checker.acknowledged(B.identity, 0, view, isr_size=3, is_leader=True)


def a_new_leader_lacks_what_was_committed(history: History) -> None:
    history.show(1)  # its log is not looked at when it is elected: it is of another incarnation
    history.checker.incarnation = lambda node: -1
    history.show(0, A, leads=True, hw=1)
    elect(history, 1, (1,))
    history.show(1, leads=True, epoch=1)


def a_zombie_commits_what_its_successor_lacks(history: History) -> None:
    history.checker.incarnation = lambda node: -1
    history.show(0, A, leads=True)
    elect(history, 1, (1,))
    history.show(1, leads=True, epoch=1)
    history.show(0, A, leads=True, hw=1)


def not_all_that_was_committed_can_be_read(history: History) -> None:
    history.all_hold(A, B, hw=2)
    history.checker.read_back([A])


def another_record_is_read_back(history: History) -> None:
    history.all_hold(A, B, hw=2)
    history.checker.read_back([A, stored(1, "other")])


def a_refused_send_appears(history: History) -> None:
    history.checker.refused(A.identity)
    history.show(0, A, leads=True)


def an_appended_send_is_refused(history: History) -> None:
    history.show(0, A, leads=True)
    history.checker.refused(A.identity)


def a_record_that_nobody_sent(history: History) -> None:
    history.checker.replica_changed(ReplicaView(0, 1, 0, True, 0, 0, 1, [A]), first_new=0)


def test_what_is_under_way_may_meet_a_namesake() -> None:
    """It was sent by name: whatever topic has the name when it comes takes it. What had come does not."""
    deleted, namesake = PartitionChecker("t-0", (0,)), PartitionChecker("t-0", (0,))
    deleted.sent(A.identity)
    deleted.sent(B.identity)
    deleted.replica_changed(ReplicaView(0, 1, 0, True, 0, 0, 1, [A]), first_new=0)
    namesake.succeeds(deleted)
    late, ghost = Stored(0, 1, 0, B.data), ReplicaView(1, 1, 1, False, 0, 0, 1, [A._replace(epoch=1)])
    namesake.replica_changed(ReplicaView(0, 1, 0, True, 0, 0, 1, [late]), first_new=0)
    with pytest.raises(Violation, match="C5"):
        namesake.replica_changed(ghost, first_new=0)


def a_hole_in_the_offsets(history: History) -> None:
    history.show(0, A, C, leads=True)


def one_send_is_committed_twice(history: History) -> None:
    again = Stored(1, 2, 0, stored(1, "a").data)
    assert again.identity == A.identity
    history.all_hold(A, again, hw=2)


def a_watermark_past_the_end(history: History) -> None:
    history.show(0, A, leads=True, hw=2)


def a_follower_calls_committed_what_no_leader_did(history: History) -> None:
    history.all_hold(A, B, hw=1)
    history.show(1, A, B, hw=2)


def a_follower_joins_with_what_its_leader_has_deleted(history: History) -> None:
    leader = history.all_hold(A, B, hw=2)
    leader.log_start = 1
    history.checker.proposed(leader, 1, 11)


def a_member_that_was_dead_brings_deleted_records_back(history: History) -> None:
    history.all_hold(A, B, hw=2)
    history.checker.records_deleted(1, lambda node, epoch: False)
    elect(history, 1, (1, 2))
    history.show(1, A, B, leads=True, epoch=1, hw=2, hw_before=2)


def a_leader_that_wakes_late_brings_back_what_an_earlier_one_deleted(history: History) -> None:
    """Of the later deletion, of a later leader, it need not know."""
    history.all_hold(A, B, hw=2)
    history.checker.records_deleted(1, lambda node, epoch: False)
    elect(history, 1, (1, 2), epoch=1)
    elect(history, 2, (2,), epoch=2)
    history.checker.records_deleted(2, lambda node, epoch: False)
    history.show(1, A, B, leads=True, epoch=1, hw=2, hw_before=2)


def a_leaders_watermark_falls(history: History) -> None:
    history.all_hold(A, B, hw=2)
    history.show(0, A, B, leads=True, hw=1)


def a_member_is_short_of_the_watermark(history: History) -> None:
    history.show(1, A)
    history.show(2)
    history.show(0, A, leads=True, hw=1)


def a_short_replica_is_admitted(history: History) -> None:
    history.write(replace(STATE, isr=(0, 1), isr_broker_epochs=(10, 11)))
    history.show(2)
    history.show(1, A)
    history.show(0, A, leads=True, hw=1)
    history.write(STATE)


def a_member_holds_other_records(history: History) -> None:
    history.show(2, stored(0, "other", epoch=1), epoch=1)
    history.show(1, A)
    history.show(0, A, leads=True, hw=1)


def served_above_the_watermark(history: History) -> None:
    view = history.all_hold(A, B, hw=1)
    history.checker.served(view, [A, B])


def a_consumer_skips(history: History) -> None:
    history.all_hold(A, B, hw=2)
    history.checker.consumed(ConsumerView(0), 0, [B], leader_epoch=0)


def a_consumer_gets_it_twice(history: History) -> None:
    history.all_hold(A, B, hw=2)
    history.checker.consumed(ConsumerView(1), 1, [A], leader_epoch=0)


def a_consumer_gets_something_else(history: History) -> None:
    history.all_hold(A, B, hw=2)
    history.checker.consumed(ConsumerView(1), 1, [stored(1, "other")], leader_epoch=0)


def a_leader_outside_its_isr(history: History) -> None:
    elect(history, 0, (1, 2))


def an_isr_with_a_stranger(history: History) -> None:
    elect(history, 0, (0, 7))


def a_write_without_a_condition(history: History) -> None:
    history.write(replace(STATE, leader_epoch=1), over=-7)


def a_controller_that_was_replaced_writes(history: History) -> None:
    history.write(replace(STATE, leader_epoch=1, controller_epoch=2), controller_epoch=3)


def elected_outside_the_isr(history: History) -> None:
    elect(history, 1, (1, 2))
    elect(history, 0, (0,), epoch=2)


def a_lost_member_is_elected(history: History) -> None:
    history.write(replace(STATE, leader_epoch=1, isr_broker_epochs=(20, 11, 12), recovering=True))


STORIES: list[tuple[str, Callable[[History], None]]] = [
    ("C1", two_leaders_in_one_epoch),
    ("C1", an_epoch_goes_on_after_a_restart),
    ("C2", the_stores_epoch_goes_back),
    ("C2", an_epoch_gets_a_second_leader),
    ("C2", a_replica_goes_back_an_epoch),
    ("C2", epochs_fall_inside_a_log),
    ("C2", a_batch_of_an_epoch_yet_to_come),
    ("C3", two_contents_at_one_place),
    ("C3", the_same_batch_behind_another),
    ("C3", a_follower_differs_below_its_watermark),
    ("C3", a_follower_cuts_what_was_committed),
    ("C4", acknowledged_before_it_is_committed),
    ("C4", acknowledged_for_another_record),
    ("C4", a_new_leader_lacks_what_was_committed),
    ("C4", a_zombie_commits_what_its_successor_lacks),
    ("C4", not_all_that_was_committed_can_be_read),
    ("C4", another_record_is_read_back),
    ("C5", a_refused_send_appears),
    ("C5", an_appended_send_is_refused),
    ("C5", a_record_that_nobody_sent),
    ("C6", a_hole_in_the_offsets),
    ("C6", one_send_is_committed_twice),
    ("C7", a_watermark_past_the_end),
    ("C7", a_leaders_watermark_falls),
    ("C7", a_follower_calls_committed_what_no_leader_did),
    ("C7", a_member_is_short_of_the_watermark),
    ("C7", a_short_replica_is_admitted),
    ("C14", a_member_holds_other_records),
    ("C7", served_above_the_watermark),
    ("C8", a_consumer_skips),
    ("C8", a_consumer_gets_it_twice),
    ("C8", a_consumer_gets_something_else),
    ("C13", a_leader_outside_its_isr),
    ("C13", an_isr_with_a_stranger),
    ("C13", a_write_without_a_condition),
    ("C13", a_controller_that_was_replaced_writes),
    ("C13", elected_outside_the_isr),
    ("C13", a_lost_member_is_elected),
    ("C22", a_follower_joins_with_what_its_leader_has_deleted),
    ("C22", a_member_that_was_dead_brings_deleted_records_back),
    ("C22", a_leader_that_wakes_late_brings_back_what_an_earlier_one_deleted),
]


@pytest.mark.parametrize(("invariant", "story"), STORIES, ids=[story.__name__ for _, story in STORIES])
def test_a_broken_rule_is_reported_by_its_name(invariant: str, story: Callable[[History], None]) -> None:
    with pytest.raises(Violation) as found:
        story(History())
    assert found.value.invariant == invariant


def test_too_few_replicas_behind_an_acknowledgement() -> None:
    """`min.insync.replicas` is part of what acks=all means, even while the record is everywhere."""
    history = History(min_insync=2)
    view = history.all_hold(A, hw=1)
    with pytest.raises(Violation, match="C4"):
        history.checker.acknowledged(A.identity, 0, view, isr_size=1, is_leader=True)
    history.checker.acknowledged(A.identity, 0, view, isr_size=2, is_leader=True)


def test_a_good_story_passes_to_its_end() -> None:
    """Append, commit, acknowledge, fail over, cut an uncommitted tail, go on: nothing to complain about."""
    history = History()
    view = history.all_hold(A, hw=1)
    history.checker.acknowledged(A.identity, 0, view, isr_size=3, is_leader=True)
    history.show(0, A, B, leads=True, hw=1)
    elect(history, 1, (1, 2))
    new = stored(1, "new", epoch=1)
    history.show(1, A, leads=True, epoch=1)
    history.show(2, A, new, epoch=1)
    history.show(0, A, new, epoch=1, cut_to=1, hw_before=1)
    history.show(1, A, new, leads=True, epoch=1, hw=2)
    consumer = ConsumerView()
    history.checker.consumed(consumer, 0, [A, new], leader_epoch=1)
    assert consumer.position == 2
    history.checker.read_back([A, new])


def test_an_unclean_election_declares_what_it_gives_up() -> None:
    """Where it is allowed, committed records above the cut are lost, not missed; claims of the old
    leader no longer count, and below the cut the rules are as strict as before."""
    history = History(unclean=True)
    history.checker.incarnation = lambda node: -1
    view = history.all_hold(A, B, hw=2)
    history.checker.acknowledged(B.identity, 1, view, isr_size=3, is_leader=True)
    history.write(replace(STATE, isr=(0,), isr_broker_epochs=(10,)))
    history.show(1, A)
    elect(history, 1, (1,), epoch=1, recovering=True)
    other = stored(1, "other", epoch=1)
    history.show(1, A, leads=True, epoch=1)
    assert history.checker.floor == 1
    assert history.checker.declared_lost == 1
    history.show(0, A, B, C, leads=True, hw=3)
    assert history.checker.committed == [A]
    history.show(1, A, other, leads=True, epoch=1, hw=2)
    history.show(0, A, other, epoch=1, cut_to=1, hw_before=3)
    history.checker.read_back([A, other])
    elect(history, 2, (2,), epoch=2, recovering=True)
    with pytest.raises(Violation, match="C4"):
        history.checker.read_back([A])


def test_an_unclean_leader_whose_log_begins_inside_a_committed_batch_gives_it_up() -> None:
    """It began anew where its leader's records were deleted up to, in the middle of a batch (seed 9404)."""
    history = History(unclean=True)
    history.checker.incarnation = lambda node: -1
    history.all_hold(A, stored(1, "three", count=3), hw=4)
    history.write(replace(STATE, isr=(0,), isr_broker_epochs=(10,)))
    elect(history, 1, (1,), epoch=1, recovering=True)
    view = ReplicaView(1, 1, 1, True, log_start=2, high_watermark=2, log_end=2, batches=[])
    history.checker.replica_changed(view, first_new=0)
    assert history.checker.committed == [A]


def test_an_unclean_leader_serves_whole_the_batch_that_its_log_starts_in() -> None:
    """Another history that was given up before leads again: what was committed where its first batch lies is
    lost, also below its log start, and its own batch is what consumers are given from now on (seed 19139)."""
    history = History(unclean=True)
    history.checker.incarnation = lambda node: -1
    three, last = stored(1, "three", count=3), stored(4, "last")
    one, two = stored(1, "one", epoch=1), stored(2, "two", epoch=1, count=2)
    history.send(three, last)
    elect(history, 0, (0,))
    view = history.show(0, A, one, two, leads=True, epoch=1, hw=4)
    for batch in (A, one, two):
        history.checker.acknowledged(batch.identity, batch.base, view, isr_size=1, is_leader=True)
    elect(history, 1, (1,), epoch=2, recovering=True)
    view = ReplicaView(1, 1, 2, True, log_start=3, high_watermark=5, log_end=5, batches=[three, last])
    history.checker.replica_changed(view, first_new=0)
    assert history.checker.committed == [A, three, last]
    assert (history.checker.floor, history.checker.declared_lost) == (1, 2)
    consumer = ConsumerView(3)
    history.checker.consumed(consumer, 3, [three], leader_epoch=2)
    assert consumer.position == 4
    history.checker.read_back([three, last])


def test_an_unclean_leader_gives_up_nothing_that_it_holds_or_has_deleted() -> None:
    """The log start lies inside a batch that was committed, and what ends before that batch is deleted."""
    history = History(unclean=True)
    history.checker.incarnation = lambda node: -1
    three = stored(1, "three", count=3)
    history.all_hold(A, three, hw=4)
    history.write(replace(STATE, isr=(0,), isr_broker_epochs=(10,)))
    elect(history, 1, (1,), epoch=1, recovering=True)
    view = ReplicaView(1, 1, 1, True, log_start=3, high_watermark=3, log_end=4, batches=[three])
    history.checker.replica_changed(view, first_new=0)
    assert history.checker.committed == [A, three]
    assert history.checker.floor == 4


def test_an_unclean_leader_may_bring_deleted_records_back() -> None:
    history = History(unclean=True)
    history.checker.incarnation = lambda node: -1
    history.all_hold(A, B, hw=2)
    history.checker.records_deleted(2, lambda node, epoch: False)
    history.write(replace(STATE, isr=(0,), isr_broker_epochs=(10,)))
    elect(history, 1, (1,), epoch=1, recovering=True)
    history.show(1, A, leads=True, epoch=1, hw=1)
    elect(history, 2, (2,), epoch=2)
    history.show(2, A, leads=True, epoch=2, hw=1)


def test_a_superseded_leader_that_wakes_late_need_not_know_of_a_deletion() -> None:
    """Paused while it was elected, it takes its role when a later leader has already deleted records."""
    history = History()
    history.all_hold(A, B, hw=2)
    elect(history, 1, (1, 2), epoch=1)
    elect(history, 2, (2,), epoch=2)
    history.checker.records_deleted(1, lambda node, epoch: False)
    history.show(1, A, B, leads=True, epoch=1, hw=2, hw_before=2)


def test_an_unclean_leader_gives_up_both_places_of_what_was_sent_again() -> None:
    """Sent again after it was deleted, and committed anew: then somebody leads who holds neither."""
    history = History(unclean=True)
    history.checker.incarnation = lambda node: -1
    history.show(0, A, leads=True, hw=1)
    again = stored(3, "a")
    again = again._replace(data=again.data[:17] + A.data[17:])
    view = ReplicaView(0, 1, 0, True, log_start=1, high_watermark=4, log_end=4, batches=[B, C, again])
    history.send(B, C)
    history.checker.replica_changed(view, first_new=0)
    assert history.checker.committed == [A, B, C, again]
    history.write(replace(STATE, isr=(0,), isr_broker_epochs=(10,)))
    elect(history, 1, (1,), epoch=1, recovering=True)
    history.show(1, leads=True, epoch=1)
    assert history.checker.committed == []


# --- numbers, fences, memory, bounds ------------------------------------------------------------


def numbered(base: int, sequence: int, *, count: int = 1, epoch: int = 0) -> Stored:
    """A batch of producer 7."""
    records = [Record(base + slot, 0, None, f"{base}".encode()) for slot in range(count)]
    (batch,) = parse(
        encode_batch(
            records,
            base_offset=base,
            leader_epoch=0,
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )
    return batch


def test_c10_numbers_go_on() -> None:
    history = History()
    batches = numbered(0, 0, count=2), numbered(2, 2), numbered(3, 0, epoch=1)
    history.send(*batches)
    history.show(0, *batches, leads=True)
    history.show(1, *batches)
    history.show(2, *batches)
    history.show(0, *batches, leads=True, hw=4)
    assert batches[0].numbers == (7, 0, 0)


@pytest.mark.parametrize("second", [numbered(1, 2), numbered(1, 0)], ids=["a gap", "twice"])
def test_c10_a_sequence_that_does_not_follow_is_reported(second: Stored) -> None:
    history = History()
    batches = numbered(0, 0), second
    history.send(*batches)
    for node in (0, 1, 2):
        history.show(node, *batches, leads=node == 0)
    with pytest.raises(Violation, match=r"C10.*expected 1"):
        history.show(0, *batches, leads=True, hw=2)


def test_c11_who_has_to_go_acknowledges_nothing() -> None:
    history = History()
    history.send(A)
    view = history.show(0, A, leads=True)
    history.show(1, A)
    history.show(2, A)
    view = history.show(0, A, leads=True, hw=1)
    history.checker.acknowledged(A.identity, 0, view, isr_size=3, is_leader=True)
    with pytest.raises(Violation, match="C11"):
        history.checker.acknowledged(A.identity, 0, view, isr_size=3, is_leader=False)
    with pytest.raises(Violation, match="C11"):
        history.checker.acknowledged(A.identity, 0, view, isr_size=3, is_leader=True, is_registered=False)
    history.checker.acknowledged(A.identity, 0, view, isr_size=1, is_leader=False, is_learned=True)


def test_an_assignment_bounds_the_isr_from_then_on() -> None:
    history = History()
    history.checker.assigned((0, 1))
    with pytest.raises(Violation, match="C13"):
        history.write(replace(STATE, leader_epoch=1))


def test_c23_a_batch_that_the_successor_holds_is_not_led_elsewhere() -> None:
    history = History()
    history.all_hold(A, hw=0)
    elect(history, 1, (0, 1, 2))
    view = history.show(0, A, epoch=1)
    judge_disowned(history.checker, A.identity, view)
    history.show(1, A, leads=True, epoch=1)
    judge_disowned(history.checker, B.identity, view)
    with pytest.raises(Violation, match="C23"):
        judge_disowned(history.checker, A.identity, view)
