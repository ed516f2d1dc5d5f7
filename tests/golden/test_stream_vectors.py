"""Every golden stream at the level of its bytes: where the batches are, and where they stop being any."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.errors import CorruptBatch
from logstore.format.batch import Batch, walk
from logstore.log.producer_state import ProducerState, decode_snapshot
from logstore.segment.epochs import LeaderEpochCache
from logstore.segment.transaction_index import TransactionIndex, decode_entries
from tests.golden.reading import FILES, STREAMS, content, named


def valid_batches(data: bytes) -> tuple[list[Batch], bool]:
    """The leading batches that are whole and whose checksums match; whether the rest is corrupt, not cut."""
    batches: list[Batch] = []
    try:
        for batch in walk(data):
            batch.check_crc()
            batches.append(batch)
    except CorruptBatch:
        return batches, True
    return batches, False


@pytest.mark.parametrize("entry", STREAMS, ids=[entry["name"] for entry in STREAMS])
def test_valid_prefix_and_what_follows_from_it(entry: dict[str, Any]) -> None:
    """What recovery keeps of each stream, and the state it has then."""
    data = content(entry["file"])
    batches, corrupt = valid_batches(data)
    after = entry["after_recovery"]
    assert sum(batch.size for batch in batches) == entry["valid_bytes"] == after["size"]
    assert batches[-1].next_offset == after["next_offset"]
    assert corrupt == (entry["name"] in {"stream-bad-crc-middle", "stream-zero-tail", "stream-magic-1"})
    for key, values in (
        ("base_offsets", [batch.base_offset for batch in batches]),
        ("last_offsets", [batch.last_offset for batch in batches]),
    ):
        assert entry.get(key, values) == values

    producers, aborts, epochs = ProducerState(), TransactionIndex(), LeaderEpochCache()
    for batch in batches:
        epochs.assign(batch.leader_epoch, batch.base_offset)
        completed = producers.replay(batch)
        if completed is not None and (aborted := completed.index_entry()) is not None:
            aborts.append(aborted)
    assert producers.encode_snapshot().hex() == after["snapshot_hex"]
    assert b"".join(abort.encode() for abort in aborts.entries).hex() == after["txnindex_hex"]
    listed = after["leader_epoch_checkpoint"].splitlines()[2:]
    assert [f"{epoch} {start}" for epoch, start in epochs.entries] == listed
    assert f"{producers.end_offset:020}.snapshot" == after["snapshot_name"]


def test_iterating_batches_checks_no_crc() -> None:
    """Row 8, the other half: a walk yields the damaged batch; its checksum is a question of its own."""
    entry = named(STREAMS, "stream-bad-crc-middle")
    batches = list(walk(content(entry["file"])))
    positions = [sum(batch.size for batch in batches[:slot]) for slot in range(len(batches))]
    assert positions == entry["batch_positions"]
    bad = [slot for slot, batch in enumerate(batches) if not is_intact(batch)]
    assert bad == entry["bad_batches"]


def is_intact(batch: Batch) -> bool:
    try:
        batch.check_crc()
    except CorruptBatch:
        return False
    return True


def test_committed_readers_of_the_transaction_stream() -> None:
    """What a read-committed consumer sees: no markers, nothing aborted, nothing past the stable offset."""
    entry = named(STREAMS, "stream-transactions")
    batches, _ = valid_batches(content(entry["file"]))
    producers, aborts = ProducerState(), TransactionIndex()
    for batch in batches:
        completed = producers.replay(batch)
        if completed is not None and (aborted := completed.index_entry()) is not None:
            aborts.append(aborted)
    high_watermark = producers.end_offset
    assert producers.last_stable_offset(high_watermark, 0) == 0, "no marker is replicated yet"
    producers.advance_high_watermark(high_watermark)
    stable = producers.last_stable_offset(high_watermark, 0)
    assert stable == entry["last_stable_offset_when_hw_is_leo"]
    hidden = {
        (abort.producer_id, offset)
        for abort in aborts.collect(0, stable).transactions
        for offset in range(abort.first_offset, abort.last_offset)
    }
    seen = [
        record.offset
        for batch in batches
        if not batch.is_control
        for record in batch.records()
        if record.offset < stable and (batch.producer_id, record.offset) not in hidden
    ]
    assert seen == entry["committed_offsets"]


@pytest.mark.parametrize("name", ["producer-snapshot.bin", "producer-snapshot-empty.bin"])
def test_producer_snapshots_both_ways(name: str) -> None:
    """Kafka's snapshot loads to the listed entries and is written again byte for byte."""
    data = content(name)
    entries = decode_snapshot(data)
    listed = [
        [
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.batches[-1].last_offset if entry.batches else -1,
            entry.batches[-1].offset_delta if entry.batches else 0,
            entry.last_timestamp_ms,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        ]
        for entry in entries
    ]
    assert listed == FILES[name]["entries"]
    assert ProducerState.load(entries, end_offset=7).encode_snapshot() == data


def test_transaction_index_both_ways() -> None:
    """Kafka's transaction index loads to the listed entries, is written again, and answers as listed."""
    entry = FILES["txnindex.bin"]
    data = content("txnindex.bin")
    index = TransactionIndex(decode_entries(data))
    assert [list(each) for each in index.entries] == entry["entries"]
    assert b"".join(each.encode() for each in index.entries) == data
    for question in entry["collect"]:
        found = index.collect(question["fetch"], question["upper"])
        assert [index.entries.index(each) for each in found.transactions] == question["entries"]
        assert found.is_complete == question["complete"]
