"""The cases of the comparison with Spark's Kafka connector, by the option or column that they are about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

T0: Final = 1_700_000_000_000
"""The time of the first record of each partition; the next ones are a second later each."""


class Kind(StrEnum):
    BATCH = "batch"
    STREAM = "stream"
    SINK = "write"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One read or write with both connectors. `differs`: the reason for a difference, if there is one."""

    about: str
    what: str
    kind: Kind
    options: Mapping[str, str | None] = field(default_factory=dict)
    look: str = "rows"
    differs: str = ""
    schema: str = ""
    rows: str = ""
    mode: str = "append"
    is_short: bool = False

    @property
    def name(self) -> str:
        return f"{self.about}: {self.what}"


ALL: Final = {"subscribe": "few"}


def _read(
    about: str, what: str, options: Mapping[str, str | None], *kinds: Kind, **rest: Any
) -> Iterator[Case]:
    for kind in kinds or (Kind.BATCH,):
        given = dict(options)
        if kind is Kind.STREAM and not any(name.lower().startswith("starting") for name in given):
            given["startingOffsets"] = "earliest"
        yield Case(about=about, what=what, kind=kind, options=given, **rest)


def _write(about: str, what: str, rows: str, options: Mapping[str, str] | None = None, **rest: Any) -> Case:
    given = {"topic": "TOPIC", **(options or {})}
    return Case(about=about, what=what, kind=Kind.SINK, rows=rows, options=given, **rest)


BOTH: Final = (Kind.BATCH, Kind.STREAM)
_UNKNOWN: Final = (
    "Spark's ignores unknown names; here they are refused, because a misspelt option would do nothing"
)
_LOSS: Final = "here the lost offsets are an error that names them"


def _selections() -> Iterator[Case]:
    for what, options in {
        "some partitions": {"assign": '{"few":[0,2]}'},
        "two topics": {"assign": '{"few":[1],"fewer":[0]}'},
        "no JSON": {"assign": "few"},
    }.items():
        yield from _read("`assign`", what, options, *BOTH)
    yield from _read(
        "`assign`",
        "no such partition",
        {"assign": '{"few":[9]}'},
        *BOTH,
        differs="Spark's reads nothing; here an error names the partition",
    )
    for what, options in {
        "one topic": ALL,
        "two topics": {"subscribe": "few, fewer"},
        "an empty topic": {"subscribe": "empty"},
        "no such topic": {"subscribe": "absent"},
        "no name": {"subscribe": " "},
        "in capitals": {"SUBSCRIBE": "few"},
    }.items():
        yield from _read("`subscribe`", what, options, *BOTH, is_short=what == "one topic")
    for what, options in {
        "found inside a name": {"subscribePattern": "ew"},
        "anchored": {"subscribePattern": "^few$"},
        "Java's syntax": {"subscribePattern": r"\p{Alpha}+er"},
        "no match": {"subscribePattern": "nothing.*"},
    }.items():
        yield from _read("`subscribePattern`", what, options, *BOTH)
    yield from _read("`assign`, `subscribe`, `subscribePattern`", "none of them", {}, *BOTH)
    yield from _read(
        "`assign`, `subscribe`, `subscribePattern`", "two of them", {**ALL, "subscribePattern": "few"}, *BOTH
    )
    yield from _read("`kafka.bootstrap.servers`", "missing", {**ALL, "kafka.bootstrap.servers": None}, *BOTH)


