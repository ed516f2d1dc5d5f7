"""`logstore snapshot` and `logstore restore`: from the command line, on logs in use and on those of Kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore import Log, LogConfig
from logstore.broker import Broker, BrokerConfig
from logstore.disk.files import OsDisk
from logstore.log.log_dir_snapshot import partitions_in
from logstore.log.reader import LogReader
from tests.cli.conftest import Outcome
from tests.cli.conftest import snapshot as content_of
from tests.golden.kafka_directories import unpack

Command = Callable[..., Outcome]


def values(path: Path) -> list[bytes | None]:
    with Log.open(path) as log:
        return [record.value for record in log.read()]


def test_a_log_in_use_and_back_to_an_offset_and_a_time(command: Command, tmp_path: Path) -> None:
    backup = tmp_path / "backup" / "orders-0"
    with Log.open(tmp_path / "data" / "orders-0", LogConfig(segment_bytes=200)) as log:
        for number in range(9):
            log.append(b"%d" % number * 30, timestamp_ms=1_700_000_000_000 + number)
        outcome = command("snapshot", tmp_path / "data" / "orders-0", backup)
        log.truncate_to(2)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{backup}: offsets 0 to 9 (exclusive), ")
    before = content_of(backup)
    made = command("restore", backup, "--to", tmp_path / "a" / "orders-0", "--to-offset", 4, "--json")
    assert json.loads(made.out)["log_end_offset"] == 4
    for number, when in enumerate(("1700000000004", "2023-11-14T22:13:20.004+00:00")):
        target = tmp_path / f"b{number}" / "orders-0"
        assert command("restore", backup, "--to", target, "--to-time", when).code == 0
        assert values(target) == [b"%d" % number * 30 for number in range(4)]
    assert command("restore", backup, "--to", tmp_path / "c" / "orders-0").code == 0
    assert len(values(tmp_path / "c" / "orders-0")) == 9
    assert content_of(backup) == before, "a restored log is opened and changed, its snapshot is not"


def test_a_broker_puts_no_snapshot_into_its_own_log_dir(tmp_path: Path) -> None:
    """It would not start again on a log dir that holds another directory."""
    config = BrokerConfig(log_dirs=(str(tmp_path / "data"),))
    with Broker(config) as broker:
        broker.create_topic("orders")
        with pytest.raises(ValueError, match="name a directory outside of it"):
            broker.snapshot(tmp_path / "data" / "monday")
    with Broker(config) as broker:
        assert broker.topics() == {"orders": 1}


def test_a_time_without_a_zone_is_utc(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for `dump` and `groups reset`, whatever the zone of the machine."""
    with Log.open(tmp_path / "orders-0") as log:
        for number in range(3):
            log.append(b"%d" % number, timestamp_ms=1_700_000_000_000 + number)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        target = tmp_path / "b" / "orders-0"
        when = "2023-11-14T22:13:20.001"
        assert command("restore", tmp_path / "orders-0", "--to", target, "--to-time", when).code == 0
    finally:
        monkeypatch.undo()
        time.tzset()
    assert values(target) == [b"0"]


