"""Lines in the broker's log about its log dirs: one that fails, fills up, or has room again.

The engine keeps these states and does not log. A line is written when a state begins or ends, however many
clients retry meanwhile.
"""

from __future__ import annotations

from typing import Final

from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog, LogDirOffline
from logstore.loggers import logger_of
from logstore.replication.node import Node

_log: Final = logger_of(__name__)


class LogDirReports:
    """Compares the node's log dirs with the last look.

    Call `look` when the engine counts one more of its `storage_changes`.
    """

    def __init__(self, node: Node) -> None:
        """A log dir that is offline already is reported by the first look."""
        self._node = node
        self._failed: frozenset[str] = frozenset()
        self._full: frozenset[str] = frozenset()
        self._offline: frozenset[TopicPartition] = frozenset()

    def look(self) -> None:
        """Log what has changed since the last look."""
        logs, replicas = self._node.logs, self._node.replicas
        if len(logs.failed_dirs) != len(self._failed):
            reasons = logs.offline_dirs
            for path in sorted(reasons.keys() - self._failed):
                _log.error("log dir %s is offline until a restart: %s", path, reasons[path])
            self._failed = frozenset(reasons)
        if len(replicas.offline) != len(self._offline):  # nothing leaves it
            for each in sorted(replicas.offline.keys() - self._offline):
                if not self._is_in_failed_dir(each):
                    _log.error("%s is offline until a restart: %s", each, replicas.offline[each])
            self._offline = frozenset(replicas.offline)
        if (full := replicas.full_dirs.since_ms.keys()) != self._full:
            for path in sorted(full - self._full):
                _log.warning("log dir %s has no room: appends to it are refused until it has some", path)
            for path in sorted(self._full - full):
                _log.info("log dir %s has room again", path)
            self._full = frozenset(full)

    def _is_in_failed_dir(self, topic_partition: TopicPartition) -> bool:
        try:
            self._node.logs.get(topic_partition)
        except LogDirOffline:
            return True
        except DamagedLog:
            pass
        return False
