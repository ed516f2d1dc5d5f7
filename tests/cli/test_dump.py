"""`logstore dump`: says what is in the files, judges it when asked, and never writes."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.format.batch import encode_batch
from logstore.format.compression import Codec
from logstore.format.record import Record
from tests.cli.conftest import (
    FIRST,
    SECOND,
    SEGMENT_0,
    SEGMENT_4,
    THIRD,
    Outcome,
    partition_files,
    snapshot,
    write_files,
)

Command = Callable[..., Outcome]

RECORD_KEYS = [
    "offset", "timestamp", "timestamp_type", "leader_epoch", "codec", "producer_id", "producer_epoch",
    "sequence", "key", "value", "headers", "segment", "position",
]  # fmt: skip


def json_lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_records_as_json_have_exactly_these_keys(command: Command, partition: Path) -> None:
    """The format that other programs read: one object a line, nothing missing, nothing more."""
    outcome = command("dump", partition, "--records", "--json")
    records = json_lines(outcome.out)
    assert outcome.code == 0
    assert [list(record) for record in records] == [RECORD_KEYS] * 6
    assert [record["offset"] for record in records] == [0, 1, 2, 3, 4, 5]
    assert records[0] == {
        "offset": 0, "timestamp": 1000, "timestamp_type": "CreateTime", "leader_epoch": 0, "codec": "none",
        "producer_id": -1, "producer_epoch": -1, "sequence": -1, "key": "k0", "value": "one",
        "headers": [["h", "x"], ["n", None]], "segment": 0, "position": 0,
    }  # fmt: skip
    assert (records[2]["key"], records[2]["value"]) == ("", ""), "empty is not null"
    assert records[3]["value"] is None
    assert records[3]["position"] == len(FIRST)
    names = ("producer_id", "producer_epoch", "sequence", "segment")
    assert [records[5][name] for name in names] == [7, 2, 11, 4]


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("utf8", "t\\xffo"), ("hex", b"t\xffo".hex()), ("base64", b64encode(b"t\xffo").decode())],
)
def test_encodings(command: Command, partition: Path, encoding: str, shown: str) -> None:
    """Hex and base64 give every byte back; utf8 is for reading and says where it cannot."""
    outcome = command("dump", partition, "--records", "--json", "--encoding", encoding)
    assert json_lines(outcome.out)[1]["value"] == shown


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_every_codec_is_named_and_read(command: Command, tmp_path: Path, codec: Codec) -> None:
    data = encode_batch([Record(i, 5, None, b"again " * 9) for i in range(9)], codec=codec)
    write_files(tmp_path / "t-0", {f"{SEGMENT_0}.log": data})
    records = json_lines(command("dump", tmp_path / "t-0", "--records", "--json").out)
    assert {(record["codec"], record["value"]) for record in records} == {(codec.name.lower(), "again " * 9)}


def test_log_append_time_is_named(command: Command, tmp_path: Path) -> None:
    data = encode_batch([Record(0, 5, None, b"")], log_append_time_ms=77)
    write_files(tmp_path / "t-0", {f"{SEGMENT_0}.log": data})
    (record,) = json_lines(command("dump", tmp_path / "t-0", "--records", "--json").out)
    assert (record["timestamp"], record["timestamp_type"]) == (77, "LogAppendTime")


def test_each_kind_of_file_says_what_it_holds(command: Command, tmp_path: Path) -> None:
    """Any file of a log dir can be named by itself."""
    abort = struct.pack(">hqqqq", 0, 9, 100, 110, 111)
    write_files(
        tmp_path,
        {
            "recovery-point-offset-checkpoint": b"0\n1\norders 0 4\n",
            "replication-offset-checkpoint": b"0\n0\n",
            "meta.properties": b"#\nversion=1\ncluster.id=abc\nnode.id=3\n",
            ".kafka_cleanshutdown": b'{"version":0,"brokerEpoch":5}',
            f"{100:020d}.txnindex": abort,
            **partition_files(),
        },
    )

    def facts(name: str) -> list[dict[str, object]]:
        outcome = command("dump", tmp_path / name, "--json")
        assert (outcome.code, outcome.err) == (0, "")
        lines = json_lines(outcome.out)
        assert all(line.pop("file") == str(tmp_path / name) for line in lines)
        return lines

    assert facts("recovery-point-offset-checkpoint") == [{"topic": "orders", "partition": 0, "offset": 4}]
    assert facts("replication-offset-checkpoint") == []
    assert facts("meta.properties") == [{"version": "1", "cluster.id": "abc", "node.id": "3"}]
    assert facts(".kafka_cleanshutdown") == [{"broker_epoch": 5}]
    assert facts("partition.metadata") == [{"topic_id": "AAECAwQFBgcICQoLDA0ODw"}]
    assert facts("leader-epoch-checkpoint") == [
        {"epoch": 0, "start_offset": 0},
        {"epoch": 1, "start_offset": 3},
    ]
    assert facts(f"{SEGMENT_0}.index") == [{"offset": 3, "position": len(FIRST)}]
    assert facts(f"{SEGMENT_4}.timeindex") == [{"timestamp": 3001, "offset": 5}]
    assert facts(f"{100:020d}.txnindex") == [
        {"producer_id": 9, "first_offset": 100, "last_offset": 110, "last_stable_offset": 111}
    ]
    batches = facts(f"{SEGMENT_0}.log")
    assert [(batch["base_offset"], batch["last_offset"], batch["size"]) for batch in batches] == [
        (0, 2, len(FIRST)),
        (3, 3, len(SECOND)),
    ]


def test_a_whole_log_dir(command: Command, partition: Path) -> None:
    """A log dir stands for its small files and its partitions; what is not a log's is passed over."""
    (partition.parent / "recovery-point-offset-checkpoint").write_bytes(b"0\n1\norders 0 4\n")
    (partition.parent / "notes.txt").write_bytes(b"not ours")
    lines = json_lines(command("dump", partition.parent, "--json").out)
    names = [Path(str(line["file"])).name for line in lines]
    assert names[0] == "recovery-point-offset-checkpoint"
    assert sorted(set(names[1:])) == sorted(name for name, content in partition_files().items() if content)


