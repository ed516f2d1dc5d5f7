"""`logstore diff`: compare two copies of a partition, record by record.

    diff A B              the first divergence with both sides, then the others
    diff A B --json       one object for each difference, then the totals

Both are directories of one partition, of Kafka or of logstore, that no process writes to. Damage does not end
the comparison: sound batches behind it are compared, and offsets that only the other copy has say so. What
compaction removed from one copy is no difference: the cleaner's checkpoint beside a copy says that it was
compacted, or `--compacted` does. Exit code 0 if both hold the same records in the same batches and epochs, 1
if not, 2 if one of them holds no log.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.cli.operating import Json, RecordEncoding, require_log
from logstore.cli.terminal import Encoding, print_error, print_json, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore.disk.files import Disk
    from logstore.format.batch import Batch
    from logstore.format.record import Record
    from logstore.log.comparison import Difference
    from logstore.log.sound_batches import SoundBatches

_MOST: Final = 20


def diff(
    first: Annotated[
        Path, typer.Argument(metavar="A", help="A partition's directory.", exists=True, file_okay=False)
    ],
    second: Annotated[
        Path, typer.Argument(metavar="B", help="Another copy of it.", exists=True, file_okay=False)
    ],
    as_json: Json = False,
    encoding: RecordEncoding = Encoding.UTF8,
    compacted: Annotated[
        bool,
        typer.Option("--compacted", help="The topic is compacted, even if there is no cleaner checkpoint."),
    ] = False,
) -> int:
    """Compare two copies of a partition record by record; exit 1 if they differ."""
    from logstore.cli.inspection import cleaned_end
    from logstore.disk.files import OsDisk
    from logstore.log.comparison import Cleaned, differences
    from logstore.log.sound_batches import SoundBatches

    disk = OsDisk()
    paths = [str(path).rstrip("/") for path in (first, second)]
    for path in paths:
        require_log(disk, path)
    count = 0
    ranges: dict[str, int] = {}
    with closing(SoundBatches(disk, paths[0])) as a, closing(SoundBatches(disk, paths[1])) as b:
        cleaned = Cleaned(*(cleaned_end(disk, path, is_compacted=compacted) for path in paths))
        starts = [_start(disk, each, end) for each, end in zip((a, b), cleaned, strict=True)]
        for name, each, start in zip("AB", (a, b), starts, strict=True):
            if not as_json:
                print(f"{name}  {each.directory}: offsets {start} to {each.end_offset - 1}")
            _tell_damage(name, each)
            ranges |= {
                f"first_offset_{name.lower()}": start,
                f"last_offset_{name.lower()}": each.end_offset - 1,
            }
        start = max(starts)
        if any(_begins_before(_From(*each), start) for each in zip((a, b), starts, strict=True)):
            count += 1
            _tell_start(starts, as_json=as_json)
        for found in differences(_From(a, start), _From(b, start), cleaned):
            count += 1
            told = found._replace(text=_with_damage(found, a, b))
            if as_json:
                print_json(_facts(told, encoding))
            elif count <= _MOST:
                _print(told, encoding, is_first=count == 1)
    if as_json:
        print_json({"total": {"a": paths[0], "b": paths[1], "differences": count, **ranges}})
    elif count > _MOST:
        print(f"and {count - _MOST} more: see --json")
    elif not count:
        print("the same records, batches and leader epochs")
    return 1 if count else 0


def _start(disk: Disk, sound: SoundBatches, cleaned: int) -> int:
    """Return where a copy begins: at its first batch, or below it if compaction may have removed others."""
    from logstore.checkpoint.entry_files import LOG_START_OFFSET_CHECKPOINT, checkpointed_offset
    from logstore.cli.inspection import segment_offsets

    first = segment_offsets(disk, sound.directory)[0] if cleaned else sound.start_offset
    return max(first, checkpointed_offset(disk, sound.directory, LOG_START_OFFSET_CHECKPOINT))


@dataclass(frozen=True, slots=True)
class _From:
    """The intact batches from offset `start` on; each iteration reads them again."""

    sound: SoundBatches
    start: int

    def __iter__(self) -> Iterator[Batch]:
        return (batch for batch in self.sound if batch.last_offset >= self.start)


def _begins_before(copy: _From, start: int) -> bool:
    """Return whether the copy has a batch before `start`: compaction may have removed the first ones."""
    first = next(iter(copy), None) if copy.start < start else None
    return first is not None and first.base_offset < start


def _tell_damage(name: str, sound: SoundBatches) -> None:
    for gap in sound.choice.gaps:
        for each in gap.stretches:
            place = f"{sound.directory}/{each.file} at byte {each.position}"
            print_error(f"{name}: {place}: {each.bytes} bytes: {each.reason}")


def _tell_start(starts: list[int], *, as_json: bool) -> None:
    text = f"A begins at offset {starts[0]}, B at {starts[1]}"
    if as_json:
        print_json(
            {"kind": "start", "first_offset": min(starts), "last_offset": max(starts) - 1, "text": text}
        )
    else:
        print(f"{text}; they are compared from {max(starts)} on")


def _with_damage(found: Difference, a: SoundBatches, b: SoundBatches) -> str:
    """The text of a difference, with the damage that explains it."""
    from logstore.log.comparison import DifferenceKind

    sides = {DifferenceKind.ONLY_IN_A: ("B", b), DifferenceKind.ONLY_IN_B: ("A", a)}
    if found.kind not in sides:
        return found.text
    name, sound = sides[found.kind]
    reasons = [
        gap.reason
        for gap in sound.choice.gaps
        if gap.stretches
        and gap.first_offset <= found.last_offset
        and (found.first_offset <= gap.last_offset or gap.last_offset < 0)
    ]
    return f"{found.text}: {name} is damaged there ({'; '.join(reasons)})" if reasons else found.text


def _facts(found: Difference, encoding: Encoding) -> dict[str, object]:
    return {**found._asdict(), "a": _side(found.a, encoding), "b": _side(found.b, encoding)}


def _side(record: Record | None, encoding: Encoding) -> dict[str, object] | None:
    from logstore.cli.facts import content_of

    return None if record is None else {"timestamp": record.timestamp_ms, **content_of(record, encoding)}


def _print(found: Difference, encoding: Encoding, *, is_first: bool) -> None:
    offsets = f"offset {found.first_offset}"
    if found.last_offset > found.first_offset:
        offsets = f"offsets {found.first_offset} to {found.last_offset}"
    epochs = " and ".join(
        f"{epoch} in {name}"
        for name, epoch in (("A", found.epoch_a), ("B", found.epoch_b))
        if epoch is not None
    )
    head = "first divergence: " if is_first else ""
    print(f"{head}{offsets}, leader epoch {epochs}: {found.kind}: {found.text}")
    for name, record in (("A", found.a), ("B", found.b)):
        if (side := _side(record, encoding)) is not None:
            shown = (
                f"{key} {printable(None if value is None else str(value))}" for key, value in side.items()
            )
            print(f"  {name}  {'  '.join(shown)}")
