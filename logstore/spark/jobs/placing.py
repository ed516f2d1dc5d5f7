"""Move the staged files of a publication to their places: repeatable, and durable when it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from logstore.disk.copying import is_there
from logstore.disk.files import Disk, make_durable_dir


def place_files(
    disk: Disk,
    staging: str,
    output: str,
    files: Iterable[tuple[str, str]],
    gone: Callable[[str], Exception],
) -> None:
    """Rename each (staged, target), relative to `staging` and `output`: a file is staged or in its place.

    Raises `OSError`, and `gone(path)` for a file that is in neither place.
    """
    files = list(files)
    directories: dict[str, set[str]] = {}
    for _, target in files:
        directory, _, name = f"{output}/{target}".rpartition("/")
        directories.setdefault(directory, set()).add(name)
    for directory in directories:
        make_durable_dir(disk, directory)
    for staged, target in files:
        if is_there(disk, f"{staging}/{staged}"):
            disk.rename(f"{staging}/{staged}", f"{output}/{target}")
    for directory, names in directories.items():
        disk.sync_dir(directory)
        found = {entry.name for entry in disk.scan(directory)}
        if missing := sorted(names - found):
            raise gone(f"{directory}/{missing[0]}")
