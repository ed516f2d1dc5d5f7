"""`repair`: write intact copies of damaged partitions, from the findings of `verify`.

    verify ─ findings ─ which replica to trust for which offsets ─ one task per partition ─► copies
             (or a file)  `verification/trust.py`                    `verification/repair_copy.py`

The replicas are only read. The output is a log dir with the partitions that had findings. It is made under
another name and renamed when it is complete: a partition is written by a task under a name of its attempt,
renamed by the driver, and noted in `repair.json` with what was lost. A run that was killed continues with the
partitions that are not noted. A complete output with the same plan is reported again.

Exit code 1 if offsets are lost, doubtful or disputed.
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from logstore.checkpoint.entry_files import LOG_START_OFFSET_CHECKPOINT, format_offset_checkpoint
from logstore.disk.copying import is_there, remove_tree
from logstore.disk.files import (
    Disk,
    OsDisk,
    make_durable_dir,
    put_in_place,
    read_small_file,
)
from logstore.disk.ids import new_id
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.jobs import verify
from logstore.spark.jobs.job import Answer, BadUsage, absolute, check_positive
from logstore.spark.jobs.work import Workers, attempt_id
from logstore.spark.verification.trust import Repair, ReplicaLog, Suspect, repair_of
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.spark.verification.repair_copy import Repaired, Work

HELP: Final = "write intact copies of damaged partitions, from the best replica of each range"
UNFINISHED: Final = ".unfinished"
NOTES: Final = "repair.json"


def arguments(parser: ArgumentParser) -> None:
    verify.arguments(parser)
    repair = parser.add_argument_group("repair")
    repair.add_argument(
        "--findings", metavar="FILE",
        help="the output of verify --json, instead of directories; --plan needs it",
    )  # fmt: skip
    repair.add_argument(
        "--output", metavar="DIR", help="a new log dir for the copies; required without --plan"
    )
    repair.add_argument(
        "--prefer", metavar="NODE", action="append", default=[],
        help="trust this node where the files do not decide; repeatable, the first one first",
    )  # fmt: skip
    repair.add_argument(
        "--segment-megabytes", metavar="N", type=int, default=1024,
        help="size of a segment (default: %(default)s)",
    )  # fmt: skip


def prepare(options: Namespace) -> RepairJob:
    """Check the options. Raises `BadUsage`."""
    check_positive(options, "segment_megabytes")
    has_directories = bool(options.directories or options.node)
    if has_directories == (options.findings is not None):
        raise BadUsage("give either the directories of all nodes, or --findings FILE")
    if options.output is None and not options.plan:
        raise BadUsage("give --output DIR, a new directory for the copies")
    if options.plan and options.findings is None:
        raise BadUsage(
            "--plan needs --findings FILE: run verify --json with the same directories, which reads them all"
        )
    return RepairJob(
        None if options.findings is not None else verify.prepare(options),
        None if options.findings is None else _findings(options.findings),
        "" if options.output is None else absolute(options.output),
        tuple(options.prefer),
        options.segment_megabytes << 20,
    )


def _findings(path: str) -> dict[str, Any]:
    """Read a report of verify. Raises `BadUsage` and `OSError`."""
    try:
        facts = json.loads(Path(path).read_text())
        facts["findings"], facts["damaged"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadUsage(f"--findings {path} is not the output of verify --json ({error!r})") from error
    return dict(facts)


def plans_of(facts: Mapping[str, Any], prefer: Sequence[str] = ()) -> list[Repair]:
    """Return the repair of each partition with findings, from the report of verify. Pure."""
    suspects: dict[TopicPartition, list[Suspect]] = {}
    for each in facts["findings"]:
        if not each["note"]:
            suspects.setdefault(TopicPartition(each["topic"], each["partition"]), []).append(
                Suspect(
                    each["kind"],
                    tuple(each["nodes"]),
                    tuple(place["node"] for place in each["replicas"]),
                    each["offset"],
                    each["end_offset"],
                    each["text"],
                )
            )
    repairs = []
    for each in facts["damaged"]:
        name = TopicPartition(each["topic"], each["partition"])
        logs = [
            ReplicaLog(
                log["node"], log["directory"], log["start_offset"], log["end_offset"], log["last_epoch"]
            )
            for log in each["replicas"]
        ]
        repairs.append(
            repair_of(
                name,
                logs,
                suspects.get(name, []),
                committed=each["committed"],
                is_compacted=each["compacted"],
                prefer=prefer,
            )
        )
    return repairs


def copy_task(work: Work) -> Repaired:
    """Write the copy of a partition on an executor."""
    from logstore.spark.verification.repair_copy import copy

    return copy(OsDisk(), work, f"{attempt_id()}-{new_id(Random())}")


@dataclass(frozen=True, slots=True)
class RepairJob:
    """A prepared repair: `facts` of a verification, or the one to run."""

    verification: verify.Verify | None
    facts: Mapping[str, Any] | None
    output: str
    prefer: tuple[str, ...]
    segment_bytes: int
    disk: Disk = field(default_factory=OsDisk)

    def plan(self) -> Answer:
        assert self.facts is not None, "prepare refuses a plan without findings"
        repairs = self._repairs(self.facts)
        lines = [line for each in repairs for line in _lines(each)]
        count = counted(len(repairs), "partition")
        lines.append(f"{count} would be repaired" if repairs else "nothing to repair")
        is_yes = not any(each.untrusted or each.gone or each.disputed for each in repairs)
        return Answer({"job": "repair", "partitions": [each.facts() for each in repairs]}, lines, is_yes)

    def run(self, workers: Workers) -> Answer:
        """Do the job. Raises `BadUsage`, `WorkFailed`, `DirectoryLocked`, `EngineError` and `OSError`."""
        facts = self.facts
        if facts is None:
            assert self.verification is not None
            facts = self.verification.run(workers).facts
        repairs = self._repairs(facts)
        if not repairs:
            return Answer({"job": "repair", "output": None, "partitions": []}, ["nothing to repair"])
        return self._answer(repairs, self._write(workers, repairs))

    def _repairs(self, facts: Mapping[str, Any]) -> list[Repair]:
        repairs = plans_of(facts, self.prefer)
        known = {node for each in repairs for node in each.logs}
        if repairs and (unknown := [node for node in self.prefer if node not in known]):
            raise BadUsage(f"--prefer {unknown[0]}: no such node; the nodes are {', '.join(sorted(known))}")
        for each in facts["damaged"]:
            for log in each["replicas"]:
                if self.output and _is_inside(self.output, log["directory"]):
                    raise BadUsage(f"--output {self.output} and {log['directory']} contain each other")
                if verify.log_bytes(self.disk, log["directory"]) != log["bytes"]:
                    raise BadUsage(
                        f"{log['directory']} has changed since it was verified: stop its broker, or repair a "
                        "copy of its directories, and verify it again"
                    )
        return repairs

    def _write(self, workers: Workers, repairs: Sequence[Repair]) -> dict[str, Any]:
        """Write all copies; return the report of each partition by its directory's name."""
        from logstore.spark.verification.repair_copy import Work

        disk, output = self.disk, self.output
        if is_there(disk, output):
            done = self._noted(output, repairs)
            if len(done) < len(repairs):
                raise BadUsage(f"--output {output} exists: name a new directory")
            return done
        unfinished = output + UNFINISHED
        make_durable_dir(disk, unfinished)
        with ExitStack() as stack:
            stack.callback(disk.lock(unfinished).release)
            done = self._begun(unfinished, repairs)
            todo = [each for each in repairs if each.topic_partition.directory_name not in done]
            work = [
                Work(each, f"{unfinished}/{each.topic_partition.directory_name}", self.segment_bytes)
                for each in todo
            ]
            sizes = {id(each): max(each.repair.end_offset - each.repair.start_offset, 1) for each in work}
            for item, report in workers.followed(
                "repair", "offsets", work, copy_task, lambda each: sizes[id(each)]
            ):
                disk.rename(report.directory, item.target)
                disk.sync_dir(unfinished)
                done[os.path.basename(item.target)] = report.facts()
                self._note(unfinished, repairs, done)
            starts = {each.topic_partition: each.start_offset for each in repairs if each.start_offset}
            if starts:
                put_in_place(disk, unfinished, LOG_START_OFFSET_CHECKPOINT, format_offset_checkpoint(starts))
            self._remove_others(unfinished, done)  # of attempts that failed, or were too late
            disk.sync_dir(unfinished)
            disk.rename(unfinished, output)
            disk.sync_dir(os.path.dirname(output))
        return done

    def _begun(self, unfinished: str, repairs: Sequence[Repair]) -> dict[str, Any]:
        """Return the reports of an earlier run with the same plan; what it has not noted is removed."""
        done = self._noted(unfinished, repairs)
        self._remove_others(unfinished, done)
        return done

    def _remove_others(self, unfinished: str, done: Mapping[str, Any]) -> None:
        """Remove all directories but those of the partitions that are `done`."""
        for entry in self.disk.scan(unfinished):
            if entry.is_directory and entry.name not in done:
                remove_tree(self.disk, f"{unfinished}/{entry.name}")

    def _noted(self, directory: str, repairs: Sequence[Repair]) -> dict[str, Any]:
        """Return the reports that a run with the same plan has noted."""
        data = read_small_file(self.disk, f"{directory}/{NOTES}")
        notes = {} if data is None else json.loads(data)
        return dict(notes["done"]) if notes.get("plan") == [each.facts() for each in repairs] else {}

    def _note(self, unfinished: str, repairs: Sequence[Repair], done: Mapping[str, Any]) -> None:
        notes = {"plan": [each.facts() for each in repairs], "done": dict(sorted(done.items()))}
        put_in_place(self.disk, unfinished, NOTES, json.dumps(notes).encode())

    def _answer(self, repairs: Sequence[Repair], done: Mapping[str, Any]) -> Answer:
        partitions = [{**each.facts(), **done[each.topic_partition.directory_name]} for each in repairs]
        for each, facts in zip(repairs, partitions, strict=True):
            gone = [{"start_offset": part.start_offset, "end_offset": part.end_offset} for part in each.gone]
            facts["lost"] = sorted([*facts["lost"], *gone], key=itemgetter("start_offset"))
        lines = []
        for each, facts in zip(repairs, partitions, strict=True):
            taken = ", ".join(f"{count} of {node}" for node, count in facts["taken"].items() if count)
            lines.append(f"{each.topic_partition}  {counted(facts['records'], 'record')} ({taken})")
            lines += _dispute_lines(each)
            lines += [
                f"{each.topic_partition}  {word}: offsets {span['start_offset']} to {span['end_offset'] - 1}"
                + (f" of {span['node']}" if word == "doubtful" else "")
                for word in ("doubtful", "lost")
                for span in facts[word]
            ]
        lost = sum(
            span["end_offset"] - span["start_offset"] for facts in partitions for span in facts["lost"]
        )
        count = counted(len(repairs), "partition")
        lines.append(f"{count} repaired in {self.output}, {counted(lost, 'offset')} lost")
        is_yes = not any(facts["lost"] or facts["doubtful"] or facts["disputed"] for facts in partitions)
        facts = {"job": "repair", "output": self.output, "lost": lost, "partitions": partitions}
        return Answer(facts, lines, is_yes)


def _is_inside(one: str, two: str) -> bool:
    one, two = os.path.abspath(one), os.path.abspath(two)
    return one == two or one.startswith(two + "/") or two.startswith(one + "/")


def _lines(repair: Repair) -> list[str]:
    name = repair.topic_partition
    lines = [
        f"{name}  offsets {part}"
        if part.node
        else f"{name}  offsets {part}: lost, unless a replica is intact there"
        for part in repair.parts
    ]
    lines += [f"{name}  offsets {part}: lost" for part in repair.gone]
    return lines + _dispute_lines(repair)


def _dispute_lines(repair: Repair) -> list[str]:
    return [
        f"{repair.topic_partition}  disputed at offset {each.offset} among {', '.join(each.among)}: taken "
        f"from {repair.node_at(each.offset) or 'nobody'}; --prefer NODE chooses another"
        for each in repair.disputed
    ]
