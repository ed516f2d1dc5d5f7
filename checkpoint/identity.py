"""The identity of a log dir (`meta.properties`) and of a partition's directory (`partition.metadata`).

meta.properties: the cluster and node of a log dir, as Java properties.

    #                                  comment
    #Mon Jan 05 10:00:00 UTC 2026      comment: Kafka writes the time here
    version=0                          0                             1
    broker.id=1                        broker.id                     node.id
    cluster.id=Jt6pmNUoRUKUdFQtIO_K8w  cluster.id, if known          cluster.id
    directory.id=…                     -                             directory.id, if any

Written when a log dir is formatted or first used. The reader must refuse a dir of another cluster or node.

partition.metadata: the id of the topic to which a partition's directory belongs.

    version: 0
    topic_id: AAECAwQFBgcICQoLDA0ODw      22 characters of URL-safe base64; no newline at the end

A topic that is deleted and created again gets another id and must not serve the old records. The file is
written before the first record of the partition: a crash never leaves records without it.

Both files are replaced whole (`publish`); a crash leaves the old file or the new one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from logstore.checkpoint.entry_files import INT32_MAX, parse_number
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Disk, publish, read_small_file
from logstore.disk.ids import ID_BYTES, id_from_text

META_PROPERTIES = "meta.properties"

_VERSION, _CLUSTER_ID, _DIRECTORY_ID = "version", "cluster.id", "directory.id"
_NODE_ID = {0: "broker.id", 1: "node.id"}

# A key ends at the first `=`, `:` or blank without a backslash before it.
_PROPERTY = re.compile(r"(?P<key>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LINE_END = re.compile(r"\r\n|\r|\n")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_TO_ESCAPE = re.compile(r"[\\=:#!\t\n\r\f]|[^\x20-\x7e]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The content of the file. `node_id` is `broker.id` in version 0; `extra` keeps unknown properties."""

    version: int = 0
    node_id: int
    cluster_id: str | None = None
    directory_id: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.version in _NODE_ID, f"version {self.version} of {META_PROPERTIES}"
        assert self.version == 0 or self.cluster_id is not None, "version 1 needs a cluster id"


def parse_meta_properties(data: bytes, *, path: str = META_PROPERTIES) -> MetaProperties:
    """Parse version 0 or 1. Raises `CorruptCheckpoint`."""
    found = parse_properties(data, path=path)

    def take(name: str) -> str:
        if name not in found:
            raise CorruptCheckpoint(f"{path}: property {name} is missing")
        return found.pop(name)

    version = parse_number(take(_VERSION), INT32_MAX, where=f"{path}: version")
    if version not in _NODE_ID:
        raise CorruptCheckpoint(f"{path}: version {version} is not supported, only 0 and 1")
    node_id = parse_number(take(_NODE_ID[version]), INT32_MAX, where=f"{path}: {_NODE_ID[version]}")
    cluster_id = take(_CLUSTER_ID) if version == 1 else found.pop(_CLUSTER_ID, None)
    directory_id = found.pop(_DIRECTORY_ID, None)
    if directory_id is not None:
        try:
            id_from_text(directory_id)
        except ValueError as error:
            raise CorruptCheckpoint(f"{path}: {_DIRECTORY_ID}: {error}") from error
    return MetaProperties(
        version=version, node_id=node_id, cluster_id=cluster_id, directory_id=directory_id, extra=found
    )


def format_meta_properties(properties: MetaProperties, *, comment: str = "") -> bytes:
    """Return the file's bytes. `comment` is one line; Kafka writes the date there."""
    assert not _LINE_END.search(comment), "the comment must be a single line"
    content = {
        _VERSION: str(properties.version),
        _NODE_ID[properties.version]: str(properties.node_id),
        _CLUSTER_ID: properties.cluster_id,
        _DIRECTORY_ID: properties.directory_id,
        **properties.extra,
    }
    known = {key: value for key, value in content.items() if value is not None}
    return format_properties(known, comment=comment)


def read_meta_properties(disk: Disk, directory: str) -> MetaProperties | None:
    """Read the log dir's file; None if it does not exist. Raises `CorruptCheckpoint`, `OSError`."""
    path = f"{directory}/{META_PROPERTIES}"
    data = read_small_file(disk, path)
    return None if data is None else parse_meta_properties(data, path=path)


def write_meta_properties(
    disk: Disk, directory: str, properties: MetaProperties, *, comment: str = ""
) -> None:
    """Replace the log dir's file durably; see `publish`."""
    publish(disk, directory, META_PROPERTIES, format_meta_properties(properties, comment=comment))


def format_properties(content: Mapping[str, str], *, comment: str = "") -> bytes:
    """Return Java properties (Latin-1, other characters escaped), as `parse_properties` reads them."""
    lines = ["#", f"#{comment}"] if comment else ["#"]
    lines += [f"{_escape_key(key)}={_escape_value(value)}" for key, value in content.items()]
    return "\n".join([*lines, ""]).encode("latin-1", "replace")


