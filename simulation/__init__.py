"""Whole clusters in memory under a seed, and the checkers that judge them; and the crash lab for one disk.

with SimulatedCluster(nodes=3, seed=7) as cluster:
    cluster.create_topic("orders")
    cluster.produce("orders", b"placed")
    cluster.power_cut(0)

report = run(seed=7, events=2000)
assert report.is_good, report.violation

report = CrashLab(recover, judge).explore(workload, promise)
assert report.is_good, report

Names are imported when they are first asked for: the pytest plugin lives in this room, and whoever runs
pytest with it installed pays for nothing else of it (decision 032).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.checkers import PartitionChecker, Violation, check_recovery
    from simulation.crash import CrashLab, CrashReport, CrashRun, CrashViolation
    from simulation.kit import SimulatedCluster
    from simulation.kit_clients import (
        Delivery,
        Fetched,
        RequestFailed,
        SimulatedConsumer,
        SimulatedProducer,
    )
    from simulation.network import STORE
    from simulation.quiet import Timings
    from simulation.runner import Report, run
    from simulation.swarm import Features, Swarm, draw
    from simulation.world import World

__all__ = [
    "STORE",
    "CrashLab",
    "CrashReport",
    "CrashRun",
    "CrashViolation",
    "Delivery",
    "Features",
    "Fetched",
    "PartitionChecker",
    "Report",
    "RequestFailed",
    "SimulatedCluster",
    "SimulatedConsumer",
    "SimulatedProducer",
    "Swarm",
    "Timings",
    "Violation",
    "World",
    "check_recovery",
    "draw",
    "run",
]

_HOMES = {
    "checkers": ("PartitionChecker", "Violation", "check_recovery"),
    "crash": ("CrashLab", "CrashReport", "CrashRun", "CrashViolation"),
    "kit": ("SimulatedCluster",),
    "kit_clients": ("Delivery", "Fetched", "RequestFailed", "SimulatedConsumer", "SimulatedProducer"),
    "network": ("STORE",),
    "quiet": ("Timings",),
    "runner": ("Report", "run"),
    "swarm": ("Features", "Swarm", "draw"),
    "world": ("World",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"simulation.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
