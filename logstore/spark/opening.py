"""Which `Logs` serves a read: directories or brokers."""

from __future__ import annotations

from collections.abc import Callable

from logstore.spark.logs import Headers, Logs
from logstore.spark.read_options import ReadOptions


def open_logs(options: ReadOptions, on_batches: Callable[[Headers], None] | None = None) -> Logs:
    """What `options` name; to be closed. Raises `EngineError` if it cannot be reached.

    `on_batches` is told the headers of all batches that are read, some of which reach out of the range.
    """
    if options.paths:
        from logstore.spark.directory_logs import DirectoryLogs

        return DirectoryLogs(options.paths, isolation=options.isolation, on_batches=on_batches)
    from logstore.spark.broker_logs import BrokerLogs

    return BrokerLogs(options, on_batches)