def _starts() -> Iterator[Case]:
    offsets = "startingOffsets"
    for what, value in {
        "earliest": "earliest",
        "offsets": '{"few":{"0":4,"1":0,"2":1}}',
        "-2": '{"few":{"0":-2,"1":3,"2":0}}',
        "a partition is missing": '{"few":{"0":4}}',
        "a partition too many": '{"few":{"0":4,"1":0,"2":0,"3":0}}',
        "below -2": '{"few":{"0":-3,"1":0,"2":0}}',
        "a misspelt word": "first",
    }.items():
        yield from _read(f"`{offsets}`", what, {**ALL, offsets: value}, *BOTH, is_short=what == "offsets")
    yield from _read(f"`{offsets}`", "latest, refused", {**ALL, offsets: "latest"})
    yield from _read(f"`{offsets}`", "-1, refused", {**ALL, offsets: '{"few":{"0":-1,"1":0,"2":0}}'})
    yield from _read(f"`{offsets}`", "past the end", {**ALL, offsets: '{"few":{"0":99,"1":0,"2":0}}'})
    yield from _read(f"`{offsets}`", "latest", {**ALL, offsets: "latest"}, Kind.STREAM)
    yield from _read(
        f"`{offsets}`", "-1", {**ALL, offsets: '{"few":{"0":-1,"1":0,"2":0}}'}, Kind.STREAM, look="ends"
    )
    yield from _read(
        f"`{offsets}`",
        "-1, batches",
        {**ALL, offsets: '{"few":{"0":-1,"1":0,"2":0}}'},
        Kind.STREAM,
        look="batches",
        differs="the first batch is empty, so that a repetition starts at the same offset: Python sources"
        " cannot write their start into the checkpoint ([decision 036](decisions/036-first-batch.md))",
    )
    time, times = "startingTimestamp", "startingOffsetsByTimestamp"
    late = str(T0 + 900_000)
    for what, value in {
        "within": str(T0),
        "-1": "-1",
        "-2": "-2",
        "too late": late,
        "no number": "noon",
    }.items():
        yield from _read(f"`{time}`", what, {**ALL, time: value}, *BOTH)
    yield from _read(f"`{time}`", "before `startingOffsets`", {**ALL, time: "-2", offsets: '{"few":{"0":4}}'})
    for what, value in {
        "within": f'{{"few":{{"0":{T0 + 4000},"1":{T0},"2":{T0}}}}}',
        "-1 and -2": '{"few":{"0":-1,"1":-2,"2":-2}}',
        "too late": f'{{"few":{{"0":{late},"1":{T0},"2":{T0}}}}}',
        "a partition is missing": f'{{"few":{{"0":{T0}}}}}',
    }.items():
        yield from _read(f"`{times}`", what, {**ALL, times: value}, *BOTH)
    strategy = "startingOffsetsByTimestampStrategy"
    for what, value in {"latest": "latest", "error": "error", "another word": "earliest"}.items():
        yield from _read(f"`{strategy}`", what, {**ALL, time: late, strategy: value}, *BOTH)


_TO_PAST_THE_END: Final = {
    "endingOffsets": '{"few":{"0":99,"1":1,"2":1}}',
    "kafkaConsumer.pollTimeoutMs": "3000",  # Spark's waits so long for records that do not come
}


def _ends() -> Iterator[Case]:
    offsets, time, times = "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"
    for what, value in {
        "latest": "latest",
        "offsets": '{"few":{"0":6,"1":7,"2":0}}',
        "-1": '{"few":{"0":-1,"1":3,"2":1}}',
        "-2": '{"few":{"0":-2,"1":3,"2":1}}',
        "earliest": "earliest",
    }.items():
        yield from _read(f"`{offsets}`", what, {**ALL, offsets: value})
    for what, value in {"within": str(T0 + 3000), "late": str(T0 + 900_000), "-1": "-1"}.items():
        yield from _read(f"`{time}`", what, {**ALL, time: value})
    yield from _read(
        f"`{times}`", "within", {**ALL, times: f'{{"few":{{"0":{T0 + 4000},"1":{T0},"2":{T0}}}}}'}
    )
    backwards = {"startingOffsets": '{"few":{"0":6,"1":0,"2":0}}', offsets: '{"few":{"0":4,"1":7,"2":1}}'}
    yield from _read(f"`{offsets}`", "before the start", {**ALL, **backwards})
    yield from _read(f"`{offsets}`", "past the end", {**ALL, **_TO_PAST_THE_END})
    for name, value in {offsets: "latest", time: "1", times: '{"few":{"0":1}}'}.items():
        differs = "Spark's ignores it and continues; here it is an error" if name == time else ""
        yield from _read(f"`{name}`", "on a stream", {**ALL, name: value}, Kind.STREAM, differs=differs)


