"""The two logs that are compared: ours, and Apache Kafka's in a Java process.

Both take the same operations, as dictionaries (`resolving.py` makes them), and answer with a result or an
error's name, and with the state of the log. Both take the clock from the operations.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from logstore.checkpoint.entry_files import RECOVERY_POINT_CHECKPOINT, checkpointed_offset
from logstore.compact.cleanable import cleanable_of
from logstore.compact.cleaner_config import CleanerConfig
from logstore.compact.compaction_pass import compaction_pass, run
from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.append import AppendInfo, append_as_leader
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.manager_config import LogManagerConfig
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import (
    REMEMBERED_BATCHES,
    AppendedBatch,
    AppendOrigin,
    ProducerEntry,
    ProducerState,
    ProducerStateConfig,
)
from logstore.log.read import FetchIsolation, offset_for_timestamp, offset_of_largest_timestamp, read_bytes
from logstore.log.truncate import truncate_fully_and_start_at, truncate_to
from logstore.log.upkeep import (
    advance_log_start_offset,
    delete_old_segments,
    remove_deleted_files,
    remove_expired_producers,
)
from tests.judge.java_process import JavaProcess

SOURCE: Final = Path(__file__).parent / "java" / "Judge.java"
PARTITION: Final = TopicPartition("judged", 0)
EXPIRATION_MS: Final = 12 * 3_600_000
"""`producer.id.expiration.ms`."""
MAX_TIMESTAMP: Final = -3
"""The time that asks for the record with the largest one."""

Operation = dict[str, Any]
State = dict[str, Any]


class Answer(NamedTuple):
    """The answer of one side to an operation. `state` is empty while the log is closed."""

    result: Any
    error: str | None
    message: str
    state: State


# --- Kafka's ------------------------------------------------------------------------------------------


class Kafka:
    """Kafka's log, and what Kafka's managers would keep of it in checkpoint files."""

    def __init__(self) -> None:
        """Compile and start the Java program. Raises `Missing`."""
        self._java = JavaProcess(SOURCE)
        self.directory = ""
        self._config: Mapping[str, str] = {}
        self._kept = {"recovery_point": 0, "high_watermark": 0, "start": 0}

    def end(self) -> None:
        """End the process."""
        self._java.end()

    def begin(self, home: Path, config: Mapping[str, str], now_ms: int) -> None:
        """Open an empty log in `home`."""
        self.directory = str(home / PARTITION.directory_name)
        self._config = _small(config)
        self._kept = dict.fromkeys(self._kept, 0)
        self._open(is_clean=True, now_ms=now_ms)

    def perform(self, operation: Operation) -> Answer:
        """Do one operation."""
        kept = self._kept
        match operation["op"]:
            case "open":
                return self._open(is_clean=True, now_ms=operation["now"])
            case "crash":
                self._ask({"op": "abandon"})
                _tear(self.directory, operation)
                # As our seals tell it: then both sides read the same segments again.
                kept["recovery_point"] = operation["recovery_point"]
                return self._open(is_clean=False, now_ms=operation["now"])
            case "configure":
                self._config = {**self._config, **_small(operation["settings"])}
                return self._ask({"op": "configure", "config": self._config})
            case "checkpoint":
                kept["high_watermark"] = operation["high_watermark"]
                return self._ask({"op": "nothing"})
            case "close":
                # Of a log that was closed in order, the recovery point is the end.
                kept["recovery_point"], kept["high_watermark"] = 2**62, operation["high_watermark"]
        answer = self._ask(operation)
        if operation["op"] == "truncate" and answer.state:
            # Else its last stable offset is the old one until something moves.
            refreshed = self._ask({"op": "high_watermark", "offset": answer.state["high_watermark"]})
            answer = answer._replace(state=refreshed.state)
        if answer.state:
            kept["start"] = answer.state["start"]
            if operation["op"] in ("truncate", "restart"):
                kept["high_watermark"] = min(kept["high_watermark"], answer.state["end"])
        return answer

    def _open(self, *, is_clean: bool, now_ms: int) -> Answer:
        settings = {"config": self._config, "producer_expiration": EXPIRATION_MS, "clean": is_clean}
        opening = {"op": "open", "directory": self.directory, "now": now_ms, **settings, **self._kept}
        answer = self._ask(opening)
        if answer.state:
            self._kept["high_watermark"] = min(self._kept["high_watermark"], answer.state["end"])
        return answer

    def _ask(self, operation: Operation) -> Answer:
        said = self._java.ask(operation)
        state = said.get("state", {})
        # A marker that compaction has emptied makes a producer of which nothing is known.
        known = {number: each for number, each in state.get("producers", {}).items() if each["epoch"] >= 0}
        state = {**state, "producers": known} if state else {}
        return Answer(said.get("result"), said.get("error"), said.get("message", ""), state)


def _small(settings: Mapping[str, str]) -> dict[str, str]:
    """Let segments be smaller than a topic of Kafka's may have them."""
    return {name.replace("segment.bytes", "internal.segment.bytes"): settings[name] for name in settings}


