"""What compaction and aborts took is counted from headers; counting offsets one by one is the definition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.format.batch import CONTROL, TRANSACTIONAL
from logstore.segment.scan import header_dtype
from logstore.segment.transaction_index import AbortedTransaction
from logstore.spark.counting import Count
from logstore.spark.logs import Cause, Missing, OffsetRange

PRODUCER = 7


class Batch:
    """Offsets [base, base + span); `kept` of them are there."""

    def __init__(self, base: int, span: int, kept: list[int], kind: str) -> None:
        self.base, self.span, self.kept, self.kind = base, span, kept, kind


ATTRIBUTES = {"data": 0, "aborted": TRANSACTIONAL, "marker": TRANSACTIONAL | CONTROL}


def headers_of(*batches: Batch) -> npt.NDArray[np.void]:
    made = np.zeros(len(batches), header_dtype())
    for header, batch in zip(made, batches, strict=True):
        header["base_offset"], header["last_offset_delta"] = batch.base, batch.span - 1
        header["record_count"], header["producer_id"] = len(batch.kept), PRODUCER
        header["attributes"] = ATTRIBUTES[batch.kind]
    return made


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    """Batches with gaps in between and within; an aborted one is followed by its marker."""
    batches: list[Batch] = []
    offset = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["data", "data", "aborted"]))
        span = draw(st.integers(1, 5))
        kept = [each for each in range(offset, offset + span) if draw(st.booleans())]
        batches.append(Batch(offset, span, kept, kind))
        offset += span
        if kind == "aborted":
            batches.append(Batch(offset, 1, [offset], "marker"))
            offset += 1
        offset += draw(st.sampled_from([0, 0, 3]))
    return batches


@settings(derandomize=True, max_examples=300)
@given(batches=logs(), start=st.integers(0, 12), size=st.integers(1, 30), pieces=st.integers(1, 4))
def test_it_agrees_with_counting_one_by_one(batches: list[Batch], start: int, size: int, pieces: int) -> None:
    """However the batches are handed in."""
    end = start + size
    batches = [each for each in batches if each.base + each.span > start]
    wanted = range(start, min(end, max((each.base + each.span for each in batches), default=0)))
    rows = {offset for each in batches if each.kind == "data" for offset in each.kept}
    spans = {kind: _offsets(batches, kind) for kind in ("aborted", "marker")}
    expected = {
        Cause.ABORTED: [offset for offset in wanted if offset in spans["aborted"]],
        Cause.COMPACTED: [
            offset for offset in wanted if not any(offset in each for each in (rows, *spans.values()))
        ],
    }
    aborted = [
        AbortedTransaction(PRODUCER, each.base, each.base + each.span, 0)
        for each in batches
        if each.kind == "aborted"
    ]

    count = Count(OffsetRange("t", 0, start, end))
    step = -(-len(batches) // pieces) or 1
    for first in range(0, len(batches), step):
        part = batches[first : first + step]
        given_rows = sum(
            start <= offset < end for each in part if each.kind == "data" for offset in each.kept
        )
        count.add(headers_of(*part), given_rows, aborted)
    found = {each.cause: each for each in count.missing()}
    assert {cause: each.offsets for cause, each in found.items()} == {
        cause: len(offsets) for cause, offsets in expected.items() if offsets
    }
    for cause, each in found.items():
        assert each.start_offset <= expected[cause][0], "the first is in it"
        assert expected[cause][-1] < each.end_offset <= end, "and the last"


def _offsets(batches: list[Batch], kind: str) -> set[int]:
    return {
        offset for each in batches if each.kind == kind for offset in range(each.base, each.base + each.span)
    }


def test_what_is_told_otherwise_is_not_counted() -> None:
    count = Count(OffsetRange("t", 0, 0, 10))
    count.skip_to(6)
    count.add(headers_of(Batch(6, 2, [6, 7], "data"), Batch(9, 1, [9], "data")), 3)
    assert count.missing() == [Missing("t", 0, 8, 9, Cause.COMPACTED, number=1)]
