"""The effect of a leader's answers on a follower's log, with real logs."""

from __future__ import annotations

import errno

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.upkeep import advance_log_start_offset
from logstore.replication import following
from logstore.replication.config import NodeConfig
from logstore.replication.effects import Send
from logstore.replication.errors import InvalidRequest
from logstore.replication.fetcher import Phase
from logstore.replication.follower import Followers
from logstore.replication.messages import (
    NO_EPOCH,
    EpochAnswer,
    FetchResponse,
    FetchResult,
    ListOffsetsResponse,
    ListOffsetsResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from logstore.segment.epochs import EpochEndOffset
from logstore.testing.disks.faulty import Fault, FaultyDisk
from logstore.testing.stage import TP, Stage, batch
from tests.replication.test_partition import F1, Rig, data

NOW_MS = 1_000_000
BACKOFF_MS = 1000


class Following(Rig):
    """Broker 0 follows broker 1; the test is the leader."""

    def __init__(
        self,
        *,
        truncate_on_fetch: bool = True,
        epoch: int = 5,
        records: tuple[int, ...] = (),
        disk: Disk | None = None,
    ) -> None:
        super().__init__(disk=disk)
        self.config = NodeConfig(
            node_id=0, truncate_on_fetch=truncate_on_fetch, replica_fetch_backoff_ms=BACKOFF_MS
        )
        self.storage_failures: list[TopicPartition] = []
        self._ids = 0
        self.followers = Followers(
            self.config,
            next_id=self._next_id,
            may_fetch=lambda partition, offset: True,
            on_progress=lambda topic_partition: None,
            on_storage_failure=self._failed,
            on_disk_full=lambda topic_partition: None,
            on_stuck=lambda topic_partition, reason: None,
        )
        self.now_ms = NOW_MS
        self.partition.become_follower(self.state(F1, epoch))
        if records:
            following.append_fetched(self.partition, data(*records), high_watermark=0, log_start_offset=0)
        self.followers.add(self.partition)
        self.asked: Send | None = None

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    def _failed(self, topic_partition: TopicPartition, error: Exception) -> None:
        self.storage_failures.append(topic_partition)
        self.followers.remove(topic_partition)

    def ask(self) -> Send | None:
        effects = self.followers.pump(1, self.now_ms)
        self.asked = effects[0] if effects else None  # type: ignore[assignment]
        return self.asked

    def reply(self, result: FetchResult | EpochAnswer | ListOffsetsResult) -> None:
        if self.asked is None:
            self.ask()
        assert self.asked is not None, "nothing was asked"
        body: FetchResponse | OffsetForLeaderEpochResponse | ListOffsetsResponse
        if isinstance(result, FetchResult):
            body = FetchResponse({TP: result})
        elif isinstance(result, EpochAnswer):
            body = OffsetForLeaderEpochResponse({TP: result})
        else:
            body = ListOffsetsResponse({TP: result})
        asked, self.asked = self.asked, None
        self.followers.on_response(asked.correlation_id, body, self.now_ms)

    def new_epoch(self, epoch: int) -> None:
        self.followers.remove(TP)
        self.partition.become_follower(self.state(F1, epoch))
        self.followers.add(self.partition)

    @property
    def bounds(self) -> tuple[int, int, int]:
        return self.log.log_start_offset, self.log.partition.high_watermark, self.log.log_end_offset

    def phase(self) -> Phase:
        return self.followers.followed[TP].phase


def fetched(*epochs: int, base: int = 0, hw: int = 0, start: int = 0) -> FetchResult:
    return FetchResult(ErrorCode.NONE, hw, start, data(*epochs, base_offset=base) if epochs else b"")


def diverging(epoch: int, end: int, *, hw: int = 0) -> FetchResult:
    return FetchResult(ErrorCode.NONE, hw, 0, data(9, base_offset=6), EpochEndOffset(epoch, end))


def test_records_watermark_and_log_start_are_taken_in_that_order() -> None:
    """3.6: append, then the watermark, then the log start (which may not pass the watermark)."""
    rig = Following()
    rig.reply(fetched(5, 5, 5, hw=2, start=1))
    assert rig.bounds == (1, 2, 3)
    rig.reply(fetched(hw=3, start=1))
    assert rig.bounds == (1, 3, 3), "an empty answer still brings the watermark"
    state = rig.followers.followed[TP]
    assert (state.fetch_offset, state.last_fetched_epoch) == (3, 5), "and keeps the last epoch (KAFKA-15510)"


def test_an_error_pauses_the_partition_where_it_is() -> None:
    """6.5: UNKNOWN_LEADER_EPOCH and the like; resumed after the back-off."""
    for error in (
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ):
        rig = Following()
        rig.reply(FetchResult(error))
        assert rig.ask() is None
        assert rig.phase() is Phase.FETCHING
        rig.now_ms += BACKOFF_MS
        assert rig.ask() is not None


def test_fenced_is_failed_until_the_controller_speaks() -> None:
    """6.5: the leader has a newer epoch; repeating the old one is useless."""
    rig = Following()
    rig.reply(FetchResult(ErrorCode.FENCED_LEADER_EPOCH))
    assert TP in rig.followers.failed
    rig.now_ms += 10 * BACKOFF_MS
    assert rig.ask() is None
    rig.new_epoch(6)
    assert not rig.followers.failed
    assert rig.ask() is not None


def test_a_lost_connection_pauses_what_was_asked() -> None:
    rig = Following()
    asked = rig.ask()
    assert asked is not None
    assert rig.followers.on_disconnected(asked.correlation_id, rig.now_ms)
    assert not rig.followers.on_disconnected(asked.correlation_id, rig.now_ms), "no longer ours"
    assert rig.ask() is None
    rig.now_ms += BACKOFF_MS
    assert rig.ask() is not None


def test_damaged_bytes_are_fetched_again() -> None:
    """6.5: the leader still has them; the partition is not failed."""
    rig = Following()
    torn = bytearray(data(5))
    torn[-1] ^= 1
    rig.reply(FetchResult(ErrorCode.NONE, 0, 0, bytes(torn)))
    assert rig.bounds == (0, 0, 0)
    assert not rig.followers.failed
    rig.now_ms += BACKOFF_MS
    rig.reply(fetched(5))
    assert rig.bounds == (0, 0, 1)


def test_successive_divergences() -> None:
    """6.5: the other fields of a diverging answer are ignored; the last fetched epoch goes 4 -> 2 -> 5."""
    rig = Following(records=(0, 0, 2, 4, 4, 4))
    rig.log.partition.set_high_watermark(1)
    rig.reply(diverging(2, 3, hw=6))
    assert rig.bounds == (0, 1, 3)
    assert rig.followers.followed[TP].last_fetched_epoch == 2
    rig.reply(fetched(5, 5, base=3, hw=4))
    assert rig.bounds == (0, 4, 5)
    assert rig.followers.followed[TP].last_fetched_epoch == 5


def test_a_divergence_that_changes_nothing_is_not_repeated_at_once() -> None:
    """Two nodes that disagree must not turn the network into a loop."""
    rig = Following(records=(5, 5))
    rig.reply(diverging(5, 2))
    assert rig.ask() is None
    rig.now_ms += BACKOFF_MS
    assert rig.ask() is not None


def test_a_divergence_right_behind_the_log_start_comes_to_an_end() -> None:
    """It led once and wrote nothing, with all that it had deleted: that epoch stood for the one of the
    records below the log start, was kept, and its leader said "diverging" for ever (seed 1839)."""
    rig = Following(records=(1,))
    rig.log.partition.set_high_watermark(1)
    advance_log_start_offset(rig.log.partition, 1)
    rig.log.partition.assign_epoch(2, 1)
    rig.new_epoch(5)
    rig.reply(diverging(1, 4, hw=4))
    assert rig.followers.followed[TP].last_fetched_epoch == 1
    rig.reply(fetched(1, 1, 1, base=1, hw=4, start=1))
    assert rig.bounds == (1, 4, 4)


def test_a_history_that_was_given_up_below_the_log_start() -> None:
    """All of it is deleted, and an unclean election chose a leader that never had it: its older epoch can
    only follow in a log that begins anew."""
    rig = Following(records=(3,))
    rig.log.partition.set_high_watermark(1)
    advance_log_start_offset(rig.log.partition, 1)
    rig.new_epoch(5)
    rig.reply(diverging(1, 4, hw=4))
    assert rig.followers.followed[TP].last_fetched_epoch == NO_EPOCH
    rig.reply(fetched(1, 1, 1, base=1, hw=4, start=1))
    assert rig.bounds == (1, 4, 4)
    assert rig.log.partition.epochs == ((1, 1),)


def test_a_history_below_the_log_start_is_asked_about_before_the_fetch() -> None:
    """The same without divergence in the fetch: epoch 4 has no records here, so its end settles nothing."""
    rig = Following(truncate_on_fetch=False, records=(3,))
    rig.log.partition.set_high_watermark(1)
    advance_log_start_offset(rig.log.partition, 1)
    rig.log.partition.assign_epoch(4, 1)
    rig.new_epoch(5)
    rig.reply(EpochAnswer(ErrorCode.NONE, 4, 2))
    assert rig.phase() is Phase.TRUNCATING
    rig.reply(EpochAnswer(ErrorCode.NONE, 1, 4))
    rig.reply(fetched(1, 1, 1, base=1, hw=4, start=1))
    assert rig.bounds == (1, 4, 4)


def test_answers_after_a_change_of_epoch_are_dropped() -> None:
    """S16, 6.5: no truncation, no append; a new question is asked."""
    for late in (fetched(5), diverging(0, 0), FetchResult(ErrorCode.FENCED_LEADER_EPOCH)):
        rig = Following(records=(4, 4))
        asked = rig.ask()
        assert asked is not None
        rig.new_epoch(6)
        rig.followers.on_response(asked.correlation_id, FetchResponse({TP: late}), rig.now_ms)
        assert rig.bounds == (0, 0, 2)
        assert not rig.followers.failed
        assert rig.ask() is not None


def test_answers_after_removal_are_dropped() -> None:
    """KAFKA-13207."""
    rig = Following(records=(4, 4))
    asked = rig.ask()
    assert asked is not None
    rig.followers.remove(TP)
    rig.followers.on_response(asked.correlation_id, FetchResponse({TP: diverging(0, 0)}), rig.now_ms)
    assert rig.bounds == (0, 0, 2)


def test_an_answer_to_another_question_is_a_broken_protocol() -> None:
    """6.5: a partition that was not asked about, or another kind of answer: nothing is touched."""
    other = TopicPartition("other", 0)
    for body in (
        FetchResponse({TP: fetched(5), other: fetched(5)}),
        ListOffsetsResponse({TP: ListOffsetsResult(ErrorCode.NONE, -1, 0)}),
    ):
        rig = Following()
        asked = rig.ask()
        assert asked is not None
        with pytest.raises(InvalidRequest):
            rig.followers.on_response(asked.correlation_id, body, rig.now_ms)
        assert rig.bounds == (0, 0, 0)
        assert rig.ask() is None, "and it pauses"


def test_a_partition_missing_in_the_answer_pauses() -> None:
    rig = Following()
    asked = rig.ask()
    assert asked is not None
    rig.followers.on_response(asked.correlation_id, FetchResponse({}), rig.now_ms)
    assert rig.ask() is None
    rig.now_ms += BACKOFF_MS
    assert rig.ask() is not None


# --- out of range (3.5) -----------------------------------------------------------------------------


def test_out_of_range_high() -> None:
    """S19: the leader's log ends before ours and it cannot compare: cut there, go on."""
    rig = Following(records=(5, 5, 5))
    rig.reply(FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE))
    assert rig.phase() is Phase.ASKING_END
    rig.reply(ListOffsetsResult(ErrorCode.NONE, -1, 1, 5))
    assert rig.bounds == (0, 0, 1)
    assert rig.phase() is Phase.FETCHING


