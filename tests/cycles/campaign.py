"""Directories go from us to Apache Kafka and back, with kill -9 at each step.

    ours ──kill -9──► Kafka ──kill -9──► ours ──kill -9──► Kafka ──kill -9──► …

At each step the owner must serve every record as it lay in the files, nothing more. Then it gets records and
transactions, compacts, deletes old segments, and is killed while producers write. Between two owners the
files are judged where they lie: `verify`, `recover --plan`, `compat`, and a comparison with the step before.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from bench.kafka import asking
from bench.kafka.servers import eventually
from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    checkpointed_offset,
    find_checkpointed_offset,
)
from logstore.cli.compat import Effect, Version, findings
from logstore.cli.inspection import cleaned_end
from logstore.cli.owning import load_unclean
from logstore.cli.shadow import ShadowDisk
from logstore.cli.whole_trees import verify_tree
from logstore.disk.errors import EngineError
from logstore.disk.files import OsDisk
from logstore.log.comparison import Cleaned, differences
from logstore.log.reader import LogReader
from logstore.log.sound_batches import SoundBatches
from tests.cycles.clients import Writer, create_topics, read
from tests.cycles.machine import BROKER, Machine, Owner
from tests.cycles.model import TOPICS, Row, Topic, changes, complaints

STEPS: Final = (Owner.OURS, Owner.KAFKA, Owner.OURS, Owner.KAFKA, Owner.OURS)
_BAD: Final = {Effect.REFUSES, Effect.CUTS, Effect.REMOVES}
_BY_NAME: Final = {each.name: each for each in TOPICS}


class Step(NamedTuple):
    """What became of one owner's time.

    It found so many records and left so many. Of those that it found, `compacted` are gone by compaction;
    `deleted` offsets of a topic with a limit are gone with their segments.
    """

    owner: Owner
    found: int
    left: int
    compacted: int
    deleted: int
    violations: list[str]


class Round:
    """One directory and its owners, one after the other."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._machine = Machine(directory)
        self._random = Random(seed)
        self._writer = Writer(seed)
        self._lying: dict[str, list[Row]] = {each.name: [] for each in TOPICS}
        """The records in the files, by topic, when the last owner was dead."""
        self._kept = directory / "kept"
        """A copy of those files."""

    def run(self, owners: Sequence[Owner] = STEPS) -> Iterator[Step]:
        """Let the owners have the directory in turn, and yield what became of each."""
        try:
            for number, owner in enumerate(owners):
                yield self._step(number, owner, is_last=number == len(owners) - 1)
        finally:
            self._machine.end_all()

    def _step(self, number: int, owner: Owner, *, is_last: bool) -> Step:
        machine = self._machine
        machine.owner = owner
        if number == 0:
            machine.start_all()
            create_topics(machine.bootstrap)
        else:
            machine.start(BROKER)
            machine.wait_until_ready(BROKER)
        eventually(self._all_led, f"{owner.value} leads all partitions")
        found = dict(self._lying)
        violations = self._judge_served()
        oldest = self._oldest()
        if not is_last:
            self._work(owner, oldest)
        self._kill_under_load()
        violations += self._judge_lying()
        violations += self._judge_differences()
        return Step(
            owner,
            sum(map(len, found.values())),
            sum(map(len, self._lying.values())),
            sum(_gone(found[each.name], self._lying[each.name]) for each in TOPICS if each.is_compacted),
            self._oldest() - oldest,
            [f"step {number}, {owner.value}: {each}" for each in violations],
        )

    # --- the owner at work ------------------------------------------------------------------------

    def _work(self, owner: Owner, oldest: int) -> None:
        writer, bootstrap = self._writer, self._machine.bootstrap
        writer.fill(bootstrap, _BY_NAME["plain"], 100)
        writer.fill(bootstrap, _BY_NAME["short"], 600)
        writer.fill(bootstrap, _BY_NAME["keyed"], 400)
        if owner is Owner.KAFKA:  # the coordinator of transactions is Kafka's
            writer.transact(bootstrap, [_BY_NAME["deals"], _BY_NAME["ledger"]], 6, 60)
        if self._random.random() < 0.75:  # else it may be killed in the middle of them
            end = max((row.offset for row in self._lying["keyed"]), default=0)
            eventually(lambda: self._cleaned() > end, f"{owner.value} compacts what it got")
            eventually(lambda: self._oldest() > oldest, f"{owner.value} deletes old segments")

    def _kill_under_load(self) -> None:
        written = self._writer.written["plain"].acknowledged
        enough = len(written) + self._random.randrange(10, 200)
        stop = self._writer.flood(self._machine.bootstrap, [_BY_NAME["plain"], _BY_NAME["keyed"]])
        try:
            eventually(lambda: len(written) >= enough, "answers to producers")
            self._machine.end(BROKER, signal.SIGKILL)
        finally:
            stop()

    def _all_led(self) -> bool:
        port = self._machine.ports[BROKER]
        return all(asking.leaders(port, each.name) == {0: BROKER} for each in TOPICS)

    def _directory(self, topic: str) -> str:
        return f"{self._machine.log_dir}/{topic}-0"

    def _cleaned(self) -> int:
        return checkpointed_offset(OsDisk(), self._directory("keyed"), CLEANER_OFFSET_CHECKPOINT)

    def _oldest(self) -> int:
        return min(int(each.stem) for each in Path(self._directory("short")).glob("*.log"))

    # --- judging ----------------------------------------------------------------------------------

    def _judge_served(self) -> list[str]:
        """Compare what the owner serves with the files as it found them, and with what was written."""
        found = []
        for topic in TOPICS:
            rows = read(self._machine.bootstrap, topic.name, committed=False)
            wrong = changes(topic, self._lying[topic.name], rows)
            wrong += complaints(topic, self._writer.written[topic.name], rows, committed=False)
            if topic.is_transactional:
                rows = read(self._machine.bootstrap, topic.name, committed=True)
                wrong += complaints(topic, self._writer.written[topic.name], rows, committed=True)
            found += [f"served, {topic.name}: {each}" for each in wrong]
        return found

    def _judge_lying(self) -> list[str]:
        """Judge the files, and keep their records."""
        disk, found = OsDisk(), []
        log_dir = str(self._machine.log_dir)
        for topic in TOPICS:
            rows = [
                Row(each.offset, each.key, each.value, each.timestamp_ms, tuple(each.headers))
                for batch in LogReader(self._directory(topic.name)).batches()
                if not batch.is_control
                for each in batch.records()
            ]
            self._lying[topic.name] = rows
            wrong = complaints(topic, self._writer.written[topic.name], rows, committed=False)
            try:
                report = load_unclean(
                    ShadowDisk(disk), self._directory(topic.name), self._recovery_point(topic)
                ).report
                wrong += [f"recover takes {report.lost_records} records"] if report.lost_records else []
            except EngineError as error:
                wrong.append(f"recover refuses: {error}")
            found += [f"in the files, {topic.name}: {each}" for each in wrong]
        found += [f"verify: {each}" for each in verify_tree(disk, log_dir, lambda _: None) if each.is_damage]
        return found + [
            f"compat: {each}" for each in findings(disk, log_dir, Version.KAFKA_3_9) if each.effect in _BAD
        ]

    def _judge_differences(self) -> list[str]:
        """Compare the files with those of the step before: they may have grown, and been compacted or cut."""
        disk, found = OsDisk(), []
        for topic in TOPICS:
            before, now = f"{self._kept}/{topic.name}-0", self._directory(topic.name)
            if Path(before).exists():
                cleaned = Cleaned(cleaned_end(disk, before), cleaned_end(disk, now))
                with closing(SoundBatches(disk, before)) as old, closing(SoundBatches(disk, now)) as new:
                    found += [
                        f"{topic.name}, offset {each.first_offset}: {each.kind}: {each.text}"
                        for each in differences(old, new, cleaned)
                        if each.first_offset < old.end_offset
                        and not (topic.is_cut and each.last_offset < new.start_offset)
                    ]
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(self._machine.log_dir, self._kept)
        return [f"since the step before, {each}" for each in found]

    def _recovery_point(self, topic: Topic) -> int | None:
        return find_checkpointed_offset(OsDisk(), self._directory(topic.name), RECOVERY_POINT_CHECKPOINT)


def _gone(before: Sequence[Row], after: Sequence[Row]) -> int:
    return len({row.offset for row in before} - {row.offset for row in after})
