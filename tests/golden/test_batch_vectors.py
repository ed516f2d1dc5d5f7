"""Every golden batch, both ways: it decodes to what is listed, and encodes to the same bytes."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.compact.compaction import encode_empty_batch
from logstore.format.batch import Batch, encode_batch, encode_marker_batch, walk
from logstore.format.compression import Codec
from logstore.format.record import ControlRecord, EndTransactionMarker, Record
from tests.golden.reading import BATCHES, content, same_blob

IDS = [entry["name"] for entry in BATCHES]


def rebuilt(batch: Batch) -> bytes:
    """What our encoder makes of a batch's decoded records and producer fields."""
    if batch.record_count == 0:
        return encode_empty_batch(batch)
    log_append_time_ms = batch.max_timestamp_ms if batch.timestamp_type else None
    records = list(batch.records())
    if log_append_time_ms is not None:
        # The producer's times are still in the deltas, which a reader of such a batch ignores.
        producer_view = bytearray(batch.buffer)
        producer_view[22] &= ~(1 << 3)
        records = list(Batch(producer_view).records())
    return encode_batch(
        records,
        base_offset=batch.base_offset,
        leader_epoch=batch.leader_epoch,
        codec=batch.codec,
        log_append_time_ms=log_append_time_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
        delete_horizon_ms=batch.delete_horizon_ms,
        last_offset=batch.last_offset,
    )


@pytest.mark.parametrize("entry", BATCHES, ids=IDS)
def test_header_matches_the_vector(entry: dict[str, Any]) -> None:
    """Each field of the header, and what follows from it."""
    data = content(entry["file"])
    batch = Batch(data)
    header, derived, flags = entry["header"], entry["derived"], entry["attributes_decoded"]
    batch.check_crc()
    assert {
        "base_offset": batch.base_offset,
        "batch_length": batch.batch_length,
        "partition_leader_epoch": batch.leader_epoch,
        "magic": batch.magic,
        "crc": batch.crc,
        "attributes": batch.attributes,
        "last_offset_delta": batch.last_offset_delta,
        "base_timestamp": batch.base_timestamp_ms,
        "max_timestamp": batch.max_timestamp_ms,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "records_count": batch.record_count,
    } == header
    assert derived == {
        "last_offset": batch.last_offset,
        "next_offset": batch.next_offset,
        "last_sequence": batch.last_sequence,
        "delete_horizon_ms": batch.delete_horizon_ms,
    }
    assert flags == {
        "codec": batch.codec.name.lower(),
        "timestamp_type": "LogAppendTime" if batch.timestamp_type else "CreateTime",
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "delete_horizon": batch.delete_horizon_ms is not None,
    }
    assert (batch.size, bytes(batch.buffer)) == (entry["size"], data)
    assert [each.base_offset for each in walk(data)] == [batch.base_offset]


@pytest.mark.parametrize("entry", BATCHES, ids=IDS)
def test_records_match_the_vector(entry: dict[str, Any]) -> None:
    """Offsets, effective times, sequences, keys, values and headers, whatever the codec."""
    records = list(Batch(content(entry["file"])).records())
    assert len(records) == len(entry["records"])
    for record, listed in zip(records, entry["records"], strict=True):
        facts = (record.offset, record.timestamp_ms, record.sequence)
        assert facts == (listed["offset"], listed["timestamp"], listed["sequence"])
        assert same_blob(record.key, listed["key"])
        assert same_blob(record.value, listed["value"])
        assert len(record.headers) == len(listed["headers"])
        for header, (name, value) in zip(record.headers, map(header_of, listed["headers"]), strict=True):
            assert header.name == name
            assert same_blob(header.value, value)


def header_of(listed: Any) -> tuple[str, dict[str, Any] | None]:
    """A header of the listing, whichever of its two spellings."""
    return (listed["key"], listed["value"]) if isinstance(listed, dict) else (listed[0], listed[1])


@pytest.mark.parametrize("entry", BATCHES, ids=IDS)
def test_decoded_batches_encode_to_the_same_bytes(entry: dict[str, Any]) -> None:
    """Byte for byte where nothing is compressed; compressors differ, so there only what is decoded counts."""
    data = content(entry["file"])
    batch = Batch(data)
    again = rebuilt(batch)
    if entry["bytes_exact"]:
        assert again == data
    else:
        other = Batch(again)
        other.check_crc()
        assert list(other.records()) == list(batch.records())
        assert (other.attributes, other.last_offset_delta, other.record_count) == (
            batch.attributes, batch.last_offset_delta, batch.record_count,
        )  # fmt: skip
        assert again[27:61] == data[27:61], "the rest of the header is of the uncompressed records"


@pytest.mark.parametrize("name", ["codec-gzip", "codec-zstd", "codec-lz4-stored-block", "codec-snappy"])
def test_compressed_framing_is_kafkas(name: str) -> None:
    """The first bytes of a stream name its format and options; those are ours to choose, and Kafka's."""
    prefix = {"codec-gzip": 8, "codec-zstd": 6, "codec-lz4-stored-block": 7, "codec-snappy": 16}[name]
    data = content(f"{name}.bin")
    assert rebuilt(Batch(data))[61 : 61 + prefix] == data[61 : 61 + prefix]


CONTROL = [entry for entry in BATCHES if "control_record" in entry]


@pytest.mark.parametrize("entry", CONTROL, ids=[entry["name"] for entry in CONTROL])
def test_rows_13_and_39_and_43_and_44_control_records(entry: dict[str, Any]) -> None:
    """Rows 13, 39, 43, 44: markers are read and written; an unknown type is named, not refused."""
    data = content(entry["file"])
    batch = Batch(data)
    record = next(batch.records())
    control = ControlRecord.parse(record.key)
    listed = entry["control_record"]
    assert tuple(control) == (listed["key_version"], listed["type"])
    if control.type is None:
        return
    marker = EndTransactionMarker.parse(record)
    assert (marker.type, marker.coordinator_epoch) == (listed["type"], listed["coordinator_epoch"])
    if batch.delete_horizon_ms is None:
        assert data == encode_marker_batch(
            marker,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            timestamp_ms=record.timestamp_ms,
            base_offset=batch.base_offset,
            leader_epoch=batch.leader_epoch,
        )


def test_row_42_kafkas_own_constants() -> None:
    """Row 42: the checksums that Kafka's unit tests pin for these two records."""
    records = [Record(0, 283843, b"key1", b"value1"), Record(1, 1234, b"key2", b"value2")]
    assert Batch(encode_batch(records)).crc == 3851219455
    assert Batch(encode_batch(records, codec=Codec.LZ4)).crc == 2745969314
