"""Every option of a read: default, effect on what is parsed, refusals. Rows: `test_batch_read.py`."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.columns import CONNECTOR_COLUMNS
from logstore.spark.errors import InvalidOption, UnknownTopic
from logstore.spark.offsets import AtOffsets, AtTime, AtTimes, Earliest, Latest, format_offsets
from logstore.spark.read_options import Isolation, ReadOptions, Selection

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
BASE = {"path": "/logs", "subscribe": "a"}


def parse(streaming: bool | None = False, /, **options: str) -> ReadOptions:
    return ReadOptions.parse({**BASE, **options}, streaming=streaming)


def refused(text: str, streaming: bool | None = False, /, **options: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        parse(streaming, **options)


def test_defaults_of_a_batch_and_of_a_stream() -> None:
    """Those of Spark's own source, one for one."""
    batch, stream = parse(False), parse(True)
    assert (batch.starting, batch.ending) == (Earliest(), Latest())
    assert (stream.starting, stream.ending) == (Latest(), Latest())
    for options in (batch, stream):
        assert options.columns == CONNECTOR_COLUMNS
        assert options.fail_on_data_loss
        assert not options.latest_if_no_time
        assert (options.min_partitions, options.max_records_per_partition) == (None, None)
        assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (None, None)
        assert options.max_trigger_delay_ms == 15 * 60_000
        assert (options.poll_timeout_ms, options.fetch_retries, options.fetch_retry_interval_ms) == (
            120_000,
            3,
            10,
        )
        assert (options.group_id_prefix, options.group_id) == ("spark-kafka-source", None)
        assert options.isolation is Isolation.READ_UNCOMMITTED
        assert not options.pushdown
        assert options.ignored == ()


def test_names_in_any_letter_case() -> None:
    """Spark hands them over in lower case; a program that calls without it need not."""
    for name in ("failondataloss", "failOnDataLoss", "FAILONDATALOSS"):
        assert not parse(**{name: "False"}).fail_on_data_loss


def test_options_travel_to_other_processes() -> None:
    """They are part of the reader that Spark pickles."""
    options = parse(startingOffsets='{"a":{"0":3}}', **{"kafka.client.id": "me"})
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"assign": '{"a":[1,0]}'}, Selection(partitions=(A0, A1))),
        ({"subscribe": " a, b,a,"}, Selection(topics=("a", "b"))),
        ({"subscribePattern": "a.*"}, Selection(pattern="a.*")),
    ],
)
def test_what_is_read(options: dict[str, str], expected: Selection) -> None:
    """One of three ways to say it."""
    assert ReadOptions.parse({"path": "/logs", **options}, streaming=False).selection == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"exactly one of the options assign, subscribe, subscribePattern \(given: none\)"),
        ({"assign": '{"a":[0]}', "subscribe": "a"}, "given: assign and subscribe"),
        ({"assign": "a"}, r"option assign is 'a', not JSON .*; write it like \{\"topic\":\[0,1\]\}"),
        ({"assign": '{"a":0}'}, "'a' has 0; write it like"),
        ({"assign": '{"a":[-1]}'}, "write it like"),
        ({"assign": "{}"}, "names no partition"),
        ({"assign": '{"t":[0],"t":[1]}'}, "'t' is named twice"),
        ({"assign": '{"t":[2147483648]}'}, "write it like"),
        ({"subscribe": " , "}, "option subscribe names no topic"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"subscribePattern": " "}, "is empty"),
    ],
)
def test_what_is_read_must_be_said_once_and_well(options: dict[str, str], message: str) -> None:
    """Otherwise nothing is opened."""
    with pytest.raises(InvalidOption, match=message):
        ReadOptions.parse({"path": "/logs", **options}, streaming=None)


def test_a_selection_among_what_is_there() -> None:
    """A pattern is found anywhere in a name, and leaves Kafka's own topics out; by name they can be had."""
    there = [A0, A1, TopicPartition("ab", 0), TopicPartition("__consumer_offsets", 0)]
    assert Selection(partitions=(A1,)).choose(there) == [A1]
    assert Selection(topics=("ab", "a")).choose(there) == [A0, A1, TopicPartition("ab", 0)]
    assert Selection(pattern="^a$").choose(there) == [A0, A1]
    assert Selection(pattern=".*").choose(there) == there[:3]
    assert Selection(topics=("__consumer_offsets",)).choose(there) == there[3:]
    with pytest.raises(UnknownTopic, match="here has no x, a-7; its topics: __consumer_offsets, a, ab"):
        Selection(topics=("x", "a"), partitions=(TopicPartition("a", 7),)).check(there, "here")