def test_the_leader_was_emptied() -> None:
    """6.5: end 0, follower at 2: truncated to 0, then follows."""
    rig = Following(records=(5, 5))
    rig.log.partition.set_high_watermark(2)
    rig.reply(FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE))
    rig.reply(ListOffsetsResult(ErrorCode.NONE, -1, 0, 5))
    assert rig.bounds == (0, 0, 0)
    rig.reply(fetched(5, hw=1))
    assert rig.bounds == (0, 1, 1)


def test_out_of_range_low() -> None:
    """S18: away for longer than the leader keeps records: the log starts anew at 70, epochs forgotten."""
    rig = Following(records=(4, 4))
    rig.reply(FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE))
    rig.reply(ListOffsetsResult(ErrorCode.NONE, -1, 90, 5))
    assert rig.phase() is Phase.ASKING_START
    rig.reply(ListOffsetsResult(ErrorCode.NONE, -1, 70, 5))
    assert rig.bounds == (70, 70, 70)
    assert rig.log.partition.epochs == ()
    rig.reply(fetched(5, base=70, hw=71, start=70))
    assert rig.bounds == (70, 71, 71)


def test_out_of_range_no_more() -> None:
    """In range by the time it is asked: go on where we are, but not at once."""
    rig = Following(records=(5, 5))
    rig.reply(FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE))
    rig.reply(ListOffsetsResult(ErrorCode.NONE, -1, 9, 5))
    rig.reply(ListOffsetsResult(ErrorCode.NONE, -1, 0, 5))
    assert rig.bounds == (0, 0, 2)
    assert rig.ask() is None
    rig.now_ms += BACKOFF_MS
    assert rig.phase() is Phase.FETCHING
    assert rig.ask() is not None


