"""A client's Produce and Fetch to the leader of one partition, attempt after attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from logstore.broker.cluster_view import ClusterView
from logstore.broker.connections import Connections
from logstore.broker.errors import (
    MAY_BE_WRITTEN,
    PASSING,
    SEQUENCE_LOST,
    NotConnected,
    RequestRefused,
    RequestUnanswered,
)
from logstore.broker.retrying import TryAgain
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse

NO_LEADER: Final = "no leader answers"


async def ask_leader(
    cluster: ClusterView,
    connections: Connections,
    topic_partition: TopicPartition,
    body: Callable[[int], ProduceRequest | FetchRequest],
    deadline: float,
    what: str,
) -> Any:
    """Return the leader's result for one partition; `body` is called with the leader epoch.

    Raises `RequestRefused`, and `RequestUnanswered`: also for a batch that is refused after an attempt that
    may have appended it, because that refusal does not tell whether it is in the log.
    """
    asked_s = asyncio.get_running_loop().time()
    in_doubt: EngineError | None = None

    async def once() -> Any:
        nonlocal in_doubt
        leader = await cluster.leader(topic_partition, asked_s)
        try:
            answer = await connections.ask(leader.address, body(leader.epoch))
        except RequestUnanswered as error:
            in_doubt = in_doubt if isinstance(error, NotConnected) else error
            raise TryAgain(error) from error
        assert isinstance(answer, ProduceResponse | FetchResponse)
        result: Any = answer.partitions[topic_partition]
        if result.error is ErrorCode.NONE:
            return result
        refusal = RequestRefused(result.error, getattr(result, "message", "") or what)
        if result.error in PASSING:
            in_doubt = refusal if result.error in MAY_BE_WRITTEN else in_doubt
            raise TryAgain(refusal)
        if in_doubt is None or result.error in SEQUENCE_LOST or isinstance(answer, FetchResponse):
            raise refusal
        raise RequestUnanswered(f"{in_doubt}; sent again, the records were refused: {refusal}") from refusal

    return await cluster.retried(once, NO_LEADER, deadline)
