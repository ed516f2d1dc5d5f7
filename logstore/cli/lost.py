"""`logstore lost`: list the data that truncations, restarts and recoveries removed from a log.

Listing takes no lock and changes nothing. The bytes of loss 3 are in `DIR/lost/3`, under the names of their
segments: `cat` and `dump` read that directory like a partition's. `logstore recover --undo` restores them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import Json, LogDirs, partitions_with
from logstore.cli.terminal import print_error, print_json, printable
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.disk.files import Disk
    from logstore.log.losses import Loss, Quarantine

_DAY_MS = 24 * 60 * 60 * 1000


def lost(
    directories: LogDirs,
    as_json: Json = False,
    purge: Annotated[
        int | None,
        typer.Option("--purge", metavar="ID", min=1, help="Delete the bytes of this loss."),
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            metavar="DAYS",
            min=0,
            help="Delete the bytes of losses older than this, of every partition at any depth.",
        ),
    ] = None,
) -> int:
    """List the losses of logs: offsets, reason, kept bytes. Entries are never deleted."""
    from logstore.disk.files import OsDisk
    from logstore.log.losses import LOST_DIRECTORY, Quarantine

    disk = OsDisk()
    partitions = partitions_with(LOST_DIRECTORY, disk, directories)
    if purge is not None:
        if older_than is not None:
            raise typer.BadParameter("--purge and --older-than cannot be combined")
        if len(partitions) != 1:
            raise typer.BadParameter("--purge requires exactly one partition")
    if purge is not None or older_than is not None:
        return _purge(disk, partitions, purge, older_than, as_json=as_json)
    total: Counter[str] = Counter(losses=0, records=0, kept_bytes=0, unreadable_lines=0)
    missing = 0
    for directory in partitions:
        missing += _list(Quarantine(disk, directory), directory, total, as_json=as_json)
    if as_json:
        print_json({"total": total})
    else:
        found = f"{counted(total['losses'], 'loss')}, {counted(total['records'], 'record')}"
        print(f"{found}, {total['kept_bytes']} bytes in quarantine")
    return 1 if missing or total["unreadable_lines"] else 0


def _list(quarantine: Quarantine, directory: str, total: Counter[str], *, as_json: bool) -> int:
    """Print the losses of a log and add them to the total; return how many have lost their bytes."""
    from logstore.log.losses import Standing

    text = quarantine.read()
    missing = 0
    for loss in quarantine.losses(text):
        kept_bytes = quarantine.kept_bytes(loss)
        total.update(losses=1, records=loss.records, kept_bytes=kept_bytes)
        missing += loss.standing is Standing.MISSING
        if as_json:
            standing = {"kept_bytes": kept_bytes, "standing": loss.standing.value}
            print_json({"directory": directory, **loss.facts(), **standing})
        else:
            print("\n  ".join(_sentences(quarantine, directory, loss)))
    for number in text.unreadable:
        print_error(f"{quarantine.path}/ledger.jsonl: line {number} cannot be read; others are listed")
    total.update(unreadable_lines=len(text.unreadable))
    if text.skipped_bytes:
        print_error(f"{quarantine.path}/ledger.jsonl: the first {text.skipped_bytes} bytes were skipped")
    return missing


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
    batches = "" if loss.batches is None else f" in {counted(loss.batches, 'batch')}"
    epochs = "" if loss.epochs == (-1, -1) else f", leader epochs {loss.epochs[0]} to {loss.epochs[1]}"
    lines = [
        f"{directory} loss {loss.id}: {loss.standing.value}, {when}",
        f"{loss.who}: {printable(loss.why)}",
        f"{offsets}: {counted(loss.records, 'record')}{batches}, {loss.size} bytes{epochs}; "
        f"the log then ended at {loss.end_offset}",
    ]
    if below:
        lines.append(f"below the {' and the '.join(below)}")
    if loss.not_kept:
        lines.append(f"not kept: {printable(loss.not_kept)}")
    if quarantine.kept_bytes(loss):
        lines.append(f"in {quarantine.place_of(loss.id)}")
    return lines


def _purge(
    disk: Disk, partitions: list[str], loss_id: int | None, days: float | None, *, as_json: bool
) -> int:
    """Delete the bytes of one loss, or of all losses that are older than `days`."""
    from logstore.cli.owning import own
    from logstore.disk.files import wall_clock_ms
    from logstore.log.losses import Quarantine

    freed = 0
    for directory in partitions:
        quarantine = Quarantine(disk, directory)
        with ExitStack() as stack:
            own(disk, directory, stack)
            if loss_id is None:
                freed += quarantine.expire(wall_clock_ms(), int((days or 0) * _DAY_MS))
                continue
            freed = quarantine.purge(loss_id, wall_clock_ms())
            if not freed and quarantine.get(loss_id) is None:
                print_error(f"{directory} has no loss {loss_id}; run `logstore lost {directory}`")
                return 1
    if as_json:
        print_json({"removed_bytes": freed})
    else:
        print(f"{freed} bytes removed from quarantine")
    return 0
