"""What the seals say of a directory's segments, at the price of listing it: pure.

    0.log  ── 0.seal: 4,096 bytes, ends at 40, then 40 ──►  40.log  ── 40.seal: …, then 90 ──►  90.log

Each seal is held against the size of its segment and the base of the one that follows. Three things look
wrong and are not, because a crash leaves them: a seal beside the last segment (its successor never became
durable), more bytes behind it there (appended after a roll that failed), and an empty segment below the
successor that a seal names (it was being replaced, because the log had to go on at a higher offset).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from logstore.errors import Damage, DamageKind
from logstore.segment.seal import Seal


class Listed(NamedTuple):
    """A segment as the directory lists it; sizes in bytes."""

    base_offset: int
    size: int


class Chain(NamedTuple):
    """What the seals prove: everything below `durable_end` was synced once.

    `replaced` are bases of empty segments that something else has taken the place of; `whole` counts the
    segments up to the one that the first damage is in or follows.
    """

    damages: list[Damage]
    durable_end: int
    replaced: list[int]
    whole: int


def judge_chain(segments: Sequence[Listed], seals: Mapping[int, Seal], log_start_offset: int) -> Chain:
    """Hold each seal against its segment and the next one, oldest first.

    A hole that lies wholly below the log start is what a deletion leaves that a crash interrupted.
    """
    damages: list[Damage] = []
    replaced: list[int] = []
    durable_end = 0
    whole = len(segments)
    for number, (base_offset, size) in enumerate(segments):
        seal = seals.get(base_offset)
        if seal is None:
            continue
        durable_end = seal.end_offset
        behind = segments[number + 1 :]
        damages += _of_size(seal, size, behind)
        empties = 0
        while empties < len(behind) and behind[empties] < (seal.successor, 0) and not behind[empties].size:
            empties += 1
        following = behind[empties:]
        if following and following[0].base_offset > log_start_offset:
            replaced += [each.base_offset for each in behind[:empties]]
            damages += _of_successor(seal, following)
        if damages:
            whole = min(whole, number)
    return Chain(damages, durable_end, replaced, whole)


def _of_size(seal: Seal, size: int, behind: Sequence[Listed]) -> Iterable[Damage]:
    if size < seal.size:
        text = f"{size} bytes where {seal.size} were sealed"
        kind = DamageKind.SHORTER
    elif size > seal.size and behind:
        text = f"{size} bytes where {seal.size} were sealed, and later segments follow"
        kind = DamageKind.LONGER
    else:
        return
    # Which of its bytes are still good only a walk tells.
    yield Damage(kind, _log_name(seal.base_offset), 0, seal.base_offset, text, size + _bytes_in(behind))


def _of_successor(seal: Seal, following: Sequence[Listed]) -> Iterable[Damage]:
    found = following[0].base_offset
    lost = _bytes_in(following)
    sealed, missing = _log_name(seal.base_offset), _log_name(seal.successor)
    if found > seal.successor:
        text = f"it should follow {sealed}, and {_log_name(found)} does"
        yield Damage(DamageKind.SEGMENT_GONE, missing, 0, seal.end_offset, text, lost)
    elif found < seal.successor:
        text = f"{missing} should follow {sealed}, and this does"
        yield Damage(DamageKind.OVERLAP, _log_name(found), 0, found, text, lost)


def _bytes_in(segments: Sequence[Listed]) -> int:
    return sum(each.size for each in segments)


def _log_name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"
