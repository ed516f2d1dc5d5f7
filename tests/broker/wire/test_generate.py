"""What is committed is what kio declares."""

from __future__ import annotations

import pathlib

from logstore.broker.wire import types
from tests.broker.wire import generate


def test_types_are_as_generated() -> None:
    """The file is edited by hand or out of date: `python -m tests.broker.wire.generate` mends it."""
    assert pathlib.Path(types.__file__).read_text() == generate.source()
