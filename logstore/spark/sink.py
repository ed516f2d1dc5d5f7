"""One write of rows, from a task's Arrow batches to what is published: all but Spark.

tasks     stage    rows → judged, placed, encoded → a staged file → a message
commit    commit   ledger: what is open is carried out; then this write is decided and carried out
          abort    what no intent names is removed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any, Final
from urllib.parse import quote

from logstore.config import LogConfig
from logstore.disk.clock import wall_clock_ms
from logstore.disk.files import Disk, OsDisk, remove_if_exists
from logstore.disk.ids import new_id
from logstore.spark.directory_target import DirectoryTarget
from logstore.spark.errors import InvalidOption, WriteRefused
from logstore.spark.ledger import Entry, Ledger, publish_once, read_ledger, remove_staged, staging_directory
from logstore.spark.publishing import Message, Plan, Publisher, Target
from logstore.spark.sink_rows import Intake, Topic
from logstore.spark.staging import Stage, Staged
from logstore.spark.write_options import WriteOptions, local_path

DIRECTORY_SUFFIX: Final = ".logstore-sink"
_CHECKPOINT_PART: Final = "logstore-sink"


@dataclass(frozen=True, slots=True)
class Sink:
    """A sink as its options say. Every process makes its own."""

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
        """Write one task's rows to a file of this attempt's own, unless they are decided or published.

        Raises `RowRefused`, `WriteRefused`, `CorruptLedger`, `OSError`, and what the target raises.
        """
        entry = read_ledger(self.disk, ledger)
        if number <= entry.done or (entry.intent is not None and number == entry.intent.number):
            return Message(ledger, number, spark_partition, Staged())
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
            staging_directory(ledger, number),
            f"{spark_partition:05d}-{attempt}-{new_id(random)}",
            intake.slots,
            compression=self.options.compression,
            batch_bytes=self.options.batch_bytes,
            max_batch_bytes=lambda name: intake.topics[name].config.max_message_bytes,
        )
        try:
            for batch in batches:
                stage.add(intake.take(batch))
            staged = stage.finish()
        finally:
            stage.close()
            target.close()
        new = {name: topic.partitions for name, topic in intake.topics.items() if topic.is_new}
        return Message(ledger, number, spark_partition, staged, new)

    def _topic(self, target: Target, entry: Entry, name: str) -> Topic:
        # One that an open intent is making may be there in part; it will have as many as the intent says.
        intent = entry.intent
        making = Plan.of_json(intent.plan).topics.get(name) if intent is not None else None
        if making is None and (topic := target.topic(name)) is not None:
            return topic
        partitions = making or self.options.partitions
        if partitions is None:
            where = self.options.path or "the cluster"
            raise WriteRefused(
                f"there is no topic {name} in {where}; give the option partitions (how many it is to have), "
                "and it will be made"
            )
        return Topic(partitions, topic_config(self.options), is_new=True)

    def commit(self, messages: Sequence[Message], ledger: str, number: int) -> bool:
        """Publish what the messages name, unless it was before; whether it was done now.

        An intent that is open is carried out first. Raises `DirectoryLocked` while another commit of the same
        ledger is under way, `PublicationBroken` and what else the target raises; the intent then stays.
        """
        with Ledger(self.disk, ledger) as held:
            target = self.open_target(self.options, self.disk)
            try:
                publisher = Publisher(self.disk, held, target)
                return publish_once(
                    held, number, lambda: publisher.plan(number, messages), publisher.carry_out
                )
            finally:
                target.close()

    def abort(self, messages: Sequence[Message], ledger: str, number: int) -> None:
        """Remove what these tasks have staged, unless an intent names it."""
        with Ledger(self.disk, ledger) as held:
            if held.intent is not None and held.intent.number == number:
                return
            for message in messages:
                if message.staged.name:
                    remove_if_exists(self.disk, f"{staging_directory(ledger, number)}/{message.staged.name}")


def os_sink(options: WriteOptions) -> Sink:
    """A sink on the operating system's files."""
    return Sink(options, OsDisk(), open_target)


def open_target(options: WriteOptions, disk: Disk) -> Target:
    if options.brokers is not None:
        from logstore.spark.broker_target import BrokerTarget

        return BrokerTarget(options.brokers)
    from logstore.spark.waiting import pause

    assert options.path is not None, "one of the two"
    return DirectoryTarget(
        disk,
        options.path,
        config=topic_config(options),
        clock=wall_clock_ms,
        random=Random(),
        pause=pause,
    )


def topic_config(options: WriteOptions) -> LogConfig:
    """The settings of a topic that is not there yet, and of all that lie in directories."""
    default = LogConfig()
    largest = max(default.max_message_bytes, options.request_bytes)
    return LogConfig(max_message_bytes=largest)


# --- where the ledger is ------------------------------------------------------------------------------------


def ledger_of_stream(options: WriteOptions, query_id: str) -> str:
    """A stream's. Raises `InvalidOption` where there is no place for it."""
    if options.path is None and options.staging_path is None:
        where = options.checkpoint_location
        directory = local_path(where) if where is not None else None
        if directory is None:
            raise InvalidOption(
                "option stagingPath is needed: a directory that the driver and all executors see, for what "
                f"is staged; checkpointLocation is {where or 'not among the options'}"
            )
        return f"{directory}/{_CHECKPOINT_PART}"
    return f"{_above(options)}/query-{quote(query_id, safe='')}"


def ledger_of_transaction(options: WriteOptions) -> str:
    """The one of all batch writes with the same `txnAppId`. Raises `InvalidOption`."""
    assert options.transaction is not None
    if options.path is None and options.staging_path is None:
        raise InvalidOption(
            "option stagingPath is needed with txnAppId: a directory that the driver and all executors see, "
            "and that stays, for what was published under that name"
        )
    name = f"app-{quote(options.transaction[0], safe='')}"
    if options.path is not None and options.staging_path is not None:
        # One staging path may serve several log dirs.
        name += f"-{sha256(options.path.encode()).hexdigest()[:8]}"
    return f"{_above(options)}/{name}"


def ledger_of_one_write(options: WriteOptions, random: Random, temporary: str) -> str:
    """One for a batch write without a name; to brokers in `temporary` unless `stagingPath` is given."""
    above = temporary if options.path is None and options.staging_path is None else _above(options)
    return f"{above}/once-{new_id(random)}"


def forget(disk: Disk, ledger: str) -> None:
    """Remove the ledger of a single write: nobody will ask for it again."""
    remove_staged(disk, ledger)


def _above(options: WriteOptions) -> str:
    # Beside the log dir, not in it: no broker starts on a log dir with a directory that is no partition's.
    return options.staging_path or f"{options.path}{DIRECTORY_SUFFIX}"
