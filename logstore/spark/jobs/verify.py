"""`verify`: check every replica, and compare the replicas of each partition.

    verify --node 1=/mnt/a/data --node 2=/mnt/b/data1,/mnt/b/data2 --node 3=/mnt/c/data
    verify /mnt/a/data /mnt/b/data /mnt/c/data      nodes have the ids in their meta.properties

1. One task for each run of segments: check every batch's checksum, offset and epoch; digest the sound ones.
2. One task for each stretch of offsets whose digests differ: compare batch by batch, below the high
watermark;
   record by record if compaction ran.

Exit code 1 if anything is wrong. Only reads, also while brokers write. Executors need the directories mounted
under the same paths.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logstore.disk.files import Disk, OsDisk
from logstore.spark.jobs.job import Answer, BadUsage, name_and_value
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.disk.topic_partition import TopicPartition
    from logstore.spark.jobs.work import Workers
    from logstore.spark.verification.check import RunReport
    from logstore.spark.verification.compare import Comparison, Difference
    from logstore.spark.verification.compare_records import RecordComparison
    from logstore.spark.verification.findings import Finding, Gathered
    from logstore.spark.verification.planning import Plan, Replica, Run

HELP = "check the replicas of all nodes, and compare the replicas of each partition"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories", metavar="DIR", nargs="*", help="a log dir of a node, or a partition's directory in it"
    )
    parser.add_argument(
        "--node", metavar="NAME=DIR[,DIR…]", action="append", default=[],
        help="a node and its log dirs; repeatable",
    )  # fmt: skip
    parser.add_argument("--topics", metavar="REGEX", help="only topics that match")
    parser.add_argument(
        "--compacted", metavar="REGEX", default="__consumer_offsets|__transaction_state",
        help="topics that may have gaps, even without a cleaner's checkpoint (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-lag", action="store_true",
        help="a replica that ends below the high watermark is a note, unless it had more before",
    )  # fmt: skip


def prepare(options: argparse.Namespace) -> Verify:
    """Check the options. Raises `BadUsage`."""
    for name in ("topics", "compacted"):
        try:
            re.compile(getattr(options, name) or "")
        except re.error as error:
            raise BadUsage(f"--{name}: {error}") from error
    from logstore.spark.verification.planning import node_of

    nodes: defaultdict[str, list[str]] = defaultdict(list)
    form = "NAME=DIR or NAME=DIR,DIR"
    for text in options.node:
        name, directories = name_and_value("--node", text, form)
        if not all(directories.split(",")):
            raise BadUsage(f"--node {text!r} is not {form}")
        nodes[name] += directories.split(",")
    for directory in options.directories:
        nodes[node_of(OsDisk(), directory)].append(directory)
    if not nodes:
        raise BadUsage("give the directories to verify, or --node NAME=DIR for each node")
    return Verify(nodes, options.topics, options.compacted, options.allow_lag)


def run_task(run: Run) -> RunReport:
    """Check a run on an executor."""
    from logstore.spark.verification.check import check_run

    return check_run(OsDisk(), run)


def comparison_task(work: Comparison | RecordComparison) -> list[Difference]:
    """Compare a stretch on an executor."""
    from logstore.spark.verification.compare import compare_stretch
    from logstore.spark.verification.compare_records import RecordComparison, compare_records

    if isinstance(work, RecordComparison):
        return compare_records(OsDisk(), work)
    return compare_stretch(OsDisk(), work)


@dataclass(frozen=True, slots=True)
class Verify:
    """A prepared verification: the directories of each node, and the options."""

    nodes: Mapping[str, Sequence[str]]
    topics: str | None
    compacted: str
    allow_lag: bool

    def _planned(self) -> tuple[Plan, list[str]]:
        from logstore.spark.verification.planning import find_replicas, plan

        replicas, unread = find_replicas(OsDisk(), self.nodes, self.topics)
        if not replicas:
            raise BadUsage("no partition of a matching topic is in these directories")
        is_compacted = {
            each.topic_partition: re.fullmatch(self.compacted, each.topic_partition.topic) is not None
            for each in replicas
        }
        return plan(replicas, is_compacted), unread

    def plan(self) -> Answer:
        planned, unread = self._planned()
        facts = {**_totals(planned), "runs": len(planned.runs), "unreadable": unread}
        lines = [
            f"{counted(len(planned.partitions), 'partition')}, {counted(len(planned.replicas), 'replica')}, "
            f"{facts['bytes']} bytes, in {counted(len(planned.runs), 'task')}"
        ]
        lines += [
            f"{each.topic_partition}  {each.node}  {each.directory}: "
            f"{counted(len(each.segments), 'segment')}, {each.size} bytes, from {each.log_start_offset}, "
            f"high watermark {each.high_watermark}"
            for each in planned.replicas
        ]
        return Answer(facts, [*lines, *unread])

    def run(self, workers: Workers) -> Answer:
        """Do the job. Raises `EngineError` or `OSError`."""
        from logstore.spark.verification.findings import Gathered, concluded

        planned, unread = self._planned()
        gathered = Gathered(planned)
        for _, report in workers.followed("verify", "bytes", planned.runs, run_task, lambda run: run.size):
            gathered.add(report)
        replicas = list(planned.replicas)
        for number in gathered.shrunken:
            replicas[number] = replicas[number].listed_anew(OsDisk())
        for number, each in enumerate(replicas):
            if gathered.end_of(number) < each.recovery_point:
                replicas[number] = each.pointed_anew(OsDisk())
        by_batch, by_record = gathered.unequal(replicas)
        work: list[Comparison | RecordComparison] = [*by_record, *by_batch]
        differences: defaultdict[TopicPartition, list[Difference]] = defaultdict(list)
        for item, found in workers.followed("compare", "stretches", work, comparison_task, lambda _: 1):
            differences[item.topic_partition] += found
        compared = gathered.compared_findings(replicas, differences, allow_lag=self.allow_lag)
        findings = concluded(gathered.local_findings(replicas), compared)
        return _answer(planned, gathered, findings, unread, replicas)


def _totals(planned: Plan) -> dict[str, Any]:
    return {
        "partitions": len(planned.partitions),
        "replicas": len(planned.replicas),
        "bytes": sum(each.size for each in planned.replicas),
    }


def log_bytes(disk: Disk, directory: str) -> int:
    """Return the size of the `.log` files of a partition's directory. Raises `OSError`."""
    from logstore.segment.segment import LOG_SUFFIX
    from logstore.spark.directory_files import numbered_files

    return sum(segment.size for segment in numbered_files(disk, directory, LOG_SUFFIX))


