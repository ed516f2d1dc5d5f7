"""Converts messages: the engine's (`replication/messages.py`, `groups/requests.py`) ⇄ the wire's (`wire/`).

One pair of functions is compiled for each pair of message types. They follow the fields of both declarations:

    engine                               wire
    name: int, str, bytes, bool          the field of the same name, or of one of its `_ALIASES`
    error: ErrorCode                     error_code: int16
    topic_id: str                        uuid, zeros for none
    durability: an Enum                  int8, counting its members from 0
    message: str                         a nullable string, null for the empty text
    isr: tuple[int, ...]                 an array
    part: another message                a struct, field by field
    partitions: Mapping[TopicPartition]  an array of topics with arrays of partitions, or one flat array
    results: Mapping[str, …]             an array of structs, the first field of which is the key

A field that has no counterpart keeps its default. Fields of another shape are converted by functions that are
given (`by_hand`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from itertools import count
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from logstore.broker.errors import MalformedMessage
from logstore.broker.wire import types as t
from logstore.broker.wire.compiling import compiled
from logstore.broker.wire.declarations import Field, Struct
from logstore.disk.errors import ErrorCode, InvalidTopic
from logstore.disk.ids import ID_BYTES, id_from_text, id_to_text
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.replication.durability import Durability

E = TypeVar("E")
S = TypeVar("S", bound=Struct)
V = TypeVar("V")

NO_ID: Final = bytes(ID_BYTES)
_LEVELS: Final = tuple(Durability)
"""By their numbers on the wire."""
_ERRORS: Final[Mapping[int, ErrorCode]] = {each.value: each for each in ErrorCode}

_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "aborted": ("aborted_transactions",),
    "codes": ("results",),
    "committed_only": ("isolation_level",),
    "delete": ("delete_partition",),
    "durability": ("level",),
    "epoch": ("broker_epoch", "leader_epoch"),
    "error": ("error_code",),
    "generation_id": ("generation_id_or_member_epoch",),
    "host": ("host_name",),
    "leader": ("leader_id",),
    "max_bytes": ("partition_max_bytes",),
    "message": ("error_message", "batch_index_error_message"),
    "partition_epoch": ("zk_version",),
    "partitions": (
        "topics",
        "topic_states",
        "responses",
        "partition_errors",
        "topic_partitions",
        "replica_election_results",
    ),
    "records": ("topic_data", "responses"),
    "recovering": ("leader_recovery_state",),
    "remaining": ("remaining_partitions",),
    "topics": ("results",),
}
"""Names on the wire of the engine's fields; a field of the same name comes first."""
ByHand: TypeAlias = Mapping[
    tuple[type[Any], str], tuple[str, Callable[[Any], Any] | None, Callable[[Any], Any]]
]
"""By message and field of the engine: the wire's field, a function that writes it or None, one that reads it.

Each is given the whole message. A field without a writing function is left to the caller.
"""
_TOPIC_NAMES: Final = ("topic_name", "name", "topic")
_PARTITION_NAMES: Final = ("partition_index", "partition", "index", "partition_id")


# --- parts of messages ------------------------------------------------------------------------


def by_topic(partitions: Iterable[tuple[TopicPartition, V]]) -> dict[str, list[tuple[int, V]]]:
    """Group partitions by topic, as most messages list them. Topics are in order of their first partition."""
    topics: dict[str, list[tuple[int, V]]] = {}
    for (topic, partition), value in partitions:
        topics.setdefault(topic, []).append((partition, value))
    return topics


def results_of_markers(
    body: t.WriteTxnMarkersRequest, code_of: Callable[[int, str, int], ErrorCode]
) -> t.WriteTxnMarkersResponse:
    """Return the answer with the code of each marker, by producer id, topic and partition."""
    partition = t.WriteTxnMarkersResponseWritableTxnMarkerPartitionResult
    return t.WriteTxnMarkersResponse(
        markers=[
            t.WriteTxnMarkersResponseWritableTxnMarkerResult(
                producer_id=each.producer_id,
                topics=[
                    t.WriteTxnMarkersResponseWritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            partition(
                                partition_index=number,
                                error_code=code_of(each.producer_id, topic.name, number),
                            )
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in each.topics
                ],
            )
            for each in body.markers
        ]
    )


def checked(topic: str, partition: int) -> TopicPartition:
    """Return the partition of that name. Raises `MalformedMessage` for an invalid name or number."""
    check_name(topic)
    if partition < 0:
        raise MalformedMessage(f"invalid partition number {partition} of topic {topic}")
    return TopicPartition(topic, partition)


def check_name(topic: str) -> None:
    """Raise `MalformedMessage` unless `topic` is a valid name of a topic."""
    try:
        check_topic_name(topic)
    except InvalidTopic as error:
        raise MalformedMessage(str(error)) from error


