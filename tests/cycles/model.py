"""What a directory must hold: what was acknowledged, and what compaction and retention may take from it.

plain    delete, no limit        every acknowledged record, for ever
short    delete, 2 MiB           the last of them, without a gap
keyed    compact                 the last record of each key; superseded ones may be there
deals    delete, transactions    committed reads get the records of committed transactions
ledger   compact, transactions   the last committed record of each key
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

Content: TypeAlias = tuple[bytes | None, bytes | None]
"""Key and value."""


class Row(NamedTuple):
    """A record as a reader gets it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Topic(NamedTuple):
    """A topic of the campaign, and its settings."""

    name: str
    settings: Mapping[str, str]
    is_compacted: bool = False
    is_cut: bool = False
    is_transactional: bool = False


_SEGMENT: Final = {"segment.bytes": "1048576"}
_COMPACT: Final = {
    **_SEGMENT,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
TOPICS: Final = (
    Topic("plain", _SEGMENT),
    Topic("short", {**_SEGMENT, "retention.bytes": "2097152"}, is_cut=True),
    Topic("keyed", _COMPACT, is_compacted=True),
    Topic("deals", _SEGMENT, is_transactional=True),
    Topic("ledger", _COMPACT, is_compacted=True, is_transactional=True),
)


@dataclass(slots=True)
class Written:
    """What the clients know of one topic: records with an answer, by offset, and records without one."""

    acknowledged: dict[int, Content] = field(default_factory=dict)
    unanswered: set[Content] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    """Offsets of aborted transactions."""
    open: set[int] = field(default_factory=set)
    """Offsets of the transaction that was open when the broker was killed."""


def complaints(topic: Topic, written: Written, rows: Sequence[Row], *, committed: bool) -> list[str]:
    """Return what is wrong with the records of a topic as they were read; empty if nothing is.

    `committed`: the reader asked for committed records only. An open transaction hides all behind it.
    """
    there = {row.offset: (row.key, row.value) for row in rows}
    found = [] if list(there) == sorted(there) and len(there) == len(rows) else ["the offsets do not rise"]
    for offset, content in there.items():
        known = written.acknowledged.get(offset)
        if content != known if known is not None else content not in written.unanswered:
            found.append(f"offset {offset} was never acknowledged, or not with this content")
    dropped = written.aborted | written.open
    if committed:
        found += [f"offset {each} was not committed" for each in sorted(there.keys() & dropped)]
    end = min(written.open, default=None) if committed else None
    needed = {each for each in written.acknowledged if end is None or each < end}
    if topic.is_cut:
        needed = {each for each in needed if each >= min(there, default=0)}
    if committed or topic.is_compacted:
        needed -= dropped
    if topic.is_compacted:
        contents = {**written.acknowledged, **there}
        last = last_of_keys((each, key) for each, (key, _) in contents.items() if each not in dropped)
        needed = {
            each for each in needed if last[contents[each][0]] == each and contents[each][1] is not None
        }
    return found + [f"offset {each} is missing" for each in sorted(needed - there.keys())]


def last_of_keys(rows: Iterable[tuple[int, bytes | None]]) -> dict[bytes | None, int]:
    """Return the last offset of each key."""
    last: dict[bytes | None, int] = {}
    for offset, key in rows:
        last[key] = max(offset, last.get(key, -1))
    return last


def changes(topic: Topic, before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """Return what an owner changed of the records that it found.

    It may remove old ones of a topic with a limit, and ones of a compacted topic: `complaints` judges those.
    """
    old = {row.offset: row for row in before}
    new = {row.offset: row for row in after}
    found = [
        f"offset {each}: {old[each]} became {new[each]}"
        for each in old
        if new.get(each, old[each]) != old[each]
    ]
    found += [f"offset {each} is new" for each in sorted(new.keys() - old.keys())]
    gone = old.keys() - new.keys()
    if topic.is_cut:
        gone = {each for each in gone if each >= min(new, default=0)}
    return found + ([] if topic.is_compacted else [f"offset {each} is gone" for each in sorted(gone)])
