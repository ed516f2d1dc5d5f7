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


def test_a_closed_stderr_is_no_error(tmp_path: Path) -> None:
    """It was an `AttributeError` of the progress bar, and other errors came out on stdout."""
    Log.open(tmp_path / "orders-0").close()
    logstore = [sys.executable, "-m", "logstore.cli.main"]
    for arguments, code in ((["verify", str(tmp_path)], 0), (["verify", str(tmp_path / "none")], 2)):
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" 2>&-', "sh", *logstore, *arguments], stdout=subprocess.PIPE, check=False
        )
        assert (done.returncode, b"none" in done.stdout) == (code, False)
