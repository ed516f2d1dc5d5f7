"""Parse the options of a write.

Names and defaults are those of Spark's Kafka sink; `path`, `partitions`, `stagingPath`, `txnAppId`,
`txnVersion`, `txnSameRows` and `includeTimestamp` are our own. Options of reads
are ignored, and so are producer settings without effect here (`kafka.linger.ms`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from logstore.arguments import as_directory
from logstore.columnar.columnar import BATCH_BYTES
from logstore.config import LogConfig
from logstore.disk.topic_partition import check_topic_name
from logstore.errors import InvalidConfig
from logstore.format.batch import HEADER_BYTES
from logstore.format.compression import Codec
from logstore.log.outgoing import Compression
from logstore.spark.client import ClientSettings
from logstore.spark.errors import InvalidOption
from logstore.spark.read_options import BOOTSTRAP_SERVERS, Given, check_one_place, local_path

_REQUEST_BYTES: Final = 1 << 20
_DELIVERY_TIMEOUT_MS: Final = 120_000
_REFUSED: Final = {
    "kafka.key.serializer": "keys are written as bytes; cast the column to binary or string",
    "kafka.value.serializer": "values are written as bytes; cast the column to binary or string",
    "kafka.transactional.id": "writes are published once without it; txnAppId and txnVersion name a write",
    "kafka.partitioner.class": "rows are placed as by Kafka's producers; or use a column partition",
    "kafka.interceptor.classes": "rows are not sent through a producer; remove the option",
}
_LONGEST_NAME: Final = 200
_LONGEST_QUOTED: Final = 240


class Delivery(StrEnum):
    """How often a row is in the topic if tasks or drivers fail."""

    EXACTLY_ONCE = "exactly_once"
    """tasks stage rows, the commit publishes them"""
    AT_LEAST_ONCE = "at_least_once"
    """tasks write to the partitions' leaders: a task that runs again repeats its rows"""

    @property
    def outcome(self) -> str:
        """What an error says about the other rows of a write."""
        is_staged = self is Delivery.EXACTLY_ONCE
        return "Nothing was published" if is_staged else "Rows before it may be in the topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a sink. Exactly one of `path` and `brokers` is set; sizes are bytes."""

    path: str | None
    """a log dir, without a trailing slash"""
    brokers: ClientSettings | None
    """its `timeout_s` is `kafka.delivery.timeout.ms`"""
    delivery: Delivery
    topic: str | None
    """the topic of all rows; None: the column `topic` names it"""
    partitions: int | None
    """for topics to create; None: a missing topic is an error"""
    include_headers: bool
    include_timestamp: bool
    staging_path: str | None
    checkpoint_location: str | None
    transaction: tuple[str, int] | None
    """`txnAppId` and `txnVersion`"""
    same_rows: bool
    """`txnSameRows`: refuse a version that was written with other rows"""
    compression: Compression
    batch_bytes: int
    request_bytes: int
    """the largest batch, before compression"""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Read Spark's options. Raises `InvalidOption` and `InvalidTopic`."""
        given = Given(options)
        given.check_names(_REFUSED)
        _check_promises(given)
        paths, servers = given.text("path", ""), given.text(BOOTSTRAP_SERVERS, "")
        check_one_place("a write takes a log dir", paths, servers)
        topic = given.text("topic", None)
        if topic is not None:
            check_topic_name(topic)
        request_bytes = given.number("kafka.max.request.size", _REQUEST_BYTES, low=HEADER_BYTES + 1)
        batch_bytes = given.number("kafka.batch.size", BATCH_BYTES)
        return cls(
            path=_directory("path", paths) if paths else None,
            brokers=_brokers(servers, given) if servers else None,
            delivery=_delivery(given, paths),
            topic=topic,
            partitions=given.number("partitions", None),
            include_headers=given.flag("includeHeaders", True),
            include_timestamp=given.flag("includeTimestamp", False),
            staging_path=given.parsed("stagingPath", _directory, None),
            checkpoint_location=given.text("checkpointLocation", None),
            transaction=_transaction(given, streaming=streaming),
            same_rows=given.flag("txnSameRows", True),
            compression=_compression(given),
            batch_bytes=min(batch_bytes, request_bytes - HEADER_BYTES),
            request_bytes=request_bytes,
        )


def _brokers(servers: str, given: Given) -> ClientSettings:
    timeout_ms = given.number("kafka.delivery.timeout.ms", _DELIVERY_TIMEOUT_MS)
    return replace(ClientSettings.parse(servers, given.kafka()), timeout_s=timeout_ms / 1000)


def _check_promises(given: Given) -> None:
    """Raise `InvalidOption` for settings that would break exactly-once writes."""
    if (acks := given.text("kafka.acks", "all")) not in ("all", "-1"):
        raise InvalidOption(
            f"option kafka.acks is {acks!r}: exactly-once writes need the acknowledgement of all in-sync "
            "replicas; remove the option or set it to all"
        )
    if not given.flag("kafka.enable.idempotence", True):
        raise InvalidOption(
            "option kafka.enable.idempotence is false: rows could be written twice; remove the option"
        )


def _delivery(given: Given, path: str) -> Delivery:
    delivery = Delivery(given.choice("delivery", tuple(Delivery), Delivery.EXACTLY_ONCE))
    if delivery is Delivery.AT_LEAST_ONCE:
        if path:
            raise InvalidOption(
                f"option delivery is {delivery}: only brokers take rows from several tasks at a time, a "
                "directory has one writer; remove the option"
            )
        if given.has("txnAppId") or given.has("txnVersion"):
            raise InvalidOption(
                f"option delivery is {delivery}, but txnAppId and txnVersion are for writes that are "
                "published once; remove one or the other"
            )
    return delivery


def _transaction(given: Given, *, streaming: bool) -> tuple[str, int] | None:
    app = given.text("txnAppId", "")
    if not given.has("txnAppId") and not given.has("txnVersion"):
        return None
    if streaming:
        raise InvalidOption(
            "options txnAppId and txnVersion are for batch writes; a stream is identified by its checkpoint. "
            "For an identity of your own, write in foreachBatch with the batch id as txnVersion"
        )
    if not app or not given.has("txnVersion"):
        raise InvalidOption("options txnAppId and txnVersion identify a write together; give both")
    quoted = quote(app, safe="")  # part of the name of the ledger's directory
    if len(app) > _LONGEST_NAME or len(quoted) > _LONGEST_QUOTED:
        raise InvalidOption(
            f"option txnAppId has {len(app)} characters; the limit is {_LONGEST_NAME}, and "
            f"{_LONGEST_QUOTED} when those other than ASCII letters, digits, _, . and - are percent-encoded"
        )
    return app, given.number("txnVersion", 0, low=0)


def _compression(given: Given) -> Compression:
    names = {codec.name.lower(): codec for codec in Codec}
    kind = given.choice("kafka.compression.type", list(names), "none")
    level = given.text(f"kafka.compression.{kind}.level", None)
    if level is None or kind == "none":
        return Compression(names[kind])
    try:
        config = LogConfig.from_kafka({"compression.type": kind, f"compression.{kind}.level": level})
    except InvalidConfig as error:
        raise InvalidOption(f"option kafka.compression.{kind}.level: {error}") from error
    return Compression(names[kind], config.compression_level)


def _directory(name: str, text: str) -> str:
    path = local_path(text)
    if path is None:
        raise InvalidOption(
            f"option {name} is {text!r}; use a directory that is mounted on the driver and all executors, "
            "without a scheme or with file:"
        )
    return as_directory(path)  # one record of what was published, whatever the working directory
