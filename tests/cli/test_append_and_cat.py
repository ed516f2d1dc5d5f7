"""Lines in, lines out: what `append` wrote is what `cat` prints."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logstore.cli.cat
from logstore.cli.append import batches_of_lines
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.log import Log
from tests.cli.conftest import SEGMENT_0, SEGMENT_4, THIRD, Outcome, snapshot, write_files

Command = Callable[..., Outcome]


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Put bytes on stdin."""

    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return put


def test_what_goes_in_comes_out(command: Command, tmp_path: Path, type_in: Callable[[bytes], None]) -> None:
    """Byte for byte, blank lines and bytes that are no text included."""
    log = tmp_path / "lines-0"
    type_in(b"first\n\n\xff\xfe third \r\nlast, without an end")
    assert command("append", log).out == "appended 4 records at offsets 0 to 3\n"
    assert command("cat", log).out.encode("utf-8", "surrogateescape") == (
        b"first\n\n\xff\xfe third \r\nlast, without an end\n"
    )


@pytest.mark.parametrize("options", [[], ["--sync"]])
def test_the_result_as_json(
    command: Command, tmp_path: Path, type_in: Callable[[bytes], None], options: list[str]
) -> None:
    log = tmp_path / "lines-0"
    type_in(b"a\nb\n")
    command("append", log)
    type_in(b"c\n")
    outcome = command("append", log, "--json", *options)
    assert json.loads(outcome.out) == {
        "appended": 1, "first_offset": 2, "last_offset": 2, "log_end_offset": 3,
    }  # fmt: skip


def test_nothing_to_append(command: Command, tmp_path: Path, type_in: Callable[[bytes], None]) -> None:
    type_in(b"")
    outcome = command("append", tmp_path / "lines-0")
    assert (outcome.code, outcome.out) == (0, "appended nothing; the log ends at offset 0\n")


def test_keys(command: Command, tmp_path: Path, type_in: Callable[[bytes], None]) -> None:
    """The first separator ends the key, an empty key is a key, and `cat` gives the line back."""
    log = tmp_path / "lines-0"
    type_in(b"a=1=2\n=3\n")
    command("append", log, "--key-separator", "=")
    with Log.open(log) as opened:
        assert [(record.key, record.value) for record in opened.read()] == [(b"a", b"1=2"), (b"", b"3")]
    assert command("cat", log, "--key-separator", "=").out == "a=1=2\n=3\n"


def test_a_separator_that_is_no_text(
    command: Command, tmp_path: Path, type_in: Callable[[bytes], None]
) -> None:
    """In the locale C, each letter beyond ASCII is such a one: it was a `UnicodeEncodeError`."""
    log = tmp_path / "lines-0"
    separator = ["--key-separator", os.fsdecode(b"\xff")]
    type_in(b"a\xff1\n")
    command("append", log, *separator)
    with Log.open(log) as opened:
        assert [(record.key, record.value) for record in opened.read()] == [(b"a", b"1")]
    assert command("cat", log, *separator).out.encode("utf-8", "surrogateescape") == b"a\xff1\n"


def test_a_line_without_its_key_ends_the_input(
    command: Command, tmp_path: Path, type_in: Callable[[bytes], None]
) -> None:
    """What was appended before stays, and the message says where it stopped."""
    log = tmp_path / "lines-0"
    type_in(b"a=1\nno key\nb=2\n")
    outcome = command("append", log, "--key-separator", "=")
    assert outcome.code == 1
    assert outcome.err == "logstore: line 2 has no '='; it and the rest were not appended\n"
    assert outcome.out == "appended 1 record at offset 0\n"


def test_what_was_appended_before_a_refusal_is_told(
    command: Command, tmp_path: Path, type_in: Callable[[bytes], None]
) -> None:
    """Another run with the same input would store the first lines twice."""
    type_in(b"a\nb\n" + b"c" * 2_000_000 + b"\n")
    ended = command("append", tmp_path / "t-0")
    assert ended.code == 1
    assert ended.err.startswith("logstore: the first 2 lines are at offsets 0 to 1\nlogstore: ")


def test_a_log_that_is_open_elsewhere_is_refused(
    command: Command, tmp_path: Path, type_in: Callable[[bytes], None]
) -> None:
    log = tmp_path / "lines-0"
    type_in(b"x\n")
    with Log.open(log):
        outcome = command("append", log)
    assert outcome.code == 1
    assert str(log) in outcome.err