@pytest.mark.parametrize("word", ["starting", "ending"])
def test_positions(word: str) -> None:
    """Words, offsets, times; and by which of several options it goes."""
    offsets = AtOffsets({A0: 23, A1: -1 if word == "ending" else -2}, f"{word}Offsets")
    text = format_offsets(offsets.offsets)
    by_offsets = {f"{word}Offsets": text}
    by_times = {f"{word}OffsetsByTimestamp": '{"a":{"0":1000,"1":0}}'}
    by_time = {f"{word}Timestamp": "1700000000000"}
    assert _position(word, **by_offsets) == offsets
    assert _position(word, **by_offsets, **by_times) == AtTimes(
        {A0: 1000, A1: 0}, f"{word}OffsetsByTimestamp"
    )
    assert _position(word, **by_offsets, **by_times, **by_time) == AtTime(1700000000000, f"{word}Timestamp")
    assert _position(word, **{f"{word}Offsets": "Earliest" if word == "starting" else "LATEST"}) == (
        Earliest() if word == "starting" else Latest()
    )


def _position(word: str, **options: str) -> Any:
    parsed = parse(**options)
    return parsed.starting if word == "starting" else parsed.ending


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "option startingOffsets: a batch that starts at latest is empty"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "a batch that starts at latest is empty"),
        ({"endingOffsets": "earliest"}, "option endingOffsets: a batch that ends at earliest is empty"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "a batch that ends at earliest is empty"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "an offset below -2"),
        ({"startingOffsets": "soon"}, "not JSON"),
        ({"startingOffsets": '{"t":{"0":5,"0":6}}'}, "'0' is named twice"),
        ({"startingOffsets": '{"t":{"0":5,"00":6}}'}, "names t-0 twice"),
        ({"endingOffsets": '{"t":{"0":9223372036854775808}}'}, "t-0 has 9223372036854775808, more than"),
        ({"startingOffsets": '{"t":{"2147483648":5}}'}, "whole numbers"),
        ({"startingOffsets": "[]"}, "write it like"),
        ({"startingOffsets": '{"a":[0]}'}, "write it like"),
        ({"startingOffsets": '{"a":{"x":0}}'}, "both must be whole numbers"),
        ({"startingOffsets": '{"a":{"0":true}}'}, "both must be whole numbers"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-5}}'}, "a time below -2"),
        ({"startingTimestamp": "yesterday"}, "must be a whole number, -2 or more"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "use error or latest"),
    ],
)
def test_positions_that_are_refused(options: dict[str, str], message: str) -> None:
    """In a batch; the text says what to give instead."""
    refused(message, **options)


def test_a_stream_may_start_at_latest_and_has_no_end() -> None:
    """What a batch refuses is the default there; endings are refused."""
    assert parse(True, startingOffsets="latest").starting == Latest()
    assert parse(True, startingOffsets='{"a":{"0":-1}}').starting == AtOffsets({A0: -1}, "startingOffsets")
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        refused(f"option {name} is for batch reads only: a stream has no end", True, **{name: "1"})


def test_what_a_batch_does_not_know_of_triggers() -> None:
    """Options of streams are no error there, and named so that a warning can."""
    parsed = parse(maxOffsetsPerTrigger="5", maxTriggerDelay="1m")
    assert parsed.ignored == ("maxOffsetsPerTrigger", "maxTriggerDelay")
    stream = parse(True, maxOffsetsPerTrigger="5", minOffsetsPerTrigger="2", maxTriggerDelay="90s")
    assert (stream.max_offsets_per_trigger, stream.min_offsets_per_trigger) == (5, 2)
    assert (stream.max_trigger_delay_ms, stream.ignored) == (90_000, ())


@pytest.mark.parametrize("text", ["15", "15s", "15 seconds", "15000ms", "15 SEC"])
def test_durations(text: str) -> None:
    """As Spark writes them; a number alone is seconds."""
    assert parse(True, maxTriggerDelay=text).max_trigger_delay_ms == 15_000
    refused("use a duration like 90s", True, maxTriggerDelay="soon")


@pytest.mark.parametrize(
    "name",
    ["minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger", "kafkaConsumer.pollTimeoutMs"],
)
def test_numbers_are_positive(name: str) -> None:
    """Zero would be nothing at all."""
    for text in ("0", "-1", "1.5", "many", str(2**63)):
        refused(f"option {name} is '{text}'; it must be a whole number, 1 or more", **{name: text})
    parse(**{name: "7"})


