"""Output that the verbs share: one-line errors, JSON lines, bytes as text."""

from __future__ import annotations

import sys
from enum import StrEnum


class Encoding(StrEnum):
    """How keys, values and header values are shown as text."""

    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"


def print_error(text: str) -> None:
    """Print an error as one line on stderr."""
    print("logstore: " + " ".join(text.split("\n")), file=sys.stderr, flush=True)


def print_json(fact: object) -> None:
    """Print an object on one line of stdout, in ASCII, so that no terminal setting can break it."""
    import json

    sys.stdout.write(json.dumps(fact, separators=(", ", ": ")) + "\n")


def as_text(data: bytes | None, encoding: Encoding) -> str | None:
    """Return `data` in this encoding; None stays None.

    UTF8 is for people: a byte that is not UTF-8 becomes `\\xNN`, as the same text would. HEX and BASE64 keep
    every byte.
    """
    if data is None:
        return None
    if encoding is Encoding.HEX:
        return data.hex()
    if encoding is Encoding.BASE64:
        import base64

        return base64.b64encode(data).decode()
    return data.decode("utf-8", "backslashreplace")


def printable(text: str | None) -> str:
    """Escape control characters, so that a record cannot move the terminal's cursor."""
    if text is None:
        return "null"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
