"""Topics on disk, and the jobs' command in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logstore import Log, LogConfig, Record, encode_batch
from logstore.spark.jobs.command import main

NOON_MS = 1_795_176_000_000
"""2026-11-20 12:00:00 UTC."""

Row = tuple[int, str | None, str | None]
"""Time, key, value."""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def facts(self) -> dict[str, Any]:
        """Of `--json`: one object on one line, and nothing else."""
        assert self.out.count("\n") == 1, self
        facts: dict[str, Any] = json.loads(self.out)
        return facts


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments], "logstore pipeline")
        return Outcome(code, *capsys.readouterr())

    return call


def append(directory: Path, rows: Sequence[Row], *, segment_bytes: int = 1 << 20) -> None:
    """Append to the partition's directory, five records a batch."""
    with Log.open(directory, LogConfig(segment_bytes=segment_bytes)) as log:
        for first in range(0, len(rows), 5):
            some = enumerate(rows[first : first + 5])
            log.append_batches(
                encode_batch([Record(n, time, _bytes(key), _bytes(value)) for n, (time, key, value) in some])
            )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
