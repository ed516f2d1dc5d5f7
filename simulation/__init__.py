"""Whole clusters in memory under a seed, and the checkers that judge them.

report = run(seed=7, events=2000)
assert report.is_good, report.violation
"""

from __future__ import annotations

from simulation.checkers import PartitionChecker, Violation, check_recovery
from simulation.runner import Report, run
from simulation.swarm import Features, Swarm, draw
from simulation.world import World

__all__ = [
    "Features",
    "PartitionChecker",
    "Report",
    "Swarm",
    "Violation",
    "World",
    "check_recovery",
    "draw",
    "run",
]