def test_errors_while_asking_for_bounds() -> None:
    """6.5: fenced fails, the others are tried again in the same phase."""
    rig = Following(records=(5, 5))
    rig.reply(FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE))
    rig.reply(ListOffsetsResult(ErrorCode.UNKNOWN_LEADER_EPOCH))
    assert rig.phase() is Phase.ASKING_END
    rig.now_ms += BACKOFF_MS
    rig.reply(ListOffsetsResult(ErrorCode.FENCED_LEADER_EPOCH))
    assert TP in rig.followers.failed


# --- reconciling before fetching (3.3) --------------------------------------------------------------


def test_the_loop_of_questions() -> None:
    """KIP-279: first cut to the end of our nearest older epoch, then to what both agree on."""
    rig = Following(truncate_on_fetch=False, epoch=9, records=(3, 3, 3, 5, 5, 7))
    assert rig.phase() is Phase.TRUNCATING
    rig.reply(EpochAnswer(ErrorCode.NONE, 6, 5))  # epoch 6 is unknown here: our 5 ends at 5
    assert rig.bounds[2] == 5
    assert rig.phase() is Phase.TRUNCATING
    rig.reply(EpochAnswer(ErrorCode.NONE, 3, 2))
    assert rig.bounds[2] == 2
    assert rig.phase() is Phase.FETCHING


