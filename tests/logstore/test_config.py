"""Settings: Kafka's names, Kafka's bounds, and no value that means something else than it says."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from logstore.config import MAX_INT, MAX_LONG, LogConfig, kafka_name
from logstore.errors import InvalidConfig

# topic setting, default
DEFAULTS = {
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "segment.jitter.ms": "0",
    "segment.index.bytes": "10485760",
    "index.interval.bytes": "4096",
    "flush.messages": str(MAX_LONG),
    "flush.ms": str(MAX_LONG),
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "max.message.bytes": "1048588",
    "delete.retention.ms": "86400000",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": str(MAX_LONG),
    "min.cleanable.dirty.ratio": "0.5",
    "cleanup.policy": "delete",
    "file.delete.delay.ms": "60000",
    "compression.type": "producer",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.zstd.level": "3",
    "preallocate": "false",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(MAX_LONG),
    "message.timestamp.after.max.ms": str(MAX_LONG),
    "message.timestamp.difference.max.ms": str(MAX_LONG),
    "message.format.version": "3.0-IV1",
    "message.downconversion.enable": "true",
    "leader.replication.throttled.replicas": "",
    "follower.replication.throttled.replicas": "",
    "remote.storage.enable": "false",
    "local.retention.ms": "-2",
    "local.retention.bytes": "-2",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
}
OURS = {"durability.level": "replicated", "retain.for.cursors": "false"}


def test_names_and_defaults_are_kafkas() -> None:
    assert LogConfig().to_kafka() == DEFAULTS | OURS


def test_text_and_back() -> None:
    """What is written to the metadata store is what is read from it."""
    config = LogConfig(segment_bytes=1 << 20, preallocate=True, cleanup_policy="compact,delete")
    assert LogConfig.from_kafka(config.to_kafka()) == config


def test_on_top_of_another() -> None:
    """A topic's own settings overrule the node's; the rest stays the node's."""
    base = LogConfig(segment_bytes=5000, retention_ms=7)
    config = LogConfig.from_kafka({"retention.ms": " -1 "}, base=base)
    assert (config.segment_bytes, config.retention_ms) == (5000, -1)
    assert LogConfig.from_kafka({}, base=base) == base


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("segment.bytes", "13"),
        ("segment.bytes", str(MAX_INT + 1)),
        ("segment.bytes", "1e6"),
        ("segment.bytes", "1_000_000"),
        ("segment.bytes", "٣٠٠٠"),
        ("segment.bytes", ""),
        ("segment.bytes", "--5"),
        ("segment.bytes", "0x100"),
        ("segment.ms", "0"),
        ("segment.ms", str(MAX_LONG + 1)),
        ("segment.jitter.ms", "-1"),
        ("segment.index.bytes", "11"),
        ("index.interval.bytes", "-1"),
        ("flush.messages", "0"),
        ("flush.ms", "-1"),
        ("retention.ms", "-2"),
        ("retention.bytes", "-2"),
        ("max.message.bytes", "-1"),
        ("file.delete.delay.ms", "-1"),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("max.compaction.lag.ms", "0"),
        ("cleanup.policy", "remove"),
        ("cleanup.policy", ","),
        ("cleanup.policy", "delete,delete"),
        ("cleanup.policy", "delete,"),
        ("compression.type", "none"),
        ("compression.type", "GZIP"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "0"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("preallocate", "yes"),
        ("preallocate", "1"),
        ("message.timestamp.type", "createtime"),
        ("message.timestamp.after.max.ms", "-1"),
        ("min.insync.replicas", "0"),
        ("unclean.leader.election.enable", "maybe"),
    ],
)
def test_a_value_it_cannot_take_is_named(name: str, text: str) -> None:
    """The message has the setting's name, so that whoever typed it finds it."""
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        LogConfig.from_kafka({name: text})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("segment.byte", r"segment\.byte \(did you mean segment\.bytes\?\)"),
        ("retention_ms", r"retention_ms \(did you mean retention\.ms\?\)"),
        ("log.retention.hours", r"log\.retention\.hours \(did you mean retention\.ms\?\)"),
        ("zzz", r"unknown settings: zzz; see docs/configuration\.md"),
    ],
)
def test_an_unknown_setting_is_refused_with_what_was_meant(name: str, hint: str) -> None:
    """A misspelt retention that is passed over in silence costs data, or a disk."""
    with pytest.raises(InvalidConfig, match=hint):
        LogConfig.from_kafka({name: "1", "segment.bytes": "100"})


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms \(6\) is above max\.compaction"):
        LogConfig(min_compaction_lag_ms=6, max_compaction_lag_ms=5)
    base = LogConfig(max_compaction_lag_ms=5)
    with pytest.raises(InvalidConfig):
        LogConfig.from_kafka({"min.compaction.lag.ms": "6"}, base=base)


def test_it_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        LogConfig().segment_bytes = 5  # type: ignore[misc]


def test_the_longest_a_segment_waits() -> None:
    """A compacted log rolls early enough for its oldest record to be compacted in time."""
    assert LogConfig(segment_ms=100, max_compaction_lag_ms=40).longest_segment_ms == 100
    assert (
        LogConfig(segment_ms=100, max_compaction_lag_ms=40, cleanup_policy="compact").longest_segment_ms == 40
    )
    assert (
        LogConfig(segment_ms=30, max_compaction_lag_ms=40, cleanup_policy="compact").longest_segment_ms == 30
    )


def test_every_setting_explains_itself() -> None:
    """The command line prints these."""
    for setting in fields(LogConfig):
        assert setting.metadata["help"], kafka_name(setting.name)


@pytest.mark.parametrize(
    ("field", "value"),
    [("segment_bytes", "5000"), ("segment_bytes", 5000.0), ("segment_ms", True), ("preallocate", 1),
     ("min_cleanable_dirty_ratio", "0.5"), ("cleanup_policy", None)],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(field: str, value: object) -> None:
    """`LogConfig(segment_bytes="5000")` would be compared as text somewhere far from here."""
    with pytest.raises(InvalidConfig, match=f"{field.replace('_', '.')} is .*it must be of type"):
        LogConfig(**{field: value})  # type: ignore[arg-type]