def test_leftovers_are_shown_only_when_named(command: Command, partition: Path) -> None:
    """Files that compaction or retention set aside are no part of the log, and may repeat its offsets."""
    for state in ("deleted", "cleaned", "swap"):
        (partition / f"{SEGMENT_0}.log.{state}").write_bytes(FIRST)
    assert len(json_lines(command("dump", partition, "--records", "--json").out)) == 6
    named = command("dump", partition / f"{SEGMENT_0}.log.deleted", "--records", "--json")
    assert [record["offset"] for record in json_lines(named.out)] == [0, 1, 2]


def test_text_cannot_move_the_cursor(command: Command, tmp_path: Path) -> None:
    """A record is somebody else's bytes: on a terminal an escape sequence in it must stay text."""
    data = encode_batch([Record(0, 5, None, "\x1b[2J\rünï".encode())])
    write_files(tmp_path / "t-0", {f"{SEGMENT_0}.log": data})
    outcome = command("dump", tmp_path / "t-0", "--records")
    assert "\x1b" not in outcome.out
    assert "\\x1b[2J\\rünï" in outcome.out


@pytest.mark.parametrize("options", [[], ["--records"], ["--verify"], ["--verify", "--records", "--json"]])
def test_nothing_is_ever_written(command: Command, partition: Path, options: list[str]) -> None:
    """The directory may be a live broker's, or evidence. It is torn here, which a loader would repair."""
    with (partition / f"{SEGMENT_4}.log").open("ab") as file:
        file.write(THIRD[:40])
    before = snapshot(partition.parent)
    command("dump", partition.parent, *options)
    assert snapshot(partition.parent) == before


# --- judging ----------------------------------------------------------------------------------