def test_a_metadata_store_is_taken_alone(command: Command, tmp_path: Path) -> None:
    """The brokers of a cluster share one, so it is not beside their log dirs."""
    with Broker(BrokerConfig(log_dirs=(str(tmp_path / "data"),))) as broker:
        broker.create_topic("orders")
        outcome = command("snapshot", tmp_path / "data.metadata", tmp_path / "store", "--json")
        assert (outcome.code, outcome.err) == (0, "")
        assert json.loads(outcome.out) == {"metadata": str(tmp_path / "store")}
        assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
        assert command("snapshot", tmp_path / "data.metadata", tmp_path / "store").code == 2
        broker.create_topic("later")
    taken = BrokerConfig(log_dirs=(str(tmp_path / "new"),), metadata=f"embedded:{tmp_path}/store")
    with Broker(taken) as broker:
        assert set(broker.topics()) == {"orders"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["snapshot", "data/orders-0", "there-0"], "exists"),
        (["snapshot", "data/orders-0", "monday"], "monday"),
        (["snapshot", "empty", "backup/orders-0"], "it holds no log"),
        (["snapshot", "etc", "backup"], "it holds no log"),
        (["snapshot", "data", "data/backup"], "name a directory outside of it"),
        *(
            (
                ["restore", "data/orders-0", "--to", "x-0", f"--to-time={time}"],
                "neither epoch milliseconds nor",
            )
            for time in ("noon", "--5", "9" * 5000, "2026-11-20+01:00")
        ),
        (["restore", "data/orders-0", "--to", "x-0", "--to-time", "1", "--to-offset", "1"], "not both"),
        (["restore", "data", "--to", "x", "--to-offset", "1"], "for one partition"),
    ],
)
def test_what_is_refused_is_bad_usage(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Log.open(tmp_path / "data" / "orders-0").close()
    for name in ("there-0", "empty", "etc/dbus-1"):
        (tmp_path / name).mkdir(parents=True)
    before = content_of(tmp_path)
    outcome = command(*arguments)
    assert outcome.code == 2
    assert content_of(tmp_path) == before
    assert said in outcome.err


def test_a_log_dir_of_kafka_is_taken_at_its_high_watermarks(command: Command, tmp_path: Path) -> None:
    source, target = unpack("kraft-dir", tmp_path), tmp_path / "backup"
    before = content_of(source)
    outcome = command("snapshot", source, target, "--json")
    assert outcome.code == 0, outcome.err
    assert content_of(source) == before
    ends = {
        Path(each["path"]).name: each["log_end_offset"] for each in map(json.loads, outcome.out.splitlines())
    }
    assert {name: ends[name] for name in ("orders-0", "orders-1", "orders-2")} == {
        "orders-0": 62,
        "orders-1": 29,
        "orders-2": 0,
    }
    assert set(partitions_in(OsDisk(), str(target)).values()) == set(ends)


def test_a_broker_starts_again_from_its_snapshot(command: Command, tmp_path: Path) -> None:
    with Broker(BrokerConfig(log_dirs=(str(tmp_path / "data"),))) as broker:
        broker.create_topic("orders", 2)
        for number in range(20):
            broker.append("orders", b"%d" % number, partition=number % 2)
        made = broker.snapshot(tmp_path / "backup")
        broker.append("orders", b"later", partition=0)
    assert made.metadata == f"{tmp_path}/backup.metadata"
    assert command("restore", tmp_path / "backup", "--to", tmp_path / "again").code == 0
    for name in ("backup", "again"):
        with Broker(BrokerConfig(log_dirs=(str(tmp_path / name),))) as broker:
            for partition in range(2):
                found = [record.value for record in broker.read("orders", partition, 0)]
                assert found == [b"%d" % number for number in range(20) if number % 2 == partition]
            broker.append("orders", b"on it goes", partition=0)


def test_a_directory_of_stand_alone_logs_is_taken_to_their_ends(command: Command, tmp_path: Path) -> None:
    """They have no high watermarks, and each keeps its checkpoints in its own directory."""
    for name in ("orders-0", "orders-1"):
        with Log.open(tmp_path / "data" / name) as log:
            for number in range(5):
                log.append(name.encode() + b"%d" % number)
    with Log.open(tmp_path / "data" / "orders-1") as log:
        log.delete_records(2)
    assert command("snapshot", tmp_path / "data", tmp_path / "backup").code == 0
    assert command("restore", tmp_path / "backup", "--to", tmp_path / "again").code == 0
    for place in ("backup", "again"):
        for name, start in (("orders-0", 0), ("orders-1", 2)):
            expected = [name.encode() + b"%d" % number for number in range(start, 5)]
            found = LogReader(tmp_path / place / name).records()
            assert [record.value for record in found] == expected


@pytest.mark.parametrize("kind", ["rot", "segment gone"])
def test_damage_in_a_directory_of_stand_alone_logs_is_refused(
    command: Command, tmp_path: Path, kind: str
) -> None:
    directory = tmp_path / "data" / "orders-0"
    with Log.open(directory, LogConfig(segment_bytes=300)) as log:
        for number in range(20):
            log.append(b"%d" % number * 30)
    segments = sorted(directory.glob("*.log"))
    if kind == "rot":
        data = bytearray(segments[-1].read_bytes())
        data[70] ^= 1
        segments[-1].write_bytes(data)
    else:
        segments[1].unlink()
    outcome = command("snapshot", tmp_path / "data", tmp_path / "backup")
    assert (outcome.code, outcome.out) == (1, "")
    assert {entry.name for entry in tmp_path.iterdir()} == {"data"}


def test_damage_below_the_end_of_a_restore_is_refused(command: Command, tmp_path: Path) -> None:
    """Behind a bad batch in a sealed segment the time was found later: records past it were restored too.

    A rotten base offset, which no checksum covers, passed for a batch past the end: records were left out.
    """
    source, target = tmp_path / "data" / "orders-0", tmp_path / "back" / "orders-0"
    with Log.open(source, LogConfig(segment_bytes=2000)) as log:
        for number in range(103):
            log.append(b"%d" % number, timestamp_ms=1000 * number)
        base = max(each.base_offset for each in log.partition.segments if each.base_offset <= 50)
    path = source / f"{base:020d}.log"
    whole = path.read_bytes()
    place = whole.index(b"\0" * 7 + b"\x2b")
    assert base < 43
    for at in (place + 4, place + 65):
        data = bytearray(whole)
        data[at] ^= 0x40
        path.write_bytes(data)
        for option in (("--to-time", 50000), ("--to-offset", 50)):
            outcome = command("restore", source, "--to", target, *option)
            assert (outcome.code, outcome.out) == (1, ""), (at, option)
            assert "offset 43" in outcome.err
            assert not target.exists()
    path.write_bytes(whole)
    assert command("restore", source, "--to", target, "--to-time", 50000).code == 0
    assert values(target) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize(
    ("option", "left"),
    [
        (("--to-time", 8000), [5, 6, 7]),
        (("--to-time", 2000), []),
        (("--to-time", 20000), [5, 6, 7, 8, 9]),
        (("--to-offset", 2), []),
        (("--to-offset", 0), []),
        (("--to-offset", 7), [5, 6]),
        (("--to-offset", 1000), [5, 6, 7, 8, 9]),
    ],
)
def test_what_lies_below_the_log_start_is_no_part_of_a_restore(
    command: Command, tmp_path: Path, option: tuple[str, int], left: list[int]
) -> None:
    """A late record there ended the restore with exit code 1, as did an end below the log start."""
    with Log.open(tmp_path / "orders-0") as log:
        for number in range(10):
            log.append(b"%d" % number, timestamp_ms=10**13 if number == 3 else 1000 * number)
        log.delete_records(5)
    target = tmp_path / "back" / "orders-0"
    outcome = command("restore", tmp_path / "orders-0", "--to", target, *option)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{target}: offsets 5 to {5 + len(left)} (exclusive), ")
    assert values(target) == [b"%d" % number for number in left]