def parse_properties(data: bytes, *, path: str) -> dict[str, str]:
    """Parse Java properties (Latin-1); the last of duplicate keys wins. Raises `CorruptCheckpoint`."""
    found = {}
    for line in _logical_lines(data.decode("latin-1")):
        match = _PROPERTY.fullmatch(line)
        assert match is not None, "every line matches: key and value may be empty"
        found[_unescape(match["key"], path)] = _unescape(match["value"], path)
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines, continuations joined, without comments and blank lines."""
    pending: list[str] = []
    for natural_line in _LINE_END.split(text):
        line = natural_line.lstrip(" \t\f")
        if not any(pending) and (not line or line[0] in "#!"):
            pending = []  # a backslash alone before it is nothing to continue
            continue
        # An odd number of backslashes at the end continues the line.
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        pending.append(line[:-1] if goes_on else line)
        if not goes_on:
            yield "".join(pending)
            pending = []
    if pending:
        yield "".join(pending)


def _unescape(text: str, path: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) > 1:
            return chr(int(code[1:], 16))
        if code == "u":
            raise CorruptCheckpoint(f"{path}: \\u is not followed by four hexadecimal digits")
        return _ESCAPED.get(code, code)

    # A character outside the Basic Multilingual Plane is two escapes: a surrogate pair.
    units = _ESCAPE.sub(plain, text).encode("utf-16-be", "surrogatepass")
    return units.decode("utf-16-be", "surrogatepass")


def _escape(text: str) -> str:
    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        for letter, meant in _ESCAPED.items():
            if character == meant:
                return f"\\{letter}"
        if " " <= character <= "~":
            return f"\\{character}"
        # Java writes UTF-16 units; a character outside the Basic Multilingual Plane is two units.
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i : i + 2].hex().upper()}" for i in range(0, len(units), 2))

    return _TO_ESCAPE.sub(escaped, text)


def _escape_key(text: str) -> str:
    return _escape(text).replace(" ", "\\ ")


def _escape_value(text: str) -> str:
    # Leading blanks would be read as the space after the `=`.
    blanks = len(text) - len(text.lstrip(" "))
    return "\\ " * blanks + _escape(text[blanks:])


# --- partition.metadata ----------------------------------------------------------------------

PARTITION_METADATA = "partition.metadata"

_METADATA_LINES = re.compile(
    r"version:[ \t]+(?P<version>[^ \t\r\n]+)\r?\n"
    r"topic_id:[ \t]+(?P<topic_id>[^ \t\r\n]+)"
    r"(?P<rest>(?:\r?\n.*)?)",
    re.DOTALL,
)


def parse_partition_metadata(data: bytes, *, path: str = PARTITION_METADATA) -> str:
    """Parse the topic id, 22 characters. Raises `CorruptCheckpoint`.

    Further lines of later versions are ignored.
    """
    try:
        match = _METADATA_LINES.fullmatch(data.decode())
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"{path}: not UTF-8 at byte {error.start}") from error
    if match is None:
        raise CorruptCheckpoint(f"{path}: the file must have the lines `version: N` and `topic_id: ID`")
    version = parse_number(match["version"], INT32_MAX, where=f"{path}: version")
    if version == 0 and match["rest"].strip("\r\n"):
        raise CorruptCheckpoint(f"{path}: version 0 has only two lines")
    try:
        identity = id_from_text(match["topic_id"])
    except ValueError as error:
        raise CorruptCheckpoint(f"{path}: {error}") from error
    if identity == bytes(ID_BYTES):
        raise CorruptCheckpoint(f"{path}: the topic id is all zeros, which means no topic")
    return match["topic_id"]


def format_partition_metadata(topic_id: str) -> bytes:
    """Return the file's bytes. Raises `ValueError` unless `topic_id` is a topic id of 22 characters."""
    if id_from_text(topic_id) == bytes(ID_BYTES):
        raise ValueError("the topic id is all zeros, which means no topic")
    return f"version: 0\ntopic_id: {topic_id}".encode()


def read_partition_metadata(disk: Disk, directory: str) -> str | None:
    """Read the partition's topic id; None if there is no file. Raises `CorruptCheckpoint`, `OSError`."""
    path = f"{directory}/{PARTITION_METADATA}"
    data = read_small_file(disk, path)
    try:
        return None if data is None else parse_partition_metadata(data, path=path)
    except CorruptCheckpoint as error:
        raise CorruptCheckpoint(
            f"{error}. Take the log from another replica, or set the file aside with "
            f"`logstore recover {directory}`"
        ) from error


def write_partition_metadata(disk: Disk, directory: str, topic_id: str) -> None:
    """Replace the partition's file, durably; see `publish`."""
    publish(disk, directory, PARTITION_METADATA, format_partition_metadata(topic_id))