def _damaged(
    planned: Plan, gathered: Gathered, wrong: Sequence[Finding], replicas: Sequence[Replica]
) -> list[dict[str, Any]]:
    """Return what `repair` needs to know of each partition with findings, besides the findings."""
    names = {finding.topic_partition for finding in wrong}
    return [
        {
            "topic": name.topic,
            "partition": name.partition,
            "committed": gathered.committed_of(shared),
            "compacted": gathered.is_thinned(shared),
            "replicas": [
                {
                    "node": replicas[number].node,
                    "directory": replicas[number].directory,
                    "bytes": replicas[number].size,
                    "start_offset": replicas[number].log_start_offset,
                    "end_offset": gathered.end_of(number),
                    "last_epoch": _last_epoch(replicas[number].directory),
                }
                for number in (*shared.numbers, *shared.strangers)
            ],
        }
        for name, shared in planned.partitions.items()
        if name in names
    ]


def _last_epoch(directory: str) -> int:
    """Return the newest leader epoch of a replica's checkpoint; -1 without one."""
    from logstore.checkpoint.entry_files import read_leader_epoch_checkpoint
    from logstore.disk.errors import CorruptCheckpoint

    try:
        epochs = read_leader_epoch_checkpoint(OsDisk(), directory)
    except (CorruptCheckpoint, OSError):  # verification reports it
        return -1
    return epochs[-1][0] if epochs else -1


def _answer(
    planned: Plan,
    gathered: Gathered,
    findings: Sequence[Finding],
    unread: Sequence[str],
    replicas: Sequence[Replica],
) -> Answer:
    wrong = [finding for finding in findings if not finding.is_note]
    facts = {
        **_totals(planned),
        "batches": gathered.batches,
        "records": gathered.records,
        "wrong": len(wrong),
        "notes": len(findings) - len(wrong),
        "findings": [finding.facts() for finding in findings],
        "unreadable": list(unread),
        "damaged": _damaged(planned, gathered, wrong, replicas),
    }
    lines = [*map(str, findings), *(f"note  {text}" for text in unread)]
    lines.append(
        f"{counted(facts['partitions'], 'partition')}, {counted(facts['replicas'], 'replica')}, "
        f"{facts['bytes']} bytes, {counted(gathered.batches, 'batch')}: {len(wrong)} wrong, "
        f"{counted(facts['notes'], 'note')}"
    )
    return Answer(facts, lines, is_yes=not wrong)
