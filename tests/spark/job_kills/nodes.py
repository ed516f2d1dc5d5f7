"""Three brokers in processes of their own, one of which is killed at a time."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Final, Self

from logstore.cli.cluster_file import existing
from logstore.cli.local_cluster import is_running, launch, start, stop
from tests.spark.job_kills.cases import client_of

PATIENCE_S: Final = 240.0
SETTINGS: Final = {
    "zookeeper.session.timeout.ms": "3000",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "log.retention.ms": "-1",  # the rows have times of their own, which are past
    "replica.fetch.backoff.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "300",
    "request.timeout.ms": "5000",
}


class Nodes:
    """A context manager. `bootstrap` names the brokers."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory, self._draw = directory, Random(seed)
        self.kills = 0

    def __enter__(self) -> Self:
        self.bootstrap = start(self._directory, 3, SETTINGS, patience_s=PATIENCE_S).bootstrap
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._directory, patience_s=20.0)

    def any_pid(self) -> int:
        """Return the process of one of the brokers."""
        return self._draw.choice(existing(self._directory).nodes).pid

    def mend(self) -> None:
        """Start the broker that was killed, and wait until all replicas are in sync again."""
        nodes = existing(self._directory).nodes
        dead = [each.name for each in nodes if not is_running(self._directory, each)]
        if dead:
            self.kills += len(dead)
            launch(self._directory, dead, patience_s=PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        with client_of(self.bootstrap) as client:
            while any(len(each.isr) < 3 for each in client.metadata().partitions.values()):
                assert time.monotonic() < deadline, "the replicas are not in sync again"
                time.sleep(0.1)