def test_client_settings_are_kept_for_brokers() -> None:
    """Names without the prefix; of directories they say nothing."""
    options = parse(
        **{
            "fetchOffset.numRetries": "0",
            "fetchOffset.retryIntervalMs": "0",
            "kafkaConsumer.pollTimeoutMs": "7",
            "groupIdPrefix": "mine",
            "kafka.group.id": "team",
            "kafka.client.id": "me",
        }
    )
    assert (options.fetch_retries, options.fetch_retry_interval_ms, options.poll_timeout_ms) == (0, 0, 7)
    assert (options.group_id_prefix, options.group_id) == ("mine", "team")
    assert options.kafka["client.id"] == "me"


@pytest.mark.parametrize(
    "name",
    [
        "kafka.auto.offset.reset",
        "kafka.key.deserializer",
        "kafka.value.deserializer",
        "kafka.enable.auto.commit",
        "kafka.interceptor.classes",
    ],
)
def test_client_settings_that_are_refused(name: str) -> None:
    """They would change what comes out, or where a query stands."""
    for streaming in (False, True, None):
        refused(f"option {name} is not supported: ", streaming, **{name: "x"})


def test_flags() -> None:
    """True and false, in any letter case, nothing else."""
    assert parse(includeHeaders="TRUE").columns == (*CONNECTOR_COLUMNS, "headers")
    for name in ("failOnDataLoss", "includeHeaders"):
        refused(f"option {name} is 'yes'; use true or false", **{name: "yes"})


def test_filters_for_one_query() -> None:
    """`true` was wrong for two: it says what to do."""
    assert parse(pushdown="one_query").pushdown
    assert not parse(pushdown="false").pushdown
    refused("option pushdown is 'true': Spark keeps .* load again for each filter", pushdown="true")
    refused("option pushdown is 'yes'; use false or one_query", pushdown="yes")


def test_columns() -> None:
    """Some, in an order of one's own; `*` is what there would be without it."""
    assert parse(columns="Offset, timestamp").columns == ("offset", "timestamp")
    assert parse(columns="*,leaderEpoch,segment").columns == (*CONNECTOR_COLUMNS, "leaderEpoch", "segment")
    assert parse(columns="*", includeHeaders="true").columns == (*CONNECTOR_COLUMNS, "headers")
    assert parse(columns="headers").columns == ("headers",)
    refused("unknown column 'off'; use key, value,", columns="off")
    refused("names a column twice", columns="*,key")
    refused("unknown column ''", columns="")


def test_isolation() -> None:
    """Ours and Kafka's name for it."""
    assert parse(isolation="read_committed").isolation is Isolation.READ_COMMITTED
    assert parse(**{"kafka.isolation.level": "read_committed"}).isolation is Isolation.READ_COMMITTED
    refused("use read_uncommitted or read_committed", isolation="none")
    refused("contradict", **{"kafka.isolation.level": "read_committed", "isolation": "read_uncommitted"})


def test_directories_or_brokers() -> None:
    """One of the two; Spark hands the list of `load([…])` over as JSON."""
    assert parse(path="/a").paths == ("/a",)
    listed = ReadOptions.parse({"paths": '["/a","/b,c"]', "subscribe": "a"}, streaming=False)
    assert listed.paths == ("/a", "/b,c")
    brokers = ReadOptions.parse({"kafka.bootstrap.servers": "h:9092", "subscribe": "a"}, streaming=False)
    assert (brokers.paths, brokers.bootstrap_servers) == ((), "h:9092")
    refused(": both are given", **{"kafka.bootstrap.servers": "h:9092"})
    with pytest.raises(InvalidOption, match="neither is given; give one of the two"):
        ReadOptions.parse({"subscribe": "a"}, streaming=None)
    refused("option path is empty", path=" ")
    refused("pass the list to load", paths="x")
    with pytest.raises(InvalidOption, match="column segment needs option path"):
        ReadOptions.parse(
            {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "columns": "segment"}, streaming=False
        )


def test_unknown_names() -> None:
    """A misspelt option would do nothing; those of writes are let pass."""
    refused(
        "unknown option maxrecordperpartition: did you mean maxRecordsPerPartition?",
        maxRecordPerPartition="1",
    )
    refused("unknown option zzz: docs/spark.md lists them all", zzz="1")
    parse(topic="t", txnAppId="x", txnVersion="1", checkpointLocation="/c")
