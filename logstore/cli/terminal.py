"""What the verbs share for talking: one-line complaints, JSON lines, bytes as text."""

from __future__ import annotations

import sys
from enum import StrEnum


class Encoding(StrEnum):
    """How keys, values and header values are written as text."""

    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"


def complain(text: str) -> None:
    """One line on stderr."""
    print("logstore: " + " ".join(text.split("\n")), file=sys.stderr, flush=True)


def print_json(fact: object) -> None:
    """One object on one line of stdout, in ASCII, so that no terminal setting can break it."""
    import json

    sys.stdout.write(json.dumps(fact, separators=(", ", ": ")) + "\n")


def as_text(data: bytes | None, encoding: Encoding) -> str | None:
    """`data` in the asked encoding; None stays None.

    UTF8 is for reading: a byte that is no UTF-8 appears as `\\xNN`, which looks the same as that text
    would. HEX and BASE64 give every byte back.
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
    """`text` fit for a terminal: control characters escaped, so that a record cannot move the cursor."""
    if text is None:
        return "null"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
