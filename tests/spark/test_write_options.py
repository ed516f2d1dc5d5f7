"""Every option of a write: what it does, or why it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logstore.broker.limits import Address
from logstore.disk.errors import InvalidTopic
from logstore.format.compression import Codec
from logstore.log.outgoing import Compression
from logstore.spark.errors import InvalidOption
from logstore.spark.read_options import local_path
from logstore.spark.sink import ledger_of_transaction
from logstore.spark.write_options import Delivery, WriteOptions

BROKERS = {"path": "", "kafka__bootstrap__servers": "a:1"}


def parsed(*, streaming: bool = False, **options: str) -> WriteOptions:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return WriteOptions.parse({"path": "/logs", **given}, streaming=streaming)


def test_what_applies_unless_it_is_said() -> None:
    assert parsed() == WriteOptions(
        path="/logs",
        brokers=None,
        topic=None,
        partitions=None,
        include_headers=True,
        include_timestamp=False,
        staging_path=None,
        checkpoint_location=None,
        delivery=Delivery.EXACTLY_ONCE,
        transaction=None,
        same_rows=True,
        compression=Compression(Codec.NONE),
        batch_bytes=512 << 10,
        request_bytes=1 << 20,
    )


def test_what_each_option_says() -> None:
    options = WriteOptions.parse(
        {
            "KAFKA.bootstrap.servers": "a:1, [::1]:9092",
            "topic": "t",
            "Partitions": "6",
            "includeHeaders": "False",
            "includeTimestamp": "true",
            "stagingPath": "file:///staged%20files/",
            "checkpointLocation": "hdfs://x/y",
            "kafka.compression.type": "ZSTD",
            "kafka.compression.zstd.level": "7",
            "kafka.batch.size": "16384",
            "kafka.max.request.size": "2000",
            "kafka.delivery.timeout.ms": "1500",
            "kafka.client.id": "me",
            "kafka.acks": "-1",
            "kafka.enable.idempotence": "true",
            "kafka.linger.ms": "5",
            "startingOffsets": "earliest",
        },
        streaming=True,
    )
    assert options.brokers is not None
    assert options.brokers.bootstrap == (Address("a", 1), Address("::1", 9092))
    assert (options.path, options.topic, options.partitions) == (None, "t", 6)
    assert (options.include_headers, options.include_timestamp) == (False, True)
    assert options.staging_path == "/staged files"
    assert options.checkpoint_location == "hdfs://x/y"
    assert options.compression == Compression(Codec.ZSTD, 7)
    assert (options.batch_bytes, options.request_bytes) == (2000 - 61, 2000)
    assert (options.brokers.timeout_s, options.brokers.client_id) == (1.5, "me")


def test_a_batch_write_has_a_name_and_a_version() -> None:
    assert parsed(txnAppId="nightly", txnVersion="12").transaction == ("nightly", 12)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka__bootstrap__servers": "a:1"}, "both are given"),
        ({"path": ""}, "neither is given"),
        ({"path": "s3://bucket/logs"}, "mounted"),
        ({"path": "hdfs:/logs"}, "mounted"),
        ({"path": "", "kafka__bootstrap__servers": "nowhere"}, "host:port"),
        ({"partitions": "0"}, "whole number, 1 or more"),
        ({"partitions": "many"}, "whole number"),
        ({"includeHeaders": "yes"}, "true or false"),
        ({"includeTimestamp": "1"}, "true or false"),
        ({"stagingPath": "s3a://b/c"}, "mounted"),
        ({"txnAppId": "a"}, "give both"),
        ({"txnVersion": "1"}, "give both"),
        ({"txnAppId": "", "txnVersion": "1"}, "give both"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "whole number, 0 or more"),
        ({"txnAppId": "a" * 201, "txnVersion": "1"}, "the limit is 200"),
        ({"txnAppId": "ü" * 41, "txnVersion": "1"}, "41 characters; .* 240 when those"),
        ({"kafka__compression__type": "rar"}, "none or gzip"),
        ({"kafka__compression__type": "gzip", "kafka__compression__gzip__level": "0"}, "1 to 9"),
        ({"kafka__max__request__size": "61"}, "whole number, 62 or more"),
        ({"kafka__acks": "1"}, "all in-sync replicas"),
        ({"kafka__enable__idempotence": "false"}, "written twice"),
        ({**BROKERS, "kafka__security__protocol": "TLS"}, "security.protocol"),
        (
            {**BROKERS, "kafka__sasl__mechanism": "PLAIN"},
            "sasl.mechanism has no effect with security.protocol",
        ),
        ({**BROKERS, "kafka__delivery__timeout__ms": "0"}, "whole number, 1 or more"),
        ({"kafka__key__serializer": "x"}, "cast the column"),
        ({"kafka__value__serializer": "x"}, "cast the column"),
        ({"kafka__transactional__id": "x"}, "txnAppId and txnVersion name a write"),
        ({"kafka__partitioner__class": "x"}, "column partition"),
        ({"kafka__interceptor__classes": "x"}, "are not sent through a producer"),
        ({"topics": "t"}, "did you mean topic"),
        ({"path": "file://[x"}, r"option path is .file://\[x.; use a directory"),
        ({"stagingPath": "file://[x"}, "option stagingPath"),
    ],
)
def test_what_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        parsed(**options)


def test_a_stream_has_no_transaction_of_its_own() -> None:
    with pytest.raises(InvalidOption, match="foreachBatch"):
        parsed(streaming=True, txnAppId="a", txnVersion="1")


def test_a_topic_that_no_topic_is_called() -> None:
    with pytest.raises(InvalidTopic):
        parsed(topic="a/b")


def test_one_record_whatever_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A ledger under another name would publish every version once more."""

    def ledger(path: str, staging: str) -> str:
        return ledger_of_transaction(parsed(path=path, stagingPath=staging, txnAppId="a", txnVersion="0"))

    whole = ledger(f"{tmp_path}/data/logs", f"{tmp_path}/data/staged")
    monkeypatch.chdir(tmp_path)
    assert ledger("data/logs", "data/staged") == whole
    monkeypatch.chdir(tmp_path.parent)
    assert ledger(f"{tmp_path.name}/data/logs/", f"{tmp_path.name}/data/staged") == whole


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a/b/", "/a/b"),
        ("/", "/"),
        ("a b", "a b"),
        ("file:/a", "/a"),
        ("file:///a%3Ab", "/a:b"),
        ("file:///a#b?c", "/a#b?c"),
        ("file://localhost/a", "/a"),
        ("file://other/a", None),
        ("dbfs:/a", None),
        ("file://[x", None),
        ("file://[::1/a", None),
        ("abfss://c@d/e", None),
        ("/a/x:y", "/a/x:y"),
    ],
)
def test_which_paths_are_local(text: str, path: str | None) -> None:
    assert local_path(text) == path
