"""Show the events and effects of a run as text: a line each, batches by offsets and epochs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.effects import ClientRequest, Request, Response, StoreReply
from logstore.testing.stored import ReplicaView, parse


def describe(facts: object) -> str:
    """Return the text of a note."""
    if isinstance(facts, tuple):
        return " ".join(_text(fact) for fact in facts)
    return _text(facts)


def _text(fact: object) -> str:
    match fact:
        case Enum():
            return fact.name
        case str() | int() | ReplicaView() | TopicPartition():
            return str(fact)
        case Request(source, correlation_id, body) | Response(source, correlation_id, body):
            return f"{source}#{correlation_id} {_text(body)}"
        case ClientRequest(_, body):
            return f"client {_text(body)}"
        case StoreReply(call_id, outcome):
            return f"store #{call_id} {_text(outcome)}"
        case bytes() | memoryview():
            data = bytes(fact)
            if data[16:17] == b"\x02" and len(data) > 61:
                return (
                    "[" + " ".join(f"{each.base}..{each.end - 1}@{each.epoch}" for each in parse(data)) + "]"
                )
            return data.decode(errors="replace")
        case Mapping():
            return "{" + ", ".join(f"{_text(key)}: {_text(value)}" for key, value in fact.items()) + "}"
        case list() | tuple() if not hasattr(fact, "_fields"):
            return "(" + ", ".join(map(_text, fact)) + ")"
    # Data classes and named tuples.
    names: tuple[str, ...] | None = getattr(type(fact), "__match_args__", None)
    if names is not None:
        shown = [
            f"{name}={_text(value)}"
            for name in names
            if (value := getattr(fact, name)) not in (None, "", (), {}, b"")
        ]
        return f"{type(fact).__name__}({', '.join(shown)})"
    return str(fact)
