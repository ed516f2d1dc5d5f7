"""One lookup in an index of 1.3 million entries, beside numpy's search of the same column."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.bars import rate_bar
from logstore.disk.files import OsDisk
from logstore.segment.indexes import OffsetIndex

ENTRIES = 1_300_000
LOOKUPS = 2000


def test_index_lookup(beside: Callable[..., object], scratch: Path) -> None:
    """`bisect` over the mapped column; `searchsorted` first copies a big-endian column as a whole."""
    table = np.empty(ENTRIES, OffsetIndex.fields)
    table["relative_offset"] = np.arange(1, ENTRIES + 1) * 3
    table["position"] = np.arange(1, ENTRIES + 1) * 4096 % (1 << 31)
    table["position"].sort()
    index = OffsetIndex(OsDisk(), str(scratch / f"{0:020d}.index"), 0, ENTRIES * 8 + 8)
    index.replace(table)
    targets = [random.Random(1).randrange(ENTRIES * 3) for _ in range(LOOKUPS)]
    column = table["relative_offset"]

    def raw() -> None:
        for target in targets[: LOOKUPS // 100]:
            np.searchsorted(column, target, side="right")

    def ours() -> None:
        for target in targets:
            index.lookup(target)

    comparison = beside(
        raw=raw,
        ours=ours,
        name="index lookup in 1.3 M entries (rival: 1/100 of the lookups)",
        rival="np.searchsorted",
        units=LOOKUPS,
        unit="lookups/s",
        bar=rate_bar(200_000, "≤ 5 µs"),
    )
    assert comparison is not None
    index.close()
