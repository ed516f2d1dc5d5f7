"""Stories of versions: one API in one version, with empty fields, null where it may be, and unknown tags.

The other areas send what is sensible, in any version."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Final

from logstore.broker.wire import types as t
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.declarations import Struct
from tests.wire_judge.cluster import versions
from tests.wire_judge.stories import Draw, Step

_OF_OTHERS: Final = (
    "topics",
    "groups",
    "transaction_states",
    "entries",
    "results",
    "users",
    "replica_election_results",
)
"""Lists that may have what other stories have made, where all is asked for."""


def _trim(response: Any) -> None:
    for name in _OF_OTHERS:
        if getattr(response, name, None):
            setattr(response, name, [])


def _plain(kind: type[Struct], version: int, *, is_null: bool, level: int = 0) -> Struct:
    """Return a request with defaults, or with null in each field that may have it."""
    values: dict[str, Any] = {}
    for name, field in kind.FIELDS.items():
        if version not in field.versions or field.tag is not None:
            continue
        if is_null and version in field.nullable:
            values[name] = None
        elif field.is_array and level and not isinstance(field.element, str):
            values[name] = [_plain(field.element, version, is_null=is_null, level=level - 1)]
    return kind(**values)


def story(draw: Draw) -> list[Step]:
    """Draw an API and a version, and ask several times."""
    kind = draw.pick(*(APIS[key].request for key in draw.keys))
    if kind is t.ApiVersionsRequest:
        return [versions(draw) for _ in range(3)]
    version, steps = draw.version(kind), []
    for _ in range(draw.number(2, 4)):
        request = _plain(kind, version, is_null=draw.chance(0.4), level=draw.usual(0, 1, 2, of=0.4))
        step = draw.at(version, lambda _known, made=request: made, trim=_trim, may_park=True)  # type: ignore[misc]
        is_answered = getattr(request, "acks", 1) != 0
        steps.append(replace(step, is_tagged=draw.chance(0.4), is_answered=is_answered))
    for number in draw.some([99, -1, 1 << 14], 2):
        head = struct.pack(">hhih", kind.KEY, number, 7, -1)
        steps.append(Step(number, lambda _: t.ApiVersionsRequest(), raw=head))
    return steps
