"""What a log dir says while a broker runs on it: `.logstore_running`, the boot of its machine.

    .logstore_running           {"boot":"7f3e…"}        one line of JSON; Kafka passes it over

A process that is killed loses nothing that it has written: the page cache is the kernel's, and outlives it.
Only a machine that stops takes the page cache with it, and is of another boot when it is back. So a dir whose
owner stopped without a word has kept everything if this file names the boot that still is.

It is put there by an owner who has lost nothing that is not on record (as for the mark of a clean stop), and
taken away by one that found out that a sync failed: what that was to make durable may have been dropped. It
need not be durable: a power cut that keeps, loses or tears it ends its boot.
"""

from __future__ import annotations

import json
from typing import Final

from logstore.disk.files import Disk, read_small_file, remove_if_exists

RUNNING_FILE: Final = ".logstore_running"
_BOOT: Final = "boot"


def write_running(disk: Disk, directory: str, boot: str) -> None:
    """Say that from now on the dir loses nothing before this boot ends. Raises `OSError`."""
    file = disk.open(f"{directory}/{RUNNING_FILE}", create=True, write=True)
    try:
        file.truncate(0)
        file.pwrite(json.dumps({_BOOT: boot}).encode(), 0)
    finally:
        file.close()


def has_run_on(disk: Disk, directory: str, boot: str) -> bool:
    """Whether the dir's former owner said so in this very boot; no, if that is empty. Raises `OSError`."""
    data = read_small_file(disk, f"{directory}/{RUNNING_FILE}") if boot else None
    if data is None:
        return False
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get(_BOOT) == boot


def remove_running(disk: Disk, directory: str) -> None:
    """Take it back. Raises `OSError`."""
    remove_if_exists(disk, f"{directory}/{RUNNING_FILE}")
