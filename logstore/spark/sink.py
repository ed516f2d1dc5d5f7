"""Write rows once: from a task's Arrow batches to a publication. Everything a sink does, without Spark.

tasks     stage    check and place the rows, encode them into a staged file, return a message
commit    commit   complete an open intent of the ledger; then decide this write and carry it out
          abort    remove the staged files that no intent names
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any, Final
from urllib.parse import quote

from logstore.config import LogConfig
from logstore.disk.files import Disk, OsDisk, remove_if_exists, wall_clock_ms
from logstore.disk.ids import new_id
from logstore.spark.errors import InvalidOption, WriteRefused
from logstore.spark.ledger import Entry, Ledger, publish_once, read_ledger, staging_directory
from logstore.spark.publishing import Message, Plan, Publisher, Stage, Staged, Target
from logstore.spark.read_options import local_path
from logstore.spark.row_sums import RowSum, check_same_rows
from logstore.spark.sink_rows import Intake, Topic, written_columns
from logstore.spark.targets import BrokerTarget, DirectoryTarget
from logstore.spark.write_options import WriteOptions

PAUSE_S: Final = 0.05
DIRECTORY_SUFFIX: Final = ".logstore-sink"
_CHECKPOINT_PART: Final = "logstore-sink"


@dataclass(frozen=True, slots=True)
class Sink:
    """The sink that `options` describe. Every process makes its own."""

    options: WriteOptions
    disk: Disk
    open_target: Callable[[WriteOptions, Disk], Target]

    def stage(
        self,
        batches: Iterable[Any],
        ledger: str,
        number: int,
        *,
        spark_partition: int,
        attempt: int,
        random: Random,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> Message:
        """Write one task's rows to a file of this attempt, unless the write is already decided or published.

        Raises `RowRefused`, `WriteRefused`, `CorruptLedger`, `OSError`, and the target's errors.
        """
        entry = read_ledger(self.disk, ledger)
        if number <= entry.done or (entry.intent is not None and number == entry.intent.number):
            named = batches if self.options.transaction is not None else ()
            rows = self._named(map(self._row_sum, named))
            return Message(ledger, number, spark_partition, Staged(), rows=rows)
        target = self.open_target(self.options, self.disk)
        intake = Intake(
            self.options,
            lambda name: self._topic(target, entry, name),
            now_ms,
            spark_partition=spark_partition,
            turn=spark_partition + number,
        )
        stage = Stage(
            self.disk,
            f"{staging_directory(ledger, number)}/{spark_partition:05d}-{attempt}-{new_id(random)}",
            intake.slots,
            compression=self.options.compression,
            batch_bytes=self.options.batch_bytes,
            max_batch_bytes=lambda name: intake.topics[name].config.max_message_bytes,
        )
        sums: list[RowSum | None] = []
        try:
            for batch in batches:
                stage.add(intake.take(batch))
                sums.append(self._row_sum(batch))
            staged = stage.finish()
        finally:
            stage.close()
            target.close()
        new = {name: topic.partitions for name, topic in intake.topics.items() if topic.is_new}
        return Message(ledger, number, spark_partition, staged, new, self._named(sums))

    def _row_sum(self, batch: Any) -> RowSum | None:
        if self.options.transaction is None:
            return None
        return RowSum.of(batch, written_columns(batch.schema.names, self.options))

    def _named(self, sums: Iterable[RowSum | None]) -> RowSum | None:
        return None if self.options.transaction is None else RowSum.of_all(sums)

    def _topic(self, target: Target, entry: Entry, name: str) -> Topic:
        # A topic that an open intent creates may exist in part; the intent holds its final partition count.
        intent = entry.intent
        making = Plan.of_json(intent.plan).topics.get(name) if intent is not None else None
        if making is None and (topic := target.topic(name)) is not None:
            return topic
        partitions = making or self.options.partitions
        if partitions is None:
            where = self.options.path or "the cluster"
            raise WriteRefused(
                f"topic {name} does not exist in {where}; set option partitions to create it with that many"
            )
        return Topic(partitions, topic_config(self.options), is_new=True)

    def commit(self, messages: Sequence[Message], ledger: str, number: int) -> bool:
        """Publish the messages' files unless `number` was published before; return whether it did.

        An open intent is completed first. Raises `DirectoryLocked` while another commit of the same ledger
        runs, `PublicationBroken`, and the target's errors; the intent then stays open. Raises
        `WriteRefused` for a version that was published before with other rows.
        """
        with (
            Ledger(self.disk, ledger) as held,
            closing(self.open_target(self.options, self.disk)) as target,
        ):
            publisher = Publisher(self.disk, held, target)
            is_new = publish_once(held, number, lambda: publisher.plan(number, messages), publisher.carry_out)
            if not is_new and self.options.transaction is not None and self.options.same_rows:
                rows = RowSum.of_all(message.rows for message in messages)
                check_same_rows(held.state, self.options.transaction, rows, self.options.topic)
            return is_new

    def abort(self, messages: Sequence[Message], ledger: str, number: int) -> None:
        """Remove the files that these tasks staged, unless an intent names them."""
        with Ledger(self.disk, ledger) as held:
            if held.intent is not None and held.intent.number == number:
                return
            for message in messages:
                if message.staged.name:
                    remove_if_exists(self.disk, f"{staging_directory(ledger, number)}/{message.staged.name}")


def os_sink(options: WriteOptions) -> Sink:
    """Return a sink on the operating system's files."""
    return Sink(options, OsDisk(), open_target)


