"""Fetch sessions (KIP-227): the leader stores a reader's partitions, so requests contain only changes.

    request                session    what happens
    ───────                ───────    ────────────
    epoch -1               any id     no session; the one named is closed
    epoch 0                any id     the one named is closed; a new one, if the cache has room
    epoch n > 0            id         the request adds, changes and forgets partitions, and fetches them all
      unknown id                      FETCH_SESSION_ID_NOT_FOUND (70): the reader starts over in full
      another epoch than expected     INVALID_FETCH_SESSION_EPOCH (71), likewise
      names instead of ids, or the    FETCH_SESSION_TOPIC_ID_ERROR (106), likewise
      reverse

A response to a session holds only partitions with news. Of a session's partitions only the *restless* ones
are looked at when it fetches: those that moved since they were last answered, and those with something left
to send or to decide. The others are watched: a change of one makes it restless in every session that watches
it, once. So an idle partition costs nothing, and a change costs nothing for a session that has not answered
the one before. A request without a session is served in the same way, by a session of its own without an id.

The cache holds `max.incremental.fetch.session.cache.slots` sessions. When it is full, a new one replaces

    1. the one unused for longest, if for more than two minutes; else the least valuable of those that it may
       replace and that is worth no more than itself, by (of a follower, number of partitions)
    2. a follower's session may replace any consumer's, and followers' older than two minutes
    3. a consumer's session may replace any session older than two minutes

A session that finds no slot has id 0: its reader fetches in full. Ids differ between lives of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import (
    FINAL_SESSION_EPOCH,
    FIRST_SESSION_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchRequest,
    FetchResult,
)
from logstore.replication.replica import FetchClock

if TYPE_CHECKING:
    from logstore.replication.waiting import DelayedFetch

EVICTION_MS: Final = 120_000
"""A session unused, or in existence, for longer than this may be replaced."""
_LARGEST: Final = 2**31 - 1
_SPREAD: Final = 0x9E3779B1


def next_epoch(epoch: int) -> int:
    """Return the session epoch of the request after one with `epoch`."""
    return epoch + 1 if epoch < _LARGEST else 1


class Place(NamedTuple):
    """A position in the log of a partition; it compares with others under the same `stamp`."""

    stamp: Hashable
    segment: int
    """The base offset of the segment, which is a part of the stamp."""
    position: int


class Terms(NamedTuple):
    """The settings of a request for all of its partitions. After a change, all of them are checked."""

    replica_id: int
    broker_epoch: int
    newest_broker_epoch: int
    """The newest incarnation of the follower that is known here."""
    rack: str | None
    committed_only: bool
    counts_bytes: bool
    """Whether it waits for more than one byte."""


class FetchSession:
    """The partitions that one reader fetches, with the last results sent to it."""

    __slots__ = (
        "clock",
        "created_ms",
        "epoch",
        "id",
        "restless",
        "starts",
        "terms",
        "told",
        "used_ms",
        "uses_ids",
        "waiting",
        "wanted",
    )

    def __init__(self, wanted: dict[TopicPartition, FetchPartition], terms: Terms, now_ms: int) -> None:
        self.id = NO_SESSION
        self.epoch = next_epoch(FIRST_SESSION_EPOCH)
        """The epoch of the next request."""
        self.wanted = wanted
        self.told: dict[TopicPartition, tuple[int, int, int]] = {}
        """The last answer about each partition: high watermark, last stable offset, log start offset."""
        self.restless: dict[TopicPartition, None] = dict.fromkeys(wanted)
        """The partitions to look at. The first ones get the room of a response."""
        self.starts: dict[TopicPartition, tuple[int, int] | None] = {}
        """Where the unread bytes of a partition begin (segment, position), if the reader waits for many."""
        self.terms = terms
        self.uses_ids = False
        self.created_ms = self.used_ms = now_ms
        self.clock = FetchClock(now_ms)
        self.waiting: DelayedFetch | None = None
        """The request that waits for more bytes."""

    @property
    def is_of_follower(self) -> bool:
        return self.terms.replica_id >= 0

    def topic_ids(self, results: Iterable[TopicPartition]) -> dict[str, str]:
        """Return the ids by which the reader knows the topics of these partitions."""
        return {known.topic: self.wanted[known].topic_id for known in results}

    def news(self, results: dict[TopicPartition, FetchResult]) -> dict[TopicPartition, FetchResult]:
        """Return the results that differ from the last ones sent, and record them as sent."""
        found = {}
        for topic_partition, result in results.items():
            bounds = result.high_watermark, result.last_stable_offset, result.log_start_offset
            if (
                result.error is ErrorCode.NONE
                and not len(result.records)
                and result.diverging_epoch is None
                and result.preferred_read_replica < 0
                and self.told.get(topic_partition) == bounds
            ):
                continue
            found[topic_partition] = result
            self.told[topic_partition] = bounds
        return found


class FetchSessions:
    """The fetch sessions of a node, and the sessions that watch each partition."""

    def __init__(
        self,
        slots: int,
        *,
        settle: Callable[[TopicPartition, FetchSession], None],
        place_of: Callable[[TopicPartition], Place | None],
    ) -> None:
        """`slots` bounds the number of sessions; 0 for none.

        `settle` is called when a partition no longer rests in a follower's session. `place_of` returns where
        what consumers may read of a partition ends.
        """
        self.watchers: dict[TopicPartition, dict[FetchSession, None]] = {}
        """The sessions in which each partition rests, or for which a request waits. For reading."""
        self.byte_watchers: dict[TopicPartition, _ByteWatchers] = {}
        """The same, for fetches that need a partition to reach a position. For reading."""
        self.evictions = 0
        self._settle = settle
        self._place_of = place_of
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}
        """In order of use."""
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Count the partitions of all sessions."""
        return sum(len(session.wanted) for session in self._sessions.values())

    def get(self, session_id: int) -> FetchSession | None:
        """Return the session with this id, if there is one."""
        return self._sessions.get(session_id)

    def new_life(self, broker_epoch: int) -> None:
        """Choose the ids of later sessions, so that ids of an earlier run of this node match none."""
        self._next_id = broker_epoch * _SPREAD % _LARGEST

    # --- requests -----------------------------------------------------------------------------

    def open(self, body: FetchRequest, newest_broker_epoch: int, now_ms: int) -> FetchSession | ErrorCode:
        """Return the session that a request fetches in, with its changes applied; or the error."""
        terms = Terms(
            body.replica_id,
            body.broker_epoch,
            newest_broker_epoch,
            body.rack,
            body.committed_only,
            body.min_bytes > 1,
        )
        if body.session_epoch in (FINAL_SESSION_EPOCH, FIRST_SESSION_EPOCH):
            if body.session_id != NO_SESSION:
                self.close(body.session_id)
            session = FetchSession(dict(body.partitions), terms, now_ms)
            if body.session_epoch == FIRST_SESSION_EPOCH and body.partitions and self._makes_room(session):
                self._keep(session, body)
            return session
        found = self._sessions.get(body.session_id)
        if found is None or found.terms.replica_id != body.replica_id:
            mark("fetch session: unknown")
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if found.epoch != body.session_epoch:
            mark("fetch session: another epoch than the next one")
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if found.uses_ids != body.uses_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        self._change(found, body, terms)
        if not found.wanted:
            self.close(found.id)
            found.id = NO_SESSION
            return found
        found.epoch = next_epoch(found.epoch)
        found.used_ms = now_ms
        self._sessions[found.id] = self._sessions.pop(found.id)
        return found

    def _change(self, session: FetchSession, body: FetchRequest, terms: Terms) -> None:
        for topic_partition in body.forgotten:
            if session.wanted.pop(topic_partition, None) is not None:
                session.restless.pop(topic_partition, None)
                session.told.pop(topic_partition, None)
                session.starts.pop(topic_partition, None)
                self._unwatch(session, topic_partition)
                self._disturb(session, topic_partition)
        for topic_partition, wanted in body.partitions.items():
            # A partition named in a request is always answered: the reader may have dropped the last answer.
            session.told.pop(topic_partition, None)
            session.wanted[topic_partition] = wanted
            # At the end: others are served before one that has just got its records.
            session.restless.pop(topic_partition, None)
            session.restless[topic_partition] = None
        if terms != session.terms:
            mark("fetch session: other terms than before")
            session.terms = terms
            for topic_partition in session.wanted:
                session.restless.setdefault(topic_partition)
                self._disturb(session, topic_partition)

    def _keep(self, session: FetchSession, body: FetchRequest) -> None:
        session.uses_ids = body.uses_ids
        while self._next_id == NO_SESSION or self._next_id in self._sessions:
            self._next_id = (self._next_id + 1) % _LARGEST
        session.id = self._next_id
        self._next_id = (self._next_id + 1) % _LARGEST
        self._sessions[session.id] = session

    # --- the cache ----------------------------------------------------------------------------

    def _makes_room(self, new: FetchSession) -> bool:
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if new.used_ms - oldest.used_ms <= EVICTION_MS:
            candidates = [each for each in self._sessions.values() if _may_replace(new, each)]
            oldest = min(candidates, key=_value, default=oldest)
            if not candidates or _value(new) < _value(oldest):
                mark("fetch session: no slot")
                return False
        mark("fetch session: evicted")
        self.evictions += 1
        self.close(oldest.id)
        return True

    def close(self, session_id: int) -> None:
        """Drop a session, if there is one with this id. A request that waits in it is still answered."""
        session = self._sessions.pop(session_id, None)
        if session is not None and session.waiting is None:
            self.release(session)

    def take_back(self, session_id: int) -> int:
        """Forget an answer that is not sent, and return the id of the session that its reader keeps.

        A session that began with it ends: the reader drops its id. Any other answers everything again.
        """
        session = self._sessions.get(session_id)
        if session is None or session.epoch == next_epoch(FIRST_SESSION_EPOCH):
            self.close(session_id)
            return NO_SESSION
        session.told.clear()
        session.restless.update(dict.fromkeys(session.wanted))
        return session_id

    def release(self, session: FetchSession) -> None:
        """Stop watching for a session that is in no cache; a session in the cache continues."""
        if session.id not in self._sessions:
            for topic_partition in session.wanted:
                self._unwatch(session, topic_partition)

    # --- watching -----------------------------------------------------------------------------

    def watch(self, session: FetchSession, topic_partition: TopicPartition) -> None:
        """Watch the partition, so that a change makes the session check it."""
        self.watchers.setdefault(topic_partition, {})[session] = None

    def _unwatch(self, session: FetchSession, topic_partition: TopicPartition) -> None:
        watching = self.watchers.get(topic_partition)
        if watching is not None:
            watching.pop(session, None)
            if not watching:
                del self.watchers[topic_partition]

    def watch_from(
        self, session: FetchSession, topic_partition: TopicPartition, place: Place, position: int
    ) -> None:
        """Watch the partition for the session's waiting fetch, until it reaches `position`.

        Also when anything else than its end changes. The partition must be restless in the session.
        """
        assert session.waiting is not None, "a fetch waits"
        found = self.byte_watchers.get(topic_partition)
        if found is None or found.stamp != place.stamp:
            earlier = found.entries if found is not None else []
            found = self.byte_watchers[topic_partition] = _ByteWatchers(place.stamp)
            # Their old positions mean nothing now: they look when the partition is next woken.
            found.add_all((0, waiting) for _, _, waiting in earlier)
        found.add(max(position, place.position + 1), session.waiting)

    def moved(self, topic_partition: TopicPartition) -> Iterator[DelayedFetch]:
        """Mark a changed partition in the sessions that watch it; yield the waiting fetches to check.

        Those sessions watch it no more.
        """
        for session in self.watchers.pop(topic_partition, ()):
            session.restless.setdefault(topic_partition)
            self._disturb(session, topic_partition)
            if session.waiting is not None:
                yield session.waiting
        found = self.byte_watchers.get(topic_partition)
        if found is not None:
            place = self._place_of(topic_partition)
            is_same = place is not None and place.stamp == found.stamp
            yield from found.reached(place.position if place is not None and is_same else None)
            if not found.entries:
                self.byte_watchers.pop(topic_partition, None)

    def _disturb(self, session: FetchSession, topic_partition: TopicPartition) -> None:
        if session.is_of_follower:
            self._settle(topic_partition, session)


