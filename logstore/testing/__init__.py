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

from typing import TYPE_CHECKING

from logstore.lazily import names_from

if TYPE_CHECKING:
    from logstore.testing.checkers import PartitionChecker, Violation, check_recovery
    from logstore.testing.crash import CrashLab, CrashReport, CrashRun, CrashViolation
    from logstore.testing.kit import SimulatedCluster
    from logstore.testing.kit_clients import (
        Delivery,
        Fetched,
        RequestFailed,
        SimulatedConsumer,
        SimulatedProducer,
    )
    from logstore.testing.network import STORE
    from logstore.testing.quiet import Timings
    from logstore.testing.runner import Report, run
    from logstore.testing.swarm import Features, Swarm, draw
    from logstore.testing.world import World

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

__getattr__ = names_from(
    __name__,
    {
        "checkers": ("PartitionChecker", "Violation", "check_recovery"),
        "crash": ("CrashLab", "CrashReport", "CrashRun", "CrashViolation"),
        "kit": ("SimulatedCluster",),
        "kit_clients": ("Delivery", "Fetched", "RequestFailed", "SimulatedConsumer", "SimulatedProducer"),
        "network": ("STORE",),
        "quiet": ("Timings",),
        "runner": ("Report", "run"),
        "swarm": ("Features", "Swarm", "draw"),
        "world": ("World",),
    },
)
