"""A shell may start the command without stdin or stdout (`<&-`, `>&-`): Python then has None for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from logstore import Log
from logstore.cli.main import run


@pytest.mark.parametrize(("verb", "stream"), [("cat", "stdout"), ("append", "stdin")])
def test_a_closed_stream_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    verb: str,
    stream: str,
) -> None:
    directory = tmp_path / "orders-0"
    with Log.open(directory) as log:
        log.append(b"a")
    monkeypatch.setattr(sys, stream, None)
    assert run([verb, str(directory)]) == 1
    assert capfd.readouterr().err == f"logstore: {stream} is closed\n"
    with Log.open(directory) as log:
        assert log.log_end_offset == 1


def test_a_story_by_steps_needs_a_stdin(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["story", "failed-target", "--step"]) == 1
    assert capfd.readouterr() == ("", "logstore: stdin is closed\n")


def test_json_to_a_closed_stdout_is_left_out_like_other_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Log.open(tmp_path / "orders-0").close()
    monkeypatch.setattr(sys, "stdout", None)
    assert run(["verify", str(tmp_path / "orders-0"), "--json"]) == 0


@pytest.mark.parametrize("buffering", [-1, 1])
def test_an_append_whose_output_finds_no_room_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], buffering: int
) -> None:
    """It said "run it again", which would have appended the lines twice, or Python failed at its exit."""
    lines, directory = tmp_path / "lines", tmp_path / "orders-0"
    lines.write_text("a\nb\n")
    with open("/dev/full", "w", buffering) as full, open(lines) as given:
        monkeypatch.setattr(sys, "stdin", given)
        monkeypatch.setattr(sys, "stdout", full)
        assert run(["append", str(directory)]) == 1
        sys.stdout.flush()
    assert capfd.readouterr().err == (
        "logstore: stdout: No space left on device; the lines are in the log, up to offset 1\n"
    )
    with Log.open(directory) as log:
        assert log.log_end_offset == 2


def test_output_that_finds_no_room_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Log.open(tmp_path / "orders-0").close()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert run(["verify", str(tmp_path / "orders-0")]) == 1
    assert capfd.readouterr().err == (
        "logstore: stdout: No space left on device; the command has ended, "
        "but not all of its output is there\n"
    )


def test_a_closed_stderr_is_no_error(tmp_path: Path) -> None:
    """It was an `AttributeError` of the progress bar, and other errors came out on stdout."""
    Log.open(tmp_path / "orders-0").close()
    logstore = [sys.executable, "-m", "logstore.cli.main"]
    for arguments, code in ((["verify", str(tmp_path)], 0), (["verify", str(tmp_path / "none")], 2)):
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" 2>&-', "sh", *logstore, *arguments], stdout=subprocess.PIPE, check=False
        )
        assert (done.returncode, b"none" in done.stdout) == (code, False)
