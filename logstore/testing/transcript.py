"""A recorded run: the seed and every decision made in it. JSON, one object.

    {"seed": 7, "events": 2000, "plant": "", "commit": "2bef2d6", "invariant": "C4",
     "decisions": [{"at_ms": 310, "what": "kill", "victim": 1, "other": -2, "for_ms": 90, "chance": 0.2}, …],
     "silent": ["consumer 0"], "most_sends": 4, "quiet": ["drops"]}

Everything else follows from the seed. Replayed with all decisions, a run is the same, event for event.
With some left out it is another run, possibly a shorter one that breaks the same rule.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from logstore.testing.faults import Decision
from logstore.testing.swarm import Features, Swarm, draw

NOISE = ("drops", "duplicates", "reordering", "slow_links", "store_losses", "bad_batches", "delay")
"""Kinds of randomness that no decision names, so that a schedule can do without them."""
_RATE_OF = {
    "drops": "drop_rate",
    "duplicates": "duplicate_rate",
    "slow_links": "slow_rate",
    "store_losses": "store_loss_rate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A run to be replayed. `silent` clients do nothing; `quiet` names the noise that is left out."""

    seed: int
    events: int
    decisions: tuple[Decision, ...]
    silent: tuple[str, ...] = ()
    most_sends: int | None = None
    """The number of batches each producer sends before faults end; None: no limit."""
    quiet: tuple[str, ...] = ()
    plant: str = ""
    invariant: str = ""
    commit: str = ""

    @property
    def swarm(self) -> Swarm:
        """The seed's world without the noise that is left out."""
        swarm = draw(self.seed)
        features = {
            each.name: getattr(swarm.features, each.name) and each.name not in self.quiet
            for each in fields(Features)
        }
        changes: dict[str, Any] = {_RATE_OF[name]: 0.0 for name in self.quiet if name in _RATE_OF}
        if "delay" in self.quiet:
            changes["delay_ms"] = 1
        return replace(swarm, features=Features(**features), **changes)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Transcript:
        """Read what `to_json` wrote. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
        found = json.loads(text)
        found["decisions"] = tuple(Decision(**each) for each in found["decisions"])
        return cls(**{**found, "silent": tuple(found["silent"]), "quiet": tuple(found["quiet"])})
