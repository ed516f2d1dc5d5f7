"""`logstore diff` on random copies with planted differences: it names those, and nothing else.

A log is made of batches, by some producers, some of them in transactions. Each copy of it may be compacted up
to an offset of its own: it then lacks any of the records that compaction may remove. In copy B differences
are planted. What `diff` has to name follows from the plan, not from the comparison.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, TypeAlias

import pytest

from logstore.checkpoint.entry_files import CLEANER_OFFSET_CHECKPOINT, write_offset_checkpoint
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import ControlType, EndTransactionMarker, Record
from tests.cli.conftest import Outcome, write_files

Command = Callable[..., Outcome]
NAME: Final = "orders-0"

Named: TypeAlias = set[tuple[str, int]]
"""Kind and offset; for batches that are cut or moved, each of their offsets."""


@dataclass(frozen=True)
class Piece:
    """A batch. `ends`: it is a marker, and what it does. `outcome`: how its transaction ends."""

    first: int
    last: int
    records: tuple[Record, ...]
    epoch: int
    producer: int = -1
    ends: ControlType | None = None
    outcome: ControlType | None = None

    def encode(self) -> bytes:
        return encode_batch(
            self.records,
            base_offset=self.first,
            last_offset=self.last,
            leader_epoch=self.epoch,
            producer_id=self.producer,
            producer_epoch=-1 if self.producer < 0 else 0,
            base_sequence=-1 if self.producer < 0 or self.ends is not None else self.first,
            is_transactional=self.producer >= 0,
            is_control=self.ends is not None,
        )

    @property
    def offsets(self) -> set[int]:
        return {record.offset for record in self.records}


def a_log(random: Random) -> list[Piece]:
    """Thirty batches and the markers of their transactions; every transaction is decided."""
    pieces: list[Piece] = []
    open_until: dict[int, tuple[int, ControlType]] = {}
    """Producer → the number of batches left in its transaction, and how that ends."""
    offset = epoch = 0
    batches = 30
    while batches or open_until:
        epoch += random.random() < 0.1
        ended = [each for each, (left, _) in open_until.items() if not left]
        if ended:
            producer = random.choice(ended)
            kind = open_until.pop(producer)[1]
            record = EndTransactionMarker(kind, 0).record(offset, 1000 + offset)
            pieces.append(Piece(offset, offset, (record,), epoch, producer, ends=kind))
            offset += 1
            continue
        count = random.randint(1, 4)
        producer = random.choice((-1, 7, 8) if batches else list(open_until))
        batches = max(batches - 1, 0)
        outcome = None
        if producer >= 0:
            left, outcome = open_until.get(
                producer, (random.randint(1, 3), random.choice((ControlType.ABORT, ControlType.COMMIT)))
            )
            open_until[producer] = left - 1, outcome
        rows = []
        for each in range(offset, offset + count):
            key = None if random.random() < 0.05 else b"k%d" % random.randrange(12)
            value = None if random.random() < 0.1 else b"v%d" % each
            rows.append(Record(each, 1000 + each, key, value))
        pieces.append(Piece(offset, offset + count - 1, tuple(rows), epoch, producer, outcome=outcome))
        offset += count
    return pieces


def removable(pieces: Iterable[Piece], end: int) -> set[int]:
    """The records that a compaction up to `end` may remove, beside markers."""
    data = [(each, record) for each in pieces if each.ends is None for record in each.records]
    last: dict[bytes | None, int] = {}
    for piece, record in data:
        if piece.outcome is not ControlType.ABORT and record.offset < end:
            last[record.key] = record.offset
    return {
        record.offset
        for piece, record in data
        if record.offset < end
        and (
            piece.outcome is ControlType.ABORT
            or None in (record.key, record.value)
            or last[record.key] > record.offset
        )
    }


class Copy(NamedTuple):
    """Batches, and the end of what was compacted."""

    pieces: list[Piece]
    cleaned: int

    def offsets(self) -> set[int]:
        return set().union(*(each.offsets for each in self.pieces))


def compacted(random: Random, pieces: list[Piece], end: int) -> Copy:
    """Remove some of what may be removed; a marker goes if nothing of its transaction is left before it.

    A committed record does not go before the older ones of its key.
    """
    may_go = removable(pieces, end)
    eagerness = random.choice((0.3, 0.9, 1.0))
    gone = {each for each in sorted(may_go) if random.random() < eagerness}
    newest_gone: dict[bytes | None, int] = {}
    data = [(each, record) for each in pieces if each.ends is None for record in each.records]
    for piece, record in reversed(data):
        if piece.outcome is not ControlType.ABORT and record.key is not None:
            if record.offset in gone:
                newest_gone.setdefault(record.key, record.offset)
            elif record.offset < newest_gone.get(record.key, -1):
                gone.add(record.offset)
    kept: list[Piece] = []
    has_data: Counter[int] = Counter()
    for piece in pieces:
        if piece.ends is not None:
            is_needed = has_data.pop(piece.producer, 0)
            if piece.last >= end or is_needed or random.random() < 0.3:
                kept.append(piece)
            continue
        rows = tuple(each for each in piece.records if each.offset not in gone)
        if rows:
            kept.append(replace(piece, records=rows))
            has_data[piece.producer] += 1
    return Copy(kept, end)


@dataclass
class Plan:
    """Differences to be planted in copy B."""

    random: Random
    a: Copy
    b: Copy
    may_go: dict[str, set[int]]
    """The offsets that compaction may have removed, by copy; markers too."""
    named: Named = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    damaged: set[int] = field(default_factory=set)
    """First offsets of batches of B with a changed byte."""

    def lacks(self, who: str, offsets: Iterable[int]) -> Named:
        """What is named if the copy has nothing at these offsets of the other one."""
        kind = "only in B" if who == "a" else "only in A"
        return {(kind, each) for each in offsets if each not in self.may_go[who]}

    def both(self, at: int) -> Piece | None:
        """B's batch at this place if A has it with the same records."""
        piece = self.b.pieces[at]
        same = [each for each in self.a.pieces if each.first == piece.first and each.offsets == piece.offsets]
        return piece if same and piece.ends is None else None

    def value(self, at: int) -> bool:
        if (piece := self.both(at)) is None:
            return False
        changed = self.random.choice(piece.records)
        rows = tuple(
            each._replace(value=(each.value or b"") + b"!") if each is changed else each
            for each in piece.records
        )
        self.b.pieces[at] = replace(piece, records=rows)
        self.named.add(("record", changed.offset))
        return True

    def missing(self, at: int) -> bool:
        if (piece := self.both(at)) is None:
            return False
        del self.b.pieces[at]
        self.named |= self.lacks("b", piece.offsets)
        return True

    def missing_in_a(self, at: int) -> bool:
        """To the reader of `diff`, a batch that B has more."""
        if (piece := self.both(at)) is None:
            return False
        self.a.pieces[:] = [each for each in self.a.pieces if each.first != piece.first]
        self.named |= self.lacks("a", piece.offsets)
        return True

    def exchanged(self, at: int) -> bool:
        """The records of a batch in the reverse order."""
        if (piece := self.both(at)) is None or len({each[2:] for each in piece.records}) < 2:
            return False
        turned = [each[2:] for each in reversed(piece.records)]
        rows = tuple(
            Record(each.offset, each.timestamp_ms, *rest)
            for each, rest in zip(piece.records, turned, strict=True)
        )
        self.b.pieces[at] = replace(piece, records=rows)
        self.named |= {
            ("record", each.offset) for each, now in zip(piece.records, rows, strict=True) if each != now
        }
        return True

    def byte(self, at: int) -> bool:
        if (piece := self.both(at)) is None:
            return False
        self.damaged.add(piece.first)
        self.named |= self.lacks("b", piece.offsets)
        return True

    def epoch(self, at: int) -> bool:
        """Another leader wrote the last batch."""
        if at + 1 < len(self.b.pieces) or (piece := self.both(at)) is None or "longer" in self.done:
            return False
        self.b.pieces[at] = replace(piece, epoch=piece.epoch + 1)
        self.named |= {("epoch", each) for each in piece.offsets}
        return True

    def longer(self, at: int) -> bool:
        """Records behind the end of A."""
        last = self.b.pieces[-1]
        if at + 1 < len(self.b.pieces) or "epoch" in self.done:
            return False
        more = Record(last.last + 1, 5000, b"k0", b"more")
        self.b.pieces.append(Piece(more.offset, more.offset, (more,), last.epoch))
        self.named.add(("only in B", more.offset))
        return True


