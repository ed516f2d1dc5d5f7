"""Several brokers of one cluster in this process, for tests and for experiments with failures.

    with BrokerCluster(3) as cluster:
        cluster.create_topic("orders", 6)
        cluster.kill(1)
        cluster.append("orders", b"placed")

Each broker has its own thread and port; they share a metadata store. All of them fail with the process, so
their replicas protect against nothing outside it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, TypeVar

from logstore.arguments import as_int, as_seconds
from logstore.broker.blocking import BlockingCalls
from logstore.broker.client import Client
from logstore.broker.embedded import BrokerConfig
from logstore.broker.errors import BrokerStopped
from logstore.broker.metadata.opening import open_store
from logstore.broker.threaded import Broker
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk

T = TypeVar("T")

MOST_BROKERS = 1_000
_FIRST_ID = 1
_FACTORS = ("default.replication.factor", "offsets.topic.replication.factor")
_ANY_PORT = "127.0.0.1:0"
_QUICK = {
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "20",
    "controlled.shutdown.retry.backoff.ms": "50",
}


class BrokerCluster(BlockingCalls):
    """Brokers 1 to `count`. Calls go through any running broker; topics have three replicas by default.

    Without a `directory` all data is in memory. A broker's data survives `stop` and `kill`, and is there
    again after `start`.
    """

    def __init__(
        self,
        count: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        directory: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """Prepare the cluster; `settings` apply to all brokers, under Kafka's names.

        Raises `ValueError` for a `count` out of range and for a bad timeout.
        """
        if as_int(count, "count", least=1) > MOST_BROKERS:
            raise ValueError(f"count is {count}; one process runs {MOST_BROKERS} brokers at most")
        # A broker that starts again finds its files, whatever the working directory is by then.
        directory = None if directory is None else os.path.abspath(directory)
        factors = dict.fromkeys(_FACTORS, str(min(count, 3)))
        self._settings = {**factors, **_QUICK, **(settings or {})}
        self._directory, self._timeout_s = directory, as_seconds(timeout_s, "timeout_s")
        self._disks: dict[int, Disk] = {_FIRST_ID + number: MemoryDisk() for number in range(count)}
        self._store = open_store(f"{directory}/metadata" if directory is not None else None)
        self._addresses: dict[int, str] = {}
        """The last address of each broker."""
        self.brokers: dict[int, Broker] = {}
        """The running brokers, by id."""
        self._was_entered = self._is_over = False

    def __repr__(self) -> str:
        return f"BrokerCluster({', '.join(map(repr, self.brokers.values())) or 'none running'})"

    def __enter__(self) -> BrokerCluster:
        """Start all brokers, once. Raises `RuntimeError` for a cluster that was started before."""
        if self._was_entered:
            raise _started_already()
        self._was_entered = True
        try:
            for node_id in self._disks:
                self._launch(node_id)
            for broker in self.brokers.values():
                broker.wait_until_ready()
        except BaseException:
            self._is_over = True
            for node_id in list(self.brokers):
                self.kill(node_id)
            self._store.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        try:
            while self.brokers:
                # All brokers stop, so leadership cannot be moved away from the last one.
                _, broker = self.brokers.popitem()
                broker.__exit__(kind, error, trace)
        finally:
            for broker in self.brokers.values():
                broker.kill("another broker failed")
            self._store.close()

    def _launch(self, node_id: int, listen: str = _ANY_PORT) -> Broker:
        on_disk = self._directory is not None
        config = BrokerConfig(
            node_id=node_id,
            listen=listen,
            log_dirs=(f"{self._directory}/broker-{node_id}",) if on_disk else (),
            disk=None if on_disk else self._disks[node_id],
            metadata=self._store,
            settings=self._settings,
            timeout_s=self._timeout_s,
        )
        broker = Broker(config)
        broker.start()
        self.brokers[node_id], self._addresses[node_id] = broker, broker.bootstrap
        return broker

    def start(self, node_id: int) -> Broker:
        """Start a stopped or killed broker, and wait until it is ready.

        It listens on its former port, unless another program has taken that port meanwhile. Raises
        `RuntimeError` if it is running or the `with` block has ended, `ValueError` for no broker of this
        cluster.
        """
        self._check(node_id)
        if self._is_over:
            raise _started_already()
        if node_id in self.brokers:
            raise RuntimeError(f"broker {node_id} is running")
        try:
            broker = self._launch(node_id, self._addresses.get(node_id, _ANY_PORT))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            broker = self._launch(node_id)
        broker.wait_until_ready()
        return broker

    def stop(self, node_id: int) -> None:
        """Shut a broker down. Raises `BrokerStopped` if it is not running, `ValueError` if there is none."""
        self._take(node_id).stop()

    def kill(self, node_id: int) -> None:
        """Stop a broker as if its process had been killed; others take over its partitions.

        Raises as `stop`.
        """
        self._take(node_id).kill()

    def _take(self, node_id: int) -> Broker:
        self._check(node_id)
        if node_id not in self.brokers:
            raise BrokerStopped(f"broker {node_id} of this cluster is not running")
        return self.brokers.pop(node_id)

    def _check(self, node_id: int) -> None:
        if node_id not in self._disks:
            raise ValueError(f"no broker {node_id!r}: this cluster has {', '.join(map(str, self._disks))}")

    @property
    def bootstrap(self) -> str:
        """The `bootstrap.servers` of Kafka's clients: host:port,host:port."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def _broker(self) -> Broker:
        for broker in self.brokers.values():
            return broker
        raise BrokerStopped("no broker of this cluster is running")

    @property
    def _client(self) -> Client:
        return self._broker._client

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._broker._wait(work)


def _started_already() -> RuntimeError:
    return RuntimeError("this cluster was started before; make another BrokerCluster")
