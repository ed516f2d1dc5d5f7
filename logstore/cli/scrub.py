"""`logstore scrub`: scrub a log that no process has open, and rebuild its derived files where they differ.

    scrub DIR            a partition; one finding a line
    scrub DIR --json     one object a line; the last one has the totals

This is what a running broker does once a week, and `Log.scrub()` in a program: every sealed segment is
compared with its seal and every other batch with its checksum, as fast as the disk reads. Index files, the
epoch file, seals and producer snapshots that differ from the log are rebuilt. Records stay as they are;
damaged ones below the log start, which were deleted, are left out and kept in quarantine.

`verify` reads directories of any owner, also while the owner writes; it parses every record and changes
nothing. `scrub` opens the log as its owner, so it locks the directory and recovers the log after an unclean
stop. It refuses the log dirs of brokers: a broker scrubs these itself, and a replica may mend the damage.

Exit code 0 if all records are sound, 1 if some are damaged, 2 for a directory that holds no log or that
belongs to a broker.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from logstore.cli.operating import Json, PartitionDir, require_log
from logstore.cli.terminal import byte_progress, print_json

if TYPE_CHECKING:
    from logstore.log.scrub import Scrubbed


def scrub(directory: PartitionDir, as_json: Json = False) -> int:
    """Compare a log with its seals and checksums, and rebuild index files that differ; exit 1 on damage."""
    from logstore.checkpoint.identity import META_PROPERTIES
    from logstore.disk.files import OsDisk
    from logstore.errors import DamageKind
    from logstore.log.heal import leave_out_deleted
    from logstore.log.log import Log
    from logstore.log.scrub import Scrubbed
    from logstore.log.scrub import scrub as steps_of

    path = str(directory).rstrip("/") or "/"
    require_log(OsDisk(), path)
    if (Path(path).resolve().parent / META_PROPERTIES).exists():
        raise typer.BadParameter(
            f"{path} belongs to a broker, which scrubs it while it runs (log.scrub.interval.ms); "
            'run "logstore verify" to check it while the broker is stopped'
        )
    done = Scrubbed(0, None)
    with Log.open(path) as log, ExitStack() as stack:
        advance = byte_progress(stack, log.size)
        for step in steps_of(log.partition):
            advance(step.size)
            if step.damages:
                step = leave_out_deleted(log.partition, step, now_ms=log.partition.clock())
            _print(step, as_json)
            done = Scrubbed(
                done.size + step.size, None, done.damages + step.damages, done.rebuilt + step.rebuilt
            )
    left_out = sum(each.kind is not DamageKind.DERIVED for each in done.rebuilt)
    if as_json:
        rebuilt = len(done.rebuilt) - left_out
        facts = {"bytes": done.size, "damaged": len(done.damages), "rebuilt": rebuilt, "left_out": left_out}
        print_json({"total": facts})
    else:
        counts = f"{len(done.damages)} damaged, {len(done.rebuilt) - left_out} derived files rebuilt"
        if left_out:
            counts += f", {left_out} damaged places below the log start left out"
        print(f"{done.size} bytes of batches: {counts}")
    return 1 if done.damages else 0


def _print(step: Scrubbed, as_json: bool) -> None:
    from logstore.errors import DamageKind

    for damage in (*step.damages, *step.rebuilt):
        is_rebuilt = damage in step.rebuilt
        if as_json:
            print_json({**damage._asdict(), "kind": damage.kind.value, "rebuilt": is_rebuilt})
        else:
            print(f"{damage}; rebuilt" if damage.kind is DamageKind.DERIVED else damage)
