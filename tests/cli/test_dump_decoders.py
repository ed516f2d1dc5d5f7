"""`logstore dump`: decoders for keys and values, internal topics, KRaft's files; ranges and filters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logstore.format.batch import encode_batch
from logstore.format.record import Record
from tests.cli.conftest import SEGMENT_0, Outcome, snapshot, write_files
from tests.golden.kafka_directories import unpack

Command = Callable[..., Outcome]
DAY_MS = 1_700_000_000_000


@pytest.fixture
def kraft(tmp_path: Path) -> Path:
    return unpack("kraft-dir", tmp_path)


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines()]


def double(data: bytes) -> str:
    """A user's decoder; refuses what is not ASCII."""
    return data.decode("ascii") * 2


# --- internal topics ------------------------------------------------------------------------------


def test_cluster_metadata_by_the_names_of_its_records(command: Command, kraft: Path) -> None:
    before = snapshot(kraft)
    found = rows(command("dump", kraft / "__cluster_metadata-0", "--records", "--json"))
    names = [each["value"]["type"] for each in found]
    listed = json.loads((Path(__file__).parents[1] / "golden/operators/kraft-dir.json").read_text())
    counts = {name: names.count(name) for name in names}
    assert counts == {
        name.replace("controlType: LEADER_CHANGE(2)", "LeaderChange"): count
        for name, count in listed["metadata"]["recordCounts"].items()
    }
    topics = [each["value"]["data"] for each in found if each["value"]["type"] == "TOPIC_RECORD"]
    assert {"name": "orders", "topicId": "q1rQ-zzUQr-NxhUuceaPjg"} in topics
    assert snapshot(kraft) == before


def test_a_metadata_snapshot_and_the_quorum_state(command: Command, kraft: Path) -> None:
    directory = kraft / "__cluster_metadata-0"
    path = directory / "00000000000000000153-0000000001.checkpoint"
    names = [each["value"]["type"] for each in rows(command("dump", path, "--records", "--json"))]
    assert (names[0], names[-1]) == ("SnapshotHeader", "SnapshotFooter")
    assert "TOPIC_RECORD" in names
    assert rows(command("dump", path, "--json"))[0]["control"] is True
    (state,) = rows(command("dump", directory / "quorum-state", "--json"))
    assert (state["leaderId"], state["leaderEpoch"]) == (1, 1)


def test_kafkas_whole_directory_is_sound_until_a_snapshot_is_cut(command: Command, kraft: Path) -> None:
    assert command("verify", kraft).code == 0
    path = kraft / "__cluster_metadata-0" / "00000000000000000153-0000000001.checkpoint"
    path.write_bytes(path.read_bytes()[:-20])
    for verb in (["verify", kraft], ["dump", "--verify", path]):
        outcome = command(*verb)
        assert outcome.code == 1
        assert "incomplete snapshot" in outcome.out + outcome.err


def test_groups_and_transactions(command: Command, kraft: Path) -> None:
    found = rows(command("dump", kraft / "__consumer_offsets-0", "--records", "--json"))
    assert [each["key"]["type"] for each in found] == [
        "GroupMetadata", "OffsetCommit", "OffsetCommit", "GroupMetadata",
    ]  # fmt: skip
    assert found[1]["key"]["data"] == {"group": "g-orders", "topic": "orders", "partition": 0}
    assert found[1]["value"]["data"]["offset"] == 50
    assert found[0]["value"]["data"]["members"][0]["subscription"]["topics"] == ["orders"]
    found = rows(command("dump", kraft / "__transaction_state-0", "--records", "--json"))
    assert [each["value"]["data"]["transactionStatus"] for each in found] == [0, 1, 2, 4]


def test_raw_and_another_name(command: Command, kraft: Path) -> None:
    """A directory that was renamed needs its topic; any of them can be shown as it is."""
    directory = kraft / "__consumer_offsets-0"
    raw = rows(command("dump", directory, "--records", "--json", "--decode-as", "raw", "--encoding", "hex"))
    assert raw[1]["key"] == b"\0\1\0\x08g-orders\0\x06orders\0\0\0\0".hex()
    renamed = directory.rename(kraft / "found-by-hand")
    options = ["--records", "--json", "--decode-as", "__consumer_offsets"]
    assert rows(command("dump", renamed, *options))[1]["key"]["type"] == "OffsetCommit"
    assert command("dump", renamed, "--decode-as", "orders").code == 2


def test_a_record_that_is_none_of_its_topic(command: Command, tmp_path: Path) -> None:
    """It is shown as bytes and named; that is no damage."""
    data = encode_batch([Record(0, 1, b"\0\x63", b"?"), Record(1, 1, None, b"?")])
    write_files(tmp_path / "__consumer_offsets-0", {f"{SEGMENT_0}.log": data})
    outcome = command("dump", tmp_path / "__consumer_offsets-0", "--records", "--json")
    assert [each["value"] for each in rows(outcome)] == ["?", "?"]
    assert "the value of offset 0 cannot be decoded: InvalidRecord: unknown record type 99" in outcome.err
    assert outcome.err.count("(no damage)") == 2


def test_the_end_of_a_transaction(command: Command, kraft: Path) -> None:
    found = rows(command("dump", kraft / "orders-0", "--records", "--json"))
    assert [each["value"] for each in found if isinstance(each["value"], dict)] == [
        {"type": "Commit", "version": 0, "data": {"version": 0, "coordinatorEpoch": 0}}
    ]


