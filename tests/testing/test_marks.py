"""Rare branches of the engine: each has a name, and a seed that takes it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from logstore.testing.marks import catalogue
from logstore.testing.runner import run
from tests.testing.marks_index import index_of_marks, parse_index

EVENTS = 2000
INDEX = Path(__file__).with_name("marks.txt")
KNOWN = parse_index(INDEX.read_text())
NOT_REACHED = {
    "channel: a large request is sent in parts",
    "deletion: another topic has the name",
    "deletion: the topic was replaced in the store",
    "derived: an index of aborted transactions is rebuilt",
    "fetch session: a request overtakes one that waits",
    "follower: its leader's log is damaged there",
    "heal: an index of aborted transactions is built anew",
    "heal: another replica has the same batches, the epoch file is wrong",
    "heal: only derived files were damaged",
    "interrupt: a log start is written again",
    "interrupt: an append is undone",
    "log moves: one cannot go on",
    "log moves: one is done",
    "metadata: a topic is another one than before",
    "metadata: a topic was deleted unheard",
    "mirror: a copy made before a restart is whole",
    "mirror: the copy of a segment that changed or went is dropped",
    "mirror: the directory of a copy lacks its mark",
    "moves: a copy without a use goes",
    "moves: a log whose newer directory may be in a dir that is offline",
    "moves: directories of one name, and nothing tells which is the log",
    "moves: one goes on after a restart",
    "moves: one is ended before its copy is complete",
    "moves: the directory that a log has left goes",
    "moves: the disk of a copy fails",
    "moves: the disk that a log has left fails",
    "moves: the marks of an interrupted swap go",
    "moves: the swap fails, and the log stays",
    "partition: deleted batches of another history go",
    "partitions: the reply to their creation was lost",
    "reassignment: the topic of a request has vanished",
    "recovery: a damaged segment below the log start goes",
    "settle: a topic is gone before its first state",
    "topics: one vanished or was replaced without a request",
    "truncation: damage stays in front of the cut",
    "truncation: the whole segment is judged",
    "truncation: an epoch below the log start is that of the last sound batch",
}
"""Marks that none of the seeds 0..2899 reaches: unit tests alone cover them. A simulated cluster has fewer
partitions than a request holds, its clients send no second request before the first is answered, and its
logs do not move between log dirs; the others are rare."""
BUDGET = 150
"""Seeds to look through for a mark whose seed has moved."""


def test_marks_name_one_place_each_by_a_literal() -> None:
    names = catalogue()
    assert len(names) >= 155
    assert len(set(names)) == len(names)


def test_the_index_names_every_mark() -> None:
    """One that was added, renamed or removed: make the index anew, see docs/simulation.md."""
    assert not KNOWN.keys() & NOT_REACHED
    assert KNOWN.keys() | NOT_REACHED == set(catalogue())


@pytest.mark.simulation
@pytest.mark.timeout(600)
def test_every_mark_of_the_index_is_reached() -> None:
    """A campaign that never takes a branch says nothing of it. A seed moves with every change of the
    engine's messages: what its seed misses is looked for in others."""
    wanted = defaultdict(set)
    for name, seed in KNOWN.items():
        wanted[seed].add(name)
    missing = set(KNOWN)
    for seed in sorted(wanted):
        missing -= run(seed, EVENTS).marks.keys()
    for seed in range(BUDGET):
        if not missing:
            return
        missing -= run(seed, EVENTS).marks.keys()
    assert not missing


def test_an_index_says_which_seed_takes_which_mark() -> None:
    assert parse_index("7  a: b\n12  c: d e\n") == {"a: b": 7, "c: d e": 12}
    with pytest.raises(ValueError, match="no seed"):
        parse_index("no seed")


@pytest.mark.simulation
def test_the_index_is_made_of_few_seeds() -> None:
    text = index_of_marks(range(1, 4), 400)
    found = parse_index(text)
    assert found.keys() == set().union(*(run(seed, 400).marks for seed in (1, 2, 3)))
