"""Bytes ⇄ messages: two functions for each message and version, compiled from its declaration on first use.

The compiled functions transcribe the declarations (`declarations.py`), with runs of fixed-size fields as one
`struct` call:

    not flexible                                      flexible
    string   int16 n, n bytes; n = -1: null           varint n + 1, n bytes; 0: null
    bytes    int32 n, n bytes; -1: null               varint n + 1, n bytes; 0: null
    array    int32 n, n elements; -1: null            varint n + 1, n elements; 0: null
    struct   its fields                               its fields, then: varint number of tags,
                                                      each varint tag, varint size, size bytes

Reading checks all input. A count is compared with the remaining bytes before anything is created, a length
before it is sliced, and all counts of a message together with `MAX_ELEMENTS`. It refuses null where it is not
allowed, other negative lengths, varints that are longer than necessary or than 31 bits, tags out of order,
and tagged fields of a wrong size. Unknown tags are skipped, and bytes after a body are ignored: librdkafka
sends some. Every error raises `MalformedMessage`.

Large values are not copied: `records` are views of the frame when read, and go into the list of pieces as
they are when written. A view keeps its whole frame in memory, so copy a view that is kept.

Writing refuses what a version cannot express: a number out of range, None where null is not allowed, or a
field that the version lacks and that is not ignorable, unless it has its default.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any, Final, NoReturn, TypeVar

from logstore.broker.errors import MalformedMessage
from logstore.broker.wire.compiling import compiled
from logstore.broker.wire.declarations import Field, Kind, Struct
from logstore.disk.files import Buffer

S = TypeVar("S", bound=Struct)

MAX_ELEMENTS: Final = 1 << 20
"""The limit of elements in all arrays of one message: more than a cluster has partitions.

An element can take two or three bytes, and its object fifty times as much. A frame of the largest size must
not become five gigabytes of empty topics."""

MAX_ELEMENTS_REQUESTED: Final = 1 << 18
"""The limit for a client's request. Each element costs a kilobyte and ten microseconds until it is answered,
while no other client is served: the limit bounds that at a quarter of a GiB and some seconds."""

MAX_ELEMENTS_OF_NODES: Final = 1 << 24
"""The limit between brokers: the controller lists all partitions at once, with each replica."""

LONGEST_STRING: Final = (1 << 15) - 1
"""The limit of Kafka's strings, in flexible versions too."""

_FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uuid": "16s",
    "float64": "d",
}
_LENGTHS: Final = {"string": "h", "bytes": "i", "records": "i"}
_SLICES: Final = {
    "string": 'str(v[at:{stop}], "utf-8")',
    "bytes": "bytes(v[at:{stop}])",
    "records": "v[at:{stop}]",
}
_AMONG_NODES: Final = range(4, 8)
"""Keys of messages between the controller and brokers."""

_SHORT: Final = 16
"""Arrays of numbers with fewer elements have a prepared `struct`."""


def decode(kind: type[S], version: int, view: memoryview) -> tuple[S, int]:
    """Return the message at the start of `view`, and its size in bytes.

    `records` are slices of `view`. Raises `MalformedMessage` for invalid bytes.
    """
    message, used = decoder(kind, version)(view)
    return message, used


def encode(message: Struct, version: int) -> list[Buffer]:
    """Return the message as pieces, in order; `records` are pieces of their own, not copied.

    Raises `MalformedMessage` for a message that this version cannot express.
    """
    return encoder(type(message), version)(message)


@cache
def decoder(kind: type[S], version: int) -> Callable[[memoryview], tuple[S, int]]:
    """Return the function that `decode` calls, to read many messages of one kind."""
    _check_version(kind, version)
    read: Callable[[memoryview], tuple[S, int]] = _Reading(kind, version).function()
    return read


@cache
def encoder(kind: type[Struct], version: int) -> Callable[[Struct], list[Buffer]]:
    """Return the function that `encode` calls, to write many messages of one kind."""
    _check_version(kind, version)
    write: Callable[[Struct], list[Buffer]] = _Writing(kind, version).function()
    return write


def _check_version(kind: type[Struct], version: int) -> None:
    if version not in kind.VERSIONS:
        raise MalformedMessage(f"{kind.__name__} has no version {version}")


# --- varints ----------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Encode `value` in groups of seven bits, the lowest first; all but the last have the top bit set."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_VARINTS: Final = tuple(varint(value) for value in range(1 << 14))