def distinct(items: Iterable[tuple[str, int, V]]) -> dict[TopicPartition, V]:
    """Return the partitions of a received message. Raises `MalformedMessage` for a bad or repeated one."""
    found: dict[TopicPartition, V] = {}
    for topic, partition, value in items:
        name = checked(topic, partition)
        if name in found:
            raise MalformedMessage(f"partition {name} is listed twice")
        found[name] = value
    return found


def id_to_wire(topic_id: str) -> bytes:
    """Return the 16 bytes of an id, zeros for none. Raises `MalformedMessage` for a text that is no id."""
    if not topic_id:
        return NO_ID
    try:
        return id_from_text(topic_id)
    except ValueError as error:
        raise MalformedMessage(str(error)) from error


def id_from_wire(topic_id: bytes) -> str:
    """Return the text of an id; empty for none."""
    return "" if topic_id == NO_ID else id_to_text(topic_id)


def error_of(code: int) -> ErrorCode:
    """Return the error with this number; UNKNOWN_SERVER_ERROR for an unknown one, as Kafka's clients do."""
    return _ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


def _member(members: tuple[Enum, ...], number: int) -> Enum:
    if not 0 <= number < len(members):
        raise MalformedMessage(f"{number} is not a {type(members[0]).__name__}")
    return members[number]


def level_to_wire(durability: Durability | None) -> int:
    """Return the number of a durability level; -1 for none."""
    return -1 if durability is None else _LEVELS.index(durability)


def level_from_wire(number: int) -> Durability | None:
    """Return the durability level with this number; None for an unknown one too."""
    return _LEVELS[number] if number in range(len(_LEVELS)) else None


# --- compiling --------------------------------------------------------------------------------


class Translation:
    """Converts messages field by field; a function is compiled when a pair of types is first met."""

    def __init__(self, by_hand: ByHand | None = None, *, checks: bool = False) -> None:
        """`checks`: refuse partitions with invalid names, or listed twice. Else the last one counts."""
        self._by_hand, self._checks = by_hand or {}, checks
        self._writers: dict[tuple[type[Any], type[Struct]], Callable[[Any], Any]] = {}
        self._readers: dict[tuple[type[Struct], type[Any]], Callable[..., Any]] = {}

    def to_wire(self, body: Any, kind: type[S]) -> S:
        """Return the engine's message as a `kind`. Raises `MalformedMessage` if the wire cannot express it.

        Numbers that are too large show when it is encoded.
        """
        pair = (type(body), kind)
        write = self._writers.get(pair)
        if write is None:
            form = _Form(self._by_hand, checks=self._checks)
            source = f"def write(x):\n return {form.write_struct(*pair, 'x')}"
            shown = f"{pair[0].__name__} to {kind.__name__}"
            write = self._writers[pair] = compiled("write", source, form.names, shown_as=shown)
        wire: S = write(body)
        return wire

    def from_wire(self, wire: Struct, kind: type[E], **given: Any) -> E:
        """Return the wire's message as the engine's `kind`; `given` are fields that the wire does not have.

        Raises `MalformedMessage` for undefined values, and for the names that `checks` covers.
        """
        pair = (type(wire), kind)
        read = self._readers.get(pair)
        if read is None:
            form = _Form(self._by_hand, checks=self._checks)
            source = f"def read(x, **given):\n return {form.read_struct(kind, pair[0], 'x', ', **given')}"
            shown = f"{pair[0].__name__} to {kind.__name__}"
            read = self._readers[pair] = compiled("read", source, form.names, shown_as=shown)
        body: E = read(wire, **given)
        return body


def _counterpart(name: str, wire: type[Struct]) -> str | None:
    return next((each for each in (name, *_ALIASES.get(name, ())) if each in wire.FIELDS), None)


def _first(names: Iterable[str], wire: type[Struct]) -> str:
    return next(each for each in names if each in wire.FIELDS)


def _required(kind: type[Any]) -> set[str]:
    """The fields of an engine's message that have no default."""
    if is_dataclass(kind):
        return {each.name for each in fields(kind) if each.default is each.default_factory is MISSING}
    return set(kind._fields) - set(kind._field_defaults)


def _is_message(hint: Any) -> bool:
    return isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields"))


