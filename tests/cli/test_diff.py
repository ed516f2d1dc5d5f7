"""`logstore diff`: each planted difference is named, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logstore.format.batch import encode_batch
from logstore.format.compression import Codec
from logstore.format.record import Header, Record
from tests.cli.conftest import Outcome, snapshot, write_files
from tests.golden.kafka_directories import unpack

Command = Callable[..., Outcome]


def record(offset: int, **changed: Any) -> Record:
    fields: dict[str, Any] = {"timestamp_ms": 1000 + offset, "key": b"k%d" % offset, "value": b"v%d" % offset}
    return Record(offset, **{**fields, **changed})


def batch(first: int, count: int = 2, *changed: Record, epoch: int = 0, **options: Any) -> bytes:
    rows = {offset: record(offset) for offset in range(first, first + count)}
    rows |= {each.offset: each for each in changed}
    return encode_batch(list(rows.values()), base_offset=first, leader_epoch=epoch, **options)


def good() -> list[bytes]:
    """Ten records in five batches."""
    return [batch(first) for first in range(0, 10, 2)]


def without(*places: int) -> list[bytes]:
    return [each for place, each in enumerate(good()) if place not in places]


def changed(**places: bytes) -> list[bytes]:
    return [places.get(f"b{place}", each) for place, each in enumerate(good())]


class Case(NamedTuple):
    """A changed copy, and what is found: kind, offsets, epochs in A and B, text."""

    batches: list[bytes]
    found: list[tuple[str, int, int, int | None, int | None, str]]


SPARSE = encode_batch([record(4)], base_offset=4, last_offset=5)
FLIPPED = bytearray(batch(4))
FLIPPED[-3] ^= 1
CASES: dict[str, Case] = {
    "nothing": Case(good(), []),
    "a value": Case(
        changed(b2=batch(4, 2, record(5, value=b"V"))), [("record", 5, 5, 0, 0, "different value")]
    ),
    "a key to null, a time": Case(
        changed(b0=batch(0, 2, record(1, key=None, timestamp_ms=5))),
        [("record", 1, 1, 0, 0, "different time and key")],
    ),
    "headers of two records": Case(
        changed(b1=batch(2, 2, *(record(each, headers=(Header("h", b""),)) for each in (2, 3)))),
        [("record", 2, 2, 0, 0, "different headers"), ("record", 3, 3, 0, 0, "different headers")],
    ),
    "a batch gone": Case(without(2), [("only in A", 4, 5, 0, None, "the batch is missing")]),
    "two batches gone, one item": Case(without(2, 3), [("only in A", 4, 7, 0, None, "the batch is missing")]),
    "two apart": Case(
        without(1, 3),
        [
            ("only in A", 2, 3, 0, None, "the batch is missing"),
            ("only in A", 6, 7, 0, None, "the batch is missing"),
        ],
    ),
    "a longer copy": Case(
        [*good(), batch(10, epoch=1)], [("only in B", 10, 11, None, 1, "an extra batch")]
    ),
    "a compacted record": Case(changed(b2=SPARSE), [("only in A", 5, 5, 0, None, "the record is missing")]),
    "an epoch from here on": Case(
        [*good()[:3], batch(6, epoch=2), batch(8, epoch=2)],
        [("epoch", 6, 9, 0, 2, "leader epoch 2, not 0")],
    ),
    "an epoch and other records": Case(
        changed(b4=batch(8, 2, record(8, value=b"x"), epoch=3)), [("record", 8, 8, 0, 3, "different value")]
    ),
    "batches cut in different way": Case(
        [good()[0], batch(2, 4), *good()[3:]],
        [("batch", 2, 5, 0, 0, "batches of offsets 2 to 5, not 2 to 3 and 4 to 5")],
    ),
    "cut in different way and a value": Case(
        [good()[0], batch(2, 4, record(4, value=b"V")), *good()[3:]],
        [("record", 4, 4, 0, 0, "different value")],
    ),
    "a codec": Case(
        changed(b3=batch(6, codec=Codec.GZIP)), [("batch", 6, 7, 0, 0, "attributes 0x1, not 0x0")]
    ),
    "a producer": Case(
        changed(b3=batch(6, producer_id=9, producer_epoch=0, base_sequence=4)),
        [("batch", 6, 7, 0, 0, "producer id 9, not -1; producer epoch 0, not -1; first sequence 4, not -1")],
    ),
    "damage": Case(
        changed(b2=bytes(FLIPPED)),
        [
            (
                "only in A", 4, 5, 0, None,
                "the batch is missing: B is damaged there (a batch whose checksum does not match)",
            )
        ],
    ),
    "three at once": Case(
        [batch(0, 2, record(0, value=b"V")), good()[1], good()[3], good()[4], batch(10)],
        [
            ("record", 0, 0, 0, 0, "different value"),
            ("only in A", 4, 5, 0, None, "the batch is missing"),
            ("only in B", 10, 11, None, 0, "an extra batch"),
        ],
    ),
}  # fmt: skip


def copies(directory: Path, batches: list[bytes]) -> tuple[Path, Path]:
    name = f"{0:020d}.log"
    return (
        write_files(directory / "a" / "orders-0", {name: b"".join(good())}),
        write_files(directory / "b" / "orders-0", {name: b"".join(batches)}),
    )


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_each_planted_difference_and_nothing_else(command: Command, tmp_path: Path, case: Case) -> None:
    a, b = copies(tmp_path, case.batches)
    before = snapshot(tmp_path)
    outcome = command("diff", a, b, "--json")
    *found, total = map(json.loads, outcome.out.splitlines())
    keys = ("kind", "first_offset", "last_offset", "epoch_a", "epoch_b", "text")
    assert [tuple(each[key] for key in keys) for each in found] == case.found
    assert total["total"]["differences"] == len(case.found)
    assert outcome.code == (1 if case.found else 0)
    assert snapshot(tmp_path) == before


def test_the_first_divergence_with_both_sides(command: Command, tmp_path: Path) -> None:
    a, b = copies(tmp_path, CASES["three at once"].batches)
    assert command("diff", a, b).out.splitlines() == [
        f"A  {a}: offsets 0 to 9",
        f"B  {b}: offsets 0 to 11",
        "first divergence: offset 0, leader epoch 0 in A and 0 in B: record: different value",
        "  A  timestamp 1000  key k0  value v0  headers []",
        "  B  timestamp 1000  key k0  value V  headers []",
        "offsets 4 to 5, leader epoch 0 in A: only in A: the batch is missing",
        "offsets 10 to 11, leader epoch 0 in B: only in B: an extra batch",
    ]


def test_copies_that_begin_at_different_offsets(command: Command, tmp_path: Path) -> None:
    """One kept its records for longer: they are compared from the later start on."""
    a, _ = copies(tmp_path, [])
    b = write_files(tmp_path / "c" / "orders-0", {f"{4:020d}.log": b"".join(good()[2:])})
    outcome = command("diff", a, b, "--json")
    start, total = map(json.loads, outcome.out.splitlines())
    assert outcome.code == 1
    assert (start["kind"], start["first_offset"], start["last_offset"]) == ("start", 0, 3)
    assert total["total"]["differences"] == 1
    ranges = [
        (total["total"][f"first_offset_{side}"], total["total"][f"last_offset_{side}"]) for side in "ab"
    ]
    assert ranges == [(0, 9), (4, 9)]


def test_copies_whose_first_batches_were_compacted_away(command: Command, tmp_path: Path) -> None:
    """A salvaged copy begins at its first batch, and the log itself at its first segment."""
    last = {f"{8:020d}.log": good()[4]}
    files = [{f"{base:020d}.log": b"".join(good()[2:4]), **last} for base in (0, 4)]
    a, b = (write_files(tmp_path / str(number) / "orders-0", each) for number, each in enumerate(files))
    for pair in ((a, b), (b, a)):
        outcome = command("diff", *pair, "--compacted")
        assert outcome.code == 0
        assert outcome.out.endswith("the same records, batches and leader epochs\n")


def test_partitions_of_kafka(command: Command, tmp_path: Path) -> None:
    """Each is the same as itself, also compacted and compressed ones; two different ones are not."""
    one, two = unpack("kafka-logs", tmp_path / "1"), unpack("kafka-logs", tmp_path / "2")
    for name in ("plain-0", "mixed-0", "deals-0", "keyed-0"):
        outcome = command("diff", one / name, two / name)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.endswith("the same records, batches and leader epochs\n")
    assert command("diff", one / "plain-0", two / "mixed-0").code == 1


def test_a_place_without_a_log_is_exit_2(command: Command, tmp_path: Path) -> None:
    a, b = copies(tmp_path, good())
    for pair in ((a, tmp_path), (tmp_path, b), (a, tmp_path / "nothing")):
        assert command("diff", *pair).code == 2
