"""`logstore lost` and `logstore recover --undo`: what was cut, listed, read, put back, removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from logstore.checkpoint.entry_files import (
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.log import Log
from logstore.log.losses import Standing
from logstore.log.manager import LogManager
from tests.cli.conftest import FIRST, SECOND, SEGMENT_0, SEGMENT_4, THIRD, Outcome, snapshot
from tests.unreadable import unreadable

Command = Callable[..., Outcome]


@pytest.fixture
def cut(partition: Path) -> Path:
    """The partition after a cut at offset 3: the end of one segment, and all of the next."""
    with Log.open(partition) as log:
        log.truncate_to(3, why="a leader\nsaid so")
    return partition


def logs_of(partition: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(partition.glob("*.log"))}


class TestListing:
    def test_as_json(self, command: Command, cut: Path) -> None:
        """One object a loss, and the total last; nothing is locked or changed."""
        before = snapshot(cut.parent)
        outcome = command("lost", cut, "--json")
        assert (outcome.code, outcome.err) == (0, "")
        loss, total = map(json.loads, outcome.out.splitlines())
        assert loss["directory"] == str(cut)
        assert (loss["id"], loss["who"], loss["why"]) == (1, "truncation", "a leader\nsaid so")
        assert (loss["first_offset"], loss["last_offset"], loss["records"]) == (3, 5, 3)
        assert (loss["standing"], loss["bytes"]) == ("in quarantine", len(SECOND + THIRD))
        assert total == {
            "total": {"losses": 1, "records": 3, "kept_bytes": len(SECOND + THIRD), "unreadable_lines": 0}
        }
        assert snapshot(cut.parent) == before

    def test_in_words(self, command: Command, cut: Path) -> None:
        """A reason is somebody else's text: it may not move the cursor."""
        outcome = command("lost", cut.parent)
        assert outcome.code == 0
        assert "loss 1: in quarantine" in outcome.out
        assert r"truncation: a leader\nsaid so" in outcome.out
        assert "offsets 3 to 5: 3 records" in outcome.out
        assert "1 loss, 3 records" in outcome.out

    def test_of_nothing(self, command: Command, partition: Path) -> None:
        outcome = command("lost", partition, partition.parent)
        assert (outcome.code, outcome.out) == (0, "0 losses, 0 records, 0 bytes in quarantine\n")

    def test_of_the_directory_of_a_whole_cluster(self, command: Command, cut: Path) -> None:
        """As `cluster start` makes it, with a log dir for each broker."""
        cut.parent.rename(cut.parent.parent / "node-1")
        outcome = command("lost", cut.parent.parent)
        assert (outcome.code, "1 loss, 3 records" in outcome.out) == (0, True)

    def test_of_a_directory_far_above(self, command: Command, partition: Path, tmp_path: Path) -> None:
        """With losses it listed them, and without any it found no log."""
        home = tmp_path / "a" / "b" / "c"
        home.mkdir(parents=True)
        partition.rename(home / partition.name)
        for verb in ("lost", "verify"):
            outcome = command(verb, tmp_path / "a")
            assert outcome.code == 0, outcome

    def test_of_a_directory_without_logs(self, command: Command, tmp_path: Path) -> None:
        outcome = command("lost", tmp_path)
        assert (outcome.code, "holds no log" in outcome.err) == (2, True), outcome

    @pytest.mark.parametrize("verb", ["lost", "cursors", "verify", "timeline"])
    def test_a_partition_that_may_not_be_listed(
        self, command: Command, cut: Path, tmp_path: Path, verb: str
    ) -> None:
        """Its losses and cursors would be missing from the answer."""
        (cut.parent / "open-0").mkdir()
        (cut.parent / "open-0" / f"{0:020}.log").touch()
        with unreadable(cut):
            outcome = command(verb, cut.parent)
        assert (outcome.code, "Permission denied" in outcome.err) == (1, True), outcome

    def test_a_damaged_ledger(self, command: Command, cut: Path) -> None:
        """The lines that are sound are listed, and the answer is no."""
        ledger = cut / "lost" / "ledger.jsonl"
        ledger.write_bytes(b"rubbish\n" + ledger.read_bytes())
        outcome = command("lost", cut, "--json")
        assert outcome.code == 1
        assert "line 1 cannot be read" in outcome.err
        assert len(outcome.out.splitlines()) == 2

    def test_bytes_that_are_gone(self, command: Command, cut: Path) -> None:
        (cut / "lost" / "1" / f"{SEGMENT_4}.log").unlink()
        outcome = command("lost", cut)
        assert outcome.code == 1
        assert "missing" in outcome.out


