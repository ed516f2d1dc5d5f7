"""Bugs put in on purpose: each switches one rule of the real code off, and the checkers must notice.

A checker that never fails is no checker. The registry is what shows that the simulation would have found
these mistakes, most of which some release of Kafka had; `tests/testing/test_planted.py` holds the
first seed that finds each one, `docs/simulation.md` lists them.

    records.py      what replicas do to their logs: truncation, high watermark, deletion, flushes, recovery
    leadership.py   who leads and who counts: roles, fences, ISR, elections, departures, the store
    damage.py       what is served and mended when bytes have changed
    topics.py       replicas that come and go: reassignment, deletion, namesakes, settings
"""

from __future__ import annotations

from tests.plants import damage, leadership, records, topics
from tests.plants.registry import PLANTS, Plant, planted

__all__ = ["PLANTS", "Plant", "damage", "leadership", "planted", "records", "topics"]
