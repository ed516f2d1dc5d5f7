"""A model check of replication: every order of events within bounds, not a sample of them.

found = ROWS["without-R6"].explore()
print(found.violation, transcript(found.trace))

`explorer.py` visits states, `protocol.py` says what may happen and what must hold, `rows.py` lists what is
explored. See docs/model.md.
"""

from __future__ import annotations

from tests.model.explorer import Action, Exploration, Explorer, Invariant, Move
from tests.model.parts import Bounds, Reconcile, Rules
from tests.model.protocol import Protocol
from tests.model.rows import ROWS, Row
from tests.model.transcript import transcript

__all__ = [
    "ROWS",
    "Action",
    "Bounds",
    "Exploration",
    "Explorer",
    "Invariant",
    "Move",
    "Protocol",
    "Reconcile",
    "Row",
    "Rules",
    "transcript",
]
