"""Test kit for programs that live on a replicated log: clusters, a stage, a crash lab, disks that fail.

with SimulatedCluster(nodes=3, seed=7) as cluster:
    cluster.create_topic("orders")
    cluster.produce("orders", b"placed")
    cluster.power_cut(0)

report = run(seed=7, events=2000)
assert report.is_good, report.violation

report = CrashLab(recover, judge).explore(workload, promise)
assert report.is_good, report

for copy in every_cut(log, "copies"):
    with Log.open(copy.path) as found:
        assert found.log_end_offset == copy.log_end_offset

stage = Stage("AB")
stage.elect("A", isr="AB")
stage.append("A")
stage.fetch("B")

disk = FaultyDisk(MemoryDisk())
disk.inject(Fault(operation="sync"))

Names are imported on first use. The pytest plugin is in this room, and a test run that does not use it must
not pay for the rest (decision 032).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.lazily import names_from

if TYPE_CHECKING:
    from logstore.testing.checkers import PartitionChecker
    from logstore.testing.crash import CrashLab, CrashReport, CrashRun, CrashViolation
    from logstore.testing.crashed_logs import CrashedCopy, crashed_copy, every_cut
    from logstore.testing.disks import (
        Fault,
        FaultyDisk,
        MemoryDisk,
        Operation,
        Profile,
        RecordingDisk,
        VolatileDisk,
    )
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
    from logstore.testing.recovery_checks import check_recovery
    from logstore.testing.runner import Report, run
    from logstore.testing.stage import Stage
    from logstore.testing.stored import Violation
    from logstore.testing.swarm import Features, Swarm, draw
    from logstore.testing.volatile_broker import VolatileBroker
    from logstore.testing.world import World

__all__ = [
    "STORE",
    "CrashLab",
    "CrashReport",
    "CrashRun",
    "CrashViolation",
    "CrashedCopy",
    "Delivery",
    "Fault",
    "FaultyDisk",
    "Features",
    "Fetched",
    "MemoryDisk",
    "Operation",
    "PartitionChecker",
    "Profile",
    "RecordingDisk",
    "Report",
    "RequestFailed",
    "SimulatedCluster",
    "SimulatedConsumer",
    "SimulatedProducer",
    "Stage",
    "Swarm",
    "Timings",
    "Violation",
    "VolatileBroker",
    "VolatileDisk",
    "World",
    "check_recovery",
    "crashed_copy",
    "draw",
    "every_cut",
    "run",
]

_DISKS = ("Fault", "FaultyDisk", "MemoryDisk", "Operation", "Profile", "RecordingDisk", "VolatileDisk")
__getattr__, __dir__ = names_from(
    __name__,
    {
        "checkers": ("PartitionChecker",),
        "crash": ("CrashLab", "CrashReport", "CrashRun", "CrashViolation"),
        "crashed_logs": ("CrashedCopy", "crashed_copy", "every_cut"),
        "disks": _DISKS,
        "kit": ("SimulatedCluster",),
        "kit_clients": ("Delivery", "Fetched", "RequestFailed", "SimulatedConsumer", "SimulatedProducer"),
        "network": ("STORE",),
        "quiet": ("Timings",),
        "recovery_checks": ("check_recovery",),
        "runner": ("Report", "run"),
        "stage": ("Stage",),
        "stored": ("Violation",),
        "swarm": ("Features", "Swarm", "draw"),
        "volatile_broker": ("VolatileBroker",),
        "world": ("World",),
    },
)
