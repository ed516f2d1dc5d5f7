"""What a read did not give, and what follows: an error, a warning, a report.

    failOnDataLoss=true    the first loss is a `DataLoss`, which ends the query
    failOnDataLoss=false   a warning a loss, and the query goes on

Either way a line of JSON a range that has anything to report, on the logger `logstore.pipeline`: at WARNING
if records were lost, at INFO for what compaction or an abort took, which is no loss.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from logstore.spark.errors import DataLoss
from logstore.spark.logs import Cause, Missing, OffsetRange

LOGGER: Final = logging.getLogger("logstore.pipeline")

_WHY: Final = {
    Cause.EXPIRED: "they lie below the log start: deleted by retention or on request",
    Cause.DAMAGED: "the log is damaged there; another replica may have it whole",
    Cause.TRUNCATED: "the log ends before them: it was cut, or lost its tail",
}


def describe(missing: Missing) -> str:
    """One line that says what was lost and what can be done."""
    detail = f" ({missing.detail})" if missing.detail else ""
    return (
        f"{missing.topic}-{missing.partition}: offsets {missing.start_offset} to {missing.end_offset - 1} "
        f"are lost, {missing.cause.value}: {_WHY[missing.cause]}{detail}"
    )


def raise_on_loss(missing: Iterable[Missing]) -> None:
    """Raise `DataLoss` for the first that is a loss."""
    for each in missing:
        if each.cause.is_loss:
            raise DataLoss(f"{describe(each)}. Set failOnDataLoss to false to read on without them")


def report(wanted: OffsetRange, rows: int, missing: Sequence[Missing]) -> None:
    """Log what a range gave and what not; nothing to say, no line."""
    for each in missing:
        if each.cause.is_loss:
            LOGGER.warning("%s", describe(each))
    if missing:
        is_loss = any(each.cause.is_loss for each in missing)
        LOGGER.log(logging.WARNING if is_loss else logging.INFO, "%s", as_json(wanted, rows, missing))


def as_json(wanted: OffsetRange, rows: int, missing: Sequence[Missing]) -> str:
    """The report of a range in one line."""
    return json.dumps(
        {
            "event": "range",
            "topic": wanted.topic,
            "partition": wanted.partition,
            "start_offset": wanted.start_offset,
            "end_offset": wanted.end_offset,
            "rows": rows,
            "missing": [
                {
                    "cause": each.cause.value,
                    "start_offset": each.start_offset,
                    "end_offset": each.end_offset,
                    "offsets": each.offsets,
                    **({"detail": each.detail} if each.detail else {}),
                }
                for each in missing
            ],
        }
    )
