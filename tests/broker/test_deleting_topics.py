"""A program deletes a topic: afterwards no broker lists it, and its name is free."""

from __future__ import annotations

import pytest

from logstore.broker import Broker, BrokerCluster, BrokerConfig, RequestRefused
from logstore.broker.blocking import BlockingClient
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from tests.broker.test_client import Script, run


def test_no_broker_lists_it_and_its_name_is_free() -> None:
    with BrokerCluster(3) as cluster:
        cluster.create_topic("t", 2)
        cluster.append("t", b"old")
        with BlockingClient(cluster.bootstrap) as client:
            client.delete_topic("t")
        assert all("t" not in broker.topics() for broker in cluster.brokers.values())
        cluster.create_topic("t", 1)
        cluster.append("t", b"new")
        assert [record.value for record in cluster.read("t")] == [b"new"]


@pytest.mark.parametrize(
    ("is_enabled", "error"),
    [("true", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("false", ErrorCode.TOPIC_DELETION_DISABLED)],
)
def test_what_is_refused_is_said(is_enabled: str, error: ErrorCode) -> None:
    with Broker(BrokerConfig(settings={"delete.topic.enable": is_enabled})) as broker:
        broker.create_topic("t")
        with pytest.raises(RequestRefused) as refusal:
            broker.delete_topic("nowhere")
        assert refusal.value.error is error
        assert broker.topics() == {"t": 1}


def answered(error: ErrorCode) -> t.DeleteTopicsResponse:
    result = t.DeleteTopicsResponseDeletableTopicResult(name="t", error_code=error)
    return t.DeleteTopicsResponse(responses=[result])


def test_a_topic_that_is_gone_after_a_lost_answer_was_deleted() -> None:
    async def test() -> None:
        async with Script(None, answered(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)) as script:
            await script.client.delete_topic("t")
            assert script.answers == []
        async with Script(answered(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)) as script:
            with pytest.raises(RequestRefused, match="topic t"):
                await script.client.delete_topic("t")

    run(test)