# --- ours ---------------------------------------------------------------------------------------------


class Ours:
    """Our log, with the log manager that keeps its checkpoints."""

    def __init__(self) -> None:
        """Hold no log yet."""
        self.directory = ""
        self.now_ms = 0
        self.loaded_up_to = 0
        """Below it, the producers come from a snapshot, or from batches that were read again."""
        self.adopted_at = 0
        """The log end when Kafka's producers were adopted: snapshots below it may hold more."""
        self.was_compacted = False
        self._home = ""
        self._config = LogConfig()
        self._manager: LogManager | None = None

    @property
    def log(self) -> PartitionLog:
        """The open log."""
        assert self._manager is not None
        log = self._manager.get(PARTITION)
        assert isinstance(log, Log)
        return log.partition

    @property
    def checkpointed_recovery_point(self) -> int:
        """The recovery point on disk: without seals, all from there on may be lost in a crash."""
        return checkpointed_offset(OsDisk(), self.directory, RECOVERY_POINT_CHECKPOINT)

    def begin(self, home: Path, config: Mapping[str, str], now_ms: int) -> None:
        """Open an empty log in `home`."""
        self._home, self.directory = str(home), str(home / PARTITION.directory_name)
        self._config, self.now_ms = LogConfig.from_kafka(config), now_ms
        self._open()

    def end(self) -> None:
        """Let go of the log."""
        if self._manager is not None:
            self._manager.abandon()
            self._manager = None

    def perform(self, operation: Operation) -> Answer:
        """Do one operation."""
        name = operation["op"]
        try:
            result = self._perform(operation)
        except EngineError as error:
            return Answer(None, error_name(error), str(error), self.state())
        if name in ("open", "crash", "truncate"):
            self.loaded_up_to = self.log.log_end_offset
        if name in ("append", "follow", "truncate"):
            # Retention asks for it, after a restart, where no record has a time.
            os.utime(self.log.segments.active.path(".log"), ns=(self.now_ms * 1_000_000,) * 2)
        return Answer(result, None, "", self.state())

    def _perform(self, operation: Operation) -> Any:
        assert self._manager is not None or operation["op"] == "open"
        match operation["op"]:
            case "open":
                return self._open()
            case "close":
                return self._close()
            case "crash":
                self.end()
                _tear(self.directory, operation)
                return self._open()
        return self._change(operation) if operation["op"] in _CHANGES else self._ask(operation)

    def _change(self, operation: Operation) -> Any:
        log, now_ms, offset = self.log, self.now_ms, operation.get("offset", 0)
        match operation["op"]:
            case "append":
                data, origin = bytes.fromhex(operation["data"]), AppendOrigin[operation["origin"]]
                epoch = operation["epoch"]
                return _bounds(append_as_leader(log, data, leader_epoch=epoch, now_ms=now_ms, origin=origin))
            case "follow":
                data = bytes.fromhex(operation["data"])
                return _bounds(append_as_follower(log, data, leader_epoch=operation["epoch"]))
            case "assign":
                return log.assign_epoch(operation["epoch"], operation.get("offset", log.log_end_offset))
            case "high_watermark":
                return log.set_high_watermark(offset)
            case "truncate":
                return truncate_to(log, offset)
            case "restart":
                return truncate_fully_and_start_at(log, offset)
            case "start":
                return advance_log_start_offset(log, offset)
            case "roll":
                return log.roll()
            case "retain":
                # Twice: the first call believes a clock by a day at most.
                return len(delete_old_segments(log, now_ms)) + len(delete_old_segments(log, now_ms))
            case "compact":
                return self._compact()
        return None

    def _ask(self, operation: Operation) -> Any:
        log = self.log
        match operation["op"]:
            case "clock":
                self.now_ms = operation["now"]
                remove_deleted_files(log, self.now_ms)
            case "configure":
                self._configure(operation["settings"])
            case "expire":
                remove_expired_producers(log, self.now_ms)
            case "flush":
                log.flush()
            case "checkpoint":
                assert self._manager is not None
                self._manager.checkpoint_recovery_points()
                self._manager.checkpoint_high_watermarks()
            case "read":
                return self._read(operation)
            case "time":
                wanted = operation["timestamp"]
                is_largest = wanted == MAX_TIMESTAMP
                found = offset_of_largest_timestamp(log) if is_largest else offset_for_timestamp(log, wanted)
                return None if found is None else list(found)
            case "epoch_end":
                end = log.end_offset_for_epoch(operation["epoch"])
                return None if end.end_offset == -1 else list(end)
        return None

    def _open(self) -> None:
        producers = ProducerStateConfig(
            producer_id_expiration_ms=EXPIRATION_MS, transaction_partition_verification_enable=False
        )
        self._manager = LogManager(
            [self._home],
            disk=OsDisk(),
            clock=lambda: self.now_ms,
            random=random.Random(0),
            config=self._config,
            settings=LogManagerConfig(producers=producers),
        )
        self._manager.get_or_create(PARTITION)

    def _configure(self, settings: Mapping[str, str]) -> None:
        assert self._manager is not None
        self._config = LogConfig.from_kafka(settings, base=self._config)
        self._manager.get_or_create(PARTITION, config=self._config)

    def _close(self) -> None:
        assert self._manager is not None
        self._manager.close()
        self._manager = None

    def _read(self, operation: Operation) -> dict[str, Any]:
        found = read_bytes(
            self.log,
            operation["offset"],
            operation["max"],
            isolation=FetchIsolation[operation["isolation"]],
            at_least_one=operation["at_least_one"],
        )
        aborted = [[each.producer_id, each.first_offset] for each in found.aborted]
        return {"data": found.records.hex(), "aborted": aborted}

    def _compact(self) -> dict[str, int]:
        log = self.log
        found = cleanable_of(log, self.now_ms)
        holder = log.segments.floor(found.first_dirty_offset)
        is_partly = holder is not None and holder.base_offset < found.first_dirty_offset
        result = {
            "first_dirty": found.first_dirty_offset,
            "first_uncleanable": found.first_uncleanable_offset,
            "clean_bytes": found.clean_bytes,
            "partly_clean_bytes": holder.size if holder is not None and is_partly else 0,
            "cleanable_bytes": found.cleanable_bytes,
        }
        if found.cleanable_bytes:
            self.was_compacted = True
            report = run(compaction_pass(log, found, CleanerConfig(), now_ms=self.now_ms))
            result["end"] = report.end_offset
            for segment in log.segments:  # a new file has a time of its own (docs/differences.md)
                os.utime(segment.path(".log"), ns=(segment.modified_ms * 1_000_000,) * 2)
        return result

    def adopt(self, kafka: State) -> None:
        """Replace our producers, in memory and in a snapshot at the log end, by those of Kafka's state.

        So are the markers above the high watermark, as far as its last stable offset shows them.
        """
        log = self.log
        entries = [
            ProducerEntry(
                int(number),
                each["epoch"],
                each["coordinator_epoch"],
                each["last_timestamp"],
                each["transaction"],
                deque(map(AppendedBatch._make, each["batches"]), maxlen=REMEMBERED_BATCHES),
            )
            for number, each in kafka["producers"].items()
        ]
        former = log.producer_state
        log.producer_state = ProducerState.load(entries, end_offset=log.log_end_offset)
        for entry in former:
            entry.batches.clear()
        if kafka["last_stable"] > kafka["start"]:  # else it tells nothing
            for first_offset in [each for each in former.unreplicated if each < kafka["last_stable"]]:
                del former.unreplicated[first_offset]
        log.producer_state.remember(former)
        self.adopted_at = log.log_end_offset
        if log.snapshots.offsets and log.snapshots.offsets[-1] == log.log_end_offset:
            log.snapshots.put(log.producer_state, log.log_end_offset)

    def state(self) -> State:
        """Return the state of the log, with the names that `Judge.java` gives Kafka's."""
        if self._manager is None:
            return {}
        log = self.log
        return {
            "start": log.log_start_offset,
            "high_watermark": log.high_watermark,
            "last_stable": log.last_stable_offset,
            "end": log.log_end_offset,
            "segments": [[each.base_offset, each.size, each.max_timestamp_ms] for each in log.segments],
            "epochs": [list(each) for each in log.epochs],
            "producers": {
                str(each.producer_id): {
                    "epoch": each.epoch,
                    "coordinator_epoch": each.coordinator_epoch,
                    "last_timestamp": each.last_timestamp_ms,
                    "transaction": each.transaction_first_offset,
                    "batches": [list(batch) for batch in each.batches],
                }
                for each in log.producers()
            },
        }


_CHANGES: Final = (
    *("append", "follow", "assign", "high_watermark", "truncate"),
    *("restart", "start", "roll", "retain", "compact"),
)
_NAMES: Final = {
    "OffsetsOutOfOrder": "OffsetsOutOfOrderException",
    "UnexpectedAppendOffset": "UnexpectedAppendOffsetException",
}


def error_name(error: EngineError) -> str:
    """Return the name of Kafka's error; where the protocol has none, that of Kafka's exception."""
    return _NAMES.get(type(error).__name__, error.code.name)


def _bounds(info: AppendInfo) -> list[int] | None:
    return [info.first_offset, info.last_offset] if info.offsets else None


def _tear(directory: str, operation: Operation) -> None:
    """Cut the bytes that a crash takes off its segment."""
    path = f"{directory}/{operation['segment']}"
    os.truncate(path, os.path.getsize(path) - operation["torn_bytes"])
