"""Which check of a batch's records runs: the plain one, or the compiled one if somebody asked for it.

`kernels.warm_up` makes the compiled check ready and puts it here; until then, and wherever numba is not
installed, the plain one runs (decision 019). Both have the same verdicts: the compiled one only says no,
and the plain one then says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from logstore.format.record import RecordsSummary
from logstore.format.record import check_records as check_plainly

if TYPE_CHECKING:
    from logstore.disk.files import Buffer

Longs = npt.NDArray[np.int64]

WORTH_A_CALL: Final = 3
"""Records below which a call of compiled code costs more than it saves."""


class CompiledCheck(Protocol):
    """What `kernels.warm_up` provides; None means that something is wrong."""

    def one(self, data: Buffer, count: int, position: int, end: int) -> RecordsSummary | None: ...
    def many(self, data: Buffer, starts: Longs, ends: Longs, counts: Longs) -> Longs | None: ...


class _Running:
    compiled: CompiledCheck | None = None


def use(check: CompiledCheck | None) -> None:
    """Let this check run from now on, in the whole process; None: the plain one."""
    _Running.compiled = check


def check_records(
    data: bytes | bytearray, count: int, position: int = 0, end: int | None = None
) -> RecordsSummary:
    """`record.check_records`, as quickly as this process can."""
    end = len(data) if end is None else end
    compiled = _Running.compiled
    if compiled is not None and count >= WORTH_A_CALL:
        summary = compiled.one(data, count, position, end)
        if summary is not None:
            return summary
    return check_plainly(data, count, position, end)


def check_many(data: bytearray, starts: Longs, ends: Longs, counts: Longs) -> Longs:
    """`check_records` of the records in `data[starts:ends]`: a summary a row, n × 3 int64.

    Raises `InvalidRecord` for the first batch that breaks a rule.
    """
    compiled = _Running.compiled
    if compiled is not None:
        summaries = compiled.many(data, starts, ends, counts)
        if summaries is not None:
            return summaries
    rows = zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True)
    return np.array([check_plainly(data, count, start, end) for start, end, count in rows], np.int64)
