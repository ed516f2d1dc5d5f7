"""`logstore verify`: check whole directories for damage.

    verify DIR…            log dirs with all their partitions, or partitions; one finding a line
    verify DIR… --json     one object a line; the last one has the totals
    verify DIR… --reseal   first seal the complete segments as they are, after another program's rewrite

Exit code 0 if nothing is damaged, 1 if something is, 2 for a directory that holds no log. Notes (unknown
files, gaps, the torn end of the last segment) are not damage. Reads only. The owner may write meanwhile; data
that is being written may look torn. `--reseal` locks the directory.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import Json, LogDirs
from logstore.cli.terminal import byte_progress, print_json
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.disk.files import Disk


def verify(
    directories: LogDirs,
    as_json: Json = False,
    reseal: Annotated[
        bool, typer.Option("--reseal", help="Accept the complete segments as they are, and write new seals.")
    ] = False,
) -> int:
    """Check whole directories against all their checksums and digests; exit 1 on damage."""
    from logstore.cli.whole_trees import bytes_to_judge, holds_log, verify_tree
    from logstore.disk.files import OsDisk

    disk = OsDisk()
    paths = [str(path).rstrip("/") or "/" for path in directories]
    for path in paths:
        if not holds_log(disk, path):
            raise typer.BadParameter(f"{path} holds no log: neither segments nor a log dir's files are in it")
    if reseal:
        for path in paths:
            _reseal(disk, path)
    damage = notes = 0
    total = sum(bytes_to_judge(disk, path) for path in paths)
    with ExitStack() as stack:
        progress = byte_progress(stack, total)
        for path in paths:
            for finding in verify_tree(disk, path, progress):
                damage, notes = damage + finding.is_damage, notes + (not finding.is_damage)
                if as_json:
                    print_json(finding._asdict())
                else:
                    print(finding)
    if as_json:
        print_json({"total": {"bytes": total, "damaged": damage, "notes": notes}})
    else:
        print(f"{total} bytes of batches: {damage} damaged, {counted(notes, 'note')}")
    return 1 if damage else 0


def _reseal(disk: Disk, directory: str) -> None:
    from logstore.cli.inspection import segment_offsets
    from logstore.cli.owning import own
    from logstore.cli.whole_trees import reseal

    with ExitStack() as stack:
        own(disk, directory, stack)
        partitions = [f"{directory}/{entry.name}" for entry in disk.scan(directory) if entry.is_directory]
        for path in [directory, *partitions]:
            if segment_offsets(disk, path):
                print(f"{path}: {counted(reseal(disk, path), 'segment')} sealed", file=sys.stderr)
