"""Decide whether two writes under one `txnAppId` and `txnVersion` have the same rows.

    state of the ledger     rows  {"7": [200, 431…], "8": [200, 978…]}     version → number of rows, their sum

A repeated version is skipped. That is right for a job that runs again, and a loss for two writers that
share a name by mistake: so the ledger keeps a sum of each version's rows. It is the sum of the CRC-32 of
each row, 64 bits: Spark may hand the rows out to other tasks, and in another order, without changing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from logstore.spark.errors import WriteRefused

KEPT: Final = 100
"""The last versions of a ledger whose sums it keeps."""
_NULL: Final = b"\xff\xfe"
_BETWEEN: Final = b"\xfe\xff"


class RowSum(NamedTuple):
    """The number of some rows, and the sum of their checksums modulo 2**64."""

    rows: int = 0
    total: int = 0

    @classmethod
    def of(cls, batch: Any, columns: Sequence[str]) -> RowSum:
        """Sum the rows of an Arrow batch, by the columns that are written."""
        texts = [_bytes(batch.column(name)) for name in columns]
        joined = pc.binary_join_element_wise(
            *texts, pa.scalar(_BETWEEN), null_handling="replace", null_replacement=_NULL
        )
        return cls(batch.num_rows, sum(map(crc32, joined.to_pylist())))

    @classmethod
    def of_all(cls, sums: Iterable[RowSum | None]) -> RowSum:
        """Return the sum over tasks or batches, in any order."""
        known = [each for each in sums if each is not None]
        return cls(sum(each.rows for each in known), sum(each.total for each in known) % 2**64)


def _bytes(column: Any) -> Any:
    if pa.types.is_nested(column.type):  # headers
        return pa.array([repr(each).encode() for each in column.to_pylist()], pa.binary())
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.binary())


def kept_sums(state: Mapping[str, Any], version: int, rows: RowSum | None) -> dict[str, list[int]]:
    """Return the sums of a ledger's state with those of one version more."""
    sums: dict[str, list[int]] = dict(state.get("rows", {}))
    if rows is not None:
        sums[str(version)] = list(rows)
    return {each: sums[each] for each in sorted(sums, key=int)[-KEPT:]}


def check_same_rows(
    state: Mapping[str, Any], transaction: tuple[str, int], rows: RowSum, topic: str | None = None
) -> None:
    """Raise `WriteRefused` if the skipped `rows` are not those that were written under this version.

    Versions older than the sums that are kept pass. `topic` is the option, which no sum has: it is compared
    for the last version, whose partitions the state has.
    """
    app, version = transaction
    sums = {int(each): RowSum(*found) for each, found in state.get("rows", {}).items()}
    if not sums or version < min(sums):
        return
    if sums.get(version) == rows:
        written = {name.rpartition("-")[0] for name in state.get("sequences", {})}
        if topic is None or not rows.rows or version < max(sums) or topic in written:
            return
        raise WriteRefused(
            f"version {version} of txnAppId {app!r} was written to {', '.join(sorted(written))}, and this "
            f"write is for {topic}: nothing was written. Give each topic its own txnAppId, or raise "
            "txnVersion; set txnSameRows to false to skip it"
        )
    if version not in sums:
        raise WriteRefused(
            f"option txnVersion is {version}, but version {max(sums)} of txnAppId {app!r} was written, and "
            f"version {version} never was: nothing was written. Versions increase: use "
            f"{max(sums) + 1} or more"
        )
    raise WriteRefused(
        f"version {version} of txnAppId {app!r} was written with other rows ({sums[version].rows}; this "
        f"write has {rows.rows}): nothing was written. Give each writer its own txnAppId; raise "
        "txnVersion to write these rows too; set txnSameRows to false if one job makes other rows at each "
        "run and is to be skipped"
    )
