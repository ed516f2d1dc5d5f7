"""The loss ledger and the quarantine: the records removed from a log, the reasons, and their bytes.

    orders-0/
      lost/                             a sub-directory: Kafka's loader looks at files only and never sees it
        ledger.jsonl                    one object a line, appended and synced, never rewritten
        3/                              the bytes of loss 3, under the names of the segments they came from
          00000000000000000042.log      a copy of the end that was cut off that segment
          00000000000000000091.log      a later segment, moved here whole: no copy, no time, no room

    {"id": 3, "at_ms": 1700000000000, "who": "truncation", "why": "…", …, "crc": "8d2f00a1"}
    {"id": 3, "at_ms": 1700000500000, "mark": "restored", "crc": "51ee0c77"}

    {"id": 3, "at_ms": 1700000000005, "mark": "cut", "first_offset": 42, "crc": "0b6cf2d4"}

The first kind of line is a `Loss`; the second marks one as `restored`, `expired` or `purged`. The third says
that the cut is done: a reader in another process that knew it from the first line may have read on since, in
bytes that were about to go. `crc` is the CRC-32C of the line up to the comma before it. `lost/3` has the form
of a partition directory, so every tool for those can read it.

Order: the entry is synced first, then the copy, then their names; only then may a byte be cut or a segment be
moved. After a crash the bytes are in place, or in quarantine with their entry, or both; `Standing` derives
this from the files, not from a note that could itself be lost. A full disk raises before anything has
changed; spaces behind an entry keep room for the line that its cut is done. The last line of the ledger may
be torn: bytes behind the last line end are no entry, and the next write removes them. A line with a wrong
checksum stays, is reported as unreadable, and does not hide the others. Nothing in the ledger is trusted: a
name that is not a segment's, or a number out of range, makes its line unreadable too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import or_
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from logstore.config import MAX_LONG
from logstore.disk.errors import is_shortage
from logstore.disk.files import Disk, File, remove_if_exists
from logstore.format.crc import crc32c
from logstore.log.tails import Tail, chunks, crc_of
from logstore.loggers import logger_of
from logstore.segment.segment import LOG_SUFFIX, Segment, file_name

_log = logger_of(__name__)

LOST_DIRECTORY: Final = "lost"
LEDGER: Final = "ledger.jsonl"
KEPT_MS: Final = 7 * 24 * 60 * 60 * 1000
"""How long the bytes of a loss are kept; its entry stays."""

READ_BYTES: Final = 4 << 20
"""How much of a ledger is read, from its end: some ten thousand entries."""

_WHY_CHARACTERS: Final = 500

_LINE = re.compile(rb'(?P<body>\{.*), "crc": "(?P<crc>[0-9a-f]{8})"\}')
_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log", re.ASCII)

Who: TypeAlias = Literal["recovery", "truncation", "restart", "repair", "heal"]
Mark: TypeAlias = Literal["restored", "expired", "purged"]


class Standing(StrEnum):
    """The state of a loss; see `Quarantine.losses`."""

    QUARANTINED = "in quarantine"  # cut from the log, kept in quarantine
    INTENDED = "intended"  # entered, but some of it is in its place: a stop came first, or it came back
    NOTED = "noted"  # cut without being kept: `Loss.not_kept` says why
    RESTORED = "restored"  # put back into the log
    EXPIRED = "expired"  # kept long enough, then removed
    PURGED = "purged"  # removed by hand
    MISSING = "missing"  # not in its place, and not (whole) in quarantine


class Piece(NamedTuple):
    """A part of a loss: bytes [from_byte, from_byte + size) of the segment `file`.

    `crc` is the CRC-32C of a copy; None for a segment that was moved whole.
    """

    file: str
    from_byte: int
    size: int
    crc: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One removal of batches from a log other than by retention or compaction.

    Offsets `first_offset` to `last_offset`, both inclusive, went; the log ended at `end_offset` after it.
    `records` and `batches` count what was sound; of segments moved whole, which are not read for that,
    `records` is what their offsets allow and `batches` None. `size` is bytes of log. `epochs` are the
    lowest and the highest leader epoch of what went, -1 for unknown. `below_high_watermark`: some of it
    was committed as far as this replica knew; `below_recovery_point`: some of it was durable. Times are
    epoch milliseconds.
    """

    id: int = 0
    at_ms: int
    who: Who
    why: str
    first_offset: int
    last_offset: int
    end_offset: int
    records: int = 0
    batches: int | None = None
    size: int
    epochs: tuple[int, int] = (-1, -1)
    below_high_watermark: bool = False
    below_recovery_point: bool = False
    pieces: tuple[Piece, ...] = ()
    not_kept: str = ""
    standing: Standing = Standing.QUARANTINED

    def facts(self) -> dict[str, object]:
        """Return the fields of the ledger line."""
        return {
            "id": self.id,
            "at_ms": self.at_ms,
            "who": self.who,
            "why": self.why,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "end_offset": self.end_offset,
            "records": self.records,
            "batches": self.batches,
            "bytes": self.size,
            "epochs": list(self.epochs),
            "below_high_watermark": self.below_high_watermark,
            "below_recovery_point": self.below_recovery_point,
            "pieces": [
                {"file": piece.file, "from": piece.from_byte, "bytes": piece.size, "crc": piece.crc}
                for piece in self.pieces
            ],
            "not_kept": self.not_kept,
        }


