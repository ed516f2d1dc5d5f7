"""From where to where micro-batches go, over a log that grows, shrinks, and changes its partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.errors import DataLoss, InvalidOption, NoMatchingTime, UnknownTopic
from logstore.spark.logs import Bounds, Missing, OffsetRange
from logstore.spark.micro_batches import Admission, MicroBatches
from logstore.spark.read_options import ReadOptions

A, B, C = (TopicPartition("t", partition) for partition in range(3))
ALL = Admission()


class Log:
    """Bounds that a test sets; what was asked is counted."""

    def __init__(self, **bounds: tuple[int, int]) -> None:
        self.known = {TopicPartition("t", int(name[1:])): Bounds(*found) for name, found in bounds.items()}
        self.times: dict[TopicPartition, int | None] = {}
        self.topic_id = ""
        self.listings = 0
        self.questions = 0
        self.next: list[dict[TopicPartition, Bounds]] = []

    def partitions(self) -> Sequence[TopicPartition]:
        self.listings += 1
        return sorted(self.known)

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        self.questions += 1
        known = self.next.pop(0) if self.next else self.known
        for each in partitions:
            if each not in known:
                raise UnknownTopic(f"no {each}")
        return {each: known[each] for each in partitions}

    def topic_ids(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str]:
        return dict.fromkeys(partitions, self.topic_id) if self.topic_id else {}

    def later_epochs(self, partition: TopicPartition, epoch: int) -> Sequence[tuple[int, int]]:
        return []

    def offsets_by_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        return {each: self.times.get(each) for each in times_ms}

    def cut_points(self, wanted: OffsetRange, pieces: int) -> Sequence[int]:
        return ()

    def read(self, wanted: OffsetRange, columns: Sequence[str], missing: list[Missing]) -> Iterator[Any]:
        raise AssertionError("nobody reads here")

    def close(self) -> None: ...


class Stream(MicroBatches):
    """With a clock that stands still until a test moves it, and pauses that are counted."""

    def __init__(self, log: Log, **options: str) -> None:
        given = {"path": "data", "subscribe": "t", "startingOffsets": "earliest", **options}
        self.now_ms = 1_000
        self.pauses: list[float] = []
        super().__init__(
            ReadOptions.parse(given, streaming=True),
            log,
            clock_ms=lambda: self.now_ms,
            pause_s=self.pauses.append,
        )


def test_a_batch_ends_where_the_log_does() -> None:
    log = Log(p0=(3, 10), p1=(0, 0))
    stream = Stream(log)
    assert stream.initial() == {A: 3, B: 0}
    end = stream.latest(stream.initial(), ALL)
    assert end == {A: 10, B: 0} == stream.seen
    assert stream.ranges(stream.initial(), end) == [OffsetRange("t", 0, 3, 10)]
    assert stream.latest(end, ALL) == end, "nothing new: no batch"


def test_the_start_is_the_same_each_time_it_is_asked_for() -> None:
    """Spark asks twice, and must not hear of two places."""
    log = Log(p0=(0, 10))
    stream = Stream(log, startingOffsets="latest")
    first = stream.initial()
    log.known[A] = Bounds(0, 20)
    assert stream.initial() == first == {A: 10}


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t":{"0":-1,"1":4}}'},
        {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"},
        {"startingTimestamp": "-1"},
        {"startingOffsetsByTimestamp": '{"t":{"0":-1,"1":-1}}'},
    ],
)
def test_a_start_that_would_move_is_written_down_as_the_end_of_an_empty_batch(
    options: dict[str, str],
) -> None:
    """Run again, the first batch starts later: it must have had no rows."""
    log = Log(p0=(0, 10), p1=(0, 10))
    stream = Stream(log, **options)
    start = stream.initial()
    log.known[A] = Bounds(0, 15)
    assert stream.latest(start, ALL) == start
    assert stream.latest(start, ALL)[A] == 15

    again = Stream(log, **options)
    assert again.initial()[A] == 15, "the process died, and its batch is run again"
    assert again.ranges(again.initial(), start) == []
    assert again.latest(start, ALL)[A] == 15
    assert again.ranges(start, again.latest(start, ALL))[0] == OffsetRange("t", 0, 10, 15)


def test_an_empty_first_batch_that_runs_again_is_followed_by_the_rest() -> None:
    """In the same run: a second empty batch would end a query of `availableNow` before its rows."""
    log = Log(p0=(0, 10))
    log.times[A] = 3
    given = {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}
    planned = Stream(log, **given).initial()
    again = Stream(log, **given)
    again.fix_end()
    assert again.ranges(again.initial(), planned) == []
    assert again.latest(planned, ALL) == {A: 10}


def test_the_only_batch_of_a_query_has_rows() -> None:
    """`Trigger.Once` makes one: an empty one would be all there ever is."""
    log = Log(p0=(0, 10))
    stream = Stream(log, startingOffsets="latest", maxOffsetsPerTrigger="1")
    start = stream.initial()
    log.known[A] = Bounds(0, 15)
    assert stream.latest(start, None) == {A: 15}


def test_a_start_that_stays_needs_no_empty_batch() -> None:
    for options in ({"startingOffsets": '{"t":{"0":4}}'}, {"startingTimestamp": "5"}):
        log = Log(p0=(0, 10))
        log.times = {A: 4}
        stream = Stream(log, **options)
        assert stream.initial() == {A: 4}
        assert stream.latest({A: 4}, ALL) == {A: 10}


def test_what_cannot_start_is_refused() -> None:
    with pytest.raises(UnknownTopic, match="data has no t"):
        Stream(Log()).initial()
    with pytest.raises(NoMatchingTime):
        Stream(Log(p0=(0, 10)), startingTimestamp="5").initial()
    with pytest.raises(InvalidOption, match="missing: t-1"):
        Stream(Log(p0=(0, 10), p1=(0, 1)), startingOffsets='{"t":{"0":4}}').initial()


def test_a_trigger_takes_no_more_than_it_may() -> None:
    stream = Stream(Log(p0=(0, 2000), p1=(0, 400)))
    assert stream.latest({A: 0, B: 0}, Admission(max_offsets=600)) == {A: 500, B: 100}
    assert stream.seen == {A: 2000, B: 400}, "of the log, not of the batch"


def test_a_trigger_waits_for_enough_or_for_its_time() -> None:
    log = Log(p0=(0, 5))
    stream = Stream(log)
    limits = Admission(min_offsets=10, max_delay_ms=100)
    end = stream.latest({A: 0}, limits)
    assert end == {A: 5}, "the first does not wait"
    log.known[A] = Bounds(0, 14)
    stream.now_ms += 99
    assert stream.latest(end, limits) == end
    log.known[A] = Bounds(0, 15)
    assert stream.latest(end, limits) == {A: 15}
    log.known[A] = Bounds(0, 16)
    stream.now_ms += 99
    assert stream.latest({A: 15}, limits) == {A: 15}
    stream.now_ms += 1
    assert stream.latest({A: 15}, limits) == {A: 16}
    stream.now_ms += 1000
    assert stream.latest({A: 16}, limits) == {A: 16}
    log.known[A] = Bounds(0, 17)
    assert stream.latest({A: 16}, limits) == {A: 17}, "it has waited while there was nothing"


def test_available_now_ends_where_the_log_did() -> None:
    """Whatever comes meanwhile: rows, partitions; and it does not wait for more."""
    log = Log(p0=(0, 10))
    stream = Stream(log, metadataIntervalMs="0")
    stream.fix_end()
    log.known = {A: Bounds(0, 50), B: Bounds(0, 7)}
    limits = Admission(max_offsets=6, min_offsets=1000, max_delay_ms=10**9)
    assert stream.initial() == {A: 0}
    end = stream.latest({A: 0}, limits)
    assert end == {A: 6}
    end = stream.latest(end, limits)
    assert end == {A: 10}
    assert stream.latest(end, limits) == end


def test_available_now_from_latest_has_nothing_to_do() -> None:
    """The start must not lie past the end that was fixed before it was asked for."""
    log = Log(p0=(0, 10))
    stream = Stream(log, startingOffsets="latest")
    stream.fix_end()
    log.known[A] = Bounds(0, 50)
    assert stream.initial() == {A: 10}
    assert stream.latest({A: 10}, ALL) == {A: 10}
    assert stream.latest({A: 10}, ALL) == {A: 10}


def test_partitions_are_listed_now_and_then() -> None:
    """Not at ninety questions a second."""
    log = Log(p0=(0, 10))
    stream = Stream(log)
    for _ in range(90):
        stream.latest({A: 0}, ALL)
        stream.now_ms += 11
    assert (log.listings, log.questions) == (1, 90)
    stream.now_ms += 11
    stream.latest({A: 0}, ALL)
    assert log.listings == 2


def test_a_new_partition_is_read_from_its_start() -> None:
    log = Log(p0=(0, 10))
    stream = Stream(log, metadataIntervalMs="500")
    start = {A: 10}
    log.known[B] = Bounds(0, 4)
    assert stream.latest(start, Admission(max_offsets=2)) == {A: 10, B: 2}
    assert stream.ranges(start, {A: 10, B: 2}) == [OffsetRange("t", 1, 0, 2)]


@pytest.mark.parametrize("start", [3, 9])
def test_a_new_partition_that_has_lost_its_beginning(start: int, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(p0=(0, 10), p1=(start, 12))
    with pytest.raises(DataLoss, match=r"t-1: offsets 0 to \d are lost, expired: .*\(a new partition\)"):
        Stream(log).ranges({A: 10}, {A: 10, B: 8})
    lenient = Stream(log, failOnDataLoss="false")
    assert lenient.ranges({A: 10}, {A: 10, B: 8}) == [OffsetRange("t", 1, 3, 8)] * (start < 8)
    assert "are lost, expired" in caplog.text


def test_a_new_partition_that_went_again_is_lost() -> None:
    stream = Stream(Log(p0=(0, 10)), failOnDataLoss="false")
    assert stream.ranges({A: 10}, {A: 10, B: 8}) == []
    with pytest.raises(DataLoss, match="t-1: offsets 0 to 7"):
        Stream(Log(p0=(0, 10))).ranges({A: 10}, {A: 10, B: 8})


def test_a_partition_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """Told before the batch is written down: who starts again when it is back has lost nothing."""
    log = Log(p0=(0, 10))
    with pytest.raises(DataLoss, match=r"no longer exist: t-1 \(read up to offset 7\)"):
        Stream(log).latest({A: 0, B: 7}, ALL)
    lenient = Stream(log, failOnDataLoss="false")
    end = lenient.latest({A: 0, B: 7}, ALL)
    assert end == {A: 10}
    assert "the stream continues without them: t-1" in caplog.text
    assert lenient.ranges({A: 0, B: 7}, end) == [OffsetRange("t", 0, 0, 10)]
    log.known[B] = Bounds(0, 3)
    lenient.now_ms += 1_000
    assert lenient.latest(end, ALL) == {A: 10, B: 3}, "what comes back under its name is another one"


def test_a_partition_that_goes_while_it_is_asked_about() -> None:
    """It stands in the last listing, and there is a new one at once."""
    log = Log(p0=(0, 10), p1=(0, 5))
    stream = Stream(log, failOnDataLoss="false")
    assert stream.latest({A: 0, B: 0}, ALL) == {A: 10, B: 5}
    del log.known[B]
    assert stream.latest({A: 0, B: 5}, ALL) == {A: 10}


def test_an_end_that_went_back_is_asked_for_again() -> None:
    """Somebody who had not heard of it all may have answered."""
    log = Log(p0=(0, 10))
    log.next = [{A: Bounds(0, 4)}, {A: Bounds(0, 5)}]
    stream = Stream(log, **{"fetchOffset.retryIntervalMs": "20"})
    assert stream.latest({A: 7}, ALL) == {A: 10}
    assert stream.pauses == [0.02, 0.02]


def test_an_end_that_stays_below_what_was_read_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    """The log was cut, or the topic made anew: what it will hold at these offsets is not what was read."""
    log = Log(p0=(0, 4), p1=(0, 9))
    stream = Stream(log)
    with pytest.raises(DataLoss, match=r"t-0: offsets 4 to 6 are lost, truncated"):
        stream.latest({A: 7, B: 0}, ALL)
    assert len(stream.pauses) == 3
    lenient = Stream(log, failOnDataLoss="false")
    end = lenient.latest({A: 7, B: 0}, Admission(max_offsets=3))
    assert end == {A: 4, B: 3}, "it goes on from where the log ends now"
    assert lenient.ranges({A: 7, B: 0}, end) == [OffsetRange("t", 1, 0, 3)]
    assert "are lost, truncated" in caplog.text


def test_a_topic_that_was_recreated_and_has_grown_past_what_was_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its ends do not tell: only its topic id does."""
    log = Log(p0=(0, 0), p1=(0, 10))
    log.topic_id = "first"
    read, grown = {A: 0, B: 10}, {A: 0, B: 30}
    for is_loss in (True, False):
        stream = Stream(log, failOnDataLoss=str(is_loss))
        assert stream.latest(read, ALL) == read, "the id is known before the first batch with rows"
        log.topic_id, log.known[B] = "second", Bounds(0, 30)
        if is_loss:
            for _ in range(2):
                with pytest.raises(
                    DataLoss, match="second, but offsets before 10 of t-1 were read from first"
                ):
                    stream.latest(read, ALL)
        else:
            assert [stream.latest(read, ALL), stream.latest(read, ALL)] == [grown] * 2
            assert caplog.text.count("topic t has topic id second") == 1
        log.topic_id, log.known[B] = "first", Bounds(0, 10)


def test_a_topic_without_rows_read_may_be_recreated() -> None:
    log = Log(p0=(0, 0))
    log.topic_id = "first"
    stream = Stream(log)
    assert stream.latest({A: 0}, ALL) == {A: 0}
    log.topic_id, log.known[A] = "second", Bounds(0, 3)
    assert stream.latest({A: 0}, ALL) == {A: 3}


def test_ranges_are_cut_as_the_options_say() -> None:
    stream = Stream(Log(p0=(0, 10), p1=(0, 1)), minPartitions="4", maxRecordsPerPartition="4")
    found = stream.ranges({A: 0, B: 0}, {A: 10, B: 1})
    assert [each.partition for each in found] == [0, 0, 0, 1]
    assert all(each.end_offset - each.start_offset <= 4 for each in found)
