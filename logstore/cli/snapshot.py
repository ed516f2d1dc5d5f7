"""`logstore snapshot` and `logstore restore`: copies of a log, or of a whole log dir, that share its files.

Both work on a log that nobody has open, and on one that another process writes to. The source is not changed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import Json, time_ms
from logstore.cli.terminal import print_json
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.log.snapshot import Snapshot

Source = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="A partition, a log dir, or a metadata store.", exists=True, file_okay=False
    ),
]


def snapshot(
    directory: Source,
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="New directory; of a partition, named topic-N.")
    ],
    as_json: Json = False,
) -> int:
    """Take a snapshot of a partition or of a log dir by hard links, also while it is in use.

    A log dir is taken at each partition's high watermark (at its end, if it has none), with the embedded
    metadata store beside it. A metadata store is copied.
    """
    return _take(directory, path, None, as_json)


def restore(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="SNAPSHOT",
            help="A snapshot, or any log, log dir or metadata store.",
            exists=True,
            file_okay=False,
        ),
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="New directory; of a partition, named topic-N.")
    ],
    to_offset: Annotated[
        int | None,
        typer.Option(
            "--to-offset",
            metavar="N",
            min=0,
            help="Restore only records below offset N; below the log start there are none.",
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="T",
            help="Restore what lies before the first record at or past T: epoch milliseconds, or ISO 8601 "
            "(UTC if no zone is given).",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Restore a log, or a log dir, from a snapshot; the snapshot is not changed.

    Batches stay whole: one that holds offset N, or a record at or past T, is left out. If no record is left,
    the new log is empty.
    """
    if to_offset is not None and to_time is not None:
        raise typer.BadParameter("give --to-offset or --to-time, not both")
    if to_time is not None:
        from logstore.disk.files import OsDisk
        from logstore.log.snapshot import offset_at_time

        if _holds_partitions(directory):
            raise typer.BadParameter("--to-time is for one partition; restore the partitions one by one")
        to_offset = offset_at_time(OsDisk(), str(directory), time_ms("--to-time", to_time))
    return _take(directory, to, to_offset, as_json)


def _take(source: Path, target: Path, end_offset: int | None, as_json: bool) -> int:
    from logstore.config import LogConfig
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.files import OsDisk, wall_clock_ms
    from logstore.errors import OffsetOutOfRange
    from logstore.log.log_dir_snapshot import snapshot_log_dir, snapshot_store
    from logstore.log.snapshot import take_snapshot
    from logstore.replication.metastore.journal import SNAPSHOT_FILE

    source, target = source.resolve(), target.resolve()
    if target == source or source in target.parents:
        raise typer.BadParameter(f"{target} lies in {source}: name a directory outside of it")
    disk, metadata = OsDisk(), None
    made: tuple[Snapshot, ...] = ()
    try:
        if (source / SNAPSHOT_FILE).is_file():
            if end_offset is not None:
                raise typer.BadParameter("--to-offset is for one partition; this is a metadata store")
            metadata = snapshot_store(disk, str(source), str(target))
        elif _holds_partitions(source):
            if end_offset is not None:
                raise typer.BadParameter(
                    "--to-offset is for one partition; restore the partitions one by one"
                )
            whole = snapshot_log_dir(disk, str(source), str(target), clock=wall_clock_ms)
            made, metadata = whole.partitions, whole.metadata
        else:
            if not any(source.glob("*.log")):
                raise typer.BadParameter(
                    f"{source} is neither a partition nor a log dir nor a metadata store: it holds no log"
                )
            take = partial(
                take_snapshot, disk, str(source), str(target), config=LogConfig(), clock=wall_clock_ms
            )
            try:
                made = (take(end_offset=end_offset),)
            except OffsetOutOfRange as below:
                # Nothing lies below an end below the log start.
                made = (take(end_offset=below.log_start_offset),)
    except (FileExistsError, InvalidTopic) as error:
        raise typer.BadParameter(str(error)) from error
    for each in made:
        _print(each, as_json)
    if metadata is not None:
        Path(metadata).chmod(0o700)  # it holds the credentials of users
        print_json({"metadata": metadata}) if as_json else print(f"{metadata}: the metadata store")
    return 0


def _print(made: Snapshot, as_json: bool) -> None:
    if as_json:
        print_json(made._asdict())
    else:
        print(
            f"{made.path}: offsets {made.log_start_offset} to {made.log_end_offset} (exclusive), "
            f"{counted(made.files, 'file')}, {made.copied_bytes} bytes copied"
        )


def _holds_partitions(directory: Path) -> bool:
    from logstore.disk.files import OsDisk
    from logstore.log.log_dir_snapshot import partitions_in

    # Other places have directories with such names, too: /etc has dbus-1.
    names = partitions_in(OsDisk(), str(directory)).values()
    return not any(directory.glob("*.log")) and any(any((directory / each).glob("*.log")) for each in names)
