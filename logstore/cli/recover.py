"""`logstore recover`: open one partition directory as after a power cut, and say what that took.

The durable end decides what a bad batch means: the recovery point, or the end of the last segment whose
seal stands. At or past it lies what may not have been synced: the torn tail is cut there. Below it
lies what once was on the disk: the command refuses and cuts nothing, unless `--accept-loss` gives up,
knowingly, everything from the damage on. The recovery point is the log dir's checkpoint unless
`--recovery-point` gives another.

`--plan` runs the same procedure over a disk that keeps the changes to itself, and reports the same.

`--undo ID` puts back what was cut (`logstore lost` lists it), if the log still ends where the cut left it;
with `--as NEW_DIR` it goes into a log of its own, as far as it is sound.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.terminal import print_json

if TYPE_CHECKING:
    from logstore.disk.files import Disk
    from logstore.log.recovery import LoadedLog


def recover(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A partition's directory.", exists=True, file_okay=False)
    ],
    recovery_point: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="All below N was synced; default: what the checkpoint says."),
    ] = None,
    undo: Annotated[
        int | None, typer.Option(metavar="ID", min=1, help="Put this loss back instead of recovering.")
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option("--as", metavar="NEW_DIR", help="With --undo: into a log of its own, named topic-N."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done; change nothing.")] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Cut where damage begins, also what was durable.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one object.")] = False,
) -> int:
    """Load a partition as after an unclean stop: cut a torn tail, rebuild what is derived."""
    from logstore.checkpoint.entry_files import RECOVERY_POINT_CHECKPOINT
    from logstore.cli.shadow import ShadowDisk
    from logstore.disk.files import OsDisk
    from logstore.log.reader import checkpointed_offset

    path = str(directory)
    disk = OsDisk()
    if into is not None and undo is None:
        raise typer.BadParameter("--as goes with --undo")
    _check_is_partition(disk, path)
    if undo is not None:
        if plan or accept_loss or recovery_point is not None:
            raise typer.BadParameter("--undo goes with none of --plan, --accept-loss and --recovery-point")
        from logstore.cli.undo import copy_loss, undo_loss

        facts = undo_loss(disk, path, undo) if into is None else copy_loss(disk, path, undo, str(into))
        if as_json:
            print_json(facts)
        else:
            print("\n".join(f"{name} {value}" for name, value in facts.items()))
        return 0
    if recovery_point is None:
        recovery_point = checkpointed_offset(disk, path, RECOVERY_POINT_CHECKPOINT)
    with ExitStack() as stack:
        if plan:
            shadow = ShadowDisk(disk)
            stack.callback(shadow.close)
            loaded = load_unclean(shadow, path, recovery_point, accept_loss=accept_loss)
        else:
            own(disk, path, stack)
            forget_clean_stops(disk, path)
            loaded = load_unclean(disk, path, recovery_point, accept_loss=accept_loss)
            _lower_recovery_points(disk, path, loaded.log_end_offset)
        for segment in loaded.segments.values():
            stack.callback(segment.close)
        if as_json:
            print_json(_facts(loaded))
        else:
            if plan:
                print("this is what recovery would leave and do; nothing was changed")
            print("\n".join(_sentences(loaded)))
    return 0


def _lower_recovery_points(disk: Disk, directory: str, log_end_offset: int) -> None:
    """No checkpoint may speak of what is not there any more: its owner would take it for damage."""
    from logstore.checkpoint.entry_files import (
        RECOVERY_POINT_CHECKPOINT,
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
        if partition is not None and offsets.get(partition, 0) > log_end_offset:
            lowered = {**offsets, partition: log_end_offset}
            write_offset_checkpoint(disk, place, RECOVERY_POINT_CHECKPOINT, lowered)


def load_unclean(disk: Disk, directory: str, recovery_point: int, *, accept_loss: bool = False) -> LoadedLog:
    """The log as its owner would load it after an unclean stop. Raises what `recovery.load` raises."""
    import time

    from logstore.checkpoint.entry_files import HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT
    from logstore.config import LogConfig
    from logstore.log.reader import checkpointed_offset
    from logstore.log.recovery import load

    return load(
        disk,
        directory,
        LogConfig(),
        is_clean=False,
        recovery_point=recovery_point,
        log_start_offset=checkpointed_offset(disk, directory, LOG_START_OFFSET_CHECKPOINT),
        now_ms=time.time_ns() // 1_000_000,
        high_watermark=checkpointed_offset(disk, directory, HIGH_WATERMARK_CHECKPOINT),
        accept_loss=accept_loss,
    )


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
        "unrecorded": list(report.unrecorded),
        "damage": [{**damage._asdict(), "kind": damage.kind.value} for damage in report.damages],
        "notes": list(report.notes),
        "rebuilt": _rebuilt(loaded),
        "deleted": list(report.deleted),
        "renamed": [[old, new] for old, new in report.renamed],
    }


def _rebuilt(loaded: LoadedLog) -> list[str]:
    """Also the indexes that recovery had no need to look at, and that were rebuilt when they were counted."""
    from logstore.segment.indexes import OffsetIndex, TimeIndex
    from logstore.segment.segment import file_name

    rebuilt = dict.fromkeys(loaded.report.rebuilt)
    for base_offset, segment in loaded.segments.items():
        if segment.indexes.were_rebuilt:
            names = (file_name(base_offset, index.suffix) for index in (OffsetIndex, TimeIndex))
            rebuilt.update(dict.fromkeys(names))
    return list(rebuilt)


def _sentences(loaded: LoadedLog) -> list[str]:
    report = loaded.report
    return [
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
        *(f"not kept, not noted, for want of room: {what}" for what in report.unrecorded),
        *(f"rebuilt {name}" for name in _rebuilt(loaded)),
        *(f"deleted {name}" for name in report.deleted),
        *(f"renamed {old} to {new}" for old, new in report.renamed),
    ]


def _check_is_partition(disk: Disk, directory: str) -> None:
    """Loading makes a segment where there is none: not in a directory that was named by mistake."""
    from logstore.cli.inspection import segment_offsets
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.topic_partition import parse_directory_name

    if segment_offsets(disk, directory):
        return
    try:
        parse_directory_name(Path(directory).resolve().name)
    except InvalidTopic as error:
        raise typer.BadParameter(f"{directory} has no segments, and {error}") from error


def forget_clean_stops(disk: Disk, directory: str) -> None:
    """Remove the marks of a clean stop, the log dir's too: what they say of the partition is about to change.

    Durably, before anything else is written; the next start recovers.
    """
    from logstore.checkpoint.clean_shutdown import remove_clean_shutdown

    for place in (str(Path(directory).resolve().parent), directory):
        remove_clean_shutdown(disk, place)


def own(disk: Disk, directory: str, stack: ExitStack) -> None:
    """Own the partition, and the log dir around it if an owner of that ever locked it."""
    from logstore.disk.files import LOCK_FILE

    parent = str(Path(directory).resolve().parent)
    if any(entry.name == LOCK_FILE for entry in disk.scan(parent)):
        stack.callback(disk.lock(parent).release)
    stack.callback(disk.lock(directory).release)
