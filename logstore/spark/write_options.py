"""What a sink is told: every option of a write, read once and refused where it cannot be meant.

Names and defaults are those of Spark's sink for Kafka; `path`, `partitions`, `stagingPath`, `txnAppId`,
`txnVersion` and `includeTimestamp` are ours. Options of reads are passed over, and so is what a producer of
Kafka's would take and this one has no use for (`kafka.linger.ms`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote, urlsplit

from logstore.columnar.columnar import BATCH_BYTES
from logstore.config import LogConfig
from logstore.disk.topic_partition import check_topic_name
from logstore.errors import InvalidConfig
from logstore.format.batch import HEADER_BYTES
from logstore.format.compression import Codec
from logstore.log.outgoing import Compression
from logstore.spark.client_settings import ClientSettings
from logstore.spark.errors import InvalidOption
from logstore.spark.read_options import BOOTSTRAP_SERVERS, Given

_REQUEST_BYTES: Final = 1 << 20
_DELIVERY_TIMEOUT_MS: Final = 120_000
_REFUSED: Final = {
    "kafka.key.serializer": "keys are written as their bytes: cast the column to binary or string",
    "kafka.value.serializer": "values are written as their bytes: cast the column to binary or string",
    "kafka.transactional.id": "a write is published once without one; txnAppId and txnVersion name it",
    "kafka.partitioner.class": "rows go where Kafka's producers put them; or give them a column partition",
    "kafka.interceptor.classes": "rows never become a producer's records",
}
_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A sink's options. Exactly one of `path` and `brokers` is there; sizes are bytes."""

    path: str | None
    """a log dir, without a slash at its end"""
    brokers: ClientSettings | None
    """its `timeout_s` is that of `kafka.delivery.timeout.ms`"""
    topic: str | None
    """of all rows; None: each row has its own"""
    partitions: int | None
    """how many a topic gets that is not there; None: then it is refused"""
    include_headers: bool
    include_timestamp: bool
    staging_path: str | None
    checkpoint_location: str | None
    transaction: tuple[str, int] | None
    """`txnAppId` and `txnVersion`"""
    compression: Compression
    batch_bytes: int
    request_bytes: int
    """the largest batch, before compression"""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Read Spark's options. Raises `InvalidOption`, `InvalidTopic`."""
        given = Given(options)
        given.check_names(_REFUSED)
        _check_promises(given)
        paths, servers = given.text("path", ""), given.text(BOOTSTRAP_SERVERS, "")
        if bool(paths) == bool(servers):
            said = "both are given" if paths else "neither is given"
            raise InvalidOption(
                f"a write is to a log dir (option path) or to brokers (option {BOOTSTRAP_SERVERS}), and "
                f"{said}; give one of the two"
            )
        topic = given.text("topic", None)
        if topic is not None:
            check_topic_name(topic)
        request_bytes = given.number("kafka.max.request.size", _REQUEST_BYTES, low=HEADER_BYTES + 1)
        batch_bytes = given.number("kafka.batch.size", BATCH_BYTES)
        return cls(
            path=_directory("path", paths) if paths else None,
            brokers=_brokers(servers, given) if servers else None,
            topic=topic,
            partitions=given.number("partitions", None),
            include_headers=given.flag("includeHeaders", True),
            include_timestamp=given.flag("includeTimestamp", False),
            staging_path=given.parsed("stagingPath", _directory, None),
            checkpoint_location=given.text("checkpointLocation", None),
            transaction=_transaction(given, streaming=streaming),
            compression=_compression(given),
            batch_bytes=min(batch_bytes, request_bytes - HEADER_BYTES),
            request_bytes=request_bytes,
        )


def _brokers(servers: str, given: Given) -> ClientSettings:
    timeout_ms = given.number("kafka.delivery.timeout.ms", _DELIVERY_TIMEOUT_MS)
    return replace(ClientSettings.parse(servers, given.kafka()), timeout_s=timeout_ms / 1000)


def _check_promises(given: Given) -> None:
    """Refuse what would make less of a write than it says."""
    if (acks := given.text("kafka.acks", "all")) not in ("all", "-1"):
        raise InvalidOption(
            f"option kafka.acks is {acks!r}: rows are written once only if all in-sync replicas acknowledge "
            "every batch; leave it out or set it to all"
        )
    if not given.flag("kafka.enable.idempotence", True):
        raise InvalidOption("option kafka.enable.idempotence is off: without it rows could be written twice")


def _transaction(given: Given, *, streaming: bool) -> tuple[str, int] | None:
    app = given.text("txnAppId", "")
    if not given.has("txnAppId") and not given.has("txnVersion"):
        return None
    if streaming:
        raise InvalidOption(
            "options txnAppId and txnVersion are for batch writes: a stream has its checkpoint; for an "
            "identity of your own write in foreachBatch, with the batch id as txnVersion"
        )
    if not app or not given.has("txnVersion"):
        raise InvalidOption("options txnAppId and txnVersion name a write together; give both")
    if len(app) > _LONGEST_NAME:
        raise InvalidOption(f"option txnAppId has {len(app)} characters; {_LONGEST_NAME} are the most")
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
            f"option {name} is {text!r}; it takes a directory that the driver and all executors have "
            "mounted, without a scheme or with file:"
        )
    return path


def local_path(text: str) -> str | None:
    """The directory that a path or `file:` URI names, without a slash at its end; None for another scheme."""
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        text = unquote(parts.path)
    elif len(parts.scheme) > 1 and text[len(parts.scheme) :].startswith(":/"):
        return None
    return text.rstrip("/") or "/"