def _without_none(hint: Any) -> tuple[Any, bool]:
    """A type without `| None`, and whether it had that; bytes stand for any buffer."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    if bytes in options:
        return bytes, NoneType in options
    if NoneType in options:
        return next(each for each in options if each is not NoneType), True
    return hint, False


class _Form:
    """Expressions of the source, and the objects that they name."""

    def __init__(self, by_hand: ByHand, *, checks: bool) -> None:
        self.by_hand, self.checks = by_hand, checks
        self.names: dict[str, object] = {
            "by_topic": by_topic,
            "checked": checked,
            "distinct": distinct,
            "error_of": error_of,
            "id_to_wire": id_to_wire,
            "id_from_wire": id_from_wire,
            "level_to_wire": level_to_wire,
            "level_from_wire": level_from_wire,
            "member": _member,
            "TopicPartition": TopicPartition,
        }
        self._numbers = count()

    def named(self, value: Any) -> str:
        name = f"{value.__name__.strip('<>')}_{id(value)}"
        self.names[name] = value
        return name

    def members(self, kind: type[Enum]) -> str:
        name = f"members_of_{kind.__name__}"
        self.names[name] = tuple(kind)
        return name

    def new(self) -> str:
        return f"x{next(self._numbers)}"

    # --- the engine's to the wire's ---

    def write_struct(self, engine: type[Any], wire: type[Struct], x: str, key: str = "") -> str:
        words = [key] if key else []
        for name, hint in get_type_hints(engine).items():
            by_hand = self.by_hand.get((engine, name))
            if by_hand is not None:
                target, write, _ = by_hand
                if write is not None:
                    words.append(f"{target}={self.named(write)}({x})")
                continue
            counterpart = _counterpart(name, wire)
            if counterpart is None:
                assert not self.checks, f"{wire.__name__} has no field for {engine.__name__}.{name}"
                continue
            words.append(f"{counterpart}={self.write(hint, wire.FIELDS[counterpart], f'{x}.{name}')}")
        return f"{self.named(wire)}({', '.join(words)})"

    def write(self, hint: Any, field: Field, x: str) -> str:
        hint, is_optional = _without_none(hint)
        if hint is Durability and is_optional:
            return f"level_to_wire({x})"
        text = self._written(hint, field, x)
        return f"(None if {x} is None else {text})" if is_optional and text != x else text

    def _written(self, hint: Any, field: Field, x: str) -> str:
        origin, arguments = get_origin(hint), get_args(hint)
        if hint is str and field.kind == "uuid":
            return f"id_to_wire({x})"
        if hint is str and field.nullable and field.default is None:
            return f"({x} or None)"
        if hint is bool and field.kind != "bool":
            return f"int({x})"
        if isinstance(hint, type) and issubclass(hint, Enum) and hint is not ErrorCode:
            return f"{self.members(hint)}.index({x})"
        if _is_message(hint):
            assert isinstance(field.element, type)
            return self.write_struct(hint, field.element, x)
        if origin is tuple:
            return self._write_items(arguments[0], field, x)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._write_mapping(arguments[0], arguments[1], field, x)
        return x

    def _write_items(self, item: Any, field: Field, x: str) -> str:
        if item is TopicPartition:
            pairs = f"((each, None) for each in {x})"
            return self._write_partitions(None, field, pairs)
        if not _is_message(item):
            return f"list({x})"
        each = self.new()
        return f"[{self._written(item, field, each)} for {each} in {x}]"

    def _write_mapping(self, key: Any, value: Any, field: Field, x: str) -> str:
        if key is TopicPartition:
            return self._write_partitions(value, field, f"{x}.items()")
        assert isinstance(field.element, type)
        name, each = self.new(), self.new()
        first = next(iter(field.element.FIELDS))
        text = self._write_value(value, field.element, each, f"{first}={name}")
        return f"[{text} for {name}, {each} in {x}.items()]"

    def _write_partitions(self, value: Any, field: Field, items: str) -> str:
        topic = field.element
        assert isinstance(topic, type)
        named, number, each, group = self.new(), self.new(), self.new(), self.new()
        name, inner = _first(_TOPIC_NAMES, topic), _inner(topic)
        if inner is None:
            key = f"{name}={named}, {_first(_PARTITION_NAMES, topic)}={number}"
            text = self._write_value(value, topic, each, key)
            return f"[{text} for ({named}, {number}), {each} in {items}]"
        part = topic.FIELDS[inner].element
        text = number
        if isinstance(part, type):
            text = self._write_value(value, part, each, f"{_first(_PARTITION_NAMES, part)}={number}")
        return (
            f"[{self.named(topic)}({name}={named}, {inner}=[{text} for {number}, {each} in {group}]) "
            f"for {named}, {group} in by_topic({items}).items()]"
        )

    def _write_value(self, value: Any, wire: type[Struct], x: str, key: str) -> str:
        """A struct with a key and what stands for it: the fields of a message, or one field, or nothing."""
        if value is None:
            return f"{self.named(wire)}({key})"
        if _is_message(value):
            return self.write_struct(value, wire, x, key)
        field = _value_of(wire)
        return f"{self.named(wire)}({key}, {field}={self.write(value, wire.FIELDS[field], x)})"

    # --- the wire's to the engine's ---

    def read_struct(self, engine: type[Any], wire: type[Struct], x: str, given: str = "") -> str:
        words = []
        required = _required(engine)
        for name, hint in get_type_hints(engine).items():
            by_hand = self.by_hand.get((engine, name))
            counterpart = _counterpart(name, wire)
            if by_hand is not None:
                words.append(f"{name}={self.named(by_hand[2])}({x})")
            elif counterpart is not None:
                words.append(f"{name}={self.read(hint, wire.FIELDS[counterpart], f'{x}.{counterpart}')}")
            else:
                assert given or name not in required, f"{wire.__name__} has nothing for {name}"
        return f"{self.named(engine)}({', '.join(words)}{given})"

    def read(self, hint: Any, field: Field, x: str) -> str:
        hint, is_optional = _without_none(hint)
        if hint is Durability and is_optional:
            return f"level_from_wire({x})"
        text = self._read(hint, field, x, is_optional)
        return f"(None if {x} is None else {text})" if is_optional and text != x else text

    def _read(self, hint: Any, field: Field, x: str, is_optional: bool) -> str:
        origin, arguments = get_origin(hint), get_args(hint)
        if hint is ErrorCode:
            return f"error_of({x})"
        if isinstance(hint, type) and issubclass(hint, Enum):
            return f"member({self.members(hint)}, {x})"
        if hint is str and field.kind == "uuid":
            return f"id_from_wire({x})"
        if hint is str and field.nullable and not is_optional:
            return f'({x} or "")'
        if hint is bytes and field.nullable and not is_optional:
            return f'(b"" if {x} is None else {x})'
        if hint is bool and field.kind != "bool":
            return f"({x} == 1)"
        if _is_message(hint):
            assert isinstance(field.element, type)
            return self.read_struct(hint, field.element, x)
        if origin is tuple:
            return self._read_items(arguments[0], field, x)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._read_mapping(arguments[0], arguments[1], field, x)
        return x

    def _read_items(self, item: Any, field: Field, x: str) -> str:
        if item is TopicPartition:
            return f"tuple(dict.fromkeys({self._read_partitions(None, field, x)}))"
        if not _is_message(item):
            return f"tuple({x})"
        each = self.new()
        return f"tuple([{self._read(item, field, each, False)} for {each} in {x}])"

    def _read_mapping(self, key: Any, value: Any, field: Field, x: str) -> str:
        if key is TopicPartition:
            return self._read_partitions(value, field, x)
        assert isinstance(field.element, type)
        each, first = self.new(), next(iter(field.element.FIELDS))
        return f"{{{each}.{first}: {self._read_value(value, field.element, each)} for {each} in {x}}}"

    def _read_partitions(self, value: Any, field: Field, x: str) -> str:
        topic = field.element
        assert isinstance(topic, type)
        of_topic, each = self.new(), self.new()
        name, inner = _first(_TOPIC_NAMES, topic), _inner(topic)
        loops = f"for {of_topic} in {x} for {each} in {of_topic}.{inner}"
        part: Any = topic
        if inner is None:
            loops, each = f"for {of_topic} in {x}", of_topic
        else:
            part = topic.FIELDS[inner].element
        number = each if isinstance(part, str) else f"{each}.{_first(_PARTITION_NAMES, part)}"
        if value is None:
            make = "checked" if self.checks else "TopicPartition"
            return f"[{make}({of_topic}.{name}, {number}) {loops}]"
        text = self._read_value(value, part, each)
        if self.checks:
            return f"distinct(({of_topic}.{name}, {number}, {text}) {loops})"
        return f"{{TopicPartition({of_topic}.{name}, {number}): {text} {loops}}}"

    def _read_value(self, value: Any, wire: type[Struct], x: str) -> str:
        if _is_message(value):
            return self.read_struct(value, wire, x)
        field = _value_of(wire)
        return self.read(value, wire.FIELDS[field], f"{x}.{field}")


def _inner(topic: type[Struct]) -> str | None:
    """The array of a topic's partitions; None where the struct itself is one partition."""
    if any(name in topic.FIELDS for name in _PARTITION_NAMES):
        return None
    return next(
        name
        for name, field in topic.FIELDS.items()
        if field.is_array
        and (
            field.element == "int32"
            or (isinstance(field.element, type) and any(n in field.element.FIELDS for n in _PARTITION_NAMES))
        )
    )


def _value_of(wire: type[Struct]) -> str:
    """The field of a pair that is not its key."""
    keys: tuple[str, ...] = _TOPIC_NAMES + _PARTITION_NAMES
    if not any(name in wire.FIELDS for name in keys):
        keys = (next(iter(wire.FIELDS)),)
    return next(name for name in wire.FIELDS if name not in keys)


CLIENTS: Final = Translation()
"""Translates clients' requests and responses. Unknown names pass: they get an error response."""
to_wire, from_wire = CLIENTS.to_wire, CLIENTS.from_wire
