"""Declarations of the protocol's messages: one class a struct, each field with the versions that have it.

    class FetchRequest(Struct, key=1, versions="4-17", flexible="12+"):
        replica_id: int = wire("int32", versions="4-14", default=-1)
        topics: list[FetchRequestFetchTopic] = wire()
        rack_id: str = wire("string", versions="11+", ignorable=True)

A class has the fields of all versions, in the order of the wire. Code that makes or reads a message need not
know its version; `codec.py` does. The kinds are Kafka's: `bool int8 int16 int32 int64 uuid string bytes
records`, another `Struct`, or a list of one kind for an array of it. A field without one is of the struct
in its annotation, which is declared above. Versions are written `3`, `3-7` or `3+`.

    versions    versions that have the field; all that its struct is in, if not given
    nullable    versions in which None may be sent
    tag         the field is not in line but in the struct's tag section, and absent while it has its default
    ignorable   versions without the field leave out any value; else only its default
    default     the value if none is given, and on versions without the field; zero or empty, or None for a
                struct, if not declared

Numbers of errors are plain ints, times and durations milliseconds (`…_ms`), uuids 16 bytes, records any
buffer. A tagged struct is None where it is absent.

Classes have slots and are compared field by field. They are not dataclasses because creating two hundred of
those takes a quarter of a second; an `__init__` is compiled when a class is first called.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, dataclass_transform

from logstore.broker.wire.compiling import compiled

Kind: TypeAlias = "str | type[Struct]"

_NO_END = 1 << 15
_VERSIONS = re.compile(r"(\d+)(?:-(\d+)|(\+))?")


class Field(NamedTuple):
    """The declaration of a field; see the module."""

    kind: Kind | list[Kind]
    versions: range
    nullable: range
    tag: int | None
    ignorable: bool
    default: Any
    factory: Callable[[], Any] | None

    @property
    def is_array(self) -> bool:
        return isinstance(self.kind, list)

    @property
    def element(self) -> Kind:
        """The kind of an array's elements; any other field's own kind."""
        return self.kind[0] if isinstance(self.kind, list) else self.kind


def parse_versions(text: str) -> range:
    """Parse `3`, `3-7` or `3+`; an empty text means no versions."""
    if not text:
        return range(0)
    match = _VERSIONS.fullmatch(text)
    assert match is not None, f"{text!r} is no range of versions"
    first = int(match[1])
    return range(first, _NO_END if match[3] else int(match[2] or first) + 1)


_NOT_GIVEN: Final = object()
_ZEROS: Final = {"bool": False, "string": "", "uuid": bytes(16), "bytes": b"", "records": b""}


def wire(
    kind: Any = None,
    *,
    versions: str = "0+",
    nullable: str = "",
    tag: int | None = None,
    ignorable: bool = False,
    default: Any = _NOT_GIVEN,
) -> Any:
    """Declare a field. The default of an array is a new list."""
    factory = None
    if default is _NOT_GIVEN and isinstance(kind, list):
        default, factory = None, list
    elif default is _NOT_GIVEN and kind is not None:
        default = _ZEROS.get(kind, 0) if isinstance(kind, str) else None
    return Field(kind, parse_versions(versions), parse_versions(nullable), tag, ignorable, default, factory)


def _of_struct(field: Field, annotation: str, module: str) -> Field:
    """Return a field without a kind as one of the struct that its annotation names, or of an array of it."""
    is_array = annotation.startswith("list[")
    name = annotation.removesuffix(" | None").removeprefix("list[").removesuffix("]")
    kind = getattr(sys.modules[module], name)
    if field.default is not _NOT_GIVEN:
        return field._replace(kind=[kind] if is_array else kind)
    return field._replace(kind=[kind] if is_array else kind, default=None, factory=list if is_array else None)


@dataclass_transform(kw_only_default=True)
class _Declared(type):
    """Replaces the declarations in a class body by slots."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        body: dict[str, Any],
        *,
        key: int = -1,
        versions: str = "",
        flexible: str = "",
    ) -> _Declared:
        fields = {
            each: value
            if value.kind
            else _of_struct(value, body["__annotations__"][each], body["__module__"])
            for each, value in body.items()
            if isinstance(value, Field)
        }
        for each in fields:
            del body[each]
        body |= {
            "__slots__": tuple(fields),
            "FIELDS": fields,
            "KEY": key,
            "VERSIONS": parse_versions(versions),
            "FLEXIBLE": parse_versions(flexible),
        }
        return super().__new__(mcs, name, bases, body)


class Struct(metaclass=_Declared):
    """A message, or a part of one. Construct it with keywords; other fields have their defaults."""

    FIELDS: ClassVar[Mapping[str, Field]]
    KEY: ClassVar[int]
    """Of a whole message: the key of its API."""
    VERSIONS: ClassVar[range]
    """Of a whole message: the versions that can be read and written."""
    FLEXIBLE: ClassVar[range]
    """Of a whole message: versions with compact lengths and tag sections."""

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __init__(self, **values: Any) -> None:
        kind = type(self)
        kind.__init__ = _init_of(kind)  # type: ignore[method-assign]
        kind.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.FIELDS)

    def __repr__(self) -> str:
        """Show the fields that do not have their defaults."""
        given = (
            f"{name}={value!r}"
            for name, field in self.FIELDS.items()
            if (value := getattr(self, name)) != (field.factory() if field.factory else field.default)
        )
        return f"{type(self).__name__}({', '.join(given)})"


def _init_of(kind: type[Struct]) -> Any:
    """Compile an `__init__`, as one would write it by hand."""
    names: dict[str, object] = {}
    parameters, lines = [], []
    for name, field in kind.FIELDS.items():
        names[f"default_{name}"] = _NOT_GIVEN if field.factory else field.default
        parameters.append(f"{name}=default_{name}")
        if field.factory:
            names[f"make_{name}"], names["not_given"] = field.factory, _NOT_GIVEN
            lines.append(f" self.{name} = make_{name}() if {name} is not_given else {name}")
        else:
            lines.append(f" self.{name} = {name}")
    head = f"def __init__(self{', *, ' if parameters else ''}{', '.join(parameters)}):"
    return compiled("__init__", "\n".join([head, *lines, " return None"]), names, shown_as=kind.__name__)
