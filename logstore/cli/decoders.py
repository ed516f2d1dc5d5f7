"""Decode keys and values of records for `logstore dump`.

    utf8 hex base64      text, as `--encoding` shows it
    json                 the value that the bytes hold
    int                  a signed big-endian integer of 1, 2, 4 or 8 bytes, as Kafka's serializers write it
    package:callable     your function: bytes → anything that JSON can hold

Records of internal topics are decoded by their own formats (`format/state_records.py`), and control records
always.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

import typer

from logstore.cli.terminal import Encoding, as_text
from logstore.disk.errors import EngineError, InvalidTopic
from logstore.disk.topic_partition import parse_directory_name
from logstore.format.record import Record
from logstore.format.state_records import (
    CLUSTER_METADATA,
    STATE_TOPICS,
    Decoded,
    decode_control,
    decode_state_record,
)

Decoder: TypeAlias = Callable[[bytes], Any]

_INT_BYTES: Final = (1, 2, 4, 8)


def decoder_named(option: str, name: str) -> Decoder:
    """Return the decoder that an option names. Raises `typer.BadParameter` for an unknown one."""
    if name in list(Encoding):
        return lambda data: as_text(data, Encoding(name))
    if name in _DECODERS:
        return _DECODERS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join([*Encoding, *_DECODERS])
        raise typer.BadParameter(f"{option}: {name!r} is not one of {known} or package:callable")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(f"{option}: {error}") from error
    if not callable(found):
        raise typer.BadParameter(f"{option}: {name} is not callable")
    decoder: Decoder = found
    return decoder


def _integer(data: bytes) -> int:
    if len(data) not in _INT_BYTES:
        raise ValueError(f"{len(data)} bytes are not an integer of 1, 2, 4 or 8")
    return int.from_bytes(data, "big", signed=True)


_DECODERS: Final[dict[str, Decoder]] = {"json": json.loads, "int": _integer}


class Undecoded(NamedTuple):
    """A key or value that its decoder refused: its bytes as text, and why."""

    text: str | None
    problem: str


class Decoders(NamedTuple):
    """How records are shown: a decoder each for keys and values, or the internal topic that they belong to.

    `topic` is an internal topic, or empty. Headers are shown in `encoding`, and so is what cannot be decoded.
    """

    key: Decoder
    value: Decoder
    encoding: Encoding
    topic: str = ""

    def shown(self, record: Record, *, is_control: bool) -> tuple[object, object]:
        """Return what to show of a record's key and value. What cannot be decoded is `Undecoded`."""
        if is_control:
            return None, self._try(record.value, lambda _: _facts(decode_control(record.key, record.value)))
        if self.topic:
            return self._state(record)
        return self._try(record.key, self.key), self._try(record.value, self.value)

    def _state(self, record: Record) -> tuple[object, object]:
        try:
            key, value = decode_state_record(self.topic, record.key, record.value)
        except EngineError as error:
            return as_text(record.key, self.encoding), self._refused(record.value, error)
        if self.topic == CLUSTER_METADATA:
            return None, _as_kafka_prints(value)
        return None if key is None else _facts(key), None if value.data is None else _facts(value)

    def _try(self, data: bytes | None, decoder: Decoder) -> object:
        if data is None:
            return None
        try:
            return decoder(data)
        except Exception as error:  # a decoder is the user's code; each refusal is shown with its reason
            return self._refused(data, error)

    def _refused(self, data: bytes | None, error: Exception) -> Undecoded:
        return Undecoded(as_text(data, self.encoding), f"{type(error).__name__}: {error}")


def internal_topic(directory: str) -> str:
    """Return the internal topic of a partition's directory, by its name; empty for any other."""
    try:
        topic = parse_directory_name(directory.rstrip("/").rpartition("/")[2]).topic
    except InvalidTopic:
        return ""
    return topic if topic in STATE_TOPICS else ""


def _facts(decoded: Decoded) -> dict[str, object]:
    return {"type": decoded.name, "version": decoded.version, "data": decoded.data}


def _as_kafka_prints(decoded: Decoded) -> dict[str, object]:
    """`TopicRecord` is `TOPIC_RECORD` to Kafka's dump tool."""
    return {**_facts(decoded), "type": re.sub(r"(?<=[a-z])(?=[A-Z])", "_", decoded.name).upper()}
