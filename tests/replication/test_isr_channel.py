"""ISR proposals under way to the controller."""

from __future__ import annotations

from itertools import count

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.isr import CommittedIsr, PendingExpand
from logstore.replication.isr_channel import IsrChannel
from logstore.replication.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    IsrProposal,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
CONFIG = NodeConfig(node_id=0)
RETRY_MS = CONFIG.alter_partition_retry_ms
DONE = AlterPartitionResult(ErrorCode.NONE, 0, 1, (0, 1), 2)


def pending(version: int = 1) -> PendingExpand:
    return PendingExpand(CommittedIsr(frozenset({0})), IsrProposal(1, version, (0, 1)), 1)


class Channel:
    def __init__(self) -> None:
        self.channel = IsrChannel(CONFIG)
        self._ids = count(1)

    def ask(self, now_ms: int = 0, broker_epoch: int = 5) -> AlterPartitionRequest | None:
        found = self.channel.next_request(lambda: next(self._ids), broker_epoch, now_ms)
        return None if found is None else found[1]


def answers(**partitions: AlterPartitionResult) -> AlterPartitionResponse:
    named = {TopicPartition("t", int(name[1:])): result for name, result in partitions.items()}
    return AlterPartitionResponse(ErrorCode.NONE, named)


def test_one_request_carries_what_is_queued_and_the_next_what_came_meanwhile() -> None:
    """6.8: the first is in flight; the second carries the rest."""
    channel = Channel()
    first, second = pending(), pending()
    channel.channel.submit(P0, first)
    request = channel.ask()
    assert request == AlterPartitionRequest(0, 5, {P0: first.proposal})
    channel.channel.submit(P1, second)
    assert channel.ask() is None, "one in flight"
    assert channel.channel.on_response(answers(p0=DONE), 0) == [(P0, first, DONE)]
    request = channel.ask()
    assert request is not None
    assert list(request.partitions) == [P1]


def test_an_unregistered_broker_proposes_nothing() -> None:
    channel = Channel()
    channel.channel.submit(P0, pending())
    assert channel.ask(broker_epoch=-1) is None
    assert channel.ask() is not None


def test_no_answer_worth_the_name_is_asked_again_after_a_pause() -> None:
    """2.6: top-level errors, lost connections and timeouts keep the proposals queued."""
    channel = Channel()
    channel.channel.submit(P0, pending())
    assert channel.ask(0) is not None
    assert channel.channel.on_response(AlterPartitionResponse(ErrorCode.NOT_CONTROLLER), 0) == []
    assert channel.ask(RETRY_MS - 1) is None
    assert channel.ask(RETRY_MS) is not None
    channel.channel.on_disconnected(RETRY_MS)
    assert channel.channel.deadline_ms == 2 * RETRY_MS
    assert channel.ask(2 * RETRY_MS) is not None
    late_ms = 2 * RETRY_MS + CONFIG.request_timeout_ms
    assert channel.channel.deadline_ms == late_ms
    assert channel.ask(late_ms) is None
    assert channel.ask(late_ms + RETRY_MS) is not None


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_6_8_refused_as_a_whole(error: ErrorCode) -> None:
    """Kept, and sent again 50 ms later, for any reason."""
    channel = Channel()
    first = pending()
    channel.channel.submit(P0, first)
    channel.ask(0)
    assert channel.channel.on_response(AlterPartitionResponse(error), 7) == []
    assert channel.channel.holds(P0)
    assert channel.channel.deadline_ms == 57
    assert channel.ask(56) is None
    assert channel.ask(57) == AlterPartitionRequest(0, 5, {P0: first.proposal})


def test_6_8_ten_partitions_and_an_answer_that_leaves_one_out() -> None:
    """One goes at once, nine wait for its answer; that leaves it out: the next request carries all ten."""
    channel = Channel()
    proposals = {TopicPartition("t", number): pending() for number in range(10)}
    for partition, state in proposals.items():
        channel.channel.submit(partition, state)
        if partition == P0:
            request = channel.ask()
            assert request is not None
            assert list(request.partitions) == [P0]
    assert channel.ask() is None
    assert channel.channel.on_response(answers(), 0) == []
    request = channel.ask(RETRY_MS)
    assert request is not None
    assert list(request.partitions) == list(proposals)


def test_a_partition_missing_in_the_answer_stays_queued() -> None:
    """6.8: it is sent again, after a pause."""
    channel = Channel()
    first, second = pending(), pending()
    channel.channel.submit(P0, first)
    channel.channel.submit(P1, second)
    channel.ask(0)
    assert channel.channel.on_response(answers(p1=DONE), 0) == [(P1, second, DONE)]
    request = channel.ask(RETRY_MS)
    assert request is not None
    assert list(request.partitions) == [P0]


def test_a_proposal_that_was_overtaken_waits_for_the_old_answer_then_goes() -> None:
    """6.2: a LeaderAndIsr drops the pending state; a new proposal leaves after the old one is answered."""
    channel = Channel()
    old, new = pending(1), pending(2)
    channel.channel.submit(P0, old)
    channel.ask()
    channel.channel.withdraw(P0)
    channel.channel.submit(P0, new)
    assert channel.ask() is None
    assert channel.channel.on_response(answers(p0=DONE), 0) == [(P0, old, DONE)], "told apart by identity"
    request = channel.ask()
    assert request is not None
    assert request.partitions == {P0: new.proposal}


def test_withdrawn_before_it_left() -> None:
    channel = Channel()
    channel.channel.submit(P0, pending())
    channel.channel.withdraw(P0)
    assert channel.ask() is None
    assert channel.channel.deadline_ms is None


def test_resending_from_the_answer_is_accepted() -> None:
    """6.8: the entry is free before its answer is handed over."""
    channel = Channel()
    first = pending()
    channel.channel.submit(P0, first)
    channel.ask(0)
    [(partition, state, _)] = channel.channel.on_response(
        answers(p0=AlterPartitionResult(ErrorCode.UNKNOWN_SERVER_ERROR)), 0
    )
    channel.channel.resend(partition, state, 0)
    assert channel.ask(0) is None
    assert channel.ask(RETRY_MS) == AlterPartitionRequest(0, 5, {P0: first.proposal})
