"""`logstore recover`: recover one partition directory as after a power cut, and report the changes.

The durable end is the recovery point, or the end of the last segment with a valid seal. A bad batch at or
past it is a torn tail and is cut there; the first line of the report counts the records that go. A bad batch
below it is damage: the command refuses and cuts nothing, unless `--accept-loss` gives up everything from the
damage on. Damage below the log start costs no record that is served: those bytes are left out, and a segment
below the log start goes. The recovery point comes from the log dir's checkpoint unless `--recovery-point` is
given. In a directory without either, and without seals, sound batches behind a bad one are proof of damage.

Every segment is read and compared with its seal, so what this command accepts, `verify` accepts. `--plan`
runs the same procedure on a disk that keeps all changes in memory, and prints the same report.

`--undo ID` restores a loss (`logstore lost` lists them) if the log still ends where the cut left it. With
`--as NEW_DIR` its sound part goes into a log of its own.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import Json, PartitionDir
from logstore.cli.owning import forget_clean_stops, load_unclean, own
from logstore.cli.terminal import print_json

if TYPE_CHECKING:
    from logstore.disk.files import Disk
    from logstore.log.loading import LoadedLog


def recover(
    directory: PartitionDir,
    recovery_point: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="All offsets below N were synced; default: the checkpoint."),
    ] = None,
    undo: Annotated[
        int | None, typer.Option(metavar="ID", min=1, help="Restore this loss instead of recovering.")
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option("--as", metavar="NEW_DIR", help="With --undo: restore into a new log, named topic-N."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Report what would be done; change nothing.")] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Truncate at the damage, even below the durable end.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Recover a partition as after an unclean stop: truncate a torn tail, rebuild derived files."""
    from logstore.checkpoint.entry_files import RECOVERY_POINT_CHECKPOINT, find_checkpointed_offset
    from logstore.cli.shadow import ShadowDisk
    from logstore.disk.files import OsDisk

    path = str(directory)
    disk = OsDisk()
    if into is not None and undo is None:
        raise typer.BadParameter("--as requires --undo")
    _check_is_partition(disk, path)
    if undo is not None:
        if plan or accept_loss or recovery_point is not None:
            raise typer.BadParameter(
                "--undo cannot be combined with --plan, --accept-loss or --recovery-point"
            )
        from logstore.cli.undo import copy_loss, undo_loss

        if into is not None:
            _check_name(into)
        facts = undo_loss(disk, path, undo) if into is None else copy_loss(disk, path, undo, str(into))
        if as_json:
            print_json(facts)
        else:
            print("\n".join(f"{name} {value}" for name, value in facts.items()))
        return 0
    if recovery_point is None:
        recovery_point = find_checkpointed_offset(disk, path, RECOVERY_POINT_CHECKPOINT)
    with ExitStack() as stack:
        if not plan:
            own(disk, path, stack)
        # First without a trace: a refusal changes nothing, not even an index.
        shadow = ShadowDisk(disk)
        stack.callback(shadow.close)
        loaded = load_unclean(shadow, path, recovery_point, accept_loss=accept_loss)
        if not plan:
            forget_clean_stops(disk, path)
            loaded = load_unclean(disk, path, recovery_point, accept_loss=accept_loss)
            _lower_recovery_points(disk, path, loaded.log_end_offset)
        for segment in loaded.segments.values():
            stack.callback(segment.close)
        if as_json:
            print_json(_facts(loaded))
        else:
            if plan:
                print("plan only; nothing was changed")
            print("\n".join(_sentences(loaded, plan)))
    return 0


def _check_name(path: Path) -> None:
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.topic_partition import parse_directory_name

    try:
        parse_directory_name(path.absolute().name)
    except InvalidTopic as error:
        raise typer.BadParameter(f"--as: {error}") from error


