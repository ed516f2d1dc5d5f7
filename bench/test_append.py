"""Append ready batches, beside plain writes of the same bytes into a new file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.bars import rate_bar, ratio_bar
from bench.material import T0, fresh_log, ready_batch
from logstore.columnar import kernels
from logstore.format.batch import set_offsets_and_epoch
from logstore.log.append import append_as_leader
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import Log

KIB = 1024
BATCHES = 4096


@pytest.fixture(scope="module", autouse=True)
def _compiled_check() -> None:
    """As in a serving process: the leader's check of records is compiled (decision 019)."""
    kernels.warm_up()


class _Target:
    """A log and a raw file side by side, both empty before each round."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.log: Log | None = None
        self.descriptor = -1

    def before(self) -> None:
        self.log = fresh_log(self._directory)
        self.descriptor = os.open(self._directory / "raw", os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def after(self) -> None:
        if self.log is not None:
            self.log.partition.abandon()
            self.log = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            os.unlink(self._directory / "raw")
            self.descriptor = -1
            # Some file systems are slow to find freed blocks again: both sides start from the same state.
            os.sync()


@pytest.mark.parametrize("records", [1, 16])
@pytest.mark.parametrize("together", [1, 64])
def test_append_16k(beside: Callable[..., object], scratch: Path, records: int, together: int) -> None:
    """Leader appends of ready 16 KiB batches, one or 64 a call, beside one write a batch."""
    batch = ready_batch(16 * KIB, records)
    data = batch * together
    target = _Target(scratch)

    def raw() -> None:
        for _ in range(BATCHES):
            os.write(target.descriptor, batch)

    def ours() -> None:
        assert target.log is not None
        if together == 1:
            for _ in range(BATCHES):
                append_as_leader(target.log.partition, batch, leader_epoch=0, now_ms=T0)
        for _ in range(BATCHES // together if together > 1 else 0):
            target.log.append_batches(data)

    beside(
        raw=raw,
        ours=ours,
        before=target.before,
        after=target.after,
        name=f"append 16 KiB batches of {records}, {together} a call",
        rival="write",
        units=BATCHES * len(batch),
        unit="B/s",
        bar=ratio_bar(0.7),
    )


def test_follower_append(beside: Callable[..., object], scratch: Path) -> None:
    """Follower appends: 1 MiB of the leader's 16 KiB batches a call, kept byte for byte."""
    batch = ready_batch(16 * KIB, 16)
    chunks = []
    for number in range(BATCHES // 64):
        chunk = bytearray()
        for slot in range(64):
            placed = bytearray(batch)
            set_offsets_and_epoch(placed, base_offset=(number * 64 + slot) * 16, leader_epoch=0)
            chunk += placed
        chunks.append(bytes(chunk))
    target = _Target(scratch)

    def raw() -> None:
        for chunk in chunks:
            for start in range(0, len(chunk), 16 * KIB):
                os.write(target.descriptor, memoryview(chunk)[start : start + 16 * KIB])

    def ours() -> None:
        assert target.log is not None
        for chunk in chunks:
            append_as_follower(target.log.partition, chunk, leader_epoch=0)

    beside(
        raw=raw,
        ours=ours,
        before=target.before,
        after=target.after,
        name="follower append of 16 KiB batches, 1 MiB a call",
        rival="write",
        units=BATCHES * len(batch),
        unit="B/s",
        bar=ratio_bar(0.7),
    )


def test_append_1k(beside: Callable[..., object], scratch: Path) -> None:
    """Ready single-record batches of 1 KiB, one a call."""
    batch = ready_batch(KIB)
    target = _Target(scratch)
    count = 40_000

    def raw() -> None:
        for _ in range(count):
            os.write(target.descriptor, batch)

    def ours() -> None:
        assert target.log is not None
        for _ in range(count):
            append_as_leader(target.log.partition, batch, leader_epoch=0, now_ms=T0)

    beside(
        raw=raw,
        ours=ours,
        before=target.before,
        after=target.after,
        name="append single-record 1 KiB batches, one a call",
        rival="write",
        units=count,
        unit="batches/s",
        bar=rate_bar(80_000, "≥ 80,000/s"),
    )
