"""A segment that is gone is a hole: `cat` and `dump --verify` say so, as `verify` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from logstore import Log, LogConfig
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]


@pytest.fixture
def segments(tmp_path: Path) -> list[Path]:
    """The segments of a log of 20 records."""
    with Log.open(tmp_path / "orders-0", LogConfig(segment_bytes=300)) as log:
        for number in range(20):
            log.append(b"%d" % number * 30)
    return sorted((tmp_path / "orders-0").glob("*.log"))


@pytest.mark.parametrize("verb", [["cat"], ["dump", "--verify"], ["verify"]])
def test_a_segment_that_is_gone_is_damage(command: Command, segments: list[Path], verb: list[str]) -> None:
    directory = segments[0].parent
    assert command(*verb, directory).code == 0
    segments[2].unlink()
    ended = command(*verb, directory)
    assert ended.code == 1
    said = f"{segments[2]} at byte 0: segment gone: it should follow {segments[1].name}"
    assert said in (ended.out if verb == ["verify"] else ended.err)


@pytest.mark.parametrize(
    "verb", [["cat"], ["dump", "--verify"], ["verify"], ["recover", "--plan"], ["recover"]]
)
def test_a_first_segment_that_is_gone_is_damage(
    command: Command, segments: list[Path], verb: list[str]
) -> None:
    """The marker of the clean stop knows where the log began, as the next opening does."""
    segments[0].unlink()
    for _ in range(2):
        ended = command(*verb, segments[0].parent)
        assert ended.code == 1
        assert "segment gone: the log began at or below offset 0" in ended.out + ended.err


def test_a_plan_of_a_first_segment_that_is_gone_does_what_it_says(
    command: Command, segments: list[Path]
) -> None:
    segments[0].unlink()
    directory, options = segments[0].parent, ("--accept-loss", "--json")
    plan = command("recover", directory, "--plan", *options).out
    assert command("recover", directory, *options).out == plan
    assert command("verify", directory).code == 0


@pytest.mark.parametrize("verb", [["verify"], ["recover", "--plan"]])
def test_the_only_segment_that_is_gone_is_damage(command: Command, tmp_path: Path, verb: list[str]) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        log.append(b"value")
    (tmp_path / "orders-0" / f"{0:020d}.log").unlink()
    ended = command(*verb, tmp_path / "orders-0")
    assert ended.code == 1
    assert f"{0:020d}.log at byte 0" in ended.out + ended.err


def test_a_hole_below_the_first_offset_that_was_asked_for_is_not_mentioned(
    command: Command, segments: list[Path]
) -> None:
    segments[2].unlink()
    ended = command("cat", segments[0].parent, "--from", int(segments[3].stem))
    assert (ended.code, ended.err) == (0, "")
    assert command("cat", segments[0].parent, "--from", int(segments[2].stem)).code == 1


def test_a_deletion_that_a_crash_broke_off_is_no_damage(command: Command, segments: list[Path]) -> None:
    """It leaves a hole below the log start."""
    directory = segments[0].parent
    with Log.open(directory) as log:
        log.delete_records(int(segments[3].stem))
    if not segments[0].exists():
        segments[0].write_bytes(b"")
    ended = command("cat", directory)
    assert (ended.code, ended.err) == (0, "")


def test_holes_that_compaction_left_are_no_damage(command: Command, tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=300, cleanup_policy="compact")
    with Log.open(tmp_path / "orders-0", config) as log:
        for number in range(20):
            log.append([(b"key", b"%d" % number * 30)])
        log.compact()
    ended = command("cat", tmp_path / "orders-0")
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out.splitlines()) < 20
    assert command("dump", "--verify", tmp_path / "orders-0").code == 0


def test_single_files_are_judged_alone(command: Command, segments: list[Path]) -> None:
    assert command("dump", "--verify", segments[1], segments[3]).code == 0
