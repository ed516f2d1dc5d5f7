"""Several brokers in this process that form one cluster: for tests, and for trying out what failures do.

    with BrokerCluster(3) as cluster:
        cluster.create_topic("orders", 6)
        cluster.kill(1)
        cluster.append("orders", b"placed")

Each has a thread, and a port, of its own; they share a metadata store. What the process does not survive,
none of them does: replicas of one process are no safety.
"""

from __future__ import annotations

import errno
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, TypeVar

from logstore.broker.blocking import BlockingCalls
from logstore.broker.client import Client
from logstore.broker.embedded import Broker, BrokerConfig
from logstore.broker.errors import BrokerStopped
from logstore.broker.metadata.opening import open_store
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk

T = TypeVar("T")

_FIRST_ID = 1
_FACTORS = ("default.replication.factor", "offsets.topic.replication.factor")
_ANY_PORT = "127.0.0.1:0"
_QUICK = {
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "20",
    "controlled.shutdown.retry.backoff.ms": "50",
}


class BrokerCluster(BlockingCalls):
    """Brokers 1 to `count`. Its calls go through whichever of them runs; topics have three replicas.

    Without a `directory` everything is in memory. What a broker had stays when it is stopped or killed, and
    is there when it is started again.
    """

    def __init__(
        self,
        count: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        directory: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """`settings` are all brokers', under Kafka's names. Nothing runs yet."""
        factors = dict.fromkeys(_FACTORS, str(min(count, 3)))
        self._settings = {**factors, **_QUICK, **(settings or {})}
        self._directory, self._timeout_s = directory, timeout_s
        self._disks: dict[int, Disk] = {_FIRST_ID + number: MemoryDisk() for number in range(count)}
        self._store = open_store(f"{directory}/metadata" if directory is not None else None)
        self._addresses: dict[int, str] = {}
        """Where they are or were."""
        self.brokers: dict[int, Broker] = {}
        """The running ones, by id."""

    def __enter__(self) -> BrokerCluster:
        try:
            for node_id in self._disks:
                self._launch(node_id)
            for broker in self.brokers.values():
                broker.wait_until_ready()
        except BaseException:
            for node_id in list(self.brokers):
                self.kill(node_id)
            self._store.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while self.brokers:
                # All go: there is nobody whom leaderships could be moved to in the end.
                _, broker = self.brokers.popitem()
                broker.__exit__(kind, error, trace)
        finally:
            for broker in self.brokers.values():
                broker.kill("another one failed")
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
        """Start one that was stopped or killed, and wait until it is ready.

        It has its former port again, where its clients look for it, unless somebody took that meanwhile.
        """
        assert node_id not in self.brokers, f"broker {node_id} is running"
        try:
            broker = self._launch(node_id, self._addresses[node_id])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            broker = self._launch(node_id)
        broker.wait_until_ready()
        return broker

    def stop(self, node_id: int) -> None:
        """Stop one in order."""
        self.brokers.pop(node_id).stop()

    def kill(self, node_id: int) -> None:
        """End one as if its process had been killed; others take over what it led."""
        self.brokers.pop(node_id).kill()

    @property
    def bootstrap(self) -> str:
        """The running brokers' addresses as Kafka's clients take them: host:port,host:port."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def _broker(self) -> Broker:
        for broker in self.brokers.values():
            return broker
        raise BrokerStopped("no broker of this cluster runs")

    @property
    def _client(self) -> Client:
        return self._broker._client

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._broker._wait(work)
