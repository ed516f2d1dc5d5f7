"""Offset and leader-epoch checkpoints: Kafka's text, and nothing that only looks like it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.checkpoint import entry_files
from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetFile,
    checkpointed_offset,
    format_leader_epoch_checkpoint,
    format_offset_checkpoint,
    parse_entries,
    parse_leader_epoch_checkpoint,
    parse_offset_checkpoint,
    read_leader_epoch_checkpoint,
    read_offset_checkpoint,
    write_leader_epoch_checkpoint,
    write_offset_checkpoint,
)
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.topic_partition import TopicPartition
from logstore.testing.disks import MemoryDisk

VECTORS = Path(__file__).parents[1] / "golden" / "vectors"

GOLDEN_OFFSETS = {TopicPartition("orders", 0): 42, TopicPartition("my-topic", 11): 2**63 - 1}
GOLDEN_EPOCHS = [(0, 0), (2, 5), (5, 1006)]


def test_names_are_kafkas() -> None:
    assert RECOVERY_POINT_CHECKPOINT == "recovery-point-offset-checkpoint"
    assert LOG_START_OFFSET_CHECKPOINT == "log-start-offset-checkpoint"
    assert HIGH_WATERMARK_CHECKPOINT == "replication-offset-checkpoint"
    assert LEADER_EPOCH_CHECKPOINT == "leader-epoch-checkpoint"


def test_golden_files_both_ways() -> None:
    data = (VECTORS / "recovery-point-offset-checkpoint.txt").read_bytes()
    assert parse_offset_checkpoint(data) == GOLDEN_OFFSETS
    assert format_offset_checkpoint(GOLDEN_OFFSETS) == data
    data = (VECTORS / "offset-checkpoint-empty.txt").read_bytes()
    assert parse_offset_checkpoint(data) == {}
    assert format_offset_checkpoint({}) == data
    data = (VECTORS / "leader-epoch-checkpoint.txt").read_bytes()
    assert parse_leader_epoch_checkpoint(data) == GOLDEN_EPOCHS
    assert format_leader_epoch_checkpoint(GOLDEN_EPOCHS) == data


@pytest.mark.parametrize("data", [b"", b"0\n", b"0\n0\n"])
def test_row_224_files_without_entries(data: bytes) -> None:
    """Kafka creates the file empty; a version line alone is what an early crash left."""
    assert parse_offset_checkpoint(data) == {}
    assert parse_leader_epoch_checkpoint(data) == []


def test_tolerated_deviations_are_kafkas() -> None:
    """Any run of blanks, leading zeros, line ends of other systems."""
    assert parse_offset_checkpoint(b"0\r\n01\r\nt \t 007  \x0b00042 \r\n") == {TopicPartition("t", 7): 42}
    assert parse_leader_epoch_checkpoint(b"00\r1\r1\t2\r") == [(1, 2)]
    assert parse_leader_epoch_checkpoint(b"0\n1\n" + b"0" * 10_000 + b"1 2\n") == [(1, 2)]


MALFORMED = {
    "version 1": b"1\n0\n",
    "version 5 with entries": b"5\n1\nt 0 1\n",
    "negative version": b"-1\n0\n",
    "version not a number": b"x\n0\n",
    "empty version line": b"\n0\n",
    "version with a blank": b"0 \n0\n",
    "version in digits of another script": "\u0660\n0\n".encode(),
    "count not a number": b"0\nx\n",
    "empty count line": b"0\n\n",
    "count negative": b"0\n-1\n",
    "count with an underscore": b"0\n1_0\n",
    "count with a sign": b"0\n+0\n",
    "count too large": b"0\n2\nt 0 1\n",
    "count too small": b"0\n1\nt 0 1\nt 1 1\n",
    "count of 2^31 - 1": b"0\n2147483647\nt 0 1\n",
    "count beyond all bounds": b"0\n" + b"9" * 10_000 + b"\nt 0 1\n",
    "blank line among the entries": b"0\n2\nt 0 1\n\n",
    "blank line after the entries": b"0\n1\nt 0 1\n\n",
    "a field too few": b"0\n1\nt 0\n",
    "a field too many": b"0\n1\nt 0 1 2\n",
    "blank before the topic": b"0\n1\n t 0 1\n",
    "partition not a number": b"0\n1\nt x 1\n",
    "partition negative": b"0\n1\nt -1 1\n",
    "partition of 2^31": b"0\n1\nt 2147483648 1\n",
    "offset not a number": b"0\n1\nt 0 x\n",
    "offset in hexadecimal": b"0\n1\nt 0 0x10\n",
    "offset with a fraction": b"0\n1\nt 0 1.0\n",
    "offset with a separator": b"0\n1\nt 0 1_000\n",
    "offset in fullwidth digits": "0\n1\nt 0 \uff14\uff12\n".encode(),
    "offset superscript": "0\n1\nt 0 \u00b2\n".encode(),
    "offset negative": b"0\n1\nt 0 -1\n",
    "offset of 2^63": b"0\n1\nt 0 9223372036854775808\n",
    "offset of thousands of digits": b"0\n1\nt 0 " + b"9" * 10_000 + b"\n",
    "non-breaking space between fields": "0\n1\nt\u00a00\u00a01\n".encode(),
    "topic that leaves the directory": b"0\n1\n../t 0 1\n",
    "topic of dots": b"0\n1\n.. 0 1\n",
    "topic with a slash": b"0\n1\na/b 0 1\n",
    "topic of 250 characters": b"0\n1\n" + b"t" * 250 + b" 0 1\n",
    "a partition twice": b"0\n2\nt 0 1\nt 00 2\n",
    "lines ended by form feeds": b"0\x0c1\x0ct 0 1\x0c",
    "lines ended by Unicode separators": "0\u20281\u2028t 0 1\u2028".encode(),
    "last line not ended": b"0\n1\nt 0 4",
    "version line not ended": b"0",
    "not UTF-8": b"0\n1\nt\xff 0 1\n",
    "zeros": bytes(64),
    "NUL in the topic": b"0\n1\nt\0 0 1\n",
    "byte order mark": b"\xef\xbb\xbf0\n0\n",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_row_224_anything_else_is_corrupt_and_names_the_file(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"^/data/the-file: "):
        parse_offset_checkpoint(data, path="/data/the-file")


@pytest.mark.parametrize(
    "entry", ["1", "1 2 3", "x 1", "1 x", "-1 0", "0 -1", "2147483648 0", "0 9223372036854775808", "", " 1 2"]
)
def test_malformed_leader_epochs(entry: str) -> None:
    with pytest.raises(CorruptCheckpoint, match="leader-epoch-checkpoint"):
        parse_leader_epoch_checkpoint(f"0\n1\n{entry}\n".encode())


@pytest.mark.parametrize("entries", ["1 0\n1 5", "2 0\n1 5", "1 5\n2 4"])
def test_leader_epochs_rise_and_their_offsets_do_not_fall(entries: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"leader-epoch-checkpoint: epoch . from offset . on follows"):
        parse_leader_epoch_checkpoint(f"0\n2\n{entries}\n".encode())
    assert parse_leader_epoch_checkpoint(b"0\n2\n1 5\n2 5\n") == [(1, 5), (2, 5)]


@pytest.mark.parametrize("data", [b"0\n2\norders 0 42\nmy-topic 11 1234567\n", b"0\n3\n0 0\n2 5\n5 1006\n"])
def test_row_226_file_cut_at_any_byte_is_read_whole_or_refused(data: bytes) -> None:
    """A number that lost its last digit is still a number. Exhaustive: every length but the whole."""
    parse = parse_offset_checkpoint if b"orders" in data else parse_leader_epoch_checkpoint
    assert len(parse(data)) == int(data.split()[1])
    for size in range(len(data)):
        if data[:size] in (b"", b"0\n"):
            assert not parse(data[:size])
            continue
        with pytest.raises(CorruptCheckpoint):
            parse(data[:size])


TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(lambda topic: topic not in (".", ".."))


@settings(derandomize=True, deadline=None)
@given(
    st.dictionaries(
        st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), max_size=20
    )
)
def test_offsets_survive_the_round_trip(offsets: dict[TopicPartition, int]) -> None:
    """In their order too: the file of an unchanged dictionary is unchanged."""
    found = parse_offset_checkpoint(format_offset_checkpoint(offsets))
    assert list(found.items()) == list(offsets.items())


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.one_of(st.binary(max_size=60), st.text("01 \nt-\u0661", max_size=30).map(str.encode)))
def test_no_input_raises_anything_else(data: bytes) -> None:
    for parse in (parse_offset_checkpoint, parse_leader_epoch_checkpoint):
        try:
            parse(data)
        except CorruptCheckpoint:
            continue


def test_row_224_a_hundred_epochs_come_back() -> None:
    entries = [(epoch, epoch * 1000) for epoch in range(100)]
    assert parse_leader_epoch_checkpoint(format_leader_epoch_checkpoint(entries)) == entries


def test_rows_220_and_223_reading_and_writing_through_a_disk() -> None:
    disk = MemoryDisk(directories=["/data/t-0"])
    assert read_offset_checkpoint(disk, "/data", RECOVERY_POINT_CHECKPOINT) == {}
    assert read_leader_epoch_checkpoint(disk, "/data/t-0") == []
    for offset in (1, 2):
        write_offset_checkpoint(disk, "/data", RECOVERY_POINT_CHECKPOINT, {TopicPartition("t", 0): offset})
        write_leader_epoch_checkpoint(disk, "/data/t-0", [(offset, offset)])
    after = disk.durable_image()
    assert after.files() == {
        "/data/recovery-point-offset-checkpoint": b"0\n1\nt 0 2\n",
        "/data/t-0/leader-epoch-checkpoint": b"0\n1\n2 2\n",
    }
    assert read_offset_checkpoint(after, "/data", RECOVERY_POINT_CHECKPOINT) == {TopicPartition("t", 0): 2}
    assert read_leader_epoch_checkpoint(after, "/data/t-0") == [(2, 2)]


def test_row_225_a_directory_that_does_not_exist_is_an_os_error() -> None:
    """To read is to find nothing; to write is the caller's mistake, or a disk that has gone."""
    disk = MemoryDisk()
    assert read_leader_epoch_checkpoint(disk, "/gone") == []
    with pytest.raises(FileNotFoundError):
        write_leader_epoch_checkpoint(disk, "/gone", [])


