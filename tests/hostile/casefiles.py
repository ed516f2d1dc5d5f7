"""Cases of hostile traffic as files: what a client sends, byte for byte, and what has to come of it.

    cases/<class>.json   {"about": …, "cases": [{"name", "why", "send", "expect", …}, …]}

    send        what goes down one fresh connection, in pieces: hex digits; [hex digits, how often];
                or {"numbers": [first, end], "before": hex digits, "after": hex digits}: those numbers,
                each as an int32 between the same bytes
    expect      what comes of it, in order:
                  {"api", "version", "errors"}   an answer, with the error code of each partition, topic
                                                 or resource in it by name; "" is the answer's own
                  "nothing"                      no answer; the connection serves the next request
                  "waiting"                      no answer yet, and the connection stays: more is to come
                  "closed"                       the connection ends without another byte
    piece       bytes to send at a time, where that matters
    memory_mib  how far the broker's process may grow meanwhile, where it is not `MEMORY_MIB`

`make_cases.py` writes the files; a test compares. Expectations are written by hand there, never recorded.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logstore.broker.wire.declarations import Struct

DIRECTORY: Final = Path(__file__).parent / "cases"
MEMORY_MIB: Final = 32
"""Sender and broker share a process: what is sent and what it becomes."""

_MOST_LABELS: Final = 20
_RUN = re.compile(rb"(.{1,8}?)\1{15,}", re.DOTALL)
_NAMES: Final = ("name", "topic", "topic_name", "resource_name", "group_id", "log_dir")
_NUMBERS: Final = ("partition_index", "partition_id", "partition", "index")


@dataclass(frozen=True, slots=True)
class Numbers:
    """Many small things that differ in a number."""

    first: int
    end: int
    before: bytes
    after: bytes

    def __bytes__(self) -> bytes:
        return b"".join(
            self.before + struct.pack(">i", number) + self.after for number in range(self.first, self.end)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    why: str
    send: list[bytes | Numbers]
    expect: list[Any]
    piece: int = 0
    memory_mib: int = MEMORY_MIB

    @property
    def data(self) -> bytes:
        return b"".join(map(bytes, self.send))


def load(path: Path) -> list[Case]:
    found = json.loads(path.read_text())
    return [Case(**{**each, "send": [_unpacked(piece) for piece in each["send"]]}) for each in found["cases"]]


def text_of(about: str, cases: list[Case]) -> str:
    """A class's file."""
    rows = []
    for case in cases:
        row: dict[str, Any] = {
            "name": case.name, "why": case.why, "send": _packed(case.send), "expect": case.expect,
        }  # fmt: skip
        if case.piece:
            row["piece"] = case.piece
        if case.memory_mib != MEMORY_MIB:
            row["memory_mib"] = case.memory_mib
        rows.append("  " + json.dumps(row, ensure_ascii=True))
    listed = ",\n".join(rows)
    return f'{{"about": {json.dumps(about)},\n "cases": [\n{listed}\n]}}\n'


def _packed(parts: list[bytes | Numbers]) -> list[Any]:
    """Hex digits, with what is repeated many times written once."""
    pieces: list[Any] = []
    for part in parts:
        if isinstance(part, Numbers):
            numbers = {
                "numbers": [part.first, part.end],
                "before": part.before.hex(),
                "after": part.after.hex(),
            }
            pieces.append(numbers)
            continue
        at = 0
        for run in _RUN.finditer(part):
            if run.start() > at:
                pieces.append(part[at : run.start()].hex())
            pieces.append([run[1].hex(), len(run[0]) // len(run[1])])
            at = run.end()
        if at < len(part):
            pieces.append(part[at:].hex())
    return pieces


def _unpacked(piece: Any) -> bytes | Numbers:
    if isinstance(piece, dict):
        first, end = piece["numbers"]
        return Numbers(first, end, bytes.fromhex(piece["before"]), bytes.fromhex(piece["after"]))
    if isinstance(piece, list):
        return bytes.fromhex(piece[0]) * int(piece[1])
    return bytes.fromhex(piece)


def errors_of(answer: Struct, version: int) -> dict[str, int]:
    """Every error code in an answer, by what it is about; very many equal ones as `{"100000 times": 3}`."""
    found = list(_errors(answer, version, ""))
    if len(found) > _MOST_LABELS and len({code for _, code in found}) == 1:
        return {f"{len(found)} times": found[0][1]}
    errors: dict[str, int] = {}
    for label, code in found:
        while label in errors:
            label += "'"
        errors[label] = code
    return errors


def _errors(message: Struct, version: int, inside: str) -> Iterator[tuple[str, int]]:
    parts = [inside] if inside else []
    for name in _NAMES:
        if isinstance(value := getattr(message, name, None), str) and value:
            parts.append(value if len(value) < 40 else f"{value[:10]}…{len(value)}")
    parts += [
        str(getattr(message, name)) for name in _NUMBERS if isinstance(getattr(message, name, None), int)
    ]
    label = "-".join(parts)
    for name, field in message.FIELDS.items():
        if version not in field.versions:
            continue
        value = getattr(message, name)
        if name == "error_code":
            yield label, int(value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Struct):
                    yield from _errors(each, version, label)
