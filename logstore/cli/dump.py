"""`logstore dump`: show the files of a log directory, without writing.

    dump FILE…            any file of a log directory or of a partition in it
    dump PARTITION…       every file of the partition, segments in order of their base offset
    dump LOG_DIR…         its small files, then every partition

Works on directories of Kafka and of logstore, also while their owner writes: an incomplete batch at the end
is a note, not an error. With `--verify` the exit code is 1 for damage: a checksum that does not match,
records that do not decode, offsets or epochs that do not rise, an index entry that contradicts its log, a
torn segment in the middle of a log, a segment that is gone by the seal of the one before it, whole batches
behind a torn one, a checkpoint that does not parse. A torn or zero tail of the last segment is left by a
crash or a running writer; the exit code is then 0. A place without such files is exit code 2.

Records of `__consumer_offsets`, `__transaction_state`, `__share_group_state` and `__cluster_metadata`, and
control records, are decoded by Kafka's formats; `--decode-as raw` shows their bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from logstore.cli.operating import Json, RecordEncoding, time_ms
from logstore.cli.terminal import Encoding, print_error, print_json, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore.cli.facts import Fact, Shown
    from logstore.cli.inspection import FileRole
    from logstore.cli.verification import FileReport, Problem
    from logstore.disk.files import Disk


def dump(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files, partitions or log dirs.")],
    records: Annotated[bool, typer.Option("--records", help="Show only the records.")] = False,
    as_json: Json = False,
    encoding: RecordEncoding = Encoding.UTF8,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Check batches, records, indexes and small files; exit 1 on damage."),
    ] = False,
    from_offset: Annotated[
        int | None, typer.Option("--from-offset", metavar="N", min=0, help="Omit what ends before it.")
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="The last offset.")
    ] = None,
    from_time: Annotated[
        str | None, typer.Option("--from-time", metavar="TIME", help="Epoch ms, or as 2026-01-31T12:00.")
    ] = None,
    to_time: Annotated[str | None, typer.Option("--to-time", metavar="TIME", help="The last time.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="With --records: only this key, as shown.")
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option("--max-bytes", metavar="N", min=0, help="Read at most this much of each .log."),
    ] = None,
    key_decoder: Annotated[
        str | None,
        typer.Option(metavar="DECODER", help="utf8, hex, base64, json, int or package:callable."),
    ] = None,
    value_decoder: Annotated[str | None, typer.Option(metavar="DECODER", help="The same for values.")] = None,
    decode_as: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Decode as records of this internal topic; raw: do not."),
    ] = None,
) -> int:
    """Show the files of a log directory. Never writes; their owner may write meanwhile."""
    from logstore.cli.decoders import Decoders, decoder_named, internal_topic
    from logstore.cli.facts import Selection, Shown
    from logstore.config import MAX_LONG
    from logstore.disk.files import OsDisk
    from logstore.format.state_records import STATE_TOPICS

    if decode_as not in (None, "raw", *STATE_TOPICS):
        raise typer.BadParameter(f"--decode-as: {decode_as!r} is not one of raw, {', '.join(STATE_TOPICS)}")
    if key is not None and not records:
        raise typer.BadParameter("--key selects records: add --records")
    if (key_decoder or value_decoder) and not records:
        raise typer.BadParameter("--key-decoder and --value-decoder are for records: add --records")
    selecting = {
        "--from-offset": from_offset,
        "--to-offset": to_offset,
        "--from-time": from_time,
        "--to-time": to_time,
        "--max-bytes": max_bytes,
    }
    given = ", ".join(name for name, value in selecting.items() if value is not None)
    if verify and not records and given:
        raise typer.BadParameter(f"{given} selects what is shown, and --verify shows nothing: add --records")
    times = [
        None if text is None else time_ms(option, text)
        for option, text in (("--from-time", from_time), ("--to-time", to_time))
    ]
    bounds: list[tuple[str, int | None, int | None]] = [
        ("offset", from_offset, to_offset),
        ("time", times[0], times[1]),
    ]
    for what, first, last in bounds:
        if first is not None and last is not None and first > last:
            raise typer.BadParameter(f"--from-{what} is past --to-{what}: that selects nothing")
    selection = Selection(
        from_offset or 0,
        MAX_LONG if to_offset is None else to_offset,
        -1 if times[0] is None else times[0],
        MAX_LONG if times[1] is None else times[1],
        key,
        MAX_LONG if max_bytes is None else max_bytes,
    )
    decoders = Decoders(
        decoder_named("--key-decoder", key_decoder or encoding),
        decoder_named("--value-decoder", value_decoder or encoding),
        encoding,
    )
    is_own = key_decoder or value_decoder
    disk = OsDisk()
    printer = _Printer(as_json=as_json)
    for path in paths:
        for group in _groups(disk, path):
            if verify:
                _verify(disk, group, printer, quiet=records)
            topic = decode_as or ("" if is_own else internal_topic(group.directory))
            shown = Shown(records, decoders._replace(topic="" if topic == "raw" else topic), selection)
            if records or not verify:
                for name, role in _selected(disk, group, shown):
                    _show(disk, group.directory, name, role, printer, shown, judge=not verify)
    return 1 if printer.found_damage else 0


def _selected(disk: Disk, group: _Group, shown: Shown) -> Iterator[tuple[str, FileRole]]:
    """Yield the files that hold something selected: any selection leaves out all but logs."""
    from logstore.cli.facts import Selection
    from logstore.cli.inspection import Kind, segment_offsets

    selection = shown.selection
    only_logs = shown.records or selection._replace(max_bytes=Selection().max_bytes) != Selection()
    bases = segment_offsets(disk, group.directory)
    for name, role in group.files:
        if role.kind is Kind.METADATA_SNAPSHOT and not (only_logs and len(group.files) > 1):
            yield name, role
        elif role.kind is not Kind.LOG:
            if not only_logs:
                yield name, role
        elif role.base_offset <= selection.to_offset:
            following = [base for base in bases if base > role.base_offset]
            if role.state or not following or following[0] > selection.from_offset:
                yield name, role


class _Group(NamedTuple):
    """Files of one directory that are examined together."""

    directory: str
    files: list[tuple[str, FileRole]]


def _groups(disk: Disk, path: Path) -> list[_Group]:
    """Expand a PATH: a file, a partition's files, or a log dir's files and those of its partitions.

    Leftovers of retention and compaction are shown only if they are named.
    """
    from logstore.cli.inspection import role_of

    if path.is_dir():
        places = [path, *(path / entry.name for entry in disk.scan(str(path)) if entry.is_directory)]
        groups = [_live_files(disk, str(place)) for place in places]
        if not any(group.files for group in groups):
            raise typer.BadParameter(f"{path} holds no files of a log directory")
        return groups
    if not path.exists():
        raise typer.BadParameter(f"{path} does not exist")
    role = role_of(path.name)
    if role is None:
        raise typer.BadParameter(f"{path} is not named like a file of a log directory")
    return [_Group(str(path.parent), [(path.name, role)])]


def _live_files(disk: Disk, directory: str) -> _Group:
    from logstore.cli.inspection import role_of

    try:
        entries = disk.scan(directory)
    except FileNotFoundError:  # deleted by its owner since it was listed
        entries = []
    names = (entry.name for entry in entries if not entry.is_directory)
    return _Group(directory, [(name, role) for name in names if (role := role_of(name)) and not role.state])


def _verify(disk: Disk, group: _Group, printer: _Printer, *, quiet: bool) -> None:
    from logstore.cli.inspection import Kind, segment_offsets
    from logstore.cli.verification import Problem, verify_files
    from logstore.cli.whole_trees import judge_list

    segments = sum(role.kind is Kind.LOG for _, role in group.files)
    if segments == len(segment_offsets(disk, group.directory)):  # else single files were named
        for found in judge_list(disk, group.directory):
            name = Path(found.path).name
            printer.problem(group.directory, Problem(name, found.position, found.text, is_damage=True))
    for report in (*verify_files(disk, group.directory, group.files), *_verify_small_files(disk, group)):
        for problem in report.problems:
            printer.problem(group.directory, problem)
        if not quiet:
            file = f"{group.directory}/{report.file}"
            damage = sum(problem.is_damage for problem in report.problems)
            printer.fact({"file": file, "size": report.size, **report.numbers, "damage": damage})


def _verify_small_files(disk: Disk, group: _Group) -> Iterator[FileReport]:
    """Check the formats of the files beside segments and indexes.

    Three faults are not damage: a torn snapshot and a torn clean-shutdown marker, which are ignored when the
    log opens, and a partial entry in the last segment's transaction index, which may be being written.
    """
    from logstore.cli.facts import facts_of
    from logstore.cli.inspection import Kind, read_whole, segment_offsets
    from logstore.cli.verification import FileReport, Problem
    from logstore.disk.errors import EngineError

    newest = max(segment_offsets(disk, group.directory), default=-1)
    for name, role in group.files:
        if role.state or role.kind in (Kind.LOG, Kind.OFFSET_INDEX, Kind.TIME_INDEX):
            continue
        data = read_whole(disk, group.directory, name)
        if data is None:  # deleted since it was listed
            continue
        problems: list[Problem] = []
        entries = 0
        try:
            entries = sum(1 for _ in facts_of(data, role))
        except EngineError as error:
            may_be_torn = role.kind in (Kind.PRODUCER_SNAPSHOT, Kind.CLEAN_SHUTDOWN) or (
                role.kind is Kind.TRANSACTION_INDEX and role.base_offset >= newest
            )
            problems.append(Problem(name, 0, str(error), is_damage=not may_be_torn))
        yield FileReport(name, role.kind, len(data), {"entries": entries}, problems)


def _show(
    disk: Disk, directory: str, name: str, role: FileRole, printer: _Printer, shown: Shown, *, judge: bool
) -> None:
    from logstore.cli.facts import facts_of, log_facts
    from logstore.cli.inspection import Kind, LogFile, open_for_reading, segment_offsets
    from logstore.cli.verification import Problem
    from logstore.disk.errors import EngineError
    from logstore.format.state_records import CLUSTER_METADATA

    file = open_for_reading(disk, directory, name)
    if file is None:
        print_error(f"{directory}/{name} was deleted since it was listed")
        return
    labels: Fact = {} if shown.records else {"file": f"{directory}/{name}"}
    is_snapshot = role.kind is Kind.METADATA_SNAPSHOT
    try:
        if role.kind is Kind.LOG or (is_snapshot and shown.records):
            is_last = bool(role.state) or role.base_offset >= max(segment_offsets(disk, directory), default=0)
            if is_snapshot:
                shown = shown._replace(decoders=shown.decoders._replace(topic=CLUSTER_METADATA))
            log = LogFile(file, 0 if is_snapshot else role.base_offset)
            for found in log_facts(log, name, shown, is_last=is_last and not is_snapshot):
                if not isinstance(found, Problem):
                    printer.fact({**labels, **found})
                elif judge or not found.is_damage:
                    printer.problem(directory, found)
        else:
            for fact in facts_of(file.pread(file.size(), 0), role):
                printer.fact({**labels, **fact})
    except EngineError as error:
        printer.problem(directory, Problem(name, 0, str(error), is_damage=True))
    finally:
        file.close()


class _Printer:
    """Prints facts to stdout and problems to stderr, and remembers whether there was damage."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.found_damage = False

    def fact(self, fact: Fact) -> None:
        if self._as_json:
            print_json(fact)
        else:
            print("  ".join(f"{name} {_shown(value)}" for name, value in fact.items()))

    def problem(self, directory: str, problem: Problem) -> None:
        self.found_damage |= problem.is_damage
        print_error(f"{directory}/{problem}" + ("" if problem.is_damage else " (no damage)"))


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    if isinstance(value, dict):
        import json

        return json.dumps(value)
    return printable(None if value is None else str(value))