def test_a_leader_too_old_to_tell() -> None:
    """6.5: only then does the high watermark decide."""
    rig = Following(truncate_on_fetch=False, epoch=9, records=(3, 3, 3, 5))
    rig.log.partition.set_high_watermark(2)
    rig.reply(EpochAnswer(ErrorCode.NONE, -1, -1))
    assert rig.bounds == (0, 2, 2)
    assert rig.phase() is Phase.FETCHING


def test_errors_while_reconciling() -> None:
    """6.5: never leaves TRUNCATING while the leader answers errors; fenced fails."""
    rig = Following(truncate_on_fetch=False, epoch=9, records=(3, 3))
    for _ in range(3):
        rig.reply(EpochAnswer(ErrorCode.UNKNOWN_LEADER_EPOCH))
        assert rig.phase() is Phase.TRUNCATING
        assert rig.ask() is None
        rig.now_ms += BACKOFF_MS
    rig.reply(EpochAnswer(ErrorCode.FENCED_LEADER_EPOCH))
    assert TP in rig.followers.failed
    assert rig.bounds == (0, 0, 2)


def test_6_5_an_epoch_answer_after_removal_is_dropped() -> None:
    """6.5: removed while the epoch reply is outstanding: nothing is truncated, and nothing asked again."""
    rig = Following(truncate_on_fetch=False, epoch=9, records=(3, 3))
    asked = rig.ask()
    assert asked is not None
    assert isinstance(asked.body, OffsetForLeaderEpochRequest)
    rig.followers.remove(TP)
    answer = OffsetForLeaderEpochResponse({TP: EpochAnswer(ErrorCode.NONE, 3, 0)})
    rig.followers.on_response(asked.correlation_id, answer, rig.now_ms)
    assert rig.bounds == (0, 0, 2)
    assert rig.ask() is None


