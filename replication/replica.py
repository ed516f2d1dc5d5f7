"""A leader's knowledge of one follower: where its log ends, and since when it has been caught up.

All of it is memory, for one leader epoch, rebuilt from the follower's fetches. A fetch at offset x
acknowledges everything below x; there is no other acknowledgement.

"Caught up" does not mean "equal": under load a follower never equals a leader that appends all the time. It
has caught up at time t once one of its fetches reaches the leader's end as of t.

         leader's end      10        15        15
    ──fetch at──────────── 5 ─────── 10 ────── 15 ──▶ time
                           t1        t2        t3
    caught up since        never     t1        t3      (t2's fetch reached the end as of t1)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

UNKNOWN_OFFSET = -1
UNKNOWN_BROKER_EPOCH = -1
# Not 0: a simulated clock may start there, and a replica without a fetch would count as caught up.
NEVER_MS = -(1 << 62)


class FetchClock:
    """The time of the last fetch in a session, for all of its unchanged partitions."""

    __slots__ = ("last_fetch_ms",)

    def __init__(self, last_fetch_ms: int) -> None:
        self.last_fetch_ms = last_fetch_ms


@dataclass(frozen=True, slots=True)
class RemoteReplica:
    """A follower as its leader knows it: a value, replaced at every fetch.

    Offsets are -1 while unknown; an unknown end holds the high watermark back. Times are epoch milliseconds,
    or `NEVER_MS`. `broker_epoch` is the incarnation that fetched last.

    While nothing moves, a fetch in a session does not name the partition. The replica then `rests` at the
    leader's end, and each fetch of the session is a fetch of it: `clock` tells the time of the last one.
    """

    replica_id: int
    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    caught_up_ms: int = NEVER_MS
    last_fetch_ms: int = NEVER_MS
    last_fetch_leader_end_offset: int = 0
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    clock: FetchClock | None = None

    def resting(self, clock: FetchClock) -> RemoteReplica:
        """Return its state after a fetch at the leader's end, valid until the partition changes."""
        return replace(self, clock=clock)

    def settled(self) -> RemoteReplica:
        """Return its state when the partition changes; earlier fetches of its session have counted."""
        if self.clock is None:
            return self
        last_fetch_ms = max(self.last_fetch_ms, self.clock.last_fetch_ms)
        caught_up_ms = max(self.caught_up_ms, last_fetch_ms)
        return replace(self, last_fetch_ms=last_fetch_ms, caught_up_ms=caught_up_ms, clock=None)

    def fetched(
        self,
        fetch_offset: int,
        *,
        log_start_offset: int,
        leader_end_offset: int,
        now_ms: int,
        broker_epoch: int = UNKNOWN_BROKER_EPOCH,
    ) -> RemoteReplica:
        """Return its state after a read at `fetch_offset`, with the leader at `leader_end_offset`."""
        before = self.settled()
        caught_up_ms = before.caught_up_ms
        if fetch_offset >= leader_end_offset:
            caught_up_ms = max(caught_up_ms, now_ms)  # the clock may have stepped back
        elif fetch_offset >= before.last_fetch_leader_end_offset:
            caught_up_ms = max(caught_up_ms, before.last_fetch_ms)
        return replace(
            before,
            log_end_offset=fetch_offset,
            log_start_offset=log_start_offset,
            caught_up_ms=caught_up_ms,
            last_fetch_ms=now_ms,
            last_fetch_leader_end_offset=max(leader_end_offset, before.last_fetch_leader_end_offset),
            broker_epoch=broker_epoch,
        )

    def under_new_epoch(
        self, *, in_isr: bool, was_leader: bool, leader_end_offset: int, now_ms: int
    ) -> RemoteReplica:
        """Return its state at the start of a leader epoch.

        A re-elected leader keeps its knowledge of its followers' logs; a new leader starts without it. An
        ISR member has the whole lag bound to fetch, others have none.
        """
        caught_up_ms = now_ms if in_isr else NEVER_MS
        if was_leader:
            return replace(
                self,
                caught_up_ms=caught_up_ms,
                last_fetch_ms=now_ms if in_isr else NEVER_MS,
                last_fetch_leader_end_offset=leader_end_offset,
                clock=None,
            )
        return RemoteReplica(
            self.replica_id,
            caught_up_ms=caught_up_ms,
            last_fetch_leader_end_offset=UNKNOWN_OFFSET,
        )

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Whether it equals the leader now, or was at its end within the lag bound.

        Equality counts however old the last fetch is: an idle topic must not change its ISR (KAFKA-7152).
        """
        return (
            self.log_end_offset == leader_end_offset
            or now_ms - self.settled().caught_up_ms <= lag_time_max_ms
        )
