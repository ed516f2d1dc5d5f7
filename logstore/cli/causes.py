"""The problems of a cluster grouped by cause, each with its consequences. Pure.

A broker that is down makes each of its partitions short of a replica. That is one trouble with one next step,
and not one for each partition. Partitions with the same trouble for the same reason, and no cause beyond, are
one as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from logstore.cli.trouble import Kind, Rank, Trouble
from logstore.cli.troubles import in_order
from logstore.disk.topic_partition import TopicPartition

MOST_NAMED = 3


def causes(found: Sequence[Trouble]) -> list[Trouble]:
    """Group problems under their causes, and similar ones together; the worst first.

    A cause is as bad as the worst that follows from it.
    """
    subjects = {each.subject for each in found if each.kind is None}
    following: defaultdict[str, list[Trouble]] = defaultdict(list)
    rest = []
    for each in found:
        if not each.roots or not each.roots <= subjects:
            rest.append(each)
            continue
        for root in each.roots:
            following[root].append(each)
    causing = [_with(each, following[each.subject]) for each in rest if not each.kind]
    alike: dict[tuple[object, ...], list[Trouble]] = {}
    for each in rest:
        if each.kind:
            alike.setdefault((each.rank, each.kind, each.cause, each.next_step), []).append(each)
    return in_order([*causing, *map(_together, alike.values())])


def _with(cause: Trouble, following: Sequence[Trouble]) -> Trouble:
    if not following:
        return cause
    counts = Counter(each.kind for each in following)
    told = [
        f"{counts[kind]} {kind.value[counts[kind] > 1]} ({named(_subjects(following, kind))})"
        for kind in Kind
        if counts[kind]
    ]
    return replace(
        cause,
        rank=Rank(min(cause.rank, *(each.rank for each in following))),
        says=f"{cause.says}: {', '.join(told)}",
        partitions=cause.partitions.union(*(each.partitions for each in following)),
    )


def _subjects(troubles: Iterable[Trouble], kind: Kind) -> list[str]:
    return [each.subject for each in troubles if each.kind is kind]


def _together(alike: Sequence[Trouble]) -> Trouble:
    first = alike[0]
    assert first.kind is not None, "of partitions"
    if len(alike) == 1:
        return first
    partitions: frozenset[TopicPartition] = frozenset().union(*(each.partitions for each in alike))
    names = named([each.subject for each in alike])
    about_it = first.says.removeprefix("it ")
    return replace(
        first,
        subject=f"{len(alike)} partitions",
        says=f"{'in each, ' if about_it == first.says else 'each '}{about_it} ({names})",
        evidence=first.cause or first.evidence,
        partitions=partitions,
    )


def named(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