def test_an_epoch_answer_of_an_older_epoch_is_ignored() -> None:
    """S17: asked anew."""
    rig = Following(truncate_on_fetch=False, epoch=9, records=(3, 3))
    asked = rig.ask()
    assert asked is not None
    rig.new_epoch(10)
    late = OffsetForLeaderEpochResponse({TP: EpochAnswer(ErrorCode.NONE, 3, 0)})
    rig.followers.on_response(asked.correlation_id, late, rig.now_ms)
    assert rig.bounds == (0, 0, 2)
    assert rig.phase() is Phase.TRUNCATING
    assert rig.ask() is not None


@pytest.mark.parametrize("truncate_on_fetch", [True, False])
def test_two_histories_converge(truncate_on_fetch: bool) -> None:
    """6.5: follower epochs 0/2/4 against a leader with 1/3/5: only epoch 0 is shared."""
    config = NodeConfig(node_id=0, replica_fetch_wait_max_ms=0, truncate_on_fetch=truncate_on_fetch)
    stage = Stage("AB", config=config)
    stage.elect("A", isr="AB")
    stage.append("A", 2)
    stage.replicate("B")
    for epoch in range(1, 6):
        leader = "AB"[epoch % 2]
        stage.elect(leader, isr="AB", to=leader)
        stage.append(leader, 2)
    stage.tell("A")
    for _ in range(8):
        stage.fetch("A")
    assert stage.values("A") == stage.values("B")
    assert [entry.epoch for entry in stage.log("A").partition.epochs] == [0, 1, 3, 5]


# --- disks ------------------------------------------------------------------------------------------


def test_a_broken_log_stops_its_partition() -> None:
    """6.5: the append fails on its disk: the partition goes offline, and the replica manager is notified."""
    broken = FaultyDisk(MemoryDisk())
    rig = Following(disk=broken)
    rig.ask()
    broken.inject(Fault(operation="pwrite"))
    rig.reply(fetched(5))
    assert rig.storage_failures == [TP]
    assert rig.ask() is None
    assert rig.partition.log.is_offline


def test_what_cannot_follow_our_log_fails_the_partition_and_says_why() -> None:
    """3.6: records from beyond the end are a broken leader; nothing but a new role brings us back."""
    rig = Following(records=(5,))
    rig.reply(fetched(5, 5, base=0))
    assert "0" in rig.followers.failed[TP]
    assert rig.ask() is None
    assert rig.bounds == (0, 0, 1)
    rig.new_epoch(6)
    assert not rig.followers.failed
    assert rig.ask() is not None


def test_a_full_disk_half_way_goes_on_from_what_the_log_took() -> None:
    """The records found room, the new log start did not: the next fetch begins behind the records, and
    nothing passes for committed until the log begins where its leader's does."""
    full = FaultyDisk(MemoryDisk())
    rig = Following(disk=full)
    rig.ask()
    fault = Fault(errno=errno.ENOSPC, path=lambda path: "log-start-offset" in path, forever=True)
    full.inject(fault)
    rig.reply(fetched(5, 5, hw=2, start=1))
    assert full.fired, "the publication of the log start was refused"
    assert rig.bounds == (0, 0, 2)
    assert rig.ask() is None, "one back-off"
    full.heal()
    rig.now_ms += BACKOFF_MS
    rig.reply(fetched(5, base=2, hw=3, start=1))
    assert rig.bounds == (1, 3, 3)
    assert not rig.storage_failures
    assert not rig.followers.failed


def test_adding_reads_the_end_of_the_log_when_it_is_called() -> None:
    """3.2: remove first, then read the end: an append of the old epoch must not come in between."""
    rig = Following(records=(5,))
    rig.followers.remove(TP)
    following.append_fetched(rig.partition, data(5, base_offset=1), high_watermark=0, log_start_offset=0)
    rig.followers.add(rig.partition)
    assert rig.followers.followed[TP].fetch_offset == 2
    with pytest.raises(AssertionError):
        rig.followers.add(rig.partition)


def test_the_clients_batch_arrives_byte_for_byte() -> None:
    """A follower's file is the leader's, codec and all; only offsets and epoch were stamped."""
    stage = Stage("AB")
    stage.elect("A", isr="AB")
    stage.append("A", 3)
    stage.replicate("B")
    assert stage.log("A").read_bytes(0).records == stage.log("B").read_bytes(0).records
    assert batch(b"0")[61:] in bytes(stage.log("B").read_bytes(0).records)
