"""A broker over the log dirs of random topics, and the queries as it is asked."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Final

from logstore.broker import Broker, BrokerConfig
from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)
from logstore.checkpoint.identity import MetaProperties, write_meta_properties, write_partition_metadata
from logstore.cli.adopt import adopt
from logstore.disk.files import OsDisk
from logstore.disk.ids import new_id
from logstore.disk.topic_partition import TopicPartition
from tests.spark.read_judge.queries import Query, without_segment
from tests.spark.read_judge.topics import Plain, Topics

_SETTINGS: Final = {"log.retention.ms": "-1", "log.cleaner.enable": "false"}
"""The times are of other years, and nothing may change while it is read."""


@contextmanager
def served(topics: Topics) -> Iterator[tuple[str, Mapping[TopicPartition, Plain]]]:
    """Let a broker adopt the log dirs, whose older copies are removed; yield its address, and what it has.

    The partitions end where their logs do then.
    """
    ids = {where.topic: new_id(random.Random(where.topic)) for where in topics.partitions}
    for where, each in topics.partitions.items():
        each.mark = each.copy_mark = None
        shutil.rmtree(each.copy, ignore_errors=True)
        write_partition_metadata(OsDisk(), str(each.directory), ids[where.topic])
    plain = topics.plain()
    topics.close()
    for log_dir in topics.log_dirs:
        (log_dir / HIGH_WATERMARK_CHECKPOINT).unlink(missing_ok=True)
        starts = {where: found.start for where, found in plain.items()}
        held = {
            where: at for where, at in starts.items() if topics.partitions[where].directory.parent == log_dir
        }
        write_offset_checkpoint(OsDisk(), str(log_dir), LOG_START_OFFSET_CHECKPOINT, held)
        write_meta_properties(OsDisk(), str(log_dir), MetaProperties(node_id=1, cluster_id="judged"))
    with redirect_stdout(StringIO()):
        assert adopt(topics.log_dirs, apply=True) == 0
    config = BrokerConfig(log_dirs=tuple(map(str, topics.log_dirs)), settings=_SETTINGS)
    with Broker(config) as broker:
        broker.wait_until_ready()
        yield broker.bootstrap, plain


def asked_of(query: Query, bootstrap: str) -> Query:
    """The query of brokers, which know no segments."""
    options = {**query.options, "kafka.bootstrap.servers": bootstrap}
    return without_segment(replace(query, paths=[], options=options))
