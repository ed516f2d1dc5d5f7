"""Which `Logs` serves a read: directories or brokers."""

from __future__ import annotations

from pipeline.logs import Logs
from pipeline.read_options import ReadOptions


def open_logs(options: ReadOptions) -> Logs:
    """What `options` name; to be closed. Raises `EngineError` if it cannot be reached."""
    if options.paths:
        from pipeline.directory_logs import DirectoryLogs

        return DirectoryLogs(options.paths, isolation=options.isolation)
    from pipeline.broker_logs import BrokerLogs

    return BrokerLogs(options)
