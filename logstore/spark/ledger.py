"""What was decided to be published, and what has been: how a sink writes each thing once.

    <ledger>/ledger             CRC-32C of the rest of the line, then JSON: done, state, intent
    <ledger>/staged/<number>/   what the tasks of a publication wrote, durable before it is decided
    <ledger>/.lock              one committer at a time

                        decide                       carry out, finish
        done = N - 1 ───────────▶ done = N - 1 ────────────────────────▶ done = N
        no intent                 intent N: its plan                     no intent

A publication has a number above those before it: a stream's batch id, a version that the user gives. Its
plan names all that carrying it out needs, so whoever finds an intent can carry it out, again if need be:
that must be idempotent. A crash leaves one of the three states. In the first nothing was published, and
staged files mean nothing; in the second any part was, and the intent is carried out before anything else,
with its own staged files, whatever a replay has staged meanwhile; in the third all was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias

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
    """A publication that was decided and is not known to be complete."""

    number: int
    plan: Json


CarryOut: TypeAlias = Callable[[Intent], Json | None]
"""Does what an intent says, as often as it is asked; durable when it returns, with the state to keep."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a ledger says. `state` is the last publication's word to the next, for its sink to read."""

    done: int = NOTHING_DONE
    state: Json = field(default_factory=dict)
    intent: Intent | None = None


def staging_directory(ledger: str, number: int) -> str:
    """Where the tasks of publication `number` put their files; `make_durable_dir` makes it."""
    return f"{ledger}/{STAGED}/{number}"


def read_ledger(disk: Disk, directory: str) -> Entry:
    """What the ledger says now, for who does not own it. Raises `CorruptLedger` and `OSError`."""
    data = read_small_file(disk, f"{directory}/{LEDGER_FILE}")
    return Entry() if data is None else _decode(data, directory)


class Ledger:
    """The ledger in `directory`, held until `close`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        """Open it, or make it. Raises `DirectoryLocked`, `CorruptLedger`, `OSError`."""
        self._disk, self.directory = disk, directory
        make_durable_dir(disk, directory)
        self._lock = disk.lock(directory)
        try:
            self._entry = read_ledger(disk, directory)
            # What is acted on must not go with the next power cut: its writer may have died before it was
            # durable.
            if self._entry.intent is not None or self._entry.done != NOTHING_DONE:
                self._sync()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others have it. An open intent stays for them."""
        self._lock.release()

    @property
    def done(self) -> int:
        """The last publication that is complete; -1 for none."""
        return self._entry.done

    @property
    def state(self) -> Json:
        return self._entry.state

    @property
    def intent(self) -> Intent | None:
        return self._entry.intent

    def decide(self, number: int, plan: Json) -> Intent:
        """From here on `number` will be published as `plan` says. Raises `OSError`: perhaps it will.

        While an intent is open it may be decided anew, under its own number only: by who knows how much of
        it was carried out, for the new plan is what is carried out from then on.
        """
        assert number > self.done, f"{number} is done, as is all up to {self.done}"
        assert self.intent is None or self.intent.number == number, "an open intent is carried out first"
        intent = Intent(number, plan)
        self._write(Entry(self.done, self.state, intent))
        return intent

    def finish(self, state: Json | None = None) -> None:
        """The open intent was carried out, durably; `state` replaces what the last one left."""
        assert self.intent is not None, "nothing was decided"
        kept = self.state if state is None else state
        self._write(Entry(self.intent.number, kept, None))

    def sweep(self) -> None:
        """Remove the staged files of all that is done, those of dead attempts among them."""
        for entry in _scan(self._disk, f"{self.directory}/{STAGED}"):
            if entry.name.isascii() and entry.name.isdecimal() and int(entry.name) <= self.done:
                remove_staged(self._disk, f"{self.directory}/{STAGED}/{entry.name}")

    def _write(self, entry: Entry) -> None:
        publish(self._disk, self.directory, LEDGER_FILE, _encode(entry))
        self._entry = entry

    def _sync(self) -> None:
        file = self._disk.open(f"{self.directory}/{LEDGER_FILE}", write=True)
        try:
            file.sync()
        finally:
            file.close()
        self._disk.sync_dir(self.directory)


def complete(ledger: Ledger, carry_out: CarryOut) -> Intent | None:
    """Carry out what was decided and is not known to be complete; what that was. Raises as `carry_out`."""
    intent = ledger.intent
    if intent is not None:
        ledger.finish(carry_out(intent))
    return intent


def publish_once(ledger: Ledger, number: int, plan: Callable[[], Json], carry_out: CarryOut) -> bool:
    """Publish `number` unless that was done before; whether it was done now.

    `plan` says what is to be published, once nothing else is open. `carry_out` does what an intent says,
    completes what an earlier try began, and returns when all of it is durable, with the state to keep (None:
    as it is). Raises what they raise; the intent then stays open, and is carried out by the next call.
    """
    complete(ledger, carry_out)
    published = number > ledger.done
    if published:
        ledger.finish(carry_out(ledger.decide(number, plan())))
    ledger.sweep()
    return published


def remove_staged(disk: Disk, directory: str) -> None:
    """Remove a directory and all in it, with what a late task may still put there; nothing is synced."""
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
            raise ValueError("its checksum is wrong")
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise ValueError(f"it is of version {content['version']}, and {_VERSION} is what is read here")
        found = content.get("intent")
        intent = None if found is None else Intent(found["number"], found["plan"])
        return Entry(content["done"], content["state"], intent)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLedger(
            f"{directory}/{LEDGER_FILE} cannot be read ({error}): what was published before is not known. "
            "Put a copy of it back, or look what was published and begin with an empty directory"
        ) from error
