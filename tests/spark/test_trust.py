"""Which replica is trusted for which offsets: decided from findings alone."""

from __future__ import annotations

import random

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.verification.trust import Part, Repair, ReplicaLog, Suspect, repair_of

NAME = TopicPartition("orders", 0)


def log(node: str, start: int = 0, end: int = 100, epoch: int = 3) -> ReplicaLog:
    return ReplicaLog(node, f"/{node}", start, end, epoch)


def bad(nodes: str, start: int, end: int, kind: str = "checksum") -> Suspect:
    return Suspect(kind, tuple(nodes), (), start, end, "")


def dispute(among: str, start: int, end: int) -> Suspect:
    return Suspect("bytes", (), tuple(among), start, end, "")


def plan(logs: list[ReplicaLog], *suspects: Suspect, committed: int = 100, prefer: str = "") -> Repair:
    return repair_of(NAME, logs, suspects, committed=committed, prefer=tuple(prefer))


def test_the_log_stays_on_the_replica_with_the_fewest_changes() -> None:
    found = plan([log("a"), log("b"), log("c")], bad("a", 20, 30), bad("b", 50, 52), bad("c", 0, 90))
    assert found.parts == (Part(0, 50, "b"), Part(50, 52, "a"), Part(52, 100, "b"))
    assert found.ranking == ("b", "a", "c")


def test_what_nobody_has_sound_is_nobodys() -> None:
    found = plan([log("a"), log("b")], bad("a", 20, 40), bad("b", 30, 50))
    assert found.parts == (Part(0, 20, "a"), Part(20, 30, "b"), Part(30, 40, ""), Part(40, 100, "a"))
    assert found.untrusted == [Part(30, 40, "")]


def test_what_no_replica_reaches_any_more_is_gone() -> None:
    gaps = [bad("a", 0, 10, "gap"), bad("a", 100, 120, "gap"), bad("b", 100, 110, "gap")]
    found = plan([log("a", 10), log("b", 5)], *gaps)
    assert found.parts == (Part(5, 100, "b"),)
    assert found.gone == (Part(0, 5, ""), Part(100, 120, ""))
    assert plan([log("a", 10), log("b", 0, 120)], *gaps).gone == ()


def test_a_finding_without_an_end_reaches_to_the_end() -> None:
    found = plan([log("a"), log("b", epoch=2)], bad("a", 60, -1))
    assert found.parts == (Part(0, 100, "b"),)


def test_a_replica_of_another_topic_counts_for_nothing() -> None:
    found = plan([log("a", end=500), log("b", end=40)], bad("a", 0, -1, kind="topic"), committed=40)
    assert found.parts == (Part(0, 40, "b"),)
    assert set(found.logs) == {"b"}


def test_each_offset_is_from_a_replica_that_holds_it() -> None:
    found = plan([log("a", 50), log("b", 0, 80), log("c", 10, 60)], bad("b", 20, 30))
    assert found.parts == (Part(0, 20, "b"), Part(20, 30, "c"), Part(30, 80, "b"), Part(80, 100, "a"))


@pytest.mark.parametrize(("prefer", "node"), [("", "a"), ("b", "b"), ("cb", "b")])
def test_disputed_offsets(prefer: str, node: str) -> None:
    """The files do not say who is right; whoever repairs may. Other offsets stay where they are."""
    found = plan([log("a"), log("b"), log("c")], dispute("ab", 20, 30), bad("c", 10, 40), prefer=prefer)
    assert found.node_at(25) == node
    assert {found.node_at(offset) for offset in (5, 15, 35, 45)} == {"a"}
    assert [each.offset for each in found.disputed] == [20]


def test_past_the_committed_offsets_one_replica_is_taken_as_an_election_would() -> None:
    """The newest epoch before the longest log."""
    logs = [log("a", end=130, epoch=2), log("b", end=110, epoch=3), log("c", end=105, epoch=3)]
    assert plan(logs, bad("b", 0, 5)).parts == (Part(0, 100, "c"), Part(100, 110, "b"))
    assert plan(logs, bad("b", 100, 103)).parts[1:] == (Part(100, 103, "c"), Part(103, 110, "b"))
    assert plan(logs, bad("b", 100, -1)).parts[1:] == (Part(100, 105, "c"), Part(105, 110, ""))


def test_nothing_is_left_out_and_nothing_is_trusted_wrongly() -> None:
    """Any findings: the parts cover all offsets in order, each from a node that nothing is said against."""
    draw = random.Random(7)
    for _ in range(300):
        logs = [log(node, draw.randrange(30), draw.randrange(60, 120), draw.randrange(3)) for node in "abc"]
        suspects = [
            bad(
                draw.choice(["a", "b", "c", "ab"]),
                start := draw.randrange(120),
                start + draw.randrange(1, 40),
            )
            for _ in range(draw.randrange(6))
        ]
        committed = draw.randrange(60, 120)
        found = plan(logs, *suspects, committed=committed)
        beyond = [each for each in logs if each.end_offset > committed]
        newest = max((each.last_epoch for each in beyond), default=-1)
        reached = min(each.start_offset for each in logs)
        for part in found.parts:
            assert part.start_offset == reached < part.end_offset
            reached = part.end_offset
            for offset in range(part.start_offset, part.end_offset):
                trusted = {
                    each.node
                    for each in logs
                    if (offset < committed or each.last_epoch == newest)
                    and each.start_offset <= offset < each.end_offset
                    and not any(each.node in s.nodes and s.offset <= offset < s.end for s in suspects)
                }
                assert part.node in trusted if part.node else not trusted
