"""`logstore lost`: list what truncations, restarts and recoveries removed from a log.

Listing takes no lock and changes nothing. The bytes of loss 3 are in `DIR/lost/3`, under the names of their
segments: `cat` and `dump` read that directory like a partition's. `logstore recover --undo` restores them.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.terminal import complain, print_json, printable

if TYPE_CHECKING:
    from logstore.disk.files import Disk
    from logstore.log.losses import Loss, Quarantine

_DAY_MS = 24 * 60 * 60 * 1000


def lost(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR", help="Partitions, or log dirs with partitions.", exists=True, file_okay=False
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one object a line, the total last.")] = False,
    purge: Annotated[
        int | None,
        typer.Option("--purge", metavar="ID", min=1, help="Delete the bytes of this loss."),
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than", metavar="DAYS", min=0, help="Delete the bytes of losses older than this."
        ),
    ] = None,
) -> int:
    """List the losses of logs: offsets, reason, kept bytes. Entries are never deleted."""
    from logstore.disk.files import OsDisk
    from logstore.log.losses import Quarantine

    disk = OsDisk()
    partitions = [place for directory in directories for place in _partitions_in(disk, str(directory))]
    if purge is not None:
        if older_than is not None:
            raise typer.BadParameter("--purge and --older-than cannot be combined")
        if len(partitions) != 1:
            raise typer.BadParameter("--purge requires exactly one partition")
        return _purge_one(disk, partitions[0], purge)
    if older_than is not None:
        return _purge_old(disk, partitions, int(older_than * _DAY_MS))
    total = _Total()
    for directory in partitions:
        _list(Quarantine(disk, directory), directory, total, as_json=as_json)
    if as_json:
        print_json({"total": total.facts()})
    else:
        print(f"{total.losses} losses, {total.records} records, {total.kept_bytes} bytes in quarantine")
    return 1 if total.is_damaged else 0


class _Total:
    def __init__(self) -> None:
        self.losses = self.records = self.kept_bytes = self.unreadable_lines = 0
        self.is_damaged = False

    def facts(self) -> dict[str, int]:
        return {
            "losses": self.losses,
            "records": self.records,
            "kept_bytes": self.kept_bytes,
            "unreadable_lines": self.unreadable_lines,
        }


def _list(quarantine: Quarantine, directory: str, total: _Total, *, as_json: bool) -> None:
    from logstore.log.losses import Standing

    text = quarantine.read()
    for loss in quarantine.losses(text):
        kept_bytes = quarantine.kept_bytes(loss)
        total.losses += 1
        total.records += loss.records
        total.kept_bytes += kept_bytes
        if loss.standing is Standing.MISSING:
            total.is_damaged = True
        if as_json:
            standing = {"kept_bytes": kept_bytes, "standing": loss.standing.value}
            print_json({"directory": directory, **loss.facts(), **standing})
        else:
            print("\n  ".join(_sentences(quarantine, directory, loss)))
    for number in text.unreadable:
        total.unreadable_lines += 1
        total.is_damaged = True
        complain(f"{quarantine.path}/ledger.jsonl: line {number} cannot be read; the other lines are listed")
    if text.skipped_bytes:
        complain(f"{quarantine.path}/ledger.jsonl: the first {text.skipped_bytes} bytes were skipped")


def _sentences(quarantine: Quarantine, directory: str, loss: Loss) -> list[str]:
    from datetime import UTC, datetime

    when = f"{loss.at_ms} ms"
    if loss.at_ms < 1 << 47:  # not far below the largest date
        when = f"{datetime.fromtimestamp(loss.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    offsets = f"offsets {loss.first_offset} to {loss.last_offset}"
    if loss.last_offset < loss.first_offset:
        offsets = f"no whole batch at offset {loss.first_offset}"
    below = [
        name
        for name, is_below in (
            ("high watermark", loss.below_high_watermark),
            ("recovery point", loss.below_recovery_point),
        )
        if is_below
    ]
    batches = "" if loss.batches is None else f" in {loss.batches} batches"
    epochs = "" if loss.epochs == (-1, -1) else f", leader epochs {loss.epochs[0]} to {loss.epochs[1]}"
    lines = [
        f"{directory} loss {loss.id}: {loss.standing.value}, {when}",
        f"{loss.who}: {printable(loss.why)}",
        f"{offsets}: {loss.records} records{batches}, {loss.size} bytes{epochs}; "
        f"the log then ended at {loss.end_offset}",
    ]
    if below:
        lines.append(f"below the {' and the '.join(below)}")
    if loss.not_kept:
        lines.append(f"not kept: {printable(loss.not_kept)}")
    if quarantine.kept_bytes(loss):
        lines.append(f"in {quarantine.place_of(loss.id)}")
    return lines


def _purge_one(disk: Disk, directory: str, loss_id: int) -> int:
    from logstore.cli.owning import own
    from logstore.log.losses import Quarantine

    quarantine = Quarantine(disk, directory)
    with ExitStack() as stack:
        own(disk, directory, stack)
        freed = quarantine.purge(loss_id, _now_ms())
        if not freed and quarantine.get(loss_id) is None:
            complain(f"{directory} has no loss {loss_id}; `logstore lost {directory}` lists the losses")
            return 1
    print(f"{freed} bytes removed from quarantine")
    return 0


def _purge_old(disk: Disk, partitions: list[str], age_ms: int) -> int:
    from logstore.cli.owning import own
    from logstore.log.losses import Quarantine

    freed = 0
    for directory in partitions:
        with ExitStack() as stack:
            own(disk, directory, stack)
            freed += Quarantine(disk, directory).expire(_now_ms(), age_ms)
    print(f"{freed} bytes removed from quarantine")
    return 0


def _partitions_in(disk: Disk, path: str) -> list[str]:
    """`path` itself if it is a partition, otherwise the partitions in it."""
    from logstore.cli.inspection import segment_offsets
    from logstore.log.losses import LOST_DIRECTORY

    path = path.rstrip("/") or "/"
    directories = [entry.name for entry in disk.scan(path) if entry.is_directory]
    if LOST_DIRECTORY in directories or segment_offsets(disk, path):
        return [path]
    below = [f"{path}/{name}" for name in directories]
    return [place for place in below if _holds_losses(disk, place)]


def _holds_losses(disk: Disk, directory: str) -> bool:
    from logstore.log.losses import LOST_DIRECTORY

    try:
        return any(entry.name == LOST_DIRECTORY and entry.is_directory for entry in disk.scan(directory))
    except FileNotFoundError:  # deleted by its owner since it was listed
        return False


def _now_ms() -> int:
    from logstore.disk.files import wall_clock_ms

    return wall_clock_ms()
