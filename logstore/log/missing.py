"""Logs whose directories are gone from a log dir.

A deletion removes a partition from the checkpoints before it renames the directory. So an entry of the
recovery points without a directory tells of a log that somebody else has taken away: a command, or a backup
that was put back in part. An empty log in its place would count as in sync, could lead, and the other
replicas would truncate theirs. Kafka makes that empty log.
"""

from __future__ import annotations

from collections.abc import Sequence

from logstore.disk.topic_partition import TopicPartition
from logstore.errors import Damage, DamagedLog, DamageKind
from logstore.log.log_dir import LogDir


def find_missing(log_dirs: Sequence[LogDir]) -> list[tuple[LogDir, TopicPartition]]:
    """Return the logs that are missing, with the log dir that knows of them, and list them as damaged there.

    If a log dir has failed there are none: they may be in that one. A directory that was set aside is one
    that another program was about to delete. A checkpoint entry beside an unfinished move's copy belongs to
    the copy.
    """
    if any(log_dir.failure is not None for log_dir in log_dirs):
        return []
    held = {each for log_dir in log_dirs for each in log_dir.known | log_dir.set_aside}
    ends: dict[TopicPartition, tuple[int, LogDir]] = {}
    for log_dir in log_dirs:
        for topic_partition, offset in log_dir.checkpoints.recovery_points.offsets.items():
            if topic_partition in held or topic_partition in log_dir.futures:
                continue
            if offset > ends.get(topic_partition, (0, log_dir))[0]:
                ends[topic_partition] = offset, log_dir
    for topic_partition, (offset, log_dir) in ends.items():
        log_dir.damaged[topic_partition] = _damage(log_dir.directory_of(topic_partition), offset)
    return [(log_dir, topic_partition) for topic_partition, (_, log_dir) in ends.items()]


def _damage(directory: str, end_offset: int) -> DamagedLog:
    text = f"the directory is gone, and everything up to offset {end_offset} was durable"
    damage = Damage(DamageKind.END_LOST, ".", 0, 0, text, 0)
    return DamagedLog(
        f"{directory}: {text}; put it back, or make an empty one and run "
        f"`logstore recover --accept-loss {directory}`",
        [damage],
        end_offset,
    )
