"""Whose log dir it is, in the properties format of another language."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.checkpoint.identity import (
    MetaProperties,
    format_meta_properties,
    parse_meta_properties,
    parse_properties,
    read_meta_properties,
    write_meta_properties,
)
from logstore.disk.errors import CorruptCheckpoint
from logstore.testing.disks import MemoryDisk

CLUSTER = "Jt6pmNUoRUKUdFQtIO_K8w"
DIRECTORY = "AAECAwQFBgcICQoLDA0ODw"


def test_version_0_as_a_zookeeper_broker_writes_it() -> None:
    data = f"#\n#Mon Jan 05 10:00:00 UTC 2026\ncluster.id={CLUSTER}\nversion=0\nbroker.id=3\n".encode()
    assert parse_meta_properties(data) == MetaProperties(version=0, node_id=3, cluster_id=CLUSTER)
    assert parse_meta_properties(b"version=0\nbroker.id=3\n") == MetaProperties(version=0, node_id=3)


def test_version_1_as_a_kraft_node_writes_it() -> None:
    data = f"version=1\nnode.id=3\ncluster.id={CLUSTER}\ndirectory.id={DIRECTORY}\n".encode()
    assert parse_meta_properties(data) == MetaProperties(
        version=1, node_id=3, cluster_id=CLUSTER, directory_id=DIRECTORY
    )


def test_what_is_written() -> None:
    properties = MetaProperties(version=0, node_id=3, cluster_id=CLUSTER, extra={"rack id": "a=b"})
    assert format_meta_properties(properties, comment="Mon Jan 05 10:00:00 UTC 2026") == (
        b"#\n#Mon Jan 05 10:00:00 UTC 2026\n"
        b"version=0\nbroker.id=3\ncluster.id=Jt6pmNUoRUKUdFQtIO_K8w\nrack\\ id=a\\=b\n"
    )
    assert format_meta_properties(MetaProperties(node_id=0)) == b"#\nversion=0\nbroker.id=0\n"


MALFORMED = {
    "empty": b"",
    "comments only": b"#version=0\n!broker.id=1\n",
    "no version": b"broker.id=1\n",
    "version 2": b"version=2\nnode.id=1\ncluster.id=x\n",
    "version not a number": b"version=one\nbroker.id=1\n",
    "no broker id": b"version=0\n",
    "broker id negative": b"version=0\nbroker.id=-1\n",
    "broker id not a number": b"version=0\nbroker.id=1a\n",
    "broker id in another script": b"version=0\nbroker.id=\\u0661\n",
    "broker id beyond 32 bits": b"version=0\nbroker.id=2147483648\n",
    "version 1 under the old name": b"version=1\nbroker.id=1\ncluster.id=x\n",
    "version 1 without a cluster": b"version=1\nnode.id=1\n",
    "directory id cut short": b"version=0\nbroker.id=1\ndirectory.id=AAEC\n",
    "escape cut short": b"version=0\nbroker.id=1\ncluster.id=\\u00\n",
    "zeros": bytes(40),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_anything_else_is_corrupt_and_names_the_file(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"^/data/meta\.properties: "):
        parse_meta_properties(data, path="/data/meta.properties")


# Expected values are those of java.util.Properties.load.
SYNTAX = {
    b"a=b": {"a": "b"},
    b"a = b": {"a": "b"},
    b"a:b": {"a": "b"},
    b"a b": {"a": "b"},
    b"a \t: b": {"a": "b"},
    b"  a=b  ": {"a": "b  "},
    b"a==b": {"a": "=b"},
    b"a": {"a": ""},
    b"a=": {"a": ""},
    b"=b": {"": "b"},
    b"a=1\na=2": {"a": "2"},
    b"a=1\r\nb=2\rc=3\n\n": {"a": "1", "b": "2", "c": "3"},
    b"a=1\\\n   2\\\r\n 3": {"a": "123"},
    b"a=1\\\\\nb=2": {"a": "1\\", "b": "2"},
    b"a=1\\\n#2": {"a": "1#2"},
    b"a=1\\": {"a": "1"},
    b"a\\ b\\=\\:=c": {"a b=:": "c"},
    b"a=\\t\\n\\r\\f\\q\\u00e9\xe9": {"a": "\t\n\r\fq\u00e9\u00e9"},
    b"a=\\ud83d\\ude00": {"a": "\U0001f600"},
    b"#a=b\\\nc=d": {"c": "d"},
    b" \t! a=b": {},
    b"\\\n#a=b\n \\\n\nc=d": {"c": "d"},
}


@pytest.mark.parametrize(("data", "expected"), SYNTAX.items())
def test_properties_as_java_reads_them(data: bytes, expected: dict[str, str]) -> None:
    assert parse_properties(data, path="p") == expected


@settings(derandomize=True, deadline=None)
@given(
    extra=st.dictionaries(
        st.text(max_size=8).filter(lambda key: not key.endswith(".id") and key != "version"),
        st.text(max_size=12),
        max_size=4,
    )
)
def test_unknown_properties_survive_a_rewrite(extra: dict[str, str]) -> None:
    """A newer node's facts must not vanish because an older one wrote the file; any text at all."""
    properties = MetaProperties(version=1, node_id=1, cluster_id=" #!=: \\\n", extra=extra)
    assert parse_meta_properties(format_meta_properties(properties)) == properties


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.one_of(st.binary(max_size=60), st.text("version=0\nbroker.id=1\\u\n", max_size=60).map(str.encode)))
def test_no_input_raises_anything_else(data: bytes) -> None:
    try:
        parse_meta_properties(data)
    except CorruptCheckpoint:
        pass


def test_reading_and_writing_through_a_disk() -> None:
    disk = MemoryDisk(directories=["/data"])
    assert read_meta_properties(disk, "/data") is None
    properties = MetaProperties(version=1, node_id=3, cluster_id=CLUSTER, directory_id=DIRECTORY)
    write_meta_properties(disk, "/data", properties, comment="today")
    assert read_meta_properties(disk.durable_image(), "/data") == properties


def test_contradictory_values_are_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        MetaProperties(version=1, node_id=1)
    with pytest.raises(AssertionError):
        MetaProperties(version=2, node_id=1)
    with pytest.raises(AssertionError):
        format_meta_properties(MetaProperties(node_id=1), comment="two\nversion=9")
