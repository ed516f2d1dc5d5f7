"""The broker's log names each log dir that fails, fills up or has room again, once."""

from __future__ import annotations

import errno
import logging
from contextlib import suppress

import pytest

from logstore.broker import Broker, BrokerConfig
from logstore.broker.log_dir_reports import LogDirReports
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.replication.full_dirs import PROBE_MS
from logstore.testing.disks.faulty import Fault, FaultyDisk
from tests.replication.test_driver import TP
from tests.replication.test_failing_disks import cluster, failing, faulty_disks
from tests.replication.test_full_dirs import NO_ROOM, fill, send

Caught = pytest.LogCaptureFixture


def said(caplog: Caught) -> list[tuple[int, str]]:
    """Return the lines since the last call."""
    lines = [
        (each.levelno, each.getMessage()) for each in caplog.records if each.name.endswith("log_dir_reports")
    ]
    caplog.clear()
    return lines


def test_a_full_dir_is_one_line_and_its_end_another(caplog: Caught) -> None:
    caplog.set_level(logging.INFO)
    disks = faulty_disks()
    made = cluster(disks.__getitem__)
    reports = LogDirReports(made.nodes[0])
    reports.look()
    fill(made, disks, 0)
    reports.look()
    full = "log dir data has no room: appends to it are refused until it has some"
    assert said(caplog) == [(logging.WARNING, full)]
    for _ in range(3):
        made.advance(PROBE_MS)
        reports.look()
    assert said(caplog) == [], "clients retry many times a second"
    disks[0].heal()
    made.advance(2 * PROBE_MS)
    reports.look()
    assert said(caplog) == [(logging.INFO, "log dir data has room again")]
    disks[0].inject(NO_ROOM)
    made.nodes[0].replicas.found_full(TP)
    made.advance(30_000)
    reports.look()
    assert said(caplog) == [(logging.WARNING, full)], "it fills up once more"


def test_a_dir_that_fails_is_one_line_for_all_its_replicas(caplog: Caught) -> None:
    disks = faulty_disks()
    made = cluster(disks.__getitem__, dirs=("data", "spare"))
    reports = LogDirReports(made.nodes[0])
    reports.look()
    home = made.nodes[0].logs.logs()[TP].partition.directory.rpartition("/")[0]
    disks[0].inject(failing("pwrite", home))
    send(made, b"lost")
    made.advance(1_000)
    reports.look()
    reports.look()
    ((level, line),) = said(caplog)
    assert level == logging.ERROR
    assert line.startswith(f"log dir {home} is offline until a restart: [Errno {errno.EIO}]")


def test_a_single_log_that_goes_offline_is_named(caplog: Caught) -> None:
    """Its dir goes on."""
    made = cluster(faulty_disks().__getitem__)
    replicas = made.nodes[0].replicas
    reports = LogDirReports(made.nodes[0])
    for _ in range(2):
        error = OSError(errno.EIO, "Input/output error", "data/t-0/x.log")
        assert replicas.guard(TP, error) is not ErrorCode.NONE
    reports.look()
    reports.look()
    line = f"{TP} is offline until a restart: [Errno {errno.EIO}] Input/output error: 'data/t-0/x.log'"
    assert said(caplog) == [(logging.ERROR, line)]


def test_a_broker_reports_its_log_dirs(caplog: Caught) -> None:
    """One dir fails, the other one is full then."""
    disk = FaultyDisk(MemoryDisk())
    config = BrokerConfig(log_dirs=("a", "b"), disk=disk)
    with Broker(config) as broker:
        broker.create_topic("t", 2, settings={"durability.level": "synced"})
        disk.inject(Fault(operation="sync", path=lambda path: path.startswith("b/t-"), forever=True))
        for partition in (0, 1):
            with suppress(EngineError):  # one of them is in the other dir
                broker.append("t", b"x", partition=partition, timeout=2)
        ((level, line),) = said(caplog)
        assert (level, line.partition(":")[0]) == (logging.ERROR, "log dir b is offline until a restart")
        disk.inject(NO_ROOM)
        for partition in (0, 1):
            with suppress(EngineError):
                broker.append("t", b"x", partition=partition, timeout=1)
        ((level, line),) = said(caplog)
        assert (level, line.partition(":")[0]) == (logging.WARNING, "log dir a has no room")
