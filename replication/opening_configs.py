"""The settings with which a node opens its logs: those of their topics in the metadata store.

The opening of a log needs them: that a segment is gone is damage, unless the topic is compacted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.disk.topic_partition import partitions_among
from logstore.errors import InvalidConfig
from logstore.loggers import logger_of
from logstore.replication.config import topic_config
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Get, Outcome

_log = logger_of(__name__)


def config_reads(disk: Disk, log_dirs: Sequence[str]) -> dict[str, Get]:
    """Return, for each topic that has a log here, the read of its settings."""
    topics = set()
    for each in log_dirs:
        with suppress(OSError):
            names = [entry.name for entry in disk.scan(each) if entry.is_directory]
            topics |= {partition.topic for partition, _ in partitions_among(names)}
    return {name: Get(layout.topic_config_path(name)) for name in sorted(topics)}


def configs_in(found: Mapping[str, Outcome], defaults: LogConfig) -> dict[str, LogConfig]:
    """Return the settings of the topics by the outcomes of their reads, without those that are invalid."""
    configs = {}
    for name, outcome in found.items():
        if outcome.stat is None:
            continue  # it has no settings of its own
        try:
            configs[name] = topic_config(layout.parse_topic_config(outcome.data), defaults)
        except (CorruptMetadata, InvalidConfig) as error:
            _log.error("the log of topic %s is opened with the default settings: %s", name, error)
    return configs
