"""Records of Kafka's internal topics decode to the facts that Kafka's own classes and dump tool print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from logstore.errors import InvalidRecord
from logstore.format.state_records import (
    CLUSTER_METADATA,
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    decode_control,
    decode_metadata,
    decode_state_record,
)
from logstore.log.producer_state import decode_snapshot

LINES = (Path(__file__).parent / "operators" / "decoders.jsonl").read_text().splitlines()
VECTORS: list[dict[str, Any]] = [json.loads(line) for line in LINES]
FILLED = [each for each in VECTORS if each["kind"].startswith("__") and each["origin"] == "classes"]
SEEN = [each for each in VECTORS if each["origin"] == "broker"]
CONTROL = [each for each in VECTORS if each["kind"] == "control"]
SNAPSHOTS = [each for each in VECTORS if each["kind"] == "producer-snapshot"]
CONTROL_TYPES = {
    "LeaderChangeMessage": 2,
    "SnapshotHeaderRecord": 3,
    "SnapshotFooterRecord": 4,
    "KRaftVersionRecord": 5,
    "VotersRecord": 6,
}


def raw(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def test_records_of_every_type_and_version() -> None:
    for vector in FILLED:
        key, value = decode_state_record(vector["kind"], raw(vector["key"]), raw(vector["value"]))
        assert (value.type, value.name) == (vector["type"], vector["name"])
        assert (value.version, value.data) == (vector["valueVersion"], vector["valueJson"]), vector
        assert (key.data if key else None) == vector.get("keyJson")
    types = {(vector["kind"], vector["type"]) for vector in FILLED}
    assert len(types) == 17 + 1 + 2 + 26


def test_control_records_of_kraft() -> None:
    for vector in CONTROL:
        number = CONTROL_TYPES[vector["name"]]
        found = decode_control(bytes([0, 0, 0, number]), raw(vector["value"]))
        assert found.data == vector["valueJson"], vector
    assert decode_control(bytes([0, 0, 0, 1]), bytes([0, 0, 0, 0, 0, 7])).data == {
        "version": 0,
        "coordinatorEpoch": 7,
    }
    assert decode_control(bytes([0, 0, 0, 99]), b"?").data is None


def test_records_that_a_broker_wrote_and_its_dump_tool_printed() -> None:
    for vector in SEEN:
        key, value = decode_state_record(vector["kind"], raw(vector["key"]), raw(vector["value"]))
        assert key is not None
        assert value.data is not None
        if vector["kind"] == CONSUMER_OFFSETS:
            printed = json.loads(vector["dumpKey"])
            assert (key.data, str(key.type)) == (printed["data"], printed["type"])
            printed = json.loads(vector["dumpPayload"])
            assert (value.data, str(value.version)) == (printed["data"], printed["version"])
        else:
            assert vector["dumpKey"].endswith(f"={(key.data or {})['transactionalId']}")
            assert f"producerId:{value.data['producerId']}," in vector["dumpPayload"]


def test_producer_snapshots() -> None:
    for vector in SNAPSHOTS:
        entries = decode_snapshot(bytes.fromhex(vector["file"]))
        assert [entry.producer_id for entry in entries] == [each["producerId"] for each in vector["entries"]]
        assert [entry.batches[-1].last_offset for entry in entries if entry.batches] == [
            each["batch"]["lastOffset"] for each in vector["entries"] if each.get("batch")
        ]


def test_a_record_that_is_cut_anywhere_is_refused_or_shorter() -> None:
    """No cut of a record raises anything else."""
    for vector in FILLED:
        value = raw(vector["value"])
        for size in range(len(value or b"")):
            try:
                decode_state_record(vector["kind"], raw(vector["key"]), (value or b"")[:size])
            except InvalidRecord:
                continue
            pytest.fail(f"{vector['name']} cut to {size} bytes was decoded")


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        (CONSUMER_OFFSETS, None, b""),
        (CONSUMER_OFFSETS, b"\0\x63", b""),
        (TRANSACTION_STATE, b"\0", b""),
        (CLUSTER_METADATA, None, None),
        (CLUSTER_METADATA, None, b"\2\0\0"),
        (CLUSTER_METADATA, None, b"\1\x06\0"),
        (CLUSTER_METADATA, None, b"\1\xff\xff\xff\xff\xff\xff"),
    ],
)
def test_what_is_no_such_record(topic: str, key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidRecord):
        decode_state_record(topic, key, value)


def test_the_name_of_a_metadata_record() -> None:
    assert decode_metadata(b"\1\x14\0\0").name == "NoOpRecord"