# --- the ledger ------------------------------------------------------------------------------------


class _Marked(NamedTuple):
    loss_id: int
    mark: Mark


class _Done(NamedTuple):
    loss_id: int
    first_offset: int


class LedgerText(NamedTuple):
    """The readable part of a ledger.

    `losses` by id with the last mark of each, `unreadable` the numbers of lines that are damaged (from 1,
    counted in what was read), `skipped_bytes` how much of its beginning was left out, `done` the cuts that
    are known to be done.
    """

    losses: dict[int, Loss]
    marks: dict[int, Mark]
    unreadable: list[int]
    skipped_bytes: int
    done: set[int]


def encode_line(facts: Mapping[str, object]) -> bytes:
    """One line of the ledger, its sum and its end included."""
    body = json.dumps(facts)[:-1].encode()
    return b'%s, "crc": "%08x"}\n' % (body, crc32c(body))


def line_body(line: bytes) -> bytes | None:
    """A line without its sum and what follows; None if the sum is wrong."""
    match = _LINE.fullmatch(line)
    return match["body"] if match is not None and int(match["crc"], 16) == crc32c(match["body"]) else None


def parse_line(line: bytes) -> Loss | _Marked | _Done | None:
    """Parse a line without its line end; None if it is damaged."""
    body = line_body(line)
    if body is None:
        return None
    try:
        facts = json.loads(body + b"}")
        return _marked_of(facts) if "mark" in facts else _loss_of(facts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _marked_of(facts: Mapping[str, Any]) -> _Marked | _Done:
    if facts["mark"] == "cut":
        return _Done(_number(facts["id"], 1), _number(facts["first_offset"], 0))
    if facts["mark"] not in get_args(Mark):
        raise ValueError(facts["mark"])
    return _Marked(_number(facts["id"], 1), cast(Mark, facts["mark"]))


def _loss_of(facts: Mapping[str, Any]) -> Loss:
    if facts["who"] not in get_args(Who):
        raise ValueError(facts["who"])
    low, high = facts["epochs"]
    return Loss(
        id=_number(facts["id"], 1),
        at_ms=_number(facts["at_ms"], 0),
        who=cast(Who, facts["who"]),
        why=str(facts["why"]),
        first_offset=_number(facts["first_offset"], 0),
        last_offset=_number(facts["last_offset"], -1),
        end_offset=_number(facts["end_offset"], 0),
        records=_number(facts["records"], 0),
        batches=None if facts["batches"] is None else _number(facts["batches"], 0),
        size=_number(facts["bytes"], 0),
        epochs=(_number(low, -1), _number(high, -1)),
        below_high_watermark=facts["below_high_watermark"] is True,
        below_recovery_point=facts["below_recovery_point"] is True,
        pieces=tuple(_piece_of(piece) for piece in facts["pieces"]),
        not_kept=str(facts["not_kept"]),
    )


def _piece_of(facts: Mapping[str, Any]) -> Piece:
    name = facts["file"]
    if _SEGMENT_NAME.fullmatch(name) is None:  # it becomes part of a path
        raise ValueError(name)
    crc = None if facts["crc"] is None else _number(facts["crc"], 0)
    return Piece(name, _number(facts["from"], 0), _number(facts["bytes"], 0), crc)


def _number(value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= MAX_LONG:
        raise ValueError(value)
    return value


def parse_ledger(data: bytes, *, skipped_bytes: int = 0) -> LedgerText:
    """The whole lines of `data`; with `skipped_bytes` before it, its first line is half of one."""
    losses: dict[int, Loss] = {}
    marks: dict[int, Mark] = {}
    unreadable: list[int] = []
    done: set[int] = set()
    lines = data.split(b"\n")[1 if skipped_bytes else 0 : -1]
    for number, line in enumerate(lines, 1):
        match parse_line(line):
            case Loss() as loss:
                losses[loss.id] = loss
            case _Marked(loss_id, mark):
                marks[loss_id] = mark
            case _Done(loss_id):
                done.add(loss_id)
            case None:
                unreadable.append(number)
    return LedgerText(losses, marks, unreadable, skipped_bytes, done)


def _done(loss: Loss, at_ms: int) -> dict[str, object]:
    """Return the content of the line that says that a cut is done."""
    return {"id": loss.id, "at_ms": at_ms, "mark": "cut", "first_offset": loss.first_offset}


def cuts_since(disk: Disk, directory: str, position: int) -> tuple[list[int], int]:
    """Return the first offset of each cut by the lines past byte `position` of a ledger, and their end.

    For readers of another owner's directory. A cut has two entries: one before its bytes go, and one after
    that, before others take their place. Healing is left out: it puts back what was there. Raises `OSError`.
    """
    try:
        file = disk.open(f"{directory}/{LOST_DIRECTORY}/{LEDGER}")
    except (FileNotFoundError, NotADirectoryError):
        return [], 0
    with closing(file):
        position = min(position, file.size())  # on a full disk, an entry is taken back
        data = file.pread(file.size() - position, position)
    lines = data.split(b"\n")[:-1]
    found = [
        each.first_offset
        for each in map(parse_line, lines)
        if isinstance(each, _Done) or (isinstance(each, Loss) and each.who != "heal")
    ]
    return found, position + sum(len(line) + 1 for line in lines)


# --- the quarantine --------------------------------------------------------------------------------


class Quarantine:
    """The losses of the log in one directory. The log's lock is its lock; only reading needs none."""

    def __init__(self, disk: Disk, directory: str, *, due_ms: int = MAX_LONG) -> None:
        """`due_ms`: when to look for expired bytes; `MAX_LONG` for a directory that has no losses."""
        self._disk = disk
        self._directory = directory
        self.path = f"{directory}/{LOST_DIRECTORY}"
        self._ledger = f"{self.path}/{LEDGER}"
        self.due_ms = due_ms

    def place_of(self, loss_id: int, name: str = "") -> str:
        """The path of a loss's directory, or of a file in it."""
        return f"{self.path}/{loss_id}" + (f"/{name}" if name else "")

    # --- reading ------------------------------------------------------------------------------------

    def read(self) -> LedgerText:
        """Return the ledger; empty if there is none. Raises `OSError`."""
        try:
            file = self._disk.open(self._ledger)
        except (FileNotFoundError, NotADirectoryError):
            return LedgerText({}, {}, [], 0, set())
        try:
            skipped = max(file.size() - READ_BYTES, 0)
            return parse_ledger(file.pread(READ_BYTES, skipped), skipped_bytes=skipped)
        finally:
            file.close()

    def losses(self, text: LedgerText | None = None) -> list[Loss]:
        """Every loss that can be read, by id, with its standing as the files show it now.

        `text` is what `read` gave. Raises `OSError`.
        """
        text = text or self.read()
        return [
            replace(loss, standing=self._standing(loss, text.marks.get(loss_id)))
            for loss_id, loss in sorted(text.losses.items())
        ]

    def get(self, loss_id: int) -> Loss | None:
        """The loss of that id; None if there is none that can be read. Raises `OSError`."""
        return next((loss for loss in self.losses() if loss.id == loss_id), None)

    def open(self, loss: Loss, piece: Piece) -> File | None:
        """A piece in quarantine, to read; None if it is not there. Raises `OSError`."""
        try:
            return self._disk.open(self.place_of(loss.id, piece.file))
        except FileNotFoundError:
            return None

    def _standing(self, loss: Loss, mark: Mark | None) -> Standing:
        if mark is not None:
            return Standing(mark)
        if not loss.pieces:
            return Standing.NOTED
        kept = self._files_of(loss.id)
        in_place = [self._is_in_place(piece, kept) for piece in loss.pieces]
        # A segment that was moved may have preallocated zeros behind what it holds.
        is_kept = [kept.get(piece.file, -1) >= piece.size for piece in loss.pieces]
        if not all(map(or_, in_place, is_kept)):
            return Standing.MISSING
        return Standing.INTENDED if any(in_place) else Standing.QUARANTINED

    def _is_in_place(self, piece: Piece, kept: Mapping[str, int]) -> bool:
        if piece.crc is None and piece.file in kept:
            return False  # moved: what has its name now is another
        try:
            file = self._disk.open(f"{self._directory}/{piece.file}")
        except FileNotFoundError:
            return False
        try:
            end = piece.from_byte + piece.size
            if file.size() < end:
                return False
            return piece.crc is None or crc_of(file, piece.from_byte, end) == piece.crc
        finally:
            file.close()

    def _files_of(self, loss_id: int) -> dict[str, int]:
        try:
            entries = self._disk.scan(self.place_of(loss_id))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {entry.name: entry.size for entry in entries if not entry.is_directory}

    def kept_bytes(self, loss: Loss) -> int:
        """Return how many bytes of a loss are in quarantine. Raises `OSError`."""
        return sum(self._files_of(loss.id).values())

    # --- keeping ------------------------------------------------------------------------------------

    def enter(self, loss: Loss, *, tail: Tail | None = None, moved: Sequence[tuple[str, int]] = ()) -> Loss:
        """Make `loss` durable, with a copy of `tail`, before its data is removed; returns it as entered.

        `moved` names the segments (with their sizes) that the caller will take with `place_of`. Raises
        `OSError` with the quarantine as it was (unless its clearing up fails too: then that error).
        """
        known = self._names()
        used = [*self.read().losses, *(int(name) for name in known if name.isdecimal())]
        loss_id = 1 + max(used, default=0)
        pieces = [Piece(name, 0, size, None) for name, size in moved]
        if tail is not None:
            crc = crc_of(tail.file, tail.from_byte, tail.to_byte)
            pieces.insert(0, Piece(tail.name, tail.from_byte, tail.to_byte - tail.from_byte, crc))
        loss = replace(loss, id=loss_id, why=loss.why[:_WHY_CHARACTERS], pieces=tuple(pieces))
        place = self.place_of(loss_id)
        self._disk.make_dir(place if pieces else self.path)
        before: int | None = None
        try:
            if LEDGER not in known:
                self._disk.sync_dir(self._directory)
            before = self._append(loss.facts(), room=len(encode_line(_done(loss, MAX_LONG))))
            if tail is not None:
                self._copy(tail, f"{place}/{tail.name}")
            if pieces:
                self._disk.sync_dir(place)
            self._disk.sync_dir(self.path)
        except OSError:
            self._take_back(before, place if pieces else None, tail)
            raise
        self.due_ms = min(self.due_ms, loss.at_ms + KEPT_MS)
        return loss

    def take(self, loss_id: int, segment: Segment) -> None:
        """Move a segment that was entered and delete its indexes; its old directory is yet to be synced."""
        segment.delete(log_goes_to=self.place_of(loss_id, file_name(segment.base_offset, LOG_SUFFIX)))
        # The new name first: on a disk that may keep either half of a rename, two names beat none.
        self._disk.sync_dir(self.place_of(loss_id))

    def _copy(self, tail: Tail, path: str) -> None:
        copy = self._disk.open(path, create=True, exclusive=True)
        try:
            at = 0
            for chunk in chunks(tail.file, tail.from_byte, tail.to_byte):
                copy.pwrite(chunk, at)
                at += len(chunk)
            copy.sync()
        finally:
            copy.close()

    def _take_back(self, ledger_size: int | None, place: str | None, tail: Tail | None) -> None:
        if place is not None:
            if tail is not None:
                remove_if_exists(self._disk, f"{place}/{tail.name}")
            self._disk.remove_dir(place)
        if ledger_size is not None:
            file = self._disk.open(self._ledger, write=True)
            try:
                file.truncate(ledger_size)
            finally:
                file.close()

    def _append(self, facts: Mapping[str, object], *, room: int = 0) -> int:
        """Add one synced line, with `room` for the next one; returns where the line begins.

        The next line is written over that room, so that a full disk does not refuse it. Raises `OSError` with
        the whole lines as they were.
        """
        file = self._disk.open(self._ledger, create=True, write=True)
        try:
            size = file.size()
            start = max(size - READ_BYTES, 0)
            line_end = file.pread(size - start, start).rfind(b"\n") + 1
            end = start + line_end if line_end or not start else size
            line = encode_line(facts) + b" " * room
            data = line if line_end or not start else b"\n" + line
            try:
                # Over what is torn, which was never acknowledged, or over the room for this line.
                file.pwrite(data, end)
                if end + len(data) < size:
                    file.truncate(end + len(data))
                file.sync()
            except OSError:
                file.truncate(end)
                raise
            return end
        finally:
            file.close()

    # --- letting go ---------------------------------------------------------------------------------

    def mark(self, loss_id: int, mark: Mark, now_ms: int) -> None:
        """Record the state of a loss durably. Raises `OSError`."""
        self._append({"id": loss_id, "at_ms": now_ms, "mark": mark})

    def note_done(self, loss: Loss, now_ms: int) -> None:
        """Record that the bytes of a loss are gone. Raises `OSError`, but not for want of descriptors.

        The entry of the loss has left room for the line on a full disk. Without the line, nothing is lost but
        that a reader in another process may miss the cut.
        """
        try:
            self._append(_done(loss, now_ms))
        except OSError as error:
            if not is_shortage(error):
                raise
            _log.warning("%s: cannot record that loss %d was truncated: %s", self._ledger, loss.id, error)

    def note_unfinished(self, now_ms: int) -> None:
        """Note the last cut, if a stop came before that. Raises as `note_done`."""
        text = self.read()
        last = text.losses.get(max(text.losses, default=0))
        if (
            last is not None
            and last.who in ("truncation", "restart")
            and last.id not in text.done | text.marks.keys()
        ):
            self.note_done(last, now_ms)

    def purge(self, loss_id: int, now_ms: int) -> int:
        """Remove the bytes of one loss; its entry stays. Returns how many there were. Raises `OSError`."""
        return self._drop(loss_id, "purged", now_ms) if str(loss_id) in self._names() else 0

    def expire(self, now_ms: int, kept_ms: int = KEPT_MS) -> int:
        """Remove the bytes of losses that are older than `kept_ms`; returns how many. Raises `OSError`.

        Bytes whose entry cannot be read have the age of their directory.
        """
        text = self.read()
        freed = 0
        self.due_ms = MAX_LONG
        for name, modified_ms in self._names().items():
            if not name.isdecimal():
                continue
            loss = text.losses.get(int(name))
            gone_ms = (modified_ms if loss is None else loss.at_ms) + kept_ms
            if gone_ms <= now_ms or text.marks.get(int(name)) in ("expired", "purged"):  # by half
                freed += self._drop(int(name), "expired", now_ms)
            else:
                self.due_ms = min(self.due_ms, gone_ms)
        return freed

    def _drop(self, loss_id: int, mark: Mark, now_ms: int) -> int:
        text = self.read()
        if loss_id in text.losses and loss_id not in text.marks:
            # Said first: bytes that are missing without a word look like damage.
            self.mark(loss_id, mark, now_ms)
        place, freed = self.place_of(loss_id), 0
        for entry in self._disk.scan(place):
            if not entry.is_directory:
                self._disk.remove(f"{place}/{entry.name}")
                freed += entry.size
        self._disk.remove_dir(place)
        return freed

    def _names(self) -> dict[str, int]:
        """What the quarantine holds, with the time each was last changed."""
        try:
            entries = self._disk.scan(self.path)
        except FileNotFoundError:
            return {}
        return {entry.name: entry.modified_ms for entry in entries}