def _layout() -> Iterator[Case]:
    for what, value in {"7": "7", "2": "2", "0": "0", "no number": "x"}.items():
        yield from _read("`minPartitions`", what, {**ALL, "minPartitions": value}, look="tasks")
    name = "maxRecordsPerPartition"
    yield from _read(
        f"`{name}`",
        "4",
        {**ALL, name: "4"},
        look="tasks",
        differs="Spark's 4.2 ignores it in a batch without `minPartitions`; here it is the limit that Spark's"
        " documentation describes",
    )
    yield from _read(f"`{name}`", "0", {**ALL, name: "0"}, *BOTH)
    both = {name: "4", "minPartitions": "8"}
    yield from _read(
        f"`{name}`",
        "with `minPartitions`",
        {**ALL, **both},
        look="tasks",
        differs="Spark's 4.2 may make fewer tasks than `minPartitions`: it does not cut a partition again if"
        " one of its pieces is small; here the number is about right",
    )
    yield from _read(f"`{name}`", "4", {**ALL, name: "4"}, Kind.STREAM, look="ends")


def _rates() -> Iterator[Case]:
    most, least = "maxOffsetsPerTrigger", "minOffsetsPerTrigger"
    for value in ("5", "9", "100"):
        yield from _read(
            f"`{most}`", value, {**ALL, most: value}, Kind.STREAM, look="ends", is_short=value == "9"
        )
    nothing = "Spark's silently reads nothing; here it is an error"
    yield from _read(f"`{most}`", "0", {**ALL, most: "0"}, Kind.STREAM, differs=nothing)
    yield from _read(f"`{most}`", "in a batch", {**ALL, most: "5"})
    yield from _read(f"`{least}`", "with `availableNow`", {**ALL, least: "100"}, Kind.STREAM, look="ends")
    yield from _read(f"`{least}`", "above the most", {**ALL, least: "9", most: "5"}, Kind.STREAM)
    yield from _read(
        "`maxTriggerDelay`", "with the least", {**ALL, least: "9", "maxTriggerDelay": "1s"}, Kind.STREAM
    )
    yield from _read(
        "`maxTriggerDelay`", "no time", {**ALL, least: "9", "maxTriggerDelay": "soon"}, Kind.STREAM
    )
    yield from _read(
        "progress, `sources[].metrics`",
        "lag",
        ALL,
        Kind.STREAM,
        look="metrics",
        differs="empty, because Spark asks Python sources for no metrics: `logstore.spark.lags` computes the"
        " same three from the progress report",
    )


def _columns() -> Iterator[Case]:
    yield from _read("columns", "names, order and types", ALL, look="schema", is_short=True)
    for value in ("true", "false"):
        yield from _read("`includeHeaders`", value, {**ALL, "includeHeaders": value}, *BOTH)
    yield from _read("`includeHeaders`", "schema", {**ALL, "includeHeaders": "true"}, look="schema")
    yield from _read("a schema of the user's", "refused", ALL, schema="value binary")


def _others() -> Iterator[Case]:
    for value in ("true", "false"):
        yield from _read("`failOnDataLoss`", value, {**ALL, "failOnDataLoss": value}, *BOTH)
    past = {"startingOffsets": '{"few":{"0":99,"1":0,"2":0}}', "failOnDataLoss": "false"}
    goes_on = "Spark's fails nevertheless; here that partition has no rows, with a warning"
    yield from _read("`failOnDataLoss`", "false, from past the end", {**ALL, **past}, differs=goes_on)
    past = {**_TO_PAST_THE_END, "failOnDataLoss": "false"}
    yield from _read("`failOnDataLoss`", "false, to past the end", {**ALL, **past})
    for name, value in {
        "kafkaConsumer.pollTimeoutMs": "60000",
        "fetchOffset.numRetries": "2",
        "fetchOffset.retryIntervalMs": "20",
        "groupIdPrefix": "mine",
        "kafka.group.id": "mine",
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.bytes": "100",
        "kafka.max.partition.fetch.bytes": "100",
        "kafka.client.id": "mine",
        "kafka.unknown.setting": "1",
    }.items():
        yield from _read(f"`{name}`", value, {**ALL, name: value}, *BOTH)
    for name, value in {
        "kafka.auto.offset.reset": "latest",
        "kafka.key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "kafka.value.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "kafka.enable.auto.commit": "true",
        "kafka.interceptor.classes": "x",
    }.items():
        yield from _read(f"`{name}`", "refused", {**ALL, name: value}, *BOTH)
    yield from _read(
        "unknown options", "a misspelt one", {**ALL, "minPartition": "3"}, *BOTH, differs=_UNKNOWN
    )