PLANTS: Final = ("value", "missing", "missing_in_a", "exchanged", "byte", "epoch", "longer")


def planted(random: Random) -> Plan:
    """Two copies of a random log, and up to three differences, each in another batch, not in the first."""
    pieces = a_log(random)
    ends = [piece.first for piece in pieces]
    cleaned = [random.choice((0, random.choice(ends[5:]))) for _ in "ab"]
    a, b = (compacted(random, pieces, end) for end in cleaned)
    markers = {piece.first for piece in pieces if piece.ends is not None}
    may_go = {
        name: removable(pieces, end) | {each for each in markers if each < end}
        for name, end in zip("ab", cleaned, strict=True)
    }
    plan = Plan(random, a, b, may_go)
    used: set[int] = set()
    for _ in range(random.randint(0, 3)):
        kind = random.choice(PLANTS)
        at = len(b.pieces) - 1 if kind in ("epoch", "longer") else random.randrange(1, len(b.pieces))
        around = {each.first for each in b.pieces[max(at - 1, 0) : at + 2]}
        if not used & around and getattr(plan, kind)(at):
            used |= around
            plan.done.append(kind)
    return plan


def written(directory: Path, copy: Copy, damaged: Iterable[int] = ()) -> Path:
    """Write the copy in two segments, the first of which was compacted."""
    spoilt = set(damaged)
    files = {f"{0:020d}.log": bytearray(), f"{copy.cleaned:020d}.log": bytearray()}
    for piece in copy.pieces:
        data = bytearray(piece.encode())
        if piece.first in spoilt:
            data[-1] ^= 1
        files[f"{copy.cleaned if piece.first >= copy.cleaned else 0:020d}.log"] += data
    path = write_files(directory / NAME, {name: bytes(data) for name, data in files.items()})
    if copy.cleaned:
        partition = TopicPartition("orders", 0)
        write_offset_checkpoint(
            OsDisk(), str(directory), CLEANER_OFFSET_CHECKPOINT, {partition: copy.cleaned}
        )
    return path


