"""What is committed is what kio declares."""

from __future__ import annotations

import pathlib

from broker.wire import generate, types


def test_types_are_as_generated() -> None:
    """Edited by hand, or left behind by a change of the table: `python -m broker.wire.generate` mends it."""
    assert pathlib.Path(types.__file__).read_text() == generate.source()