_ROW: Final = "select 'k' as key, 'v' as value"
_SOON: Final = {"kafka.max.block.ms": "2000"}
"""Spark's producer waits this long for a partition that is not there."""


def _writes() -> Iterator[Case]:
    numbered = "select cast(id as string) key, concat('v', id) value from range(20)"
    yield _write("`key`, `value`", "text", numbered, is_short=True)
    yield _write("`key`, `value`", "bytes", "select binary('k') as key, binary('v') as value")
    yield _write("`key`, `value`", "a tombstone", "select 'k' as key, cast(null as string) as value")
    yield _write("`value`", "missing", "select 'k' as key")
    yield _write("`value`", "a number", "select 1 as value")
    yield _write("`key`", "a number", "select 1 as key, 'v' as value")
    yield _write("`topic`", "as a column", f"{_ROW}, 'TOPIC' as topic", {"topic": "TOPIC"})
    yield _write("`topic`", "the option before the column", f"{_ROW}, 'elsewhere' as topic")
    yield Case(about="`topic`", what="a column only", kind=Kind.SINK, rows=f"{_ROW}, 'TOPIC' as topic")
    yield Case(about="`topic`", what="missing", kind=Kind.SINK, rows=_ROW)
    yield Case(about="`topic`", what="null", kind=Kind.SINK, rows=f"{_ROW}, cast(null as string) as topic")
    yield _write("`partition`", "given", "select 'k' as key, 'v' as value, 2 as partition")
    yield _write("`partition`", "null", "select 'k' as key, 'v' as value, cast(null as int) as partition")
    yield _write("`partition`", "unknown", f"{_ROW}, 9 as partition", _SOON)
    yield _write("`partition`", "a text", f"{_ROW}, '1' as partition")
    headers = "array(struct('h' as key, binary('1') as value)) as headers"
    yield _write("`headers`", "without the option", f"{_ROW}, {headers}")
    yield _write("`includeHeaders`", "true", f"{_ROW}, {headers}", {"includeHeaders": "true"})
    without = "Spark's still writes a column `headers`; here it is left out"
    yield _write(
        "`includeHeaders`", "false", f"{_ROW}, {headers}", {"includeHeaders": "false"}, differs=without
    )
    yield _write("`headers`", "of another type", f"{_ROW}, 'h' as headers", {"includeHeaders": "true"})
    yield _write("other columns", "ignored", f"{_ROW}, 1 as another")
    yield _write("mode", "overwrite", _ROW, mode="overwrite")
    for codec in ("gzip", "lz4", "zstd", "snappy"):
        yield _write("`kafka.compression.type`", codec, _ROW, {"kafka.compression.type": codec})
    yield _write("`kafka.compression.type`", "unknown", _ROW, {"kafka.compression.type": "brotli"})
    yield _write(
        "`kafka.acks`",
        "1",
        _ROW,
        {"kafka.acks": "1"},
        differs="refused here: a row could be lost when its leader fails",
    )
    serializer = {"kafka.key.serializer": "org.apache.kafka.common.serialization.StringSerializer"}
    yield _write("`kafka.key.serializer`", "refused", _ROW, serializer)
    yield _write("`kafka.linger.ms`", "5", _ROW, {"kafka.linger.ms": "5"})
    update = "Spark refuses this mode for Python sinks; write in `foreachBatch`"
    for mode, differs in {"append": "", "update": update}.items():
        yield _write("output mode", mode, numbered, look="stream", mode=mode, differs=differs)


CASES: Final = tuple(
    case
    for cases in (_selections, _starts, _ends, _layout, _rates, _columns, _others, _writes)
    for case in cases()
)
"""Every case, in the order of the page."""
