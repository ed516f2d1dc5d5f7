"""Nodes understand each other: what the engine says comes out on the other side as it went in."""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from logstore.broker.errors import MalformedMessage
from logstore.broker.handlers import fetch
from logstore.broker.limits import LONGEST_WAIT_MS
from logstore.broker.node_messages import request_of, response_of, to_wire
from logstore.broker.peers import LANES
from logstore.broker.wire import interbroker as w
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.codec import decode, encode
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode
from logstore.disk.ids import id_to_text
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import messages as m
from logstore.segment.epochs import EpochEndOffset

TP = TopicPartition("t", 0)
REQUESTS: list[Any] = [
    m.LeaderAndIsrRequest,
    m.StopReplicaRequest,
    m.UpdateMetadataRequest,
    m.AlterPartitionRequest,
    m.ControlledShutdownRequest,
    m.FetchRequest,
    m.ListOffsetsRequest,
    m.OffsetForLeaderEpochRequest,
]
RESPONSES: list[Any] = [
    m.LeaderAndIsrResponse,
    m.StopReplicaResponse,
    m.UpdateMetadataResponse,
    m.AlterPartitionResponse,
    m.ControlledShutdownResponse,
    m.FetchResponse,
    m.ListOffsetsResponse,
    m.OffsetForLeaderEpochResponse,
]
TOPICS = st.text("abz09._-", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))
IDS = st.binary(min_size=16, max_size=16).filter(any).map(id_to_text)
# Shrinking messages of this size takes minutes, and the difference that pytest shows names the field.
SETTINGS = settings(derandomize=True, max_examples=25, deadline=None, phases=[Phase.generate])
LONG = {
    "broker_epoch",
    "fetch_offset",
    "log_start_offset",
    "high_watermark",
    "end_offset",
    "timestamp",
    "offset",
    "last_stable_offset",
    "producer_id",
    "first_offset",
}


