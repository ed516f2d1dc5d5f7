"""The ledger of a writer: which publication is decided and which are complete, so that each happens once.

    <ledger>/ledger             CRC-32C of the rest of the line, then JSON: done, state, intent
    <ledger>/staged/<number>/   the files of a publication's tasks, durable before it is decided
    <ledger>/.lock              one committer at a time

                        decide                       carry out, finish
        done = N - 1 ───────────▶ done = N - 1 ────────────────────────▶ done = N
        no intent                 intent N: its plan                     no intent

Publications have ascending numbers: a stream's batch ids, or versions that the user gives. A plan names
everything that carrying it out needs, and carrying it out is idempotent, so any process that finds an intent
can complete it. A crash leaves one of the three states:

    no intent, done = N - 1   nothing of N was published; its staged files are ignored
    intent N                  any part of N was published; it is completed before anything else, from the
                              files that it names, whatever a replay has staged since
    no intent, done = N       all of N was published
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from logstore.disk.closing import Closing
from logstore.disk.files import (
    DirectoryEntry,
    Disk,
    make_durable_dir,
    publish,
    read_small_file,
    remove_if_exists,
)
from logstore.format.crc import crc32c
from logstore.spark.errors import CorruptLedger

Json: TypeAlias = Mapping[str, Any]

LEDGER_FILE: Final = "ledger"
STAGED: Final = "staged"
NOTHING_DONE: Final = -1
_VERSION: Final = 1


class Intent(NamedTuple):
    """A publication that is decided, and not known to be complete."""

    number: int
    plan: Json


CarryOut: TypeAlias = Callable[[Intent], Json | None]
"""Carries out an intent, idempotently; all is durable when it returns the state to keep (None: unchanged)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of a ledger. `state` is what the last publication left for the next one."""

    done: int = NOTHING_DONE
    state: Json = field(default_factory=dict)
    intent: Intent | None = None


def staging_directory(ledger: str, number: int) -> str:
    """Return the directory for staged files of publication `number`; `make_durable_dir` creates it."""
    return f"{ledger}/{STAGED}/{number}"


def read_ledger(disk: Disk, directory: str) -> Entry:
    """Return the ledger's content without owning it. Raises `CorruptLedger` and `OSError`."""
    data = read_small_file(disk, f"{directory}/{LEDGER_FILE}")
    return Entry() if data is None else _decode(data, directory)


class Ledger(Closing):
    """The ledger in `directory`, locked until `close`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        """Open or create it. Raises `DirectoryLocked`, `CorruptLedger`, `OSError`."""
        self._disk, self.directory = disk, directory
        make_durable_dir(disk, directory)
        self._lock = disk.lock(directory)
        try:
            self._entry = read_ledger(disk, directory)
            # Its writer may have died before the entry was durable; it must survive a power cut from now on.
            if self._entry.intent is not None or self._entry.done != NOTHING_DONE:
                self._sync()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock. An open intent stays for the next owner."""
        self._lock.release()

    @property
    def done(self) -> int:
        """The number of the last complete publication; -1 for none."""
        return self._entry.done

    @property
    def state(self) -> Json:
        return self._entry.state

    @property
    def intent(self) -> Intent | None:
        return self._entry.intent

    def decide(self, number: int, plan: Json) -> Intent:
        """Write the intent to publish `number` by `plan`. After an `OSError` it may or may not be decided.

        An open intent can be replaced under its own number: the new plan must then cover what the old one had
        not carried out.
        """
        assert number > self.done, f"{number} is already done: all up to {self.done} is"
        assert self.intent is None or self.intent.number == number, "an open intent must be completed first"
        intent = Intent(number, plan)
        self._write(Entry(self.done, self.state, intent))
        return intent

    def finish(self, state: Json | None = None) -> None:
        """Mark the open intent as carried out; `state` replaces the state unless it is None."""
        assert self.intent is not None, "nothing was decided"
        kept = self.state if state is None else state
        self._write(Entry(self.intent.number, kept, None))

    def sweep(self) -> None:
        """Remove the staged files of complete publications, including those of dead attempts."""
        for entry in _scan(self._disk, f"{self.directory}/{STAGED}"):
            if entry.name.isascii() and entry.name.isdecimal() and int(entry.name) <= self.done:
                remove_staged(self._disk, f"{self.directory}/{STAGED}/{entry.name}")

    def _write(self, entry: Entry) -> None:
        publish(self._disk, self.directory, LEDGER_FILE, _encode(entry))
        self._entry = entry

    def _sync(self) -> None:
        sync_file(self._disk, f"{self.directory}/{LEDGER_FILE}")
        self._disk.sync_dir(self.directory)


def complete(ledger: Ledger, carry_out: CarryOut) -> Intent | None:
    """Complete an open intent, remove its staged files and return it; None if there is none.

    Raises as `carry_out`.
    """
    intent = ledger.intent
    if intent is not None:
        ledger.finish(carry_out(intent))
        ledger.sweep()
    return intent


def publish_once(ledger: Ledger, number: int, plan: Callable[[], Json], carry_out: CarryOut) -> bool:
    """Publish `number` unless it was published before; return whether it was done now.

    An open intent is completed first. Then `plan` returns the plan, and `carry_out` carries it out. If one of
    them raises, the intent stays open and the next call completes it.
    """
    complete(ledger, carry_out)
    published = number > ledger.done
    if published:
        ledger.finish(carry_out(ledger.decide(number, plan())))
    ledger.sweep()
    return published


def sync_file(disk: Disk, path: str) -> int:
    """Make a file that another program wrote durable, and return its size in bytes. Raises `OSError`."""
    with closing(disk.open(path, write=True)) as file:
        file.sync()
        return file.size()


def remove_staged(disk: Disk, directory: str) -> None:
    """Remove a directory tree, including files that a late task adds meanwhile; nothing is synced."""
    while True:
        for entry in _scan(disk, directory):
            path = f"{directory}/{entry.name}"
            if entry.is_directory:
                remove_staged(disk, path)
            else:
                remove_if_exists(disk, path)
        try:
            disk.remove_dir(directory)
        except FileNotFoundError:
            return
        except OSError:
            if _scan(disk, directory):
                continue
            raise
        return


def _scan(disk: Disk, directory: str) -> list[DirectoryEntry]:
    try:
        return disk.scan(directory)
    except FileNotFoundError:
        return []


def _encode(entry: Entry) -> bytes:
    content: dict[str, Any] = {"version": _VERSION, "done": entry.done, "state": entry.state}
    if entry.intent is not None:
        content["intent"] = {"number": entry.intent.number, "plan": entry.intent.plan}
    text = json.dumps(content, separators=(",", ":")).encode() + b"\n"
    return b"%08x %s" % (crc32c(text), text)


def _decode(data: bytes, directory: str) -> Entry:
    try:
        sum_text, text = data[:8], data[9:]
        if int(sum_text, 16) != crc32c(text):
            raise ValueError("bad checksum")
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}; only version {_VERSION} is supported")
        found = content.get("intent")
        intent = None if found is None else Intent(found["number"], found["plan"])
        return Entry(content["done"], content["state"], intent)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLedger(
            f"{directory}/{LEDGER_FILE} is unreadable ({error}), so earlier publications are unknown. "
            "Restore a copy of it, or check what was published and start with an empty directory"
        ) from error