class _ByteWatchers:
    """Fetches that wait until one partition reaches a position, lowest first."""

    def __init__(self, stamp: Hashable) -> None:
        self.stamp = stamp
        self.entries: list[tuple[int, int, DelayedFetch]] = []
        self._sequence = 0
        self._purge_at = 64

    def add(self, position: int, waiting: DelayedFetch) -> None:
        self._sequence += 1
        heappush(self.entries, (position, self._sequence, waiting))
        if len(self.entries) >= self._purge_at:
            # Fetches that timed out or were abandoned. The next purge comes once as many have been added.
            self.entries = [each for each in self.entries if not each[2].is_completed]
            heapify(self.entries)
            self._purge_at = 64 + 2 * len(self.entries)

    def add_all(self, entries: Iterable[tuple[int, DelayedFetch]]) -> None:
        for position, waiting in entries:
            self.add(position, waiting)

    def reached(self, position: int | None) -> Iterator[DelayedFetch]:
        """Remove and yield those that wait for `position` or less; all of them for None."""
        while self.entries and (position is None or self.entries[0][0] <= position):
            waiting = heappop(self.entries)[2]
            if not waiting.is_completed:
                yield waiting


def _value(session: FetchSession) -> tuple[bool, int, int]:
    return session.is_of_follower, len(session.wanted), session.id


def _may_replace(new: FetchSession, old: FetchSession) -> bool:
    is_old = new.created_ms - old.created_ms > EVICTION_MS
    return is_old or (new.is_of_follower and not old.is_of_follower)
