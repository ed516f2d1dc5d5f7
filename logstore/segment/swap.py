"""Replace old segments by rewritten ones, so that a crash leaves either the old set or the new one.

    N.log.cleaned        being written; after a crash it is removed
    N.log.swap           written and durable, the last of the set first. While one of the set is still
                         `.cleaned`, all are removed; once all are `.swap`, the set is committed
                         (the sync of the directory)
    old files .deleted   the old segments are removed, then the new ones get their names: the first of the
                         set first, and of each its log. An old file is a name whose `.swap` still exists

After the commit `recovery.py` finishes the swap. The old segments are those with names between the first new
base and the successor in the last new seal, because compaction may have removed the last records.
"""

from __future__ import annotations

from collections.abc import Sequence

from logstore.config import LogConfig
from logstore.disk.files import Disk, remove_if_exists
from logstore.segment.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, Segment, file_name

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"


def begin_cleaned(
    disk: Disk, directory: str, config: LogConfig, base_offset: int, *, now_ms: int, modified_ms: int
) -> Segment:
    """Create an empty `.cleaned` segment; leftovers of another one are removed. Raises `OSError`."""
    for suffix in SEGMENT_SUFFIXES:
        remove_if_exists(disk, f"{directory}/{file_name(base_offset, suffix)}{CLEANED_SUFFIX}")
    return Segment(
        disk,
        directory,
        base_offset,
        config,
        size=0,
        now_ms=now_ms,
        is_new=True,
        modified_ms=modified_ms,
        name_suffix=CLEANED_SUFFIX,
    )


def swap(disk: Disk, directory: str, new: Sequence[Segment], old: Sequence[Segment]) -> list[str]:
    """Replace the files of `old` by those of `new`, `.cleaned` and synced; return the `.deleted` paths.

    Raises `OSError`; then the log must be opened again to finish or undo the swap.
    """
    for segment in sorted(new, key=lambda each: each.base_offset, reverse=True):
        _rename(disk, directory, segment.base_offset, CLEANED_SUFFIX, SWAP_SUFFIX, SEGMENT_SUFFIXES)
        # In this order: otherwise a crash could leave a part of the set that looks complete.
        disk.sync_dir(directory)
    aside = [path for segment in old for path in segment.set_aside()]
    disk.sync_dir(directory)
    for segment in sorted(new, key=lambda each: each.base_offset):
        give_names(disk, directory, segment.base_offset)
    return aside


def give_names(disk: Disk, directory: str, base_offset: int) -> None:
    """Rename the `.swap` files of one segment, durably; the lowest segment of a set comes first.

    While its `.log` has the suffix, files with the final names are old. So the log is renamed before the
    others, and all of them before the next segment's. Files that are renamed already are skipped. Raises
    `OSError`.
    """
    log, *others = SEGMENT_SUFFIXES
    assert log == LOG_SUFFIX
    for suffixes in ((log,), others):
        _rename(disk, directory, base_offset, SWAP_SUFFIX, "", suffixes)
        disk.sync_dir(directory)


def _rename(
    disk: Disk, directory: str, base_offset: int, before: str, after: str, suffixes: Sequence[str]
) -> None:
    for suffix in suffixes:
        path = f"{directory}/{file_name(base_offset, suffix)}"
        try:
            disk.rename(path + before, path + after)
        except FileNotFoundError:
            if suffix == LOG_SUFFIX and before == CLEANED_SUFFIX:  # the others need not be there
                raise