def test_verify_of_a_sound_partition(command: Command, partition: Path) -> None:
    outcome = command("dump", partition, "--verify", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    logs = [line for line in json_lines(outcome.out) if str(line["file"]).endswith(".log")]
    names = ("first_offset", "last_offset", "records", "damage")
    assert [[line[name] for name in names] for line in logs] == [[0, 3, 4, 0], [4, 5, 2, 0]]


@pytest.mark.parametrize("size", [8, 12, 16, 17, 60, 61, len(THIRD) - 1])
def test_a_torn_tail_of_the_last_segment_is_a_note(command: Command, partition: Path, size: int) -> None:
    """Its owner may be writing at this moment: reported, not judged."""
    with (partition / f"{SEGMENT_4}.log").open("ab") as file:
        file.write(THIRD[:size])
    outcome = command("dump", partition, "--verify")
    assert outcome.code == 0
    assert f"{size} bytes of an incomplete batch" in outcome.err


def test_a_zero_tail_of_the_last_segment_is_a_note(command: Command, partition: Path) -> None:
    """Preallocated, or lost in a power cut."""
    with (partition / f"{SEGMENT_4}.log").open("ab") as file:
        file.write(bytes(5000))
    outcome = command("dump", partition, "--verify")
    assert outcome.code == 0
    assert "5000 zero bytes to the end" in outcome.err


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def entry(layout: str, *fields: int) -> bytes:
    return struct.pack(layout, *fields)


DAMAGE = {
    "a flipped payload byte": (f"{SEGMENT_0}.log", flipped(FIRST, 80) + SECOND, "checksum"),
    "a flipped byte in the last batch": (f"{SEGMENT_4}.log", flipped(THIRD, len(THIRD) - 1), "checksum"),
    "a batch of an older format": (
        f"{SEGMENT_0}.log",
        FIRST[:16] + b"\1" + FIRST[17:] + SECOND,
        "another format",
    ),
    "offsets that do not rise": (f"{SEGMENT_0}.log", FIRST + FIRST, "offsets"),
    "offsets of the segment before": (f"{SEGMENT_4}.log", SECOND + THIRD, "offsets"),
    "an epoch that goes back": (
        f"{SEGMENT_4}.log",
        encode_batch([Record(4, 1, None, b"")], base_offset=4, leader_epoch=0),
        "older leader epoch",
    ),
    "a torn segment that is not the last": (f"{SEGMENT_0}.log", FIRST + SECOND[:-1], "in a complete segment"),
    "a whole batch behind a torn one": (
        f"{SEGMENT_4}.log",
        THIRD[:8] + entry(">i", 1 << 30) + THIRD[12:] + THIRD,
        "but a whole batch follows",
    ),
    "garbage": (f"{SEGMENT_4}.log", THIRD + b"\xee" * 100, "not a batch"),
    "an index entry inside a batch": (f"{SEGMENT_0}.index", entry(">ii", 3, 5), "no batch starts"),
    "an index entry for a later batch": (
        f"{SEGMENT_0}.index",
        entry(">ii", 2, len(FIRST)),
        "a later base offset",
    ),
    "an index entry inside a batch's offsets": (
        f"{SEGMENT_0}.index",
        entry(">ii", 1, 0),
        "not the last one of a batch",
    ),
    "index entries that do not rise": (
        f"{SEGMENT_0}.index",
        entry(">iiii", 3, len(FIRST), 2, 0),
        "does not ascend",
    ),
    "a time entry that is too early": (
        f"{SEGMENT_0}.timeindex",
        entry(">qi", 1500, 3),
        "not the latest time up to its offset",
    ),
    "a time entry past the end": (f"{SEGMENT_0}.timeindex", entry(">qi", 9000, 9), "past the segment's last"),
    "time entries that do not rise": (
        f"{SEGMENT_0}.timeindex",
        entry(">qiqi", 2000, 3, 1999, 3),
        "does not ascend",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_exit_1_and_named(command: Command, partition: Path, case: str) -> None:
    """What no crash of a correct writer leaves behind."""
    name, content, words = DAMAGE[case]
    (partition / name).write_bytes(content)
    outcome = command("dump", partition, "--verify")
    assert outcome.code == 1
    assert words in outcome.err
    assert name in outcome.err


def test_an_entry_for_several_batches_is_sound(command: Command, partition: Path) -> None:
    """A follower of Kafka notes the last offset of what it appended at once with the first position."""
    (partition / f"{SEGMENT_0}.index").write_bytes(entry(">ii", 3, 0))
    assert command("dump", partition, "--verify").code == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--from-offset", 5),
        ("--to-offset", 1),
        ("--max-bytes", 9),
        ("--from-time", 1500),
        ("--to-time", 1500),
    ],
)
def test_verify_with_a_selection_needs_records(
    command: Command, partition: Path, option: str, value: int
) -> None:
    """It checks whole files: the option would have no effect."""
    outcome = command("dump", partition, "--verify", option, value)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{option} selects what is shown" in outcome.err
    assert command("dump", partition, "--verify", "--records", option, value).code == 0


def test_damage_does_not_hide_the_rest(command: Command, partition: Path) -> None:
    """Whoever dumps a broken log wants what is left of it."""
    (partition / f"{SEGMENT_0}.log").write_bytes(flipped(FIRST, 17) + SECOND)
    outcome = command("dump", partition, "--records", "--json")
    assert outcome.code == 1
    assert [record["offset"] for record in json_lines(outcome.out)] == [0, 1, 2, 3, 4, 5]
    assert outcome.err.count("checksum") == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("leader-epoch-checkpoint", b"0\n3\n0 0\n1 3\n"),
        ("partition.metadata", b"version: 0\n"),
        ("meta.properties", b"version=\\u00\n"),
        (f"{9:020d}.snapshot", b"\0\1junk"),
        (f"{9:020d}.txnindex", struct.pack(">hqqqq", 3, 0, 0, 0, 0)),
    ],
)
def test_a_small_file_that_breaks_its_format_is_exit_1(
    command: Command, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    outcome = command("dump", tmp_path / name)
    assert outcome.code == 1
    assert name in outcome.err
    assert outcome.err.count("\n") == 1


ABORTS_THAT_GO_BACK = struct.pack(">hqqqq", 0, 1, 0, 5, 6) + struct.pack(">hqqqq", 0, 1, 0, 4, 6)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("leader-epoch-checkpoint", b"0\nx\n", 1),
        ("partition.metadata", b"version: 0\n", 1),
        (f"{SEGMENT_0}.txnindex", ABORTS_THAT_GO_BACK, 1),
        (f"{SEGMENT_4}.txnindex", ABORTS_THAT_GO_BACK, 0),
        (f"{SEGMENT_4}.snapshot", b"\x00\x01 torn", 0),
    ],
)
def test_verify_of_a_small_file(
    command: Command, partition: Path, name: str, content: bytes, code: int
) -> None:
    """Said for each; damage only where neither a crash nor a running writer can have left it."""
    (partition / name).write_bytes(content)
    for path in (partition, partition / name):
        outcome = command("dump", path, "--verify")
        assert outcome.code == code
        assert f"{name} at byte 0: " in outcome.err
        assert ("(no damage)" in outcome.err) == (code == 0)
