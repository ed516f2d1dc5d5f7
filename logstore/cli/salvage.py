"""`logstore salvage`: copy every intact batch of a dead directory into a new one, with a list of the gaps.

    salvage PARTITION --to NEW/orders-0     one partition; its new name says topic and partition
    salvage LOG_DIR --to NEW                a whole log dir

The source is only read, also where the disk has bytes that it cannot read. The new directory opens as a log,
here and in Apache Kafka. Exit code 0 if everything in the source was sound, 1 if there are gaps or batches
that were left out, 2 if the source holds no log or the new directory is not empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.cli.operating import Json
from logstore.cli.terminal import print_error, print_json
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.log.salvage import Salvage
    from logstore.log.sound_batches import Gap

_MOST: Final = 20


def salvage(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A partition or a log dir.", exists=True, file_okay=False)
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR2", help="The new directory; must be empty.")],
    as_json: Json = False,
) -> int:
    """Copy every sound batch of a dead directory, past all damage, into a new directory."""
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.files import OsDisk
    from logstore.log.salvage import salvage as salvage_directory

    is_whole = True

    def tell(result: Salvage) -> None:
        nonlocal is_whole
        is_whole &= result.is_whole
        print_json(_facts(result)) if as_json else _print(result)

    try:
        others = salvage_directory(OsDisk(), str(directory).rstrip("/") or "/", str(to).rstrip("/"), tell)
    except (FileNotFoundError, FileExistsError) as error:
        raise typer.BadParameter(f"{error.filename}: {error.strerror}") from error
    except InvalidTopic as error:
        raise typer.BadParameter(f"--to: {error}") from error
    for path in others:
        print_error(f"{path} is no partition's directory; it was left out")
    return 0 if is_whole else 1


def _facts(result: Salvage) -> dict[str, object]:
    return {
        **result._asdict(),
        "gaps": [
            {**gap._asdict(), "reason": gap.reason, "stretches": [each._asdict() for each in gap.stretches]}
            for gap in result.gaps
        ],
        "placed": [each._asdict() for each in result.placed],
        "left_out": [each._asdict() for each in result.left_out],
    }


def _print(result: Salvage) -> None:
    print(
        f"{result.source}: {counted(result.records, 'record')} in {counted(result.batches, 'batch')}, "
        f"offsets {result.start_offset} to {result.end_offset - 1}, are in {result.target}"
    )
    lines = [_gap(gap) for gap in result.gaps]
    lines += [
        f"{each.file} at byte {each.position}: a sound batch whose header said offset {each.offset_in_file}, "
        f"epoch {each.epoch_in_file}; its neighbours say offset {each.offset}, epoch {each.epoch}"
        for each in result.placed
    ]
    lines += [
        f"{each.file} at byte {each.position}: left out: {each.records} records whose header says offset "
        f"{each.offset_in_file}, which is not their place"
        for each in result.left_out
    ]
    if result.unreadable_bytes:
        lines.append(f"{result.unreadable_bytes} bytes could not be read from the disk")
    for line in lines[:_MOST]:
        print(f"  {line}")
    if len(lines) > _MOST:
        print(f"  and {len(lines) - _MOST} more: see --json")


def _gap(gap: Gap) -> str:
    places = ", ".join(f"{each.bytes} bytes of {each.file} at byte {each.position}" for each in gap.stretches)
    if gap.last_offset < 0:
        offsets = f"from offset {gap.first_offset} on"
    elif gap.last_offset < gap.first_offset:
        offsets = f"no offsets missing before {gap.first_offset}"
    elif gap.last_offset == gap.first_offset:
        offsets = f"offset {gap.first_offset} is missing"
    else:
        offsets = f"offsets {gap.first_offset} to {gap.last_offset} are missing"
    return f"{offsets}: {gap.reason}" + (f" ({places})" if places else "")
