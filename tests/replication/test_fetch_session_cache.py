"""The cache of fetch sessions (KIP-227): which sessions are kept, their ids, and what is news to one."""

from __future__ import annotations

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.fetch_sessions import EVICTION_MS, FetchSession, FetchSessions
from logstore.replication.messages import FetchPartition, FetchRequest, FetchResult


def opened(cache: FetchSessions, now_ms: int, *, size: int = 1, replica_id: int = -1) -> FetchSession:
    wanted = {TopicPartition("t", number): FetchPartition(0, 1) for number in range(size)}
    body = FetchRequest(replica_id, 0, 1, 1, wanted, session_epoch=0)
    session = cache.open(body, -1, now_ms)
    assert isinstance(session, FetchSession)
    return session


def a_cache(slots: int = 2) -> FetchSessions:
    return FetchSessions(slots, settle=lambda known, session: None, place_of=lambda known: None)


def test_who_is_sent_to_another_replica_is_told_each_time() -> None:
    session, known = opened(a_cache(), 0), TopicPartition("t", 0)
    idle = FetchResult(ErrorCode.NONE, 5, 0)
    assert session.news({known: idle}) == {known: idle}
    assert session.news({known: idle}) == {}
    elsewhere = idle._replace(preferred_read_replica=0)
    assert session.news({known: elsewhere}) == {known: elsewhere}


def test_a_full_cache_keeps_what_is_worth_more() -> None:
    """FetchSession.scala, tryEvict: a stale one, a consumer's for a follower's, an old and smaller one."""
    cache = a_cache()
    consumer, follower = opened(cache, 0, size=9), opened(cache, 0, replica_id=1)
    assert opened(cache, 1, size=50).id == 0, "both are young"
    another = opened(cache, 1, replica_id=2)
    assert (cache.get(consumer.id), len(cache), cache.evictions) == (None, 2, 1)
    assert opened(cache, 2, replica_id=3).id == 0, "followers' are young too"
    for session in (follower, another):
        body = FetchRequest(session.terms.replica_id, 0, 1, 1, {}, session_id=session.id, session_epoch=1)
        assert cache.open(body, -1, EVICTION_MS) is session
    later_ms = EVICTION_MS + 10
    assert opened(cache, later_ms, size=99).id == 0, "a consumer's is worth less"
    assert opened(cache, later_ms, replica_id=3, size=2).id != 0
    assert cache.get(follower.id) is None, "of the old ones the least, by size and id"


def test_a_session_unused_for_long_makes_room_for_any() -> None:
    cache = a_cache(1)
    follower = opened(cache, 0, replica_id=1, size=9)
    assert opened(cache, EVICTION_MS).id == 0
    assert opened(cache, EVICTION_MS + 1).id != 0
    assert cache.get(follower.id) is None


def test_ids_of_an_earlier_life_name_nothing() -> None:
    """A reader that continues the session of a leader that has restarted must not meet another one."""
    ids: set[int] = set()
    for broker_epoch in range(1, 50):
        cache = a_cache(100)
        cache.new_life(broker_epoch)
        ids.update(opened(cache, 0).id for _ in range(100))
    assert len(ids) == 49 * 100
    assert all(0 < each < 2**31 for each in ids)