def test_what_is_kept_is_read_like_a_partition(command: Command, cut: Path) -> None:
    """The directory of a loss holds `.log` files under the names that they had."""
    place = cut / "lost" / "1"
    assert logs_of(place) == {f"{SEGMENT_0}.log": SECOND, f"{SEGMENT_4}.log": THIRD}
    assert command("cat", place).out == "\nfour\nfive\n"
    dumped = command("dump", place, "--records", "--json").out.splitlines()
    assert [json.loads(line)["offset"] for line in dumped] == [3, 4, 5]
    assert command("dump", place / f"{SEGMENT_4}.log", "--verify").code == 0


class TestUndo:
    def test_the_log_is_as_it_was(self, command: Command, cut: Path) -> None:
        outcome = command("recover", cut, "--undo", 1, "--json")
        assert outcome.code == 0
        assert json.loads(outcome.out) == {
            "loss": 1, "restored_bytes": len(SECOND + THIRD), "log_start_offset": 0, "log_end_offset": 6,
        }  # fmt: skip
        assert logs_of(cut) == {f"{SEGMENT_0}.log": FIRST + SECOND, f"{SEGMENT_4}.log": THIRD}
        assert json.loads(command("lost", cut, "--json").out.splitlines()[0])["standing"] == "restored"
        with Log.open(cut) as log:
            assert [record.value for record in log.read(3)] == [None, b"four", b"five"]
            assert log.partition.epochs == ((0, 0), (1, 3))

    def test_of_a_partition_in_a_log_dir(self, command: Command, partition: Path) -> None:
        """Its checkpoints are the dir's, and one that lies in the gap inside a cut batch is lowered."""
        tp = TopicPartition("orders", 0)
        with Log.open(partition) as log:
            log.append([b"six", b"seven", b"eight"], timestamp_ms=3002)
            before = logs_of(partition)
            log.truncate_to(7)  # inside that batch, which goes whole
            log.partition.roll()
        for name in (RECOVERY_POINT_CHECKPOINT, ".kafka_cleanshutdown"):
            (partition / name).unlink()
        write_offset_checkpoint(OsDisk(), str(partition.parent), RECOVERY_POINT_CHECKPOINT, {tp: 7})
        assert command("recover", partition, "--undo", 1).code == 0
        assert logs_of(partition) == before
        points = read_offset_checkpoint(OsDisk(), str(partition.parent), RECOVERY_POINT_CHECKPOINT)
        assert points == {tp: 6}

    @pytest.mark.parametrize("is_clean", [True, False])
    def test_under_a_manager_that_starts_again(
        self, command: Command, tmp_path: Path, is_clean: bool
    ) -> None:
        """Its marks and checkpoints were made before the undo; what came back is served all the same."""

        def started() -> LogManager:
            return LogManager([str(tmp_path)], disk=OsDisk(), clock=lambda: 1_000_000, random=Random(1))

        tp = TopicPartition("orders", 0)
        manager = started()
        log = manager.get_or_create(tp)
        for number in range(5):
            log.append([b"%d" % number, b"more"], sync=True)
        log.truncate_to(4)
        manager.checkpoint_recovery_points()
        manager.close() if is_clean else manager.abandon()
        assert command("recover", tmp_path / "orders-0", "--undo", 1).code == 0
        again = started()
        assert dict(again.damaged) == {}
        assert [record.value for record in again.logs()[tp].read()][::2] == [b"%d" % n for n in range(5)]
        assert again.losses()[tp][0].standing is Standing.RESTORED
        again.logs()[tp].append(b"on", sync=True)
        again.close()

    def test_that_does_not_fit(self, command: Command, cut: Path, tmp_path: Path) -> None:
        """The message says what to do, and doing it gives the records."""
        with Log.open(cut) as log:
            log.append(b"another", sync=True)
        before = snapshot(cut)
        outcome = command("recover", cut, "--undo", 1)
        assert outcome.code == 1
        assert "other batches at offset 3" in outcome.err
        assert "--as NEW_DIR" in outcome.err
        assert snapshot(cut) == before
        found = tmp_path / "found-0"
        copied = json.loads(command("recover", cut, "--undo", 1, "--as", found, "--json").out)
        assert (copied["records"], copied["log_start_offset"], copied["log_end_offset"]) == (3, 3, 6)
        assert command("cat", found).out == "\nfour\nfive\n"
        again = command("recover", cut, "--undo", 1, "--as", found)
        assert (again.code, "not empty" in again.err) == (1, True)

    def test_into_a_directory_that_is_not_named_like_a_partition(
        self, command: Command, cut: Path, tmp_path: Path
    ) -> None:
        """As `append` and `snapshot`: the command line is invalid, whether there is such a loss or not."""
        for loss in (1, 7):
            outcome = command("recover", cut, "--undo", loss, "--as", tmp_path / "notgood")
            assert (outcome.code, outcome.out) == (2, "")
            assert "notgood" in outcome.err
            assert "recover --help" in outcome.err
        assert not (tmp_path / "notgood").exists()

    def test_of_a_loss_that_is_not_there(self, command: Command, cut: Path) -> None:
        before = snapshot(cut)
        outcome = command("recover", cut, "--undo", 7)
        assert outcome.code == 1
        assert "has no loss 7" in outcome.err
        assert snapshot(cut) == before

    def test_of_a_log_that_is_in_use(self, command: Command, cut: Path) -> None:
        with Log.open(cut):
            outcome = command("recover", cut, "--undo", 1)
        assert outcome.code == 1
        assert "open" in outcome.err

    @pytest.mark.parametrize(
        "options",
        [
            ("--as", "x-0"),
            ("--undo", 1, "--plan"),
            ("--undo", 1, "--recovery-point", 0),
            ("--undo", 1, "--accept-loss"),
        ],
    )
    def test_options_that_do_not_go_together(
        self, command: Command, cut: Path, options: tuple[object, ...]
    ) -> None:
        assert command("recover", cut, *options).code == 2


