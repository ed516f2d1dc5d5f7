"""A partition as files, made byte by byte: no engine code decides what these tests look at."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from logstore.cli.main import run
from logstore.format.batch import encode_batch
from logstore.format.record import Header, Record

FIRST = encode_batch(
    [
        Record(0, 1000, b"k0", b"one", (Header("h", b"x"), Header("n", None))),
        Record(1, 1001, None, b"t\xffo"),
        Record(2, 1002, b"", b""),
    ],
    base_offset=0,
    leader_epoch=0,
)
SECOND = encode_batch([Record(3, 2000, b"k3", None)], base_offset=3, leader_epoch=1)
THIRD = encode_batch(
    [Record(4, 3000, None, b"four"), Record(5, 3001, None, b"five")],
    base_offset=4,
    leader_epoch=1,
    producer_id=7,
    producer_epoch=2,
    base_sequence=10,
)

SEGMENT_0 = f"{0:020d}"
SEGMENT_4 = f"{4:020d}"


def partition_files() -> dict[str, bytes]:
    """Two segments, FIRST and SECOND in one and THIRD in the other, indexed as after every batch."""
    return {
        f"{SEGMENT_0}.log": FIRST + SECOND,
        f"{SEGMENT_0}.index": struct.pack(">ii", 3, len(FIRST)) + bytes(16),  # preallocated tail
        f"{SEGMENT_0}.timeindex": struct.pack(">qi", 2000, 3),
        f"{SEGMENT_4}.log": THIRD,
        f"{SEGMENT_4}.index": b"",
        f"{SEGMENT_4}.timeindex": struct.pack(">qi", 3001, 1),
        "leader-epoch-checkpoint": b"0\n2\n0 0\n1 3\n",
        "partition.metadata": b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw",
    }


def write_files(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Make `directory` hold exactly `files`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below `directory` with its content and time of change: equal means untouched."""
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


class Outcome(NamedTuple):
    """How one command line ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    return write_files(tmp_path / "data" / "orders-0", partition_files())


@pytest.fixture
def command(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    """Run the command in this process."""

    def call(*arguments: object) -> Outcome:
        code = run([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Outcome(code, out.decode("utf-8", "surrogateescape"), err.decode())

    return call
