"""Replicas compared over the wire: each judgement by its answers, and real brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from logstore.broker import BlockingClient, BrokerCluster
from logstore.broker.connections import Connections
from logstore.broker.limits import Address
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.cli.operating import wait_until
from logstore.cli.replica_fetching import Compared
from logstore.cli.replica_judging import Difference, Fetched, Judged, judge
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, encode_batch, walk
from logstore.format.record import Record
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]


def batch(first: int, last: int, *, epoch: int = 0, value: bytes = b"v") -> bytes:
    records = [Record(offset, 1000 + offset, b"k%d" % offset, value) for offset in range(first, last + 1)]
    return encode_batch(records, base_offset=first, leader_epoch=epoch)


def sparse(*offsets: int, value: bytes = b"v") -> bytes:
    """A batch of a compacted log, as the cleaner leaves it."""
    records = [Record(offset, 1000 + offset, b"k%d" % offset, value) for offset in offsets]
    return encode_batch(records, base_offset=offsets[0], leader_epoch=0)


def answer(*batches: bytes, high_watermark: int = 100) -> Fetched:
    return Fetched("", high_watermark, b"".join(batches))


def of(data: bytes) -> str:
    one = Batch(data)
    return f"offsets {one.base_offset} to {one.last_offset}, epoch {one.leader_epoch}, checksum {one.crc:08x}"


A, B, OTHER = batch(0, 4), batch(5, 9), batch(5, 9, value=b"w")
ELSE = batch(5, 9, epoch=1)


@pytest.mark.parametrize(
    ("replies", "judged"),
    [
        ({1: answer(A, B), 2: answer(A, B)}, Judged(10)),
        ({1: answer(A, B), 2: answer(A)}, Judged(5)),
        ({1: answer(A, B), 2: answer(A, B, high_watermark=5)}, Judged(5)),
        ({1: answer(A, B), 2: answer(A, OTHER)}, Judged(10, Difference(5, 1, 2, of(B), of(OTHER)))),
        ({1: answer(A, B), 2: answer(A, ELSE)}, Judged(10, Difference(5, 1, 2, of(B), of(ELSE)))),
        ({1: answer(A, B, high_watermark=5), 2: answer(A, OTHER, high_watermark=5)}, Judged(5)),
        (
            {1: answer(A, B), 2: answer(A, batch(5, 6), batch(7, 9))},
            Judged(10, Difference(5, 1, 2, of(B), of(batch(5, 6)))),
        ),
        (
            {1: answer(A, B), 2: answer(A, batch(7, 9))},
            Judged(10, Difference(5, 1, 2, of(B), of(batch(7, 9)))),
        ),
        ({1: answer(A, B), 2: answer()}, Judged(0)),
        ({1: answer(A, B), 2: Fetched("NOT_LEADER_OR_FOLLOWER"), 3: answer(A, B)}, Judged(10)),
        ({1: answer(A), 2: Fetched("KAFKA_STORAGE_ERROR")}, Judged(0)),
    ],
    ids=[
        "equal",
        "as far as both reach",
        "below both high watermarks",
        "another value",
        "another epoch",
        "a difference above a high watermark is none",
        "other batches",
        "records missing",
        "an answer without room",
        "a replica that does not answer",
        "one replica alone",
    ],
)
def test_each_judgement(replies: dict[int, Fetched], judged: Judged) -> None:
    assert judge(0, replies) == judged


def test_no_batch_below_the_high_watermark() -> None:
    """Without anything else in the fetch, an empty answer is a hole: in one replica, or in all."""
    found = judge(5, {1: answer(B, high_watermark=10), 2: answer(high_watermark=10)}, is_alone=True)
    assert found.difference == Difference(5, 1, 2, of(B), "no batch there")
    both = {1: answer(high_watermark=10), 2: answer(high_watermark=12)}
    assert judge(5, both, is_alone=True) == Judged(10)


def test_a_checksum_that_is_wrong_on_both_sides() -> None:
    bad = A[:-1] + bytes([A[-1] ^ 1])
    found = judge(0, {1: answer(bad), 2: answer(bad)})
    assert found.difference is not None
    assert found.difference.offset == 0
    assert "checksum" in found.difference.replica_has.lower() or "crc" in found.difference.replica_has.lower()


@pytest.mark.parametrize(
    ("ours", "theirs", "differs_at", "not_comparable"),
    [
        (sparse(0, 1, 2, 3), sparse(0, 3), -1, 2),
        (sparse(0, 3), sparse(3), -1, 1),
        (sparse(0, 2, 3), sparse(0, 1, 3), -1, 2),
        (sparse(0, 3), sparse(0, 3, value=b"w"), 0, 0),
    ],
    ids=["cleaned in one", "the first record gone", "cleaned in both", "another value"],
)
def test_compacted_replicas(ours: bytes, theirs: bytes, differs_at: int, not_comparable: int) -> None:
    """What only one still has is counted; what both have must be equal. Batches may be cut anew."""
    found = judge(0, {1: answer(ours), 2: answer(theirs)}, is_compacted=True)
    assert found.next_offset == 4
    assert (found.difference.offset if found.difference else -1) == differs_at
    assert found.not_comparable == not_comparable


def test_a_difference_counts_when_it_is_seen_twice() -> None:
    def begun() -> Compared:
        return Compared(TopicPartition("t", 0), (1, 2))

    passing, lasting = begun(), begun()
    differs, same = {1: answer(A, B), 2: answer(A, OTHER)}, {1: answer(A, B), 2: answer(A, B)}
    for each in (passing, lasting):
        each.take(differs, was_alone=False)
        assert (each.offset, each.is_alone, each.difference) == (0, True, None)
    passing.take(same, was_alone=True)
    assert (passing.offset, passing.suspect) == (10, None)
    lasting.take(differs, was_alone=True)
    assert lasting.difference is not None
    assert lasting.is_over


def test_a_batch_that_is_larger_than_the_fetch() -> None:
    """An answer with a part of a batch is not taken for a hole."""
    each = Compared(TopicPartition("t", 0), (1, 2))
    each.take({1: answer(A[:-10]), 2: answer(A[:-10])}, was_alone=True)
    assert each.is_over
    assert each.left_out[1] == "its batch at offset 0 is larger than --fetch-size"


# --- real brokers -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[BrokerCluster]:
    with BrokerCluster(3) as running:
        yield running


def compare(command: Command, bootstrap: str, *words: object) -> tuple[int, list[dict[str, object]]]:
    ended = command("compare-replicas", "--bootstrap", bootstrap, "--json", *words)
    assert ended.err == ""
    return ended.code, [json.loads(line) for line in ended.out.splitlines()]


def filled(cluster: BrokerCluster, topic: str, **settings: str) -> None:
    cluster.create_topic(topic, replication_factor=3, settings=settings)
    with closing(BlockingClient(cluster.bootstrap)) as client:
        for number in range(20):
            client.append(topic, [b"%d" % number] * 5, partition=0)


def test_replicas_of_running_brokers(command: Command, cluster: BrokerCluster) -> None:
    """Followers answer, from where the last log begins; small fetches and other topics do no harm."""
    filled(cluster, "equal")
    over = ("--bootstrap", cluster.bootstrap)
    whole = {"from": 0, "to": 100, "lag": 0, "left_out": {}, "difference": None}

    def is_whole() -> bool:
        code, lines = compare(command, cluster.bootstrap, "--topics", "equal", "--fetch-size", 200)
        assert code == 0
        assert lines[-1] == {"total": {"partitions": 1, "differing": 0, "max_lag": lines[0]["lag"]}}
        return whole.items() <= lines[0].items()

    assert wait_until(60, is_whole), "the followers hear of the last high watermark"
    assert command("delete-records", "equal-0", 30, *over).code == 0
    assert wait_until(
        60, lambda: compare(command, cluster.bootstrap, "--topics", "equal")[1][0]["from"] == 30
    )
    _, lines = compare(command, cluster.bootstrap, "--topics", "equal", "--time", "latest")
    assert (lines[0]["from"], lines[0]["to"]) == (100, 100)
    twice = command("compare-replicas", *over, "--topics", "equal", "--interval", 0, "--count", 2)
    assert twice.out == "1 partition compared, 0 differ, the largest lag is 0\n" * 2


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[Address, t.FetchResponse], None]]:
    """What changes the answers to fetches before the command sees them."""
    changes: list[Callable[[Address, t.FetchResponse], None]] = []
    plain = Connections.ask_wire

    async def heard(self: Connections, address: Address, request: Struct) -> Struct:
        reply = await plain(self, address, request)
        if isinstance(reply, t.FetchResponse):
            for change in changes:
                change(address, reply)
        return reply

    monkeypatch.setattr(Connections, "ask_wire", heard)
    return changes


def test_a_replica_that_differs(
    command: Command, cluster: BrokerCluster, replies: list[Callable[[Address, t.FetchResponse], None]]
) -> None:
    """The first difference is named with both sides, and the exit code is 1."""
    filled(cluster, "differs")
    liar = cluster.brokers[2].address

    def lie(address: Address, reply: t.FetchResponse) -> None:
        if address.port != liar.port:
            return
        for topic in reply.responses:
            for one in topic.partitions:
                found = [bytes(each.buffer) for each in walk(one.records or b"")]
                one.records = b"".join(
                    batch(40, 44, value=b"lie") if Batch(each).base_offset == 40 else each for each in found
                )

    replies.append(lie)
    assert wait_until(60, lambda: compare(command, cluster.bootstrap, "--topics", "differs")[0] == 1)
    _, (found, total) = compare(command, cluster.bootstrap, "--topics", "differs")
    difference = found["difference"]
    assert isinstance(difference, dict)
    assert difference["offset"] == 40
    assert 2 in (difference["replica"], difference["reference"])
    assert "offsets 40 to 44" in difference["replica_has"]
    assert total == {"total": {"partitions": 1, "differing": 1, "max_lag": found["lag"]}}
    text = command("compare-replicas", "--bootstrap", cluster.bootstrap, "--topics", "differs").out
    assert text.startswith("differs-0  at offset 40 broker 2 has offsets 40 to 44, epoch ")


def test_what_cannot_be_compared(command: Command, cluster: BrokerCluster) -> None:
    over = ("--bootstrap", cluster.bootstrap)
    none = command("compare-replicas", *over, "--topics", "none")
    assert (none.code, none.err) == (1, "logstore: no topic with two or more replicas matches\n")
    unclear = [("--time", each) for each in ("soon", "-3", "--1", "9" * 20)]
    for words in (*unclear, ("--topics", "("), ("--count", "2")):
        assert command("compare-replicas", *over, *words).code == 2
    assert "give directories, or --bootstrap" in command("compare-replicas").err


def test_a_leader_that_dies_while_replicas_are_compared(
    command: Command, cluster: BrokerCluster, replies: list[Callable[[Address, t.FetchResponse], None]]
) -> None:
    """The dead replica is left out with its reason; the others are compared. (The last test here.)"""
    filled(cluster, "fails-over")
    leader = cluster.leader("fails-over")
    other = next(each for each in (1, 2, 3) if each != leader)

    def kill(address: Address, reply: t.FetchResponse) -> None:
        replies.clear()
        cluster.kill(leader)

    replies.append(kill)
    over = cluster.brokers[other].bootstrap
    code, lines = compare(command, over, "--topics", "fails-over", "--fetch-size", 200)
    assert code == 0
    assert list(lines[0]["left_out"]) == [str(leader)]  # type: ignore[call-overload]
    assert wait_until(60, lambda: compare(command, over, "--topics", "fails-over")[1][0]["to"] == 100), (
        "the new leader commits what it has"
    )