@pytest.mark.parametrize(("name", "code"), [("no-partition-number-x", 2), ("file-0", 1)])
def test_a_directory_that_cannot_be_a_log_is_refused(
    command: Command, tmp_path: Path, type_in: Callable[[bytes], None], name: str, code: int
) -> None:
    (tmp_path / "file-0").write_bytes(b"")
    type_in(b"x\n")
    outcome = command("append", tmp_path / name)
    assert outcome.code == code
    assert outcome.err.count("\n") == 1


@given(
    data=st.binary(max_size=200).map(lambda data: data.replace(b"\1", b"\n")),
    size=st.integers(1, 50),
)
@settings(derandomize=True)
def test_lines_do_not_depend_on_how_they_arrive(data: bytes, size: int) -> None:
    """A pipe hands out any pieces; splitting the whole input is the definition."""

    class Pieces(io.BytesIO):
        def read1(self, _size: int | None = -1, /) -> bytes:
            return self.read(size)

    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    assert [line for group in batches_of_lines(Pieces(data)) for line in group] == lines


def test_groups_fit_a_batch() -> None:
    """Many lines at once must not grow into a batch that the log refuses."""
    lines = [b"x" * 1000] * 1000 + [b"y" * 200_000] + [b""] * 20_000
    groups = list(batches_of_lines(io.BytesIO(b"\n".join(lines) + b"\n")))
    assert [line for group in groups for line in group] == lines
    assert all(sum(map(len, group)) <= 1 << 16 or len(group) == 1 for group in groups)
    assert max(map(len, groups)) <= 8192


# --- cat --------------------------------------------------------------------------------------


def test_cat_from_an_offset_inside_a_batch(command: Command, partition: Path) -> None:
    """A batch is read whole; what lies before the asked offset is left out."""
    assert command("cat", partition, "--from", 1).out.encode("utf-8", "surrogateescape") == (
        b"t\xffo\n\n\nfour\nfive\n"
    )
    assert command("cat", partition, "--from", 5).out == "five\n"
    assert command("cat", partition, "--from", 6).out == ""


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_cat_past_the_end_is_exit_1(command: Command, partition: Path, isolation: str) -> None:
    outcome = command("cat", partition, "--from", 7, "--isolation", isolation)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "logstore: offset 7 is past the end of the log, 6\n"


def test_cat_leaves_markers_out(command: Command, tmp_path: Path) -> None:
    """Control batches end transactions; applications never see them."""
    data = encode_batch([Record(0, 1, None, b"data")], producer_id=1, producer_epoch=0, base_sequence=0)
    marker = encode_batch(
        [Record(1, 1, b"\0\0\0\1", b"\0\0\0\0\0\0")],
        base_offset=1, producer_id=1, producer_epoch=0, is_control=True, is_transactional=True,
    )  # fmt: skip
    write_files(tmp_path / "t-0", {f"{SEGMENT_0}.log": data + marker})
    assert command("cat", tmp_path / "t-0").out == "data\n"


def test_cat_respects_the_log_start_offset(command: Command, partition: Path) -> None:
    """Records that were deleted stay in the file until their segment goes, and are not shown."""
    (partition.parent / "log-start-offset-checkpoint").write_bytes(b"0\n1\norders 0 4\n")
    assert command("cat", partition).out == "four\nfive\n"
    outcome = command("cat", partition, "--from", 2)
    assert outcome.out == "four\nfive\n"
    assert "records below offset 4 were deleted" in outcome.err


def test_cat_stops_at_damage(command: Command, partition: Path) -> None:
    """Lines after a gap would look like lines without one."""
    log = partition / f"{SEGMENT_4}.log"
    broken = bytearray(THIRD)
    broken[-1] ^= 1
    log.write_bytes(broken)
    outcome = command("cat", partition)
    assert outcome.code == 1
    assert outcome.out.endswith("one\nt\udcffo\n\n\n")
    assert f"{SEGMENT_4}.log at byte 0" in outcome.err


def test_cat_of_a_torn_log_says_so_and_writes_nothing(command: Command, partition: Path) -> None:
    with (partition / f"{SEGMENT_4}.log").open("ab") as file:
        file.write(THIRD[:30])
    before = snapshot(partition)
    outcome = command("cat", partition)
    assert outcome.code == 0
    assert "in the middle of a batch" in outcome.err
    assert snapshot(partition) == before


