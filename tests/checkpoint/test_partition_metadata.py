"""The file that ties a directory to a topic, and the ids in it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.checkpoint.identity import (
    PARTITION_METADATA,
    format_partition_metadata,
    parse_partition_metadata,
    read_partition_metadata,
    write_partition_metadata,
)
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.ids import id_from_text, id_to_text
from logstore.testing.disks import MemoryDisk

GOLDEN = (Path(__file__).parents[1] / "golden" / "vectors" / "partition.metadata.txt").read_bytes()
GOLDEN_ID = "AAECAwQFBgcICQoLDA0ODw"


def test_the_golden_file_both_ways() -> None:
    assert not GOLDEN.endswith(b"\n")
    assert parse_partition_metadata(GOLDEN) == GOLDEN_ID
    assert format_partition_metadata(GOLDEN_ID) == GOLDEN
    assert uuid.UUID(bytes=id_from_text(GOLDEN_ID)) == uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")


@pytest.mark.parametrize(
    "data",
    [
        GOLDEN + b"\n",
        GOLDEN.replace(b"\n", b"\r\n"),
        GOLDEN.replace(b": ", b": \t "),
        GOLDEN.replace(b"version: 0", b"version: 7"),
        GOLDEN.replace(b"version: 0", b"version: 7") + b"\nowner: somebody\n",
    ],
)
def test_tolerated_deviations(data: bytes) -> None:
    """Blanks, line ends, and versions to come, which may say more."""
    assert parse_partition_metadata(data) == GOLDEN_ID


MALFORMED = {
    "empty": b"",
    "version only": b"version: 0",
    "version line only": b"version: 0\n",
    "negative version": GOLDEN.replace(b"version: 0", b"version: -1"),
    "version not a number": GOLDEN.replace(b"version: 0", b"version: x"),
    "version in another script": GOLDEN.replace(b"version: 0", "version: \u0661".encode()),
    "version beyond 32 bits": GOLDEN.replace(b"version: 0", b"version: 2147483648"),
    "no blank after the colon": GOLDEN.replace(b": ", b":"),
    "lines swapped": b"topic_id: " + GOLDEN_ID.encode() + b"\nversion: 0",
    "other keys": GOLDEN.replace(b"topic_id", b"topic-id"),
    "third line in version 0": GOLDEN + b"\nmore: 1",
    "all-zero id": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
    "id cut short": GOLDEN[:-1],
    "id too long": GOLDEN + b"A",
    "id padded": GOLDEN + b"==",
    "id in plain base64": b"version: 0\ntopic_id: +/ECAwQFBgcICQoLDA0ODw",
    "id with spare bits set": GOLDEN[:-1] + b"x",
    "id with hyphens": b"version: 0\ntopic_id: 00010203-0405-0607-0809-0a0b0c0d0e0f",
    "not UTF-8": GOLDEN + b"\xff",
    "zeros": bytes(43),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_anything_else_is_corrupt_and_names_the_file(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"^/data/t-0/partition\.metadata: "):
        parse_partition_metadata(data, path=f"/data/t-0/{PARTITION_METADATA}")


def test_a_file_cut_at_any_byte_is_corrupt() -> None:
    for size in range(len(GOLDEN)):
        with pytest.raises(CorruptCheckpoint):
            parse_partition_metadata(GOLDEN[:size])


@settings(derandomize=True, deadline=None)
@given(st.binary(min_size=16, max_size=16))
def test_ids_have_one_spelling(identity: bytes) -> None:
    text = id_to_text(identity)
    assert len(text) == 22
    assert id_from_text(text) == identity


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.one_of(st.binary(max_size=60), st.text("version:topic_id 0\nAQ", max_size=60).map(str.encode)))
def test_no_input_raises_anything_else(data: bytes) -> None:
    try:
        parse_partition_metadata(data)
    except CorruptCheckpoint:
        pass


@pytest.mark.parametrize("topic_id", ["", "short", "A" * 22, GOLDEN_ID + "=", GOLDEN_ID[:-1] + "x"])
def test_invalid_topic_id_writes_no_file(topic_id: str) -> None:
    with pytest.raises(ValueError):
        format_partition_metadata(topic_id)


def test_reading_and_writing_through_a_disk() -> None:
    disk = MemoryDisk(directories=["/data/t-0"])
    assert read_partition_metadata(disk, "/data/t-0") is None
    write_partition_metadata(disk, "/data/t-0", GOLDEN_ID)
    assert disk.durable_image().files() == {"/data/t-0/partition.metadata": GOLDEN}
    assert read_partition_metadata(disk, "/data/t-0") == GOLDEN_ID
