"""Topic and directory ids: 16 bytes, written as 22 characters of URL-safe base64 without padding."""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

ID_BYTES = 16
_KEPT = 1 << 14
"""Conversions that are remembered: every fetch between brokers converts the id of each of its topics."""

_ID = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)


def new_id(random: Random) -> str:
    """Return a new id as text, without a leading hyphen: tools would read it as an option."""
    while (text := id_to_text(random.randbytes(ID_BYTES))).startswith("-"):
        pass
    return text


@lru_cache(_KEPT)
def id_to_text(identity: bytes) -> str:
    """Return the 22 characters for 16 bytes."""
    assert len(identity) == ID_BYTES, f"an id has {ID_BYTES} bytes, not {len(identity)}"
    return base64.urlsafe_b64encode(identity).rstrip(b"=").decode()


@lru_cache(_KEPT)
def id_from_text(text: str) -> bytes:
    """Return the 16 bytes for `text`. Raises `ValueError` for text that `id_to_text` does not write."""
    if not _ID.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not an id (22 characters of URL-safe base64)")
    identity = base64.urlsafe_b64decode(text + "==")
    if id_to_text(identity) != text:
        # The last character has spare bits: two spellings of one id would not compare equal.
        raise ValueError(f"{text!r} is not the canonical form of the id {id_to_text(identity)!r}")
    return identity
