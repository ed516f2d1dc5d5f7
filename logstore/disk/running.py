"""The running marker of a log dir: `.logstore_running` names the machine's boot in which a broker runs on it.

    .logstore_running           {"boot":"7f3e…"}        one line of JSON; Kafka ignores it

A killed process loses none of its writes: they are in the kernel's page cache. Only a stop of the machine
loses the page cache, and the machine comes back with another boot id. So after an unclean stop the dir is
complete if this file names the current boot.

The owner writes the marker if it has lost nothing, as for the clean-shutdown marker. It removes the marker
after a failed sync, because the kernel may have dropped the data. The marker need not be durable: a power cut
ends the boot.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Final

from logstore.disk.files import Disk, OsDisk, read_small_file, remove_if_exists

RUNNING_FILE: Final = ".logstore_running"
_BOOT: Final = "boot"


def boot_id() -> str:
    """Return the id of the machine's current boot; empty if the system does not provide one."""
    try:
        with closing(OsDisk().open("/proc/sys/kernel/random/boot_id")) as file:
            return file.pread(100, 0).decode().strip()
    except OSError:
        return ""


def write_running(disk: Disk, directory: str, boot: str) -> None:
    """Record that the dir loses nothing until the end of this boot. Raises `OSError`."""
    with closing(disk.open(f"{directory}/{RUNNING_FILE}", create=True, write=True)) as file:
        file.truncate(0)
        file.pwrite(json.dumps({_BOOT: boot}).encode(), 0)


def has_run_on(disk: Disk, directory: str, boot: str) -> bool:
    """Return whether the marker names this boot; False if `boot` is empty. Raises `OSError`."""
    data = read_small_file(disk, f"{directory}/{RUNNING_FILE}") if boot else None
    if data is None:
        return False
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get(_BOOT) == boot


def remove_running(disk: Disk, directory: str) -> None:
    """Remove the marker. Raises `OSError`."""
    remove_if_exists(disk, f"{directory}/{RUNNING_FILE}")