def _lower_recovery_points(disk: Disk, directory: str, log_end_offset: int) -> None:
    """Lower checkpoints past the log end: the owner would take the missing offsets for damage."""
    from logstore.checkpoint.entry_files import (
        RECOVERY_POINT_CHECKPOINT,
        of_one_log,
        read_offset_checkpoint,
        write_offset_checkpoint,
    )
    from logstore.disk.errors import CorruptCheckpoint
    from logstore.disk.topic_partition import parse_directory_name

    path = Path(directory).resolve()
    for place in (str(path.parent), str(path)):
        try:
            offsets = read_offset_checkpoint(disk, place, RECOVERY_POINT_CHECKPOINT)
        except CorruptCheckpoint:
            continue  # as if it were not there
        partition = parse_directory_name(path.name) if offsets else None
        if partition is None:
            continue
        if place == str(path):
            offsets = of_one_log(offsets, partition)
        if offsets.get(partition, 0) > log_end_offset:
            lowered = {**offsets, partition: log_end_offset}
            write_offset_checkpoint(disk, place, RECOVERY_POINT_CHECKPOINT, lowered)


def _facts(loaded: LoadedLog) -> dict[str, object]:
    report = loaded.report
    segments = [
        {
            "base_offset": base_offset,
            "size": segment.size,
            "index_entries": segment.indexes.offsets.entry_count,
            "time_index_entries": segment.indexes.times.entry_count,
            "max_timestamp": segment.max_timestamp_ms,
        }
        for base_offset, segment in loaded.segments.items()
    ]
    return {
        "log_start_offset": loaded.log_start_offset,
        "log_end_offset": loaded.log_end_offset,
        "recovery_point": loaded.recovery_point,
        "epochs": [[entry.epoch, entry.start_offset] for entry in loaded.epochs.entries],
        "segments": segments,
        "cut": [
            {
                "file": cut.file,
                "from": cut.from_byte,
                "to": cut.to_byte,
                "reason": cut.reason,
                "loss": cut.loss_id,
            }
            for cut in report.cuts
        ],
        "lost_records": report.lost_records,
        "unrecorded": list(report.unrecorded),
        "damage": [{**damage._asdict(), "kind": damage.kind.value} for damage in report.damages],
        "notes": list(report.notes),
        "rebuilt": _rebuilt(loaded),
        "deleted": list(report.deleted),
        "renamed": [[old, new] for old, new in report.renamed],
    }


def _rebuilt(loaded: LoadedLog) -> list[str]:
    """The rebuilt indexes, including those that were rebuilt only when their entries were counted."""
    rebuilt = dict.fromkeys(loaded.report.rebuilt)
    for segment in loaded.segments.values():
        rebuilt.update(dict.fromkeys(damage.file for damage in segment.indexes.rebuilt))
    return list(rebuilt)


def _sentences(loaded: LoadedLog, plan: bool) -> list[str]:
    report = loaded.report
    verb = "would go" if plan else "went to quarantine"
    return [
        *([f"{report.lost_records:,} records {verb}"] if report.cuts else []),
        f"offsets {loaded.log_start_offset} to {loaded.log_end_offset} (exclusive)",
        *(f"epoch {entry.epoch} from offset {entry.start_offset}" for entry in loaded.epochs.entries),
        *(
            f"segment {base_offset}: {segment.size} bytes, {segment.indexes.offsets.entry_count} offset and "
            f"{segment.indexes.times.entry_count} time index entries, latest time {segment.max_timestamp_ms}"
            for base_offset, segment in loaded.segments.items()
        ),
        *(f"accepted: {damage}" for damage in report.damages),
        *report.notes,
        *(
            f"cut bytes {cut.from_byte} to {cut.to_byte} of {cut.file}: {cut.reason}"
            + ("" if cut.loss_id is None else f" (loss {cut.loss_id})")
            for cut in report.cuts
        ),
        *(f"not kept or recorded, because the disk is full: {what}" for what in report.unrecorded),
        *(f"rebuilt {name}" for name in _rebuilt(loaded)),
        *(f"deleted {name}" for name in report.deleted),
        *(f"renamed {old} to {new}" for old, new in report.renamed),
    ]


def _check_is_partition(disk: Disk, directory: str) -> None:
    """Refuse other directories: loading would create a segment there."""
    from logstore.cli.inspection import segment_offsets
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.topic_partition import parse_directory_name

    if segment_offsets(disk, directory):
        return
    try:
        parse_directory_name(Path(directory).resolve().name)
    except InvalidTopic as error:
        raise typer.BadParameter(f"{directory} has no segments, and {error}") from error
