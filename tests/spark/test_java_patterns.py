"""Java's regular expressions for topics: translated where Python's differ, or refused by name."""

from __future__ import annotations

import pytest

from logstore.spark.errors import InvalidOption
from logstore.spark.java_patterns import finder

NAMES = ("few", "orders", "orders.eu", "Orders-2", "xx")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("fe", ["few"]),
        ("orders", ["orders", "orders.eu"]),
        ("^orders$", ["orders"]),
        (r"\Qs.e\E", ["orders.eu"]),
        (r"^\p{Alpha}+$", ["few", "orders", "xx"]),
        (r"\p{Upper}", ["Orders-2"]),
        (r"\p{Punct}", ["orders.eu", "Orders-2"]),
        (r"^[a-z&&[^x]]+$", ["few", "orders"]),
        (r"^[\p{L}&&[^\p{Lu}]]+$", ["few", "orders", "xx"]),
        (r"(?<one>.)\k<one>", ["xx"]),
        (r"(.)\1", ["xx"]),
        (r"(?i)^ORDERS-\d\z", ["Orders-2"]),
        (r"(?<!r)s$|(?=-)\W", ["Orders-2"]),
        (r"o++r", ["orders", "orders.eu"]),
        (r"^\w{2,3}$", ["few", "xx"]),
    ],
)
def test_what_java_would_find(pattern: str, found: list[str]) -> None:
    """Written down from `java.util.regex.Pattern`, which `test_java_agrees` asks."""
    assert [name for name in NAMES if finder(pattern)(name)] == found


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "not a regular expression of Java's: missing"),
        ("[a", "not a regular expression of Java's"),
        ("a**", "not a regular expression of Java's"),
        (r"\p{IsNothing}", "unknown property"),
        (r"\hx", r"\\h is not translated"),
        ("(?P<a>x)", r"\(\?P is not translated"),
        ("few{e<=1}", "{ is not translated"),
        ("[a--b]", "-- inside a class is not translated"),
        ("[[:alpha:]]", r"\[: inside a class is not translated"),
        ("[^a-z&&[b]]", "&& inside a class is not translated"),
    ],
)
def test_what_would_mean_something_else_is_refused_by_name(pattern: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=f"option subscribePattern is .*{message}"):
        finder(pattern)
