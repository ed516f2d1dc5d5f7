"""Topic patterns as Spark accepts them: Java's regular expressions, found anywhere in a topic's name.

The library `regex` knows most of Java's syntax: `\\p{Alpha}`, `[a-z&&[^x]]`, possessive quantifiers, atomic
groups. What it reads in another way than Java is refused by name, so that no pattern selects other topics
than it would with Spark's Kafka source. Rules: `java.util.regex.Pattern`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from logstore.spark.errors import InvalidOption

_ITEM: Final = re.compile(
    r"""
      (?P<quote>  \\Q .*? (?:\\E | \Z))
    | (?P<name>   \\k <\w+>)
    | (?P<escape> \\ (?: [0-9tnrfaedDsSwWbBAzZ] | [^\w] | [pP] (?: \w | \{[^}]*\} )
                       | x[0-9a-fA-F]{2} | u[0-9a-fA-F]{4} ))
    | (?P<other>  \\ .?)
    | (?P<group>  \( \? (?: <(?![=!])\w+> | <?[=!] | [:>] | [imsux-]+ [:)] ))
    | (?P<python> \( \? .?)
    | (?P<fuzzy>  \{ (?! \d+ (?:,\d*)? \} ))
    | (?P<open>   \[ \^?)
    | (?P<text>   .)
    """,
    re.VERBOSE | re.DOTALL,
)
_SETS: Final = ("--", "||", "~~", "[:")
"""Operators of `regex` inside a class that Java takes for the characters."""


@lru_cache(maxsize=64)
def finder(pattern: str) -> Callable[[str], bool]:
    """Return whether Java would find `pattern` in a name. Raises `InvalidOption` for what it cannot say."""
    import regex

    translated = "".join(_translated(pattern))
    try:
        compiled = regex.compile(translated, regex.VERSION1)
    except regex.error as error:
        raise InvalidOption(
            f"option subscribePattern is {pattern!r}, not a regular expression of Java's: {error}"
        ) from error
    return lambda name: compiled.search(name) is not None


def _translated(pattern: str) -> Iterator[str]:
    depth = 0
    negated: list[bool] = []
    for item in _ITEM.finditer(pattern):
        kind, text = item.lastgroup, item[0]
        if kind == "quote":
            text = re.escape(text[2:].removesuffix("\\E"))
        elif kind == "name":
            text = f"(?P={text[3:-1]})"
        elif depth:
            rest = pattern[item.start() :]
            if rest.startswith(_SETS) or (rest.startswith("&&") and negated[-1]):
                raise _refused(pattern, rest[:2], "inside a class")
            if kind == "open":
                depth += 1
                negated.append(text.endswith("^"))
            elif text == "]":
                depth -= 1
                negated.pop()
            elif kind == "other":
                raise _refused(pattern, text)
        elif kind == "open":
            depth, negated = 1, [text.endswith("^")]
        elif kind in ("other", "python", "fuzzy"):
            raise _refused(pattern, text)
        yield text


def _refused(pattern: str, part: str, where: str = "") -> InvalidOption:
    place = f"{part} {where}".strip()
    return InvalidOption(
        f"option subscribePattern is {pattern!r}: {place} is not translated from Java's regular expressions; "
        "write it in another way, or list the topics in subscribe"
    )
