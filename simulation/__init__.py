"""Whole clusters in memory under a seed, and the checkers that judge them; and the crash lab for one disk.

report = run(seed=7, events=2000)
assert report.is_good, report.violation

report = CrashLab(recover, judge).explore(workload, promise)
assert report.is_good, report
"""

from __future__ import annotations

from simulation.checkers import PartitionChecker, Violation, check_recovery
from simulation.crash import CrashLab, CrashReport, CrashRun, CrashViolation
from simulation.runner import Report, run
from simulation.swarm import Features, Swarm, draw
from simulation.world import World

__all__ = [
    "CrashLab",
    "CrashReport",
    "CrashRun",
    "CrashViolation",
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
