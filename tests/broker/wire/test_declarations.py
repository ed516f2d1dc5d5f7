"""Classes of messages: made with keywords, compared by fields, and of the fields declared only."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct, wire


class Part(Struct):
    number: int = wire("int32", default=7)


class Whole(Struct, key=99, versions="1-3", flexible="2+"):
    name: str = wire("string", default="")
    parts: list[Part] = wire([Part], versions="2+", nullable="3+")


def test_what_is_not_given_has_its_default() -> None:
    whole = Whole(name="x")
    assert (whole.name, whole.parts) == ("x", [])
    assert whole.parts is not Whole().parts, "a list is nobody else's"
    assert Whole(parts=[]).parts == []


def test_equal_are_those_that_say_the_same() -> None:
    assert Whole(name="x", parts=[Part()]) == Whole(name="x", parts=[Part(number=7)])
    assert Whole() != Whole(parts=[Part()])
    assert Whole() != Part()
    with pytest.raises(TypeError):
        hash(Whole())


def test_a_field_that_is_not_declared_is_no_field() -> None:
    """A slip of the pen in a handler is an error, not an attribute that nobody sends."""
    whole: Any = Whole()
    with pytest.raises(AttributeError):
        whole.nmae = "x"
    kind: Any = Whole
    with pytest.raises(TypeError):
        kind(nmae="x")
    with pytest.raises(TypeError):
        kind("x")


def test_a_message_shows_what_it_says() -> None:
    assert repr(Whole(parts=[Part(number=1)])) == "Whole(parts=[Part(number=1)])"


def test_a_struct_without_fields_is_one_too() -> None:
    assert t.ApiVersionsRequest() == t.ApiVersionsRequest()


def test_a_class_knows_its_versions() -> None:
    assert (Whole.KEY, list(Whole.VERSIONS)) == (99, [1, 2, 3])
    assert 1 not in Whole.FLEXIBLE
    assert 2 in Whole.FLEXIBLE
    assert Whole.FIELDS["parts"].is_array
    assert Whole.FIELDS["parts"].element is Part
