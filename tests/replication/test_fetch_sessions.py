"""Fetch sessions (KIP-227), and what waiting requests and idle partitions cost: counted, not timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.log.upkeep import advance_log_start_offset
from logstore.replication import orders, reading, serving
from logstore.replication.config import NodeConfig
from logstore.replication.effects import Client, Peer, Send
from logstore.replication.fetch_sessions import next_epoch
from logstore.replication.isr import CommittedIsr
from logstore.replication.messages import FetchPartition, FetchRequest, FetchResponse, FetchResult
from logstore.replication.waiting import DelayedByPartition
from logstore.testing.stage import batch
from tests.replication.test_replica_manager import F1, F2, LAG_MS, ME, P0, P1, Manager

MANY = [TopicPartition("t", number) for number in range(60)]
WAIT_MS = 500


class Work(Counter[str]):
    """How often a partition was read, or looked at, by the requests of a node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        for name in ("read", "amount"):
            monkeypatch.setattr(reading, name, self._counting(name, getattr(reading, name)))
        look = DelayedByPartition._look

        def counted(*args: object) -> None:
            self["look"] += 1
            look(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(DelayedByPartition, "_look", counted)

    def _counting(self, name: str, real: object) -> object:
        def counted(*args: object, **settings: object) -> object:
            self[name] += 1
            return real(*args, **settings)  # type: ignore[operator]

        return counted

    def of(self) -> dict[str, int]:
        """Return what was done since the last call."""
        done = dict(self)
        self.clear()
        return done


class Rig(Manager):
    """Broker 0 leads partitions that brokers 1 and 2 follow."""

    def __init__(self, *partitions: TopicPartition, slots: int = 1000) -> None:
        config = NodeConfig(
            node_id=ME,
            replica_lag_time_max_ms=LAG_MS,
            max_incremental_fetch_session_cache_slots=slots,
        )
        super().__init__(config=config)
        self.role(ME, 1, *(partitions or MANY))

    def ask(
        self,
        replica_id: int,
        wanted: Mapping[TopicPartition, int] | None = None,
        *,
        session: tuple[int, int] = (0, -1),
        forgotten: tuple[TopicPartition, ...] = (),
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        broker_epoch: int = 5,
        token: str = "f",
        max_bytes: int = 1 << 20,
    ) -> FetchResponse | None:
        """Fetch these offsets; returns the answer, None while it waits."""
        body = FetchRequest(
            replica_id,
            max_wait_ms,
            min_bytes,
            1 << 20,
            {known: FetchPartition(offset, max_bytes) for known, offset in (wanted or {}).items()},
            broker_epoch,
            session_id=session[0],
            session_epoch=session[1],
            forgotten=forgotten,
        )
        address = Peer(replica_id, self._next_id()) if replica_id >= 0 else Client(token)
        self.take(serving.fetch(self.manager, address, body, self.now_ms))
        return self.body(FetchResponse, token) if replica_id < 0 else self.body(FetchResponse)

    def look(self) -> None:
        """Have waiting fetches look at what moved, as `Node.look` does."""
        self.manager.waiting.look(self.now_ms)
        self.take(self.manager.end_turn(self.now_ms))

    def join(self, replica_id: int, offset: int = 0, *partitions: TopicPartition) -> int:
        """Begin a session of a follower, or of a consumer (-1), at this offset everywhere; returns its id."""
        response = self.ask(replica_id, dict.fromkeys(partitions or MANY, offset), session=(0, 0))
        assert response is not None
        assert response.error is ErrorCode.NONE
        return response.session_id


# --- work -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waiters", [1, 50])
def test_an_append_costs_nothing_for_fetches_of_other_partitions(
    waiters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(P0, P1)
    for number in range(waiters):
        assert rig.ask(-1, {P1: 0}, max_wait_ms=WAIT_MS, token=f"c{number}") is None
    work = Work(monkeypatch)
    rig.produce("w", P0, acks=1)
    assert work.of() == {}


@pytest.mark.parametrize("partitions", [2, 60])
def test_a_fetch_looks_at_the_partition_that_moved_and_reads_it_once(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept sizes: of the other partitions nothing is looked at again, whether or not it is complete."""
    rig = Rig()
    size = len(batch(b"w"))
    for known in MANY[:partitions]:
        assert rig.manager.partitions[known].log.log_end_offset == 0
    wanted = dict.fromkeys(MANY[:partitions], 0)
    assert rig.ask(F1, wanted, max_wait_ms=WAIT_MS, min_bytes=2 * size) is None
    work = Work(monkeypatch)
    rig.produce("w", P0, acks=1)
    assert work.of() == {"amount": 1}
    rig.produce("w", P1, acks=1)
    assert work.of() == {"amount": 1, "read": 2}, "the two that moved"
    response = rig.body(FetchResponse)
    assert response is not None
    assert list(response.partitions) == list(wanted), "all of them are answered"
    assert {known for known, result in response.partitions.items() if result.records} == {P0, P1}


def test_appends_of_one_wake_up_are_fetched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker's loop reads several sockets before the followers' fetches look at what came."""
    rig = Rig(P0, P1)
    waiting = rig.manager.waiting
    waiting.defers_fetches = True
    assert rig.ask(F1, {P0: 0, P1: 0}, max_wait_ms=WAIT_MS) is None
    assert rig.ask(-1, {P1: 0}, max_wait_ms=WAIT_MS, token="consumer") is None
    work = Work(monkeypatch)
    rig.produce("a", P0, acks=1)
    rig.produce("b", P0, acks=1)
    rig.produce("c", P1, acks=1)
    assert rig.body(FetchResponse) is None, "nobody has looked"
    assert work.of() == {}
    assert waiting.has_to_look
    rig.look()
    assert not waiting.has_to_look
    response = rig.body(FetchResponse)
    assert response is not None
    first = len(response.partitions[P0].records)
    assert (first, len(response.partitions[P1].records)) == (2 * len(batch(b"a")), len(batch(b"c")))
    assert work.of()["amount"] <= 3, "each partition once for each fetch"
    assert rig.body(FetchResponse, "consumer") is None, "not committed"
    rig.look()
    assert rig.body(FetchResponse) is None, "answered once"


def test_a_fetch_is_answered_when_the_node_stops() -> None:
    """Nobody looks for it after that turn: the broker would keep the connection for its whole grace."""
    rig = Rig(P0)
    rig.manager.waiting.defers_fetches = True
    assert rig.ask(F1, {P0: 0}, max_wait_ms=WAIT_MS) is None
    rig.take(orders.stop(rig.manager, rig.now_ms))
    assert rig.body(FetchResponse) is not None


@pytest.mark.parametrize("ends", ["expires", "is abandoned"])
def test_a_fetch_that_ends_before_it_looks_is_not_answered_again(ends: str) -> None:
    rig = Rig(P0)
    waiting = rig.manager.waiting
    waiting.defers_fetches = True
    assert rig.ask(F1, {P0: 0}, max_wait_ms=WAIT_MS) is None
    rig.produce("a", P0, acks=1)
    assert waiting.has_to_look
    if ends == "expires":
        rig.now_ms += WAIT_MS
        rig.take(rig.manager.tick(rig.now_ms))
        assert rig.body(FetchResponse) is not None
    else:
        (fetch,) = (each for _, _, each in waiting.fetches._deadlines)
        waiting.abandon(fetch.address)
    rig.look()
    assert rig.body(FetchResponse) is None
    assert waiting.fetches.delayed == 0


@pytest.mark.parametrize("waiters", [1, 200])
def test_fetches_that_need_more_bytes_cost_nothing(waiters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for one position of the partition, all in one queue."""
    rig = Rig(P0)
    rig.role(ME, 2, P0, isr=(ME,))
    size = len(batch(b"w"))
    for number in range(waiters):
        assert rig.ask(-1, {P0: 0}, max_wait_ms=WAIT_MS, min_bytes=3 * size, token=f"c{number}") is None
    work = Work(monkeypatch)
    for _ in range(2):
        rig.produce("w", P0, acks=1)
        assert work.of() == {}
    rig.produce("w", P0, acks=1)
    assert work.of() == {"amount": waiters, "read": waiters}
    assert rig.manager.waiting.count == 0
    assert not rig.manager.waiting.sessions.byte_watchers


def test_a_fetch_that_needs_more_bytes_is_still_told_of_everything_else() -> None:
    rig = Rig(P0)
    assert rig.ask(-1, {P0: 0}, max_wait_ms=WAIT_MS, min_bytes=9999) is None
    rig.role(F1, 2, P0)
    response = rig.body(FetchResponse, "f")
    assert response is not None
    assert response.partitions[P0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_new_segment_lets_nobody_wait_who_needed_more_bytes_of_the_old_one() -> None:
    """Its positions mean nothing now. A consumer at its end waits in the new one."""
    rig = Rig(P0)
    rig.role(ME, 2, P0, isr=(ME,))
    size = len(batch(b"w"))
    assert rig.ask(-1, {P0: 0}, max_wait_ms=WAIT_MS, min_bytes=3 * size, token="before") is None
    rig.produce("w", P0, acks=1)
    rig.manager.partitions[P0].log.roll()
    assert rig.ask(-1, {P0: 1}, max_wait_ms=WAIT_MS, min_bytes=2 * size, token="behind") is None
    rig.produce("w", P0, acks=1)
    response = rig.body(FetchResponse, "before")
    assert response is not None
    assert len(response.partitions[P0].records) == size
    assert rig.body(FetchResponse, "behind") is None
    rig.produce("w", P0, acks=1)
    assert rig.body(FetchResponse, "behind") is not None


@pytest.mark.parametrize("partitions", [2, 60])
def test_an_append_of_many_partitions_looks_at_the_one_that_is_committed(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    rig.produce("w", *MANY[:partitions])
    assert rig.error("w") is None
    work = Work(monkeypatch)
    rig.follow(F1, 1, P0)
    rig.follow(F2, 1, P0)
    assert work.of()["look"] == 1
    for broker in (F1, F2):
        rig.follow(broker, 1, *MANY[1:partitions])
    assert rig.error("w") is ErrorCode.NONE


@pytest.mark.parametrize("waiters", [1, 50])
def test_an_abandoned_fetch_leaves_nothing_behind(waiters: int) -> None:
    rig = Rig(P0, P1)
    waiting = rig.manager.waiting
    for number in range(waiters):
        assert rig.ask(-1, {P0: 0, P1: 0}, max_wait_ms=WAIT_MS, token=f"c{number}") is None
        assert rig.ask(-1, {P1: 0}, max_wait_ms=WAIT_MS, min_bytes=9, token=f"b{number}") is None
    assert waiting.count == 2 * waiters
    for number in range(waiters):
        waiting.abandon(Client(f"c{number}"))
        waiting.abandon(Client(f"b{number}"))
    assert waiting.count == 0
    assert not waiting.sessions.watchers
    rig.produce("w", P0, acks=1)
    assert rig.body(FetchResponse) is None, "nobody is there to answer"


def test_an_abandoned_session_is_dropped() -> None:
    """Its reader starts over after a lost connection; until then it would keep partitions watched."""
    rig = Rig(P0)
    session = rig.join(-1, 0, P0)
    assert rig.ask(-1, session=(session, 1), max_wait_ms=WAIT_MS) is None
    rig.manager.waiting.abandon(Client("f"))
    assert len(rig.manager.waiting.sessions) == 0
    assert not rig.manager.waiting.sessions.watchers


def test_an_abandoned_append_is_forgotten() -> None:
    rig = Rig(P0)
    rig.produce("w", P0)
    rig.manager.waiting.abandon(Client("w"))
    assert rig.manager.waiting.count == 0
    for broker in (F1, F2):
        rig.follow(broker, 1, P0)
    assert rig.error("w") is None


# --- idle partitions --------------------------------------------------------------------------------


def test_idle_partitions_cost_a_session_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-227: only what moved is read and answered."""
    rig = Rig()
    sessions = {broker: rig.join(broker) for broker in (F1, F2)}
    work = Work(monkeypatch)
    for broker, session in sessions.items():
        assert rig.ask(broker, session=(session, 1)) == FetchResponse({}, ErrorCode.NONE, session, {})
    assert work.of() == {}
    rig.produce("w", P1, acks=1)
    response = rig.ask(F1, session=(sessions[F1], 2))
    assert response is not None
    assert list(response.partitions) == [P1]
    assert work.of() == {"read": 1}
    response = rig.ask(F1, {P1: 1}, session=(sessions[F1], 3))
    assert response is not None
    assert work.of()["read"] == 1


def test_a_waiting_session_is_woken_by_any_of_its_partitions() -> None:
    rig = Rig()
    session = rig.join(F1)
    assert rig.ask(F1, session=(session, 1), max_wait_ms=WAIT_MS) is None
    rig.produce("w", MANY[7], acks=1)
    response = rig.body(FetchResponse)
    assert response is not None
    assert list(response.partitions) == [MANY[7]]


def test_a_consumers_session_counts_bytes_from_where_it_rests() -> None:
    """min_bytes holds for partitions that no request has named for long."""
    rig = Rig()
    rig.role(ME, 2, *MANY, isr=(ME,))
    size = len(batch(b"w"))
    rig.produce("w", P0, P1, acks=1)
    wanted = dict.fromkeys(MANY, 0) | {P0: 1, P1: 1}
    response = rig.ask(-1, wanted, session=(0, 0), min_bytes=2 * size)
    assert response is not None
    session = response.session_id
    assert rig.ask(-1, session=(session, 1), max_wait_ms=WAIT_MS, min_bytes=2 * size) is None
    rig.produce("w", P0, acks=1)
    assert rig.body(FetchResponse) is None
    rig.produce("w", P1, acks=1)
    response = rig.body(FetchResponse, "f")
    assert response is not None
    assert response.partitions.keys() == {P0, P1}


def test_the_high_watermark_is_news_but_ends_no_wait() -> None:
    rig = Rig(P0)
    session = rig.join(F1, 0, P0)
    rig.produce("w", P0, acks=1)
    assert rig.ask(F1, {P0: 1}, session=(session, 1), max_wait_ms=WAIT_MS) is None
    rig.follow(F2, 1, P0)
    assert rig.manager.partitions[P0].log.high_watermark == 1
    assert all(not isinstance(each, FetchResponse) for each in rig.effects)
    rig.tick(WAIT_MS)
    response = rig.body(FetchResponse)
    assert response is not None
    assert response.partitions == {P0: FetchResult(ErrorCode.NONE, 1, 0)}
    response = rig.ask(F1, session=(session, 2))
    assert response is not None
    assert response.partitions == {}, "it has been told"


@pytest.mark.parametrize("what", ["role", "log start", "deletion"])
def test_other_changes_of_an_idle_partition_reach_the_session(what: str) -> None:
    rig = Rig(P0, P1)
    rig.produce("w", P0, P1, acks=1)
    for broker in (F1, F2):
        rig.follow(broker, 1, P0, P1)
    session = rig.join(F1, 1, P0, P1)
    rig.ask(F1, session=(session, 1))
    log = rig.manager.partitions[P0].log
    assert log.high_watermark == 1
    if what == "role":
        rig.role(F2, 2, P0)
    elif what == "log start":
        advance_log_start_offset(log, 1)  # as retention does
        rig.manager.note_log_starts()
        rig.tick(0)
    else:
        rig.stop(1, delete=True, tp=P0)
    response = rig.ask(F1, session=(session, 2))
    assert response is not None
    assert list(response.partitions) == [P0]
    result = response.partitions[P0]
    expected = {
        "role": (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
        "log start": (ErrorCode.NONE, 1),
        "deletion": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    }
    assert (result.error, result.log_start_offset) == expected[what]


def test_an_error_is_repeated_until_it_is_over() -> None:
    rig = Rig(P0)
    session = rig.join(-1, 0, P0)
    rig.role(F1, 2, P0)
    for epoch in (1, 2):
        response = rig.ask(-1, session=(session, epoch))
        assert response is not None
        assert response.partitions[P0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.role(ME, 3, P0)
    response = rig.ask(-1, session=(session, 3))
    assert response is not None
    assert response.partitions[P0].error is ErrorCode.NONE


# --- followers that rest ------------------------------------------------------------------------------


def isr_of(rig: Rig, topic_partition: TopicPartition = P0) -> frozenset[int]:
    """The ISR without the members that the leader wants to remove."""
    isr = rig.manager.partitions[topic_partition].isr
    return isr.committed if isinstance(isr, CommittedIsr) else frozenset(isr.proposal.new_isr)


def test_fetches_of_a_session_count_for_partitions_that_rest() -> None:
    """A follower at the end for an hour is in sync when the next record comes, and has the whole lag time."""
    rig = Rig(P0, P1)
    sessions = {broker: rig.join(broker, 0, P0, P1) for broker in (F1, F2)}
    for epoch in range(1, 50):
        rig.tick(LAG_MS // 2)
        for broker, session in sessions.items():
            rig.ask(broker, session=(session, epoch))
    rig.produce("w", P0, acks=1)
    rig.tick(LAG_MS // 2)
    assert isr_of(rig) == {ME, F1, F2}
    rig.tick(LAG_MS)
    assert isr_of(rig) == {ME}
    assert isr_of(rig, P1) == {ME, F1, F2}, "idle, at the end"


def test_a_partition_that_the_follower_forgot_is_not_fetched() -> None:
    """Its session goes on without it: the fetches of the others prove nothing about it."""
    rig = Rig(P0, P1)
    sessions = {broker: rig.join(broker, 0, P0, P1) for broker in (F1, F2)}
    rig.ask(F1, session=(sessions[F1], 1), forgotten=(P0,))
    rig.ask(F2, session=(sessions[F2], 1))
    epoch = 1
    rig.produce("w", P0, acks=1)
    for _ in range(6):
        epoch += 1
        rig.tick(LAG_MS // 3)
        rig.ask(F1, session=(sessions[F1], epoch))
        rig.ask(F2, {P0: 1}, session=(sessions[F2], epoch))
    assert isr_of(rig) == {ME, F2}


def test_a_follower_outside_the_isr_does_not_rest() -> None:
    """Each fetch may bring it back."""
    rig = Rig(P0)
    rig.role(ME, 1, P0, isr=(ME, F2))
    session = rig.join(F1, 0, P0)
    assert isr_of(rig) == {ME, F1, F2}
    request = next(each for each in rig.effects if isinstance(each, Send))
    assert rig.manager.waiting.sessions.get(session) is not None
    rig.manager.on_disconnected(request.correlation_id, rig.now_ms)
    found = rig.manager.waiting.sessions.get(session)
    assert found is not None
    assert P0 in found.restless


def test_a_former_life_of_a_follower_is_refused_in_its_session() -> None:
    """KIP-903: the leader knows of a newer incarnation: no partition of the session may rest."""
    rig = Rig(P0, P1)
    session = rig.join(F1, 0, P0, P1)
    response = rig.ask(F1, session=(session, 1), broker_epoch=4)
    assert response is not None
    errors = {result.error for result in response.partitions.values()}
    assert errors == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert response.partitions.keys() == {P0, P1}


# --- rules of the cache -------------------------------------------------------------------------------


def test_the_epochs_of_a_session() -> None:
    rig = Rig(P0)
    session = rig.join(-1, 0, P0)
    for epoch, error in [
        (1, ErrorCode.NONE),
        (1, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (3, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (2, ErrorCode.NONE),
    ]:
        response = rig.ask(-1, session=(session, epoch))
        assert response is not None
        assert response.error is error
    response = rig.ask(-1, session=(session + 1, 1))
    assert response == FetchResponse({}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    response = rig.ask(-1, {P0: 0}, session=(session, 0))
    assert response is not None
    assert response.session_id not in (0, session), "another one, and the old one is closed"
    assert len(rig.manager.waiting.sessions) == 1
    rig.ask(-1, {P0: 0}, session=(response.session_id, -1))
    assert len(rig.manager.waiting.sessions) == 0
    assert next_epoch(2**31 - 1) == 1


def test_a_session_without_partitions_ends() -> None:
    rig = Rig(P0)
    session = rig.join(-1, 0, P0)
    response = rig.ask(-1, session=(session, 1), forgotten=(P0,))
    assert response == FetchResponse({}, ErrorCode.NONE, 0, {})
    assert len(rig.manager.waiting.sessions) == 0


def test_a_request_that_overtakes_one_that_waits_ends_it() -> None:
    """The reader has given the first one up; two answers of one session would be told apart by nobody."""
    rig = Rig(P0)
    session = rig.join(-1, 0, P0)
    assert rig.ask(-1, session=(session, 1), max_wait_ms=WAIT_MS, token="first") is None
    assert rig.ask(-1, session=(session, 2), max_wait_ms=WAIT_MS, token="second") is None
    assert rig.body(FetchResponse, "first") == FetchResponse({}, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    rig.tick(WAIT_MS)
    assert rig.body(FetchResponse, "second") == FetchResponse({}, ErrorCode.NONE, session, {})


def test_an_answer_that_is_not_sent_leaves_no_session_without_a_reader() -> None:
    """A client above its quota gets an empty answer, and drops the session that a full fetch made."""
    rig = Rig(P0, P1)
    sessions = rig.manager.waiting.sessions
    for _ in range(3):
        first = rig.ask(-1, {P0: 0, P1: 0}, session=(0, 0))
        assert first is not None
        assert sessions.take_back(first.session_id) == 0
    assert (len(sessions), sessions.watchers) == (0, {})
    assert sessions.take_back(0) == 0


def test_what_an_answer_that_is_not_sent_said_is_said_again() -> None:
    rig = Rig(P0, P1)
    session = rig.join(-1, 0, P0, P1)
    rig.role(ME, 2, P0, P1, isr=(ME,))
    rig.produce("w", P0, acks=1)
    withheld = rig.ask(-1, session=(session, 1))
    assert withheld is not None
    assert rig.manager.waiting.sessions.take_back(session) == session
    again = rig.ask(-1, session=(session, 2))
    assert again is not None
    assert again.partitions.keys() == {P0, P1}


def test_without_slots_there_are_no_sessions() -> None:
    rig = Rig(P0, slots=0)
    assert rig.join(F1, 0, P0) == 0
    assert not rig.manager.waiting.sessions.watchers