def _longer_varint(view: memoryview, at: int, first: int) -> tuple[int, int]:
    """Read the rest of a varint after its first byte; return its value and the position of its end."""
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if byte == 0 or value > 0x7FFF_FFFF:
                break
            return value, at
    raise MalformedMessage("a varint is longer than necessary, or than 31 bits")


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    first = view[at]
    return (first, at + 1) if first < 128 else _longer_varint(view, at + 1, first)


def _each_tag(view: memoryview, at: int, number: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each tag of a section, with start and end of its bytes; `number` is the first byte of the
    count."""
    if number > 127:
        number, at = _longer_varint(view, at, number)
    last = -1
    for _ in range(number):
        tag, at = _read_varint(view, at)
        size, at = _read_varint(view, at)
        if tag <= last or size > end - at:
            raise MalformedMessage(
                f"invalid tag {tag} of {size} bytes after tag {last}, {end - at} bytes left"
            )
        last = tag
        yield tag, at, at + size
        at += size


def _skip_tags(view: memoryview, at: int, number: int, end: int) -> int:
    return max([at, *(stop for _, _, stop in _each_tag(view, at, number, end))])


def skip_tag_section(view: memoryview, at: int) -> int:
    """Return the position of the end of a tag section. Raises `MalformedMessage`."""
    try:
        number = view[at]
        return _skip_tags(view, at + 1, number, len(view)) if number else at + 1
    except IndexError as error:
        raise MalformedMessage("a tag section is truncated") from error


# --- both directions -------------------------------------------------------------------------


def _bad(name: str, number: int, left: int) -> MalformedMessage:
    return MalformedMessage(f"{name} has length {number}, with {left} bytes left")


def _lacks(name: str) -> NoReturn:
    raise ValueError(f"{name} is not in this version")


def _long_text(length_and_one: int) -> bytes:
    if length_and_one > LONGEST_STRING + 1:
        raise ValueError(f"a string of {length_and_one - 1} bytes is too long")
    return varint(length_and_one)


@cache
def _unpackers(code: str) -> tuple[Callable[..., tuple[Any, ...]], ...]:
    return tuple(struct.Struct(f">{number}{code}").unpack_from for number in range(_SHORT))


@cache
def _packers(code: str) -> tuple[Callable[..., bytes], ...]:
    return tuple(struct.Struct(f">{number}{code}").pack for number in range(_SHORT))


class _Compiling:
    """Lines of source, and the names in them. A run is the fields of the next `struct` call."""

    def __init__(self, kind: type[Struct], version: int) -> None:
        self.kind, self.version = kind, version
        self.flexible = version in kind.FLEXIBLE
        self.names: dict[str, object] = {}
        self.lines: list[str] = []
        self.run: list[tuple[str, str]] = []
        self._numbers = count()

    def line(self, depth: int, text: str) -> None:
        self.lines.append(" " * depth + text)

    def new(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    def constant(self, value: object, prefix: str) -> str:
        for name, known in self.names.items():
            if known is value:
                return name
        name = self.new(prefix)
        self.names[name] = value
        return name

    def is_in_line(self, field: Field) -> bool:
        return self.version in field.versions and field.tag is None

    def tagged(self, kind: type[Struct]) -> list[tuple[str, Field]]:
        """Return the tagged fields of this version, in order of tags."""
        found = [(n, f) for n, f in kind.FIELDS.items() if f.tag is not None and self.version in f.versions]
        assert self.flexible or not found, f"{kind.__name__} has tags in a version without tag sections"
        return sorted(found, key=lambda each: each[1].tag or 0)

    def least_bytes(self, kind: Kind) -> int:
        """Return the smallest size of a value."""
        if not isinstance(kind, str):
            fields = [field for field in kind.FIELDS.values() if self.is_in_line(field)]
            return self.flexible + sum(
                (1 if self.flexible else 4) if field.is_array else self.least_bytes(field.element)
                for field in fields
            )
        if kind in _FIXED:
            return struct.calcsize(">" + _FIXED[kind])
        return 1 if self.flexible else struct.calcsize(">" + _LENGTHS[kind])


def _most_elements(kind: type[Struct]) -> int:
    if kind.KEY in _AMONG_NODES:
        return MAX_ELEMENTS_OF_NODES
    return MAX_ELEMENTS_REQUESTED if kind.__name__.endswith("Request") else MAX_ELEMENTS


def _default_text(field: Field) -> str:
    return "[]" if field.factory is list else repr(field.default)


# --- reading ----------------------------------------------------------------------------------


class _Reading(_Compiling):
    """Names in the source: `v` the view, `at` the position in it, `end` its size, `room` for elements."""

    def function(self) -> Any:
        self.names |= {
            "new": object.__new__,
            "unpack_from": struct.unpack_from,
            "longer_varint": _longer_varint,
            "each_tag": _each_tag,
            "skip_tags": _skip_tags,
            "bad": _bad,
            "MalformedMessage": MalformedMessage,
            "wrong": (struct.error, IndexError, UnicodeDecodeError),
        }
        self.line(0, "def read(v):")
        self.line(1, "end = len(v)")
        self.line(1, "at = 0")
        self.line(1, f"room = {_most_elements(self.kind)}")
        self.line(1, "try:")
        self.struct(2, self.kind, "message")
        self.flush(2)
        self.line(2, "return message, at")
        self.line(1, "except wrong as error:")
        what = f"{self.kind.__name__} version {self.version}"
        complaint = f'f"{what} is malformed at byte {{at}} of {{end}}: {{error}}"'
        self.line(2, f"raise MalformedMessage({complaint}) from error")
        return compiled("read", "\n".join(self.lines), self.names, shown_as=f"read {what}")

    def flush(self, depth: int) -> None:
        if not self.run:
            return
        codes, targets = zip(*self.run, strict=True)
        self.run = []
        if codes == ("B",):
            self.line(depth, f"{targets[0]} = v[at]")
            self.line(depth, "at += 1")
            return
        layout = struct.Struct(">" + "".join(codes))
        unpack = self.constant(layout.unpack_from, "unpack")
        self.line(depth, f"{', '.join(targets)}, = {unpack}(v, at)")
        self.line(depth, f"at += {layout.size}")

    def struct(self, depth: int, kind: type[Struct], target: str) -> None:
        self.line(depth, f"{target} = new({self.constant(kind, 'Kind')})")
        for name, field in kind.FIELDS.items():
            place = f"{target}.{name}"
            if not self.is_in_line(field):
                self.line(depth, f"{place} = {_default_text(field)}")
            elif field.is_array:
                self.array(depth, field, place, name)
            else:
                self.value(depth, field.element, place, name, self.version in field.nullable)
        if self.flexible:
            self.tags(depth, kind, target)

    def value(self, depth: int, kind: Kind, target: str, name: str, is_nullable: bool) -> None:
        """Read a value that is not an array. A fixed one joins the run; others end it."""
        if not isinstance(kind, str):
            assert is_nullable, f"{name}: a struct is in an array, tagged, or nullable"
            mark = self.new("mark")
            self.run.append(("b", mark))
            self.flush(depth)
            self.line(depth, f"if {mark} < 0: {target} = None")
            self.line(depth, "else:")
            part = self.new("part")
            self.struct(depth + 1, kind, part)
            self.flush(depth + 1)
            self.line(depth + 1, f"{target} = {part}")
            return
        if kind in _FIXED:
            self.run.append((_FIXED[kind], target))
            return
        size, stop = self.length(depth, _LENGTHS[kind]), self.new("stop")
        self.line(depth, f"{stop} = at + {size}")
        self.line(depth, f"if at <= {stop} <= end:")
        self.line(depth + 1, f"{target} = {_SLICES[kind].format(stop=stop)}")
        self.line(depth + 1, f"at = {stop}")
        if is_nullable:
            self.line(depth, f"elif {size} == -1:")
            self.line(depth + 1, f"{target} = None")
        self.line(depth, "else:")
        self.line(depth + 1, f'raise bad("{name}", {size}, end - at)')

    def length(self, depth: int, legacy_code: str) -> str:
        """Read a length or count into a variable; null is -1."""
        number = self.new("n")
        self.run.append(("B" if self.flexible else legacy_code, number))
        self.flush(depth)
        if self.flexible:
            self.line(depth, f"if {number} > 127: {number}, at = longer_varint(v, at, {number})")
            self.line(depth, f"{number} -= 1")
        return number

    def array(self, depth: int, field: Field, target: str, name: str) -> None:
        number = self.length(depth, "i")
        if self.version in field.nullable:
            self.line(depth, f"if {number} == -1:")
            self.line(depth + 1, f"{target} = None")
            self.line(depth, "else:")
            depth += 1
        least = self.least_bytes(field.element)
        assert least > 0, f"{name}: elements without bytes cannot be counted"
        self.line(depth, f"room -= {number}")
        self.line(depth, f"if {number} < 0 or {number} * {least} > end - at or room < 0:")
        self.line(depth + 1, f'raise bad("{name}", {number}, end - at)')
        if field.element in _FIXED:
            code = _FIXED[str(field.element)]
            short = self.constant(_unpackers(code), "unpackers")
            long = f'unpack_from(f">{{{number}}}{code}", v, at)'
            self.line(depth, f"{target} = list({short}[{number}](v, at) if {number} < {_SHORT} else {long})")
            self.line(depth, f"at += {number} * {least}")
            return
        element = self.new("element")
        self.line(depth, f"{target} = {element}s = []")
        self.line(depth, f"for _ in range({number}):")
        if isinstance(field.element, str):
            self.value(depth + 1, field.element, element, name, False)
        else:
            self.struct(depth + 1, field.element, element)
        self.flush(depth + 1)
        self.line(depth + 1, f"{element}s.append({element})")

    def tags(self, depth: int, kind: type[Struct], target: str) -> None:
        number = self.new("tags")
        self.run.append(("B", number))
        self.flush(depth)
        known = self.tagged(kind)
        if not known:
            self.line(depth, f"if {number}: at = skip_tags(v, at, {number}, end)")
            return
        stop = self.new("stop")
        self.line(depth, f"if {number}:")
        self.line(depth + 1, f"for tag, at, {stop} in each_tag(v, at, {number}, end):")
        for branch, (name, field) in enumerate(known):
            self.line(depth + 2, f"{'elif' if branch else 'if'} tag == {field.tag}:")
            place = f"{target}.{name}"
            if field.is_array:
                self.array(depth + 3, field, place, name)
            elif isinstance(field.element, str):
                self.value(depth + 3, field.element, place, name, self.version in field.nullable)
            else:
                part = self.new("part")
                self.struct(depth + 3, field.element, part)
                self.line(depth + 3, f"{place} = {part}")
            self.flush(depth + 3)
            self.line(depth + 3, f'if at != {stop}: raise bad("tag {field.tag}", {stop} - at, end - at)')
        self.line(depth + 1, f"at = {stop}")


# --- writing ----------------------------------------------------------------------------------


class _Writing(_Compiling):
    """Names in the source: `out` the list of pieces, `a` its append."""

    out, append = "out", "a"

    def function(self) -> Any:
        self.names |= {
            "V": _VARINTS,
            "varint": varint,
            "long_text": _long_text,
            "pack": struct.pack,
            "lacks": _lacks,
            "MalformedMessage": MalformedMessage,
            "wrong": (struct.error, ValueError, TypeError, AttributeError),
        }
        self.line(0, "def write(message):")
        self.line(1, "out = []")
        self.line(1, "a = out.append")
        self.line(1, "try:")
        self.line(2, "pass  # a message may have no fields")
        self.struct(2, self.kind, "message")
        self.flush(2)
        self.line(1, "except wrong as error:")
        what = f"{self.kind.__name__} version {self.version}"
        self.line(2, f'raise MalformedMessage(f"{what} cannot be encoded: {{error}}") from error')
        self.line(1, "return out")
        return compiled("write", "\n".join(self.lines), self.names, shown_as=f"write {what}")

    def flush(self, depth: int) -> None:
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        values = [value for _, value in self.run if value]
        self.run = []
        if not values:
            self.line(depth, f"{self.append}({bytes(len(codes))!r})")
            return
        pack = self.constant(struct.Struct(">" + codes).pack, "pack")
        self.line(depth, f"{self.append}({pack}({', '.join(values)}))")

    def struct(self, depth: int, kind: type[Struct], source: str) -> None:
        for name, field in kind.FIELDS.items():
            place = f"{source}.{name}"
            if self.version not in field.versions:
                if not field.ignorable:
                    self.line(depth, f'if {self.is_given(field, place)}: lacks("{name}")')
            elif field.tag is not None:
                continue
            elif field.is_array:
                self.array(depth, field, place)
            else:
                self.value(depth, field.element, place, name, self.version in field.nullable)
        if self.flexible:
            self.tags(depth, kind, source)

    def is_given(self, field: Field, place: str) -> str:
        """Return the condition that a field does not have its default."""
        if field.factory is list:
            return f"{place} != []" if field.nullable else place
        if isinstance(field.kind, type):
            default = self.constant(_default_of(field.kind), "default")
            return f"{place} is not None and {place} != {default}"
        if field.default is None:
            return f"{place} is not None"
        return f"{place} != {field.default!r}"

    def value(self, depth: int, kind: Kind, place: str, name: str, is_nullable: bool) -> None:
        if not isinstance(kind, str):
            assert is_nullable, f"{name}: a struct is in an array, tagged, or nullable"
            self.flush(depth)
            self.line(depth, f'if {place} is None: {self.append}(b"\\xff")')
            self.line(depth, "else:")
            self.line(depth + 1, f'{self.append}(b"\\x01")')
            self.struct(depth + 1, kind, place)
            self.flush(depth + 1)
            return
        if kind in _FIXED:
            if kind == "uuid":
                # `struct` would cut or fill it up.
                self.line(depth, f'if len({place}) != 16: raise ValueError("{name} is not a uuid")')
            self.run.append((_FIXED[kind], place))
            return
        data, size = self.new("data"), self.new("n")
        coding = ".encode()" if kind == "string" else ""
        if is_nullable:
            self.line(depth, f"{data} = {place}")
            self.line(depth, f"if {data} is None:")
            self.line(depth + 1, f'{data} = b""')
            self.line(depth + 1, f"{size} = -1")
            self.line(depth, "else:")
            if coding:
                self.line(depth + 1, f"{data} = {data}{coding}")
            self.line(depth + 1, f"{size} = len({data})")
        else:
            self.line(depth, f"{data} = {place}{coding}")
            self.line(depth, f"{size} = len({data})")
        self.length(depth, size, _LENGTHS[kind], "long_text" if kind == "string" else "varint")
        self.flush(depth)
        self.line(depth, f"{self.append}({data})")

    def length(self, depth: int, size: str, legacy_code: str, beyond_table: str = "varint") -> None:
        """Write a length or count; null is -1."""
        if not self.flexible:
            self.run.append((legacy_code, size))
            return
        self.flush(depth)
        table = f"V[{size} + 1] if {size} < {len(_VARINTS) - 1} else {beyond_table}({size} + 1)"
        self.line(depth, f"{self.append}({table})")

    def array(self, depth: int, field: Field, place: str) -> None:
        items, number = self.new("items"), self.new("n")
        self.line(depth, f"{items} = {place}")
        if self.version in field.nullable:
            self.line(depth, f"if {items} is None:")
            self.line(depth + 1, f"{number} = -1")
            self.line(depth + 1, f"{items} = ()")
            self.line(depth, f"else: {number} = len({items})")
        else:
            self.line(depth, f"{number} = len({items})")
        self.length(depth, number, "i")
        if field.element in _FIXED and field.element != "uuid":
            self.flush(depth)
            code = _FIXED[str(field.element)]
            short = self.constant(_packers(code), "packers")
            self.line(depth, f"if 0 < {number} < {_SHORT}: {self.append}({short}[{number}](*{items}))")
            self.line(depth, f'elif {number} > 0: {self.append}(pack(f">{{{number}}}{code}", *{items}))')
            return
        self.flush(depth)
        element = self.new("element")
        self.line(depth, f"for {element} in {items}:")
        if isinstance(field.element, str):
            self.value(depth + 1, field.element, element, "element", False)
        else:
            self.struct(depth + 1, field.element, element)
        self.flush(depth + 1)

    def tags(self, depth: int, kind: type[Struct], source: str) -> None:
        known = self.tagged(kind)
        if not known:
            self.run.append(("x", ""))
            return
        self.flush(depth)
        given = [self.is_given(field, f"{source}.{name}") for name, field in known]
        # Nearly always all fields have their defaults, which shows without looking into the parts.
        there = [condition.partition(" and ")[0] for condition in given]
        tags, number = self.new("tags"), self.new("n")
        out, append = self.out, self.append
        self.line(depth, f"if {' or '.join(there)}:")
        self.line(depth + 1, f"{tags} = []")
        self.line(depth + 1, f"{number} = 0")
        for condition, (name, field) in zip(given, known, strict=True):
            place = f"{source}.{name}"
            self.out, self.append = self.new("out"), self.new("a")
            self.line(depth + 1, f"if {condition}:")
            self.line(depth + 2, f"{self.out} = []")
            self.line(depth + 2, f"{self.append} = {self.out}.append")
            if field.is_array:
                self.array(depth + 2, field, place)
            elif isinstance(field.element, str):
                self.value(depth + 2, field.element, place, name, self.version in field.nullable)
            else:
                self.struct(depth + 2, field.element, place)
            self.flush(depth + 2)
            self.line(depth + 2, f'{self.out} = b"".join({self.out})')
            tag = varint(field.tag or 0)
            self.line(depth + 2, f"{tags} += ({tag!r}, varint(len({self.out})), {self.out})")
            self.line(depth + 2, f"{number} += 1")
        self.out, self.append = out, append
        self.line(depth + 1, f"{append}(V[{number}])")
        self.line(depth + 1, f"{out} += {tags}")
        self.line(depth, "else:")
        self.line(depth + 1, f"{append}({bytes(1)!r})")


@cache
def _default_of(kind: type[Struct]) -> Struct:
    return kind()