def test_follow_sees_what_is_appended_torn_and_rolled(
    command: Command, partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While waiting: half a batch, the rest of it, a new segment, the old one deleted, the user leaves."""
    log = partition / f"{SEGMENT_4}.log"
    sixth = encode_batch([Record(6, 1, None, b"six")], base_offset=6, leader_epoch=1)
    seventh = encode_batch([Record(7, 1, None, b"seven")], base_offset=7, leader_epoch=1)

    def leave() -> None:
        raise KeyboardInterrupt

    steps = iter(
        [
            lambda: log.write_bytes(THIRD + sixth[:20]),
            lambda: log.write_bytes(THIRD + sixth),
            lambda: (partition / f"{7:020d}.log").write_bytes(seventh),
            lambda: (partition / f"{SEGMENT_0}.log").unlink(),
            leave,
        ]
    )
    monkeypatch.setattr("time.sleep", lambda _: next(steps)())
    outcome = command("cat", partition, "--follow", "--from", 5)
    assert outcome.code == 0
    assert outcome.out == "five\nsix\nseven\n"
    assert logstore.cli.cat._POLL_SECONDS < 1


def transactional(log: Log, producer_id: int, sequence: int) -> None:
    batch = encode_batch(
        [Record(0, 1000, None, b"%d.%d" % (producer_id, sequence))],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    log.append_batches(batch)


def test_cat_shows_what_is_committed(command: Command, tmp_path: Path) -> None:
    """The aborted value goes, the undecided one is not there yet, and nothing is written on the way."""
    directory = tmp_path / "orders-0"
    with Log.open(directory) as log:
        transactional(log, 1, 0)
        transactional(log, 2, 0)
        log.append(b"plain")
        log.end_transaction(1, 0, commit=False)
        log.end_transaction(2, 0, commit=True)
        transactional(log, 1, 1)
        log.append(b"behind")
    before = snapshot(directory)
    for options in ([], ["--isolation", "read_uncommitted"]):
        assert command("cat", directory, *options).out == "1.0\n2.0\nplain\n1.1\nbehind\n"
    outcome = command("cat", directory, "--isolation", "read_committed")
    assert (outcome.code, outcome.out) == (0, "2.0\nplain\n")
    assert command("cat", directory, "--isolation", "read_committed", "--from", "2").out == "plain\n"
    assert command("cat", directory, "--isolation", "whatever").code == 2
    assert snapshot(directory) == before


# --- framing ----------------------------------------------------------------------------------

AWKWARD = [(b"k", b"one\ntwo"), (None, b""), (b"", None), (b"k\n", b"\xff\0"), (b"last", b"plain")]


@pytest.fixture
def awkward(tmp_path: Path) -> Path:
    """A log with line ends, nulls and bytes that are no text in keys and values."""
    with Log.open(tmp_path / "awkward-0") as log:
        log.append(AWKWARD, timestamp_ms=1000)
    return tmp_path / "awkward-0"


def test_more_lines_than_records_is_said(command: Command, awkward: Path) -> None:
    outcome = command("cat", awkward)
    assert (outcome.code, outcome.out.count("\n")) == (0, 6)
    assert outcome.err == (
        "logstore: 1 of 5 records contain line ends, so there are more lines than records; "
        "--json and --framing lengths keep them apart\n"
    )
    assert "2 of 5 records" in command("cat", awkward, "--key-separator", "=").err
    assert command("cat", awkward, "--from", 4).err == ""


def test_lengths_are_exact(command: Command, awkward: Path) -> None:
    outcome = command("cat", awkward, "--framing", "lengths")
    data = io.BytesIO(outcome.out.encode("utf-8", "surrogateescape"))

    def read() -> bytes | None:
        size = int.from_bytes(data.read(4), "big", signed=True)
        return None if size < 0 else data.read(size)

    assert [(read(), read()) for _ in AWKWARD] == AWKWARD
    assert (data.read(), outcome.err) == (b"", "")


def test_one_object_a_record(command: Command, awkward: Path) -> None:
    outcome = command("cat", awkward, "--json", "--encoding", "hex", "--from", 1)
    assert outcome.err == ""
    found = [json.loads(line) for line in outcome.out.splitlines()]
    assert [each["offset"] for each in found] == [1, 2, 3, 4]
    assert {each["timestamp"] for each in found} == {1000}
    assert [
        tuple(None if each[name] is None else bytes.fromhex(each[name]) for name in ("key", "value"))
        for each in found
    ] == AWKWARD[1:]


@pytest.mark.parametrize(
    "options",
    [
        ["--json", "--framing", "lengths"],
        ["--json", "--key-separator", "="],
        ["--framing", "lengths", "--key-separator", "="],
    ],
)
def test_forms_that_exclude_each_other(command: Command, awkward: Path, options: list[str]) -> None:
    assert command("cat", awkward, *options).code == 2


def test_a_place_without_a_log_is_exit_2(command: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_bytes(b"no segment")
    outcome = command("cat", tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{tmp_path} holds no log" in outcome.err
