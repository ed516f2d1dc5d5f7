"""What a replica must have done with a record before it counts: a setting of each topic, kept with its state.

A topic says `durability.level`, or has the controller's default. The controller writes the level into each
partition's state node, and replicas go by that alone, so that all of them mean the same:

    state node                     followers claim in a fetch      the high watermark counts
    ──────────                     ──────────────────────────      ─────────────────────────
    replicated                     what they have written          all claims
    synced                         what they have flushed          claims that say they are flushed
    synced, all_synced             likewise                        likewise

`all_synced` is the promise for a power cut everywhere: whatever was acknowledged is on the disk of every
ISR member. A partition made as `synced` has it from the start. One that is switched gets it when its leader
reports that every member has flushed past what had been committed (a conditional write on top of the very
state that switched it), and loses it, in the store, before any replica hears of the weaker level.
"""

from __future__ import annotations

from enum import Enum


class Durability(Enum):
    """What a replica must have done with a record before it counts towards the high watermark.

    REPLICATED  written to the operating system on every in-sync replica: Kafka's promise
    SYNCED      fsynced on every in-sync replica first; one flush covers all that has waited for it
    """

    REPLICATED = "replicated"
    SYNCED = "synced"