# --- decoders -------------------------------------------------------------------------------------


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """Three records of integers and JSON, a minute apart, each a batch."""
    values = [b'{"n": 1}', b"no json", None]
    batches = [
        encode_batch(
            [Record(at, DAY_MS + 60_000 * at, (at - 1).to_bytes(4, "big", signed=True), value)],
            base_offset=at,
        )
        for at, value in enumerate(values)
    ]
    return write_files(tmp_path / "numbers-0", {f"{SEGMENT_0}.log": b"".join(batches)})


def test_integers_and_json(command: Command, numbers: Path) -> None:
    options = ["--key-decoder", "int", "--value-decoder", "json"]
    outcome = command("dump", numbers, "--records", "--json", *options)
    assert [(each["key"], each["value"]) for each in rows(outcome)] == [
        (-1, {"n": 1}), (0, "no json"), (1, None),
    ]  # fmt: skip
    assert "the value of offset 1 cannot be decoded: JSONDecodeError" in outcome.err


def test_a_decoder_of_your_own(command: Command, numbers: Path) -> None:
    options = ["--value-decoder", "tests.cli.test_dump_decoders:double", "--key-decoder", "hex"]
    found = rows(command("dump", numbers, "--records", "--json", *options))
    assert (found[1]["key"], found[1]["value"]) == ("00000000", "no jsonno json")
    outcome = command(
        "dump", numbers, "--records", "--json", "--key-decoder", "tests.cli.test_dump_decoders:double"
    )
    assert outcome.err.count("UnicodeDecodeError") == 1


@pytest.mark.parametrize("name", ["number", "tests.nothing:here", "json:nothing", "logstore:VERSION", ":x"])
def test_an_unknown_decoder_is_exit_2(command: Command, numbers: Path, name: str) -> None:
    outcome = command("dump", numbers, "--records", "--value-decoder", name)
    assert (outcome.code, outcome.out) == (2, "")
    assert "--value-decoder" in outcome.err


# --- ranges and filters ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--from-offset", 1], [1, 2]),
        (["--to-offset", 1], [0, 1]),
        (["--from-offset", 1, "--to-offset", 1], [1]),
        (["--from-offset", 3], []),
        (["--from-time", DAY_MS + 1], [1, 2]),
        (["--to-time", DAY_MS + 60_000], [0, 1]),
        (["--from-time", "2023-11-14T22:14:00", "--to-time", "2023-11-14T22:15:00+00:00"], [1]),
        (["--key", "-1", "--key-decoder", "int"], [0]),
        (["--key", "00000001", "--key-decoder", "hex"], [2]),
        (["--max-bytes", 160], [0, 1]),
        (["--max-bytes", 0], []),
    ],
    ids=lambda each: " ".join(map(str, each)),
)
def test_selected_records(command: Command, numbers: Path, options: list[object], offsets: list[int]) -> None:
    found = rows(command("dump", numbers, "--records", "--json", *options))
    assert [each["offset"] for each in found] == offsets
    if "--key" not in options:
        batches = rows(command("dump", numbers, "--json", *options))
        assert [each["base_offset"] for each in batches][: len(offsets)] == offsets


def test_a_range_inside_of_batches_and_segments(command: Command, kraft: Path, tmp_path: Path) -> None:
    """Batches are cut to the range, segments outside of it are not read, other files are left out."""
    logs = unpack("kafka-logs", tmp_path / "more") / "plain-0"
    damaged = min(logs.glob("*.log"))
    damaged.write_bytes(b"\xff" * damaged.stat().st_size)
    first = int(sorted(path.stem for path in logs.glob("*.log"))[2])
    outcome = command(
        "dump", logs, "--records", "--json", "--from-offset", first + 2, "--to-offset", first + 4
    )
    assert [each["offset"] for each in rows(outcome)] == [first + 2, first + 3, first + 4]
    assert outcome.err == ""
    outcome = command("dump", kraft / "orders-0", "--json", "--to-offset", 9)
    assert {Path(each["file"]).suffix for each in rows(outcome)} == {".log"}


def test_a_group_of_an_internal_topic(command: Command, kraft: Path) -> None:
    """The key of an internal topic is compared field by field."""
    options = ["--records", "--json", "--key", "g-orders"]
    assert len(rows(command("dump", kraft / "__consumer_offsets-0", *options))) == 4
    assert rows(command("dump", kraft / "__consumer_offsets-0", "--records", "--json", "--key", "g")) == []


def test_wrong_use_is_exit_2(command: Command, numbers: Path, tmp_path: Path) -> None:
    for options in (
        ["--key", "k"],
        ["--value-decoder", "int"],
        ["--from-time", "noon"],
        ["--from-offset", "-1"],
    ):
        assert command("dump", numbers, *options).code == 2
    (tmp_path / "empty").mkdir()
    assert command("dump", tmp_path / "empty").code == 2


def test_every_option_of_kafkas_tool_is_on_the_page() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "dead-directories.md").read_text()
    options = {
        *("--cluster-metadata-decoder", "--deep-iteration", "--files", "--help", "--index-sanity-check"),
        *(
            "--key-decoder-class",
            "--max-bytes",
            "--max-message-size",
            "--offsets-decoder",
            "--print-data-log",
        ),
        *("--remote-log-metadata-decoder", "--share-group-state-decoder", "--skip-record-metadata"),
        *("--transaction-log-decoder", "--value-decoder-class", "--verify-index-only", "--version"),
    }  # of Apache Kafka 3.9.1 and 4.0.0
    table = page.partition("| kafka-dump-log |")[2].partition("\n\n")[0]
    firsts = " ".join(line.split("|")[1] for line in table.splitlines() if line.count("|") > 2)
    assert options <= {word.strip("`,") for word in firsts.split()}