def values_of(declared: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Any value that a declaration allows and that makes sense."""
    origin, arguments = get_origin(declared), get_args(declared)
    if declared is int:
        bits = 63 if name in LONG else 31
        return st.integers(-(2**bits), 2**bits - 1)
    if declared is TopicPartition:
        return st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1))
    if declared is m.IsrProposal:
        return proposals()
    if declared is m.BrokerEndpoint:
        return brokers(named=name == "live_brokers")
    if declared is EpochEndOffset:
        # An undefined end is never sent as where logs diverge (`reconcile.py`).
        ends = st.builds(EpochEndOffset, values_of(int), values_of(int, "end_offset"))
        return ends.filter(lambda end: end != (-1, -1))
    if name == "topic_ids":
        return st.dictionaries(TOPICS, IDS, max_size=3)
    if name == "topic_id":
        return IDS | st.just("")
    if name == "configs":
        return st.dictionaries(TOPICS, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
    if name == "assigned":
        return st.none() | st.dictionaries(values_of(TopicPartition), IDS | st.just(""), max_size=4)
    if declared is bytes or memoryview in arguments:
        return st.binary(max_size=20)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(each, name) for each in arguments])
    if declared is type(None):
        return st.none()
    if origin is tuple:
        # No message lists a partition twice; the reader drops the second one.
        is_unique = arguments[0] is TopicPartition
        return st.lists(values_of(arguments[0], name), max_size=3, unique=is_unique).map(tuple)
    if origin is Mapping:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if isinstance(declared, type) and issubclass(declared, Enum):
        return st.sampled_from(list(declared))
    if declared in (str, bool):
        return st.from_type(declared)
    hints = get_type_hints(declared)
    return st.builds(declared, **{each: values_of(hint, each) for each, hint in hints.items()})


@st.composite
def brokers(draw: st.DrawFn, *, named: bool) -> m.BrokerEndpoint:
    """Metadata has named listeners, LeaderAndIsr does not; the first one is the broker's address."""
    host, port = draw(st.text()), draw(values_of(int))
    endpoints = []
    if named:
        endpoints = draw(
            st.lists(st.builds(m.Endpoint, TOPICS, st.text(), values_of(int), st.integers(0, 3)))
        )
    if endpoints:
        host, port = endpoints[0].host, endpoints[0].port
    epoch = draw(values_of(int, "broker_epoch"))
    return m.BrokerEndpoint(draw(values_of(int)), host, port, epoch, draw(st.text()), tuple(endpoints))


@st.composite
def proposals(draw: st.DrawFn) -> m.IsrProposal:
    """Epochs of all members or of none, which is the same as all of them unknown."""
    isr = tuple(draw(st.lists(values_of(int), max_size=3)))
    epochs = tuple(draw(values_of(int, "broker_epoch")) for _ in isr)
    return m.IsrProposal(
        leader_epoch=draw(values_of(int)),
        partition_epoch=draw(values_of(int)),
        new_isr=isr,
        broker_epochs=epochs if draw(st.booleans()) and any(epoch != -1 for epoch in epochs) else (),
        all_synced=draw(st.booleans()),
        recovering=draw(st.booleans()),
    )


def sent(body: Any) -> Struct:
    """The message as the other node reads it."""
    wire = to_wire(body)
    version = API_OF[type(wire)].latest
    data = b"".join(encode(wire, version))
    received, used = decode(type(wire), version, memoryview(data))
    assert used == len(data)
    return received


@pytest.mark.parametrize("kind", REQUESTS)
@SETTINGS
@given(data=st.data())
def test_a_request_comes_out_as_it_went_in(kind: Any, data: st.DataObject) -> None:
    """The strategy follows the declarations: a field added there and not carried fails here."""
    body = data.draw(values_of(kind))
    wire = sent(body)
    if isinstance(wire, t.FetchRequest):  # any client may ask this; a leader knows names by their tags
        names = [topic.topic_name for topic in wire.topics]
        version = API_OF[t.FetchRequest].latest
        wait_ms = min(body.max_wait_ms, LONGEST_WAIT_MS)
        forgotten = [topic.topic_name for topic in wire.forgotten_topics_data]
        read = fetch.request_of(wire, version, names, forgotten, max_bytes=2**31)
        assert sorted(read.forgotten) == sorted(body.forgotten), "by topic"
        wanted = body._replace(max_wait_ms=wait_ms, forgotten=read.forgotten, uses_ids=True)
        assert read == wanted
        return
    assert request_of(wire) == body


@pytest.mark.parametrize("kind", RESPONSES)
@SETTINGS
@given(data=st.data())
def test_a_response_comes_out_as_it_went_in(kind: Any, data: st.DataObject) -> None:
    body = data.draw(values_of(kind))
    if isinstance(body, m.FetchResponse):  # a follower knows topics by name
        body = body._replace(topic_ids={})
    assert response_of(sent(body)) == body


def test_every_request_of_the_controllers_lanes_can_be_said() -> None:
    assert set(LANES) <= set(REQUESTS)


def test_epochs_that_are_all_unknown_are_read_as_none_given() -> None:
    """The controller's decision is the same for both (`alter_partition.py`)."""
    body = m.AlterPartitionRequest(1, 2, {TP: m.IsrProposal(3, 4, (1, 2), broker_epochs=(-1, -1))})
    assert request_of(sent(body)) == m.AlterPartitionRequest(1, 2, {TP: m.IsrProposal(3, 4, (1, 2))})


def test_what_kafka_has_a_field_for_is_in_that_field() -> None:
    """Tags are for what Kafka cannot say, not a second dialect."""
    fetch = to_wire(m.FetchRequest(7, 1, 2, 3, {TP: m.FetchPartition(5, 6)}, broker_epoch=9))
    assert isinstance(fetch, t.FetchRequest)
    assert fetch.replica_state == t.FetchRequestReplicaState(replica_id=7, replica_epoch=9)
    state = m.PartitionState(1, 2, 3, (2, 4), 5, (2, 4), adding_replicas=(4,))
    update = to_wire(m.UpdateMetadataRequest(1, 2, 3, {TP: state}, (m.BrokerEndpoint(2, "h", 9, 4, "r"),)))
    assert isinstance(update, w.UpdateMetadataRequest)
    assert update.live_brokers == [
        w.UpdateMetadataRequestBroker(
            id=2, endpoints=[w.UpdateMetadataRequestEndpoint(host="h", port=9)], rack="r", broker_epoch=4
        )
    ]
    assert update.topic_states[0].partition_states[0].zk_version == 5
    full = to_wire(m.LeaderAndIsrRequest(1, 2, 3, {TP: state}, assigned={TP: ""}))
    assert isinstance(full, w.LeaderAndIsrRequest)
    assert full.type == 2


def test_large_records_are_not_copied_on_their_way_to_the_engine() -> None:
    records = memoryview(bytes(1 << 20))
    wire = to_wire(m.FetchResponse({TP: m.FetchResult(ErrorCode.NONE, records=records)}))
    pieces = encode(wire, 16)
    assert any(piece is records for piece in pieces)
    frame = b"".join(pieces)
    body = response_of(decode(t.FetchResponse, 16, memoryview(frame))[0])
    assert isinstance(body, m.FetchResponse)
    view = body.partitions[TP].records
    assert isinstance(view, memoryview)
    assert view.obj is frame


def test_an_error_that_only_newer_nodes_know_is_an_unknown_one() -> None:
    answer = response_of(w.UpdateMetadataResponse(error_code=9999))
    assert answer == m.UpdateMetadataResponse(ErrorCode.UNKNOWN_SERVER_ERROR)


def role(topic: str, partition: int, durability: int = 0) -> w.LeaderAndIsrRequest:
    state = w.LeaderAndIsrRequestPartitionState(partition_index=partition, durability=durability)
    return w.LeaderAndIsrRequest(
        topic_states=[w.LeaderAndIsrRequestTopicState(topic_name=topic, partition_states=[state])]
    )


@pytest.mark.parametrize(
    "body",
    [
        *(role(topic, 0) for topic in ("..", "a/b", "", "x" * 250, "ü", "a\n")),
        role("t", -1),
        role("t", 0, durability=2),
        role("t", 0, durability=-1),
        w.LeaderAndIsrRequest(topic_states=role("t", 0).topic_states * 2),
        w.LeaderAndIsrRequest(topic_states=[w.LeaderAndIsrRequestTopicState(topic_name="..")]),
        w.LeaderAndIsrRequest(
            assigned=[w.LeaderAndIsrRequestAssignedTopic(topic_name="../t", partition_indexes=[0])]
        ),
        w.UpdateMetadataRequest(live_brokers=[w.UpdateMetadataRequestBroker(id=1)]),
        w.ControlledShutdownResponse(
            remaining_partitions=[w.ControlledShutdownResponseRemainingPartition(topic_name="")]
        ),
        t.ProduceRequest(),
    ],
    ids=repr,
)
def test_what_no_node_says_is_refused(body: Struct) -> None:
    """P7: LeaderAndIsr makes directories of these names. A partition that is there twice has two roles."""
    with pytest.raises(MalformedMessage):
        request_of(body)


@pytest.mark.parametrize("topic_id", ["x", "A" * 21 + "B", "A" * 23])
def test_an_id_that_is_none_is_refused_at_the_sender(topic_id: str) -> None:
    with pytest.raises(MalformedMessage):
        to_wire(m.UpdateMetadataRequest(1, 1, 1, {}, (), topic_ids={"t": topic_id}))


def test_a_number_that_does_not_fit_is_refused_at_the_sender() -> None:
    with pytest.raises(MalformedMessage):
        sent(m.ControlledShutdownRequest(1 << 31, 1))