def found(command: Command, a: Path, b: Path, present: set[int]) -> Named:
    """What `diff` says, offset by offset."""
    *lines, total = map(json.loads, command("diff", a, b, "--json").out.splitlines())
    assert total["total"]["differences"] == len(lines)
    return {
        (line["kind"], offset)
        for line in lines
        for offset in range(line["first_offset"], line["last_offset"] + 1)
        if offset in present
    }


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seeds", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_planted_ones_and_nothing_else(command: Command, tmp_path: Path, seeds: int) -> None:
    done: Counter[str] = Counter()
    for seed in range(seeds):
        plan = planted(Random(seed))
        present = plan.a.offsets() | plan.b.offsets()
        a = written(tmp_path / f"{seed}-a", plan.a)
        b = written(tmp_path / f"{seed}-b", plan.b, plan.damaged)
        assert found(command, a, b, present) == plan.named, f"seed {seed}: {plan.done}"
        done.update(plan.done or ["nothing"])
    assert set(done) == {*PLANTS, "nothing"}, done


@pytest.mark.parametrize("at", [0, 5, 20])
def test_batches_in_another_order(command: Command, tmp_path: Path, at: int) -> None:
    """Two batches changed places in B's file: one of them is not where it belongs."""
    pieces = [
        Piece(first, first + 1, tuple(Record(each, each, b"k", b"v") for each in (first, first + 1)), 0)
        for first in range(0, 60, 2)
    ]
    a = written(tmp_path / "a", Copy(pieces, 0))
    turned = [*pieces[:at], pieces[at + 1], pieces[at], *pieces[at + 2 :]]
    b = written(tmp_path / "b", Copy(turned, 0))
    *lines, _ = map(json.loads, command("diff", a, b, "--json").out.splitlines())
    (line,) = lines
    assert line["kind"] == "only in A"
    assert (line["first_offset"], line["last_offset"]) in {(2 * at, 2 * at + 1), (2 * at + 2, 2 * at + 3)}
