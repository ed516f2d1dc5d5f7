"""`logstore verify` on one core, with seals and without, beside reading and summing the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.bars import Bar
from bench.material import NEVER_OLD, fill, fresh_log, read_raw, ready_batch
from logstore.cli.whole_trees import verify_tree
from logstore.disk.files import OsDisk
from logstore.format.crc import crc32c

MIB = 1 << 20
TOTAL = 128 * MIB


@pytest.mark.parametrize("seals", [True, False], ids=["seals", "no seals"])
@pytest.mark.parametrize("size", [16384, 1024, 200])
def test_verify(beside: Callable[..., object], scratch: Path, size: int, seals: bool) -> None:
    """Two sealed segments and an empty one."""
    log = fresh_log(scratch, NEVER_OLD)
    for _ in range(2):
        fill(log, ready_batch(size), TOTAL // 2 // size)
        log.partition.roll()
    log.close()
    directory = scratch / "bench-0"
    logs = sorted(directory.glob("*.log"))
    if not seals:
        for seal in directory.glob("*.seal"):
            seal.unlink()

    def raw() -> None:
        for path in logs:
            read_raw(path, crc32c)

    def ours() -> None:
        assert not [each for each in verify_tree(OsDisk(), str(directory), lambda _: None) if each.is_damage]

    beside(
        raw=raw,
        ours=ours,
        name=f"verify {size} B batches, " + ("with seals" if seals else "without seals"),
        rival="read + CRC-32C, 1 MiB a call",
        units=sum(path.stat().st_size for path in logs),
        unit="B/s",
        bar=Bar("≥ 1 GiB/s" if size == 16384 else "–", lambda _ratio, rate: size != 16384 or rate >= 1 << 30),
        rounds=5,
    )