class TestRemoving:
    def test_one(self, command: Command, cut: Path) -> None:
        outcome = command("lost", cut, "--purge", 1)
        assert (outcome.code, outcome.out) == (0, f"{len(SECOND + THIRD)} bytes removed from quarantine\n")
        assert [path.name for path in (cut / "lost").iterdir()] == ["ledger.jsonl"]
        assert "loss 1: purged" in command("lost", cut).out
        assert command("recover", cut, "--undo", 1).code == 1

    def test_by_age(self, command: Command, cut: Path) -> None:
        assert command("lost", cut.parent, "--older-than", 1).out == "0 bytes removed from quarantine\n"
        assert command("lost", cut.parent, "--older-than", 0).code == 0
        assert "loss 1: expired" in command("lost", cut.parent).out

    @pytest.mark.parametrize(("option", "removed"), [(("--purge", 1), True), (("--older-than", 1), False)])
    def test_as_json(self, command: Command, cut: Path, option: tuple[object, ...], removed: bool) -> None:
        outcome = command("lost", cut, *option, "--json")
        size = len(SECOND + THIRD) if removed else 0
        assert (outcome.code, json.loads(outcome.out)) == (0, {"removed_bytes": size})

    def test_what_is_not_there(self, command: Command, cut: Path) -> None:
        assert command("lost", cut, "--purge", 7).code == 1
        assert command("lost", cut, "--purge", 1, "--older-than", 1).code == 2
        assert command("lost", cut, cut, "--purge", 1).code == 2

    def test_under_an_owner(self, command: Command, cut: Path) -> None:
        with Log.open(cut):
            assert command("lost", cut, "--purge", 1).code == 1
            assert command("lost", cut).code == 0


def test_a_plan_names_what_would_be_kept(command: Command, partition: Path) -> None:
    """The same ledger entry, on a disk that keeps it to itself."""
    with (partition / f"{SEGMENT_4}.log").open("ab") as file:
        file.write(THIRD[:50])
    before = snapshot(partition.parent)
    (planned,) = json.loads(command("recover", partition, "--plan", "--json").out)["cut"]
    assert planned["loss"] == 1
    assert snapshot(partition.parent) == before
    assert "(loss 1)" in command("recover", partition).out
    assert (partition / "lost" / "1" / f"{SEGMENT_4}.log").read_bytes() == THIRD[:50]
    (partition / f"{SEGMENT_4}.log").write_bytes(THIRD + THIRD[:20])
    (planned,) = json.loads(command("recover", partition, "--plan", "--json").out)["cut"]
    assert planned["loss"] == 2, "beside the one that is there"