def knock(options: WriteOptions) -> None:
    """Raise `RequestUnanswered` if no broker of the target takes a connection."""
    if options.brokers is not None:
        asyncio.run(options.brokers.knock())


def open_target(options: WriteOptions, disk: Disk) -> Target:
    """Return the target that `options` name; close it."""
    if options.brokers is not None:
        return BrokerTarget(options.brokers)
    assert options.path is not None, "either brokers or a path is given"
    return DirectoryTarget(
        disk,
        options.path,
        config=topic_config(options),
        clock=wall_clock_ms,
        random=Random(),
        pause=lambda: time.sleep(PAUSE_S),
    )


def topic_config(options: WriteOptions) -> LogConfig:
    """Return the settings of a topic that does not exist yet, and of every topic in a directory."""
    default = LogConfig()
    largest = max(default.max_message_bytes, options.request_bytes)
    return LogConfig(max_message_bytes=largest)


# --- the ledger's place -------------------------------------------------------------------------------------


def ledger_of_stream(options: WriteOptions, query_id: str) -> str:
    """Return a stream's ledger directory. Raises `InvalidOption` if there is no place for it."""
    if options.path is None and options.staging_path is None:
        where = options.checkpoint_location
        directory = local_path(where) if where is not None else None
        if directory is None:
            raise InvalidOption(
                "option stagingPath is required: a directory, shared by the driver and all executors, for "
                f"staged files; checkpointLocation is {where or 'not among the options'}"
            )
        return f"{directory}/{_CHECKPOINT_PART}"
    return f"{_above(options)}/query-{quote(query_id, safe='')}"


def ledger_of_transaction(options: WriteOptions) -> str:
    """Return the ledger directory of all batch writes with one `txnAppId`. Raises `InvalidOption`."""
    assert options.transaction is not None
    if options.path is None and options.staging_path is None:
        raise InvalidOption(
            "option stagingPath is required with txnAppId: a permanent directory, shared by the driver and "
            "all executors, for the record of published writes"
        )
    name = f"app-{quote(options.transaction[0], safe='')}"
    if options.path is not None and options.staging_path is not None:
        # Several log dirs may share one staging path.
        name += f"-{sha256(options.path.encode()).hexdigest()[:8]}"
    return f"{_above(options)}/{name}"


def ledger_of_one_write(options: WriteOptions, random: Random, temporary: str) -> str:
    """Return a new ledger directory for a write without a name, in `temporary` if need be."""
    above = temporary if options.path is None and options.staging_path is None else _above(options)
    return f"{above}/once-{new_id(random)}"


def _above(options: WriteOptions) -> str:
    # Beside the log dir, not in it: a broker refuses to start on a log dir with other directories.
    return options.staging_path or f"{options.path}{DIRECTORY_SUFFIX}"