def test_negative_offset_is_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        format_offset_checkpoint({TopicPartition("t", 0): -1})


def test_the_file_of_a_log_dir_is_parsed_once_for_all_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition's reader asks for its own entry; a file that has changed is parsed again."""
    disk, parsed = MemoryDisk(directories=["/data"]), 0
    partitions = [TopicPartition("orders", number) for number in range(100)]

    def parse(*given: Any, **named: Any) -> Any:
        nonlocal parsed
        parsed += 1
        return parse_entries(*given, **named)

    monkeypatch.setattr(entry_files, "parse_entries", parse)
    for offset in (7, 8, 7):
        write_offset_checkpoint(disk, "/data", RECOVERY_POINT_CHECKPOINT, dict.fromkeys(partitions, offset))
        for each in partitions:
            where = f"/data/{each.directory_name}"
            assert checkpointed_offset(disk, where, RECOVERY_POINT_CHECKPOINT) == offset
    assert parsed < 5


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException, *, is_late: bool) -> None:
    """Let the next writes of offsets raise: behind the write, or instead of it."""

    def write(*arguments: Any) -> None:
        if is_late:
            write_offset_checkpoint(*arguments)
        raise error

    monkeypatch.setattr(entry_files, "write_offset_checkpoint", write)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "unsynced")])
def test_an_entry_that_the_memory_does_not_know_is_removed(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    disk = MemoryDisk(directories=["/data"])
    file = OffsetFile(disk, "/data", "offsets")
    with monkeypatch.context() as patch:
        failing(patch, error, is_late=True)
        with pytest.raises(type(error)):
            file.set(TopicPartition("t", 0), 100)
    file.forget([TopicPartition("t", 0)])
    assert read_offset_checkpoint(disk, "/data", "offsets") == {}


def test_a_refused_write_makes_no_later_one_necessary(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, lowering an entry that is low enough was refused: a truncation could not go on."""
    file = OffsetFile(MemoryDisk(directories=["/data"]), "/data", "offsets")
    file.set(TopicPartition("t", 0), 5)
    failing(monkeypatch, OSError(errno.ENOSPC, "full"), is_late=False)
    with pytest.raises(OSError, match="full"):
        file.set(TopicPartition("t", 0), 10)
    file.lower(TopicPartition("t", 0), 7)
    assert file.get(TopicPartition("t", 0)) == 5
