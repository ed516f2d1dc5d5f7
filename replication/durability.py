"""Durability levels: the steps of a replica before a record counts as replicated.

A topic sets `durability.level`, or has the controller's default. The controller writes the level into the
state node of each partition. Replicas use only that value, so that all of them agree:

    state node                     followers claim in a fetch      the high watermark counts
    ──────────                     ──────────────────────────      ─────────────────────────
    replicated                     written records                 all claims
    synced                         flushed records                 claims marked as flushed
    synced, all_synced             flushed records                 claims marked as flushed

`all_synced` is the promise for a power cut of all machines: every acknowledged record is on the disk of every
ISR member. A partition created as `synced` has it from the start. A switched partition gets it once its
leader reports that every member has flushed all committed records (a write conditional on the state that
switched it). It loses it, in the store, before any replica learns of the weaker level.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

DURABILITY_LEVEL: Final = "durability.level"
"""The topic's setting."""


class Durability(Enum):
    """The point at which a record counts towards the high watermark.

    REPLICATED  once every in-sync replica has written it to the operating system: Kafka's promise
    SYNCED      once every in-sync replica has also fsynced it; one flush covers all records before it
    """

    REPLICATED = "replicated"
    SYNCED = "synced"
