"""`logstore compat`: list what another version would refuse or do differently with a directory.

    compat DIR --with kafka-3.9     Apache Kafka 3.9, the last one with ZooKeeper
    compat DIR --with kafka-4       Apache Kafka 4.0 and later
    compat DIR --with 0.1.0         logstore 0.1.0

Reads the files and applies a table of facts about that version's loader; nothing is started or changed.

    refuses    the broker, the log dir or the partition does not come up
    cuts       records are truncated, without a question
    removes    files are deleted or renamed
    differs    it comes up, and something is not as before
    note       what it ignores, and what cannot be known from the files

Exit code 0 if there are only notes, 1 for anything else, 2 if the directory holds no log. Damage below the
recovery point is no matter of versions: `logstore verify` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias
from zlib import crc32

import typer

from logstore.cli.operating import Json
from logstore.cli.terminal import print_json

if TYPE_CHECKING:
    from logstore.disk.files import DirectoryEntry, Disk, File

# The highest and the lowest metadata.version (its level): 3.9-IV0; 3.3-IV3 to 4.0-IV3.
_LEVELS_39: Final = range(1, 22)
_LEVELS_40: Final = range(7, 26)
_NO_PARTITION: Final = "not a partition's name: the broker does not start"
_NAMELESS: Final = (".log", ".index", ".txnindex", ".snapshot", ".swap", ".cleaned")


class Version(StrEnum):
    """A version whose loader is known."""

    KAFKA_3_9 = "kafka-3.9"
    KAFKA_4 = "kafka-4"
    LOGSTORE_0_1_0 = "0.1.0"


_KAFKA: Final = frozenset({Version.KAFKA_3_9, Version.KAFKA_4})


class Effect(StrEnum):
    """The reaction of a version to a fact; the module lists them."""

    REFUSES = "refuses"
    CUTS = "cuts"
    REMOVES = "removes"
    DIFFERS = "differs"
    NOTE = "note"


class Finding(NamedTuple):
    """The effect of `path` on a version."""

    effect: Effect
    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.effect}  {self.path}: {self.text}"


class _Place(NamedTuple):
    """A directory that a rule examines."""

    disk: Disk
    path: str
    entries: list[DirectoryEntry]

    @property
    def files(self) -> list[str]:
        return [entry.name for entry in self.entries if not entry.is_directory]

    @property
    def directories(self) -> list[str]:
        return [entry.name for entry in self.entries if entry.is_directory]

    def has(self, name: str) -> bool:
        """Whether there is a file or directory of this name, also one that `entries` leave out."""
        from logstore.disk.copying import is_there

        try:
            return is_there(self.disk, f"{self.path}/{name}")
        except PermissionError:  # it may not be listed
            return True


_Rule: TypeAlias = Callable[[_Place, Version], Iterator[Finding]]


def compat(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A log dir or a partition.", exists=True, file_okay=False)
    ],
    version: Annotated[Version, typer.Option("--with", help="The version that would open it.")],
    as_json: Json = False,
) -> int:
    """Report what another version would refuse or do differently with a directory."""
    from logstore.disk.files import OsDisk

    found = list(findings(OsDisk(), str(directory).rstrip("/") or "/", version))
    for each in found:
        print_json(each._asdict()) if as_json else print(each)
    serious = sum(each.effect is not Effect.NOTE for each in found)
    if as_json:
        print_json({"total": {"findings": serious, "notes": len(found) - serious}})
    else:
        print(f"{version}: {serious} findings, {len(found) - serious} notes")
    return 1 if serious else 0


def findings(disk: Disk, directory: str, version: Version) -> Iterator[Finding]:
    """Apply all rules to a log dir with its partitions, or to one partition.

    Raises `typer.BadParameter` if it holds no log, and `OSError`.
    """
    from logstore.cli.inspection import segment_offsets

    place = _Place(disk, directory, disk.scan(directory))
    if segment_offsets(disk, directory):
        partitions = [directory]
    else:
        partitions = [
            f"{directory}/{name}"
            for name in place.directories
            if segment_offsets(disk, f"{directory}/{name}")
        ]
        if not partitions:
            raise typer.BadParameter(f"{directory} holds no log: no <offset>.log in it or one level below")
        for rule in _LOG_DIR_RULES:
            yield from rule(place, version)
    for path in partitions:
        for rule in _PARTITION_RULES:
            yield from rule(_Place(disk, path, disk.scan(path)), version)


# --- log dirs -------------------------------------------------------------------------------------


def _names(place: _Place, version: Version) -> Iterator[Finding]:
    """Kafka starts only if it understands the name of every directory."""
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.files import LOST_AND_FOUND
    from logstore.disk.topic_partition import parse_directory_name, set_aside_fate

    if place.has(LOST_AND_FOUND):
        yield Finding(Effect.REFUSES, f"{place.path}/{LOST_AND_FOUND}", _NO_PARTITION)
    for name in place.directories:
        path, fate = f"{place.path}/{name}", set_aside_fate(name)
        if fate == "delete":
            yield Finding(Effect.NOTE, path, "its deletion is completed, as the former owner would have done")
        elif fate is not None or version not in _KAFKA or name == "remote-log-index-cache":
            continue
        else:
            try:
                parse_directory_name(name)
            except InvalidTopic:
                yield Finding(Effect.REFUSES, path, _NO_PARTITION)


def _identity(place: _Place, version: Version) -> Iterator[Finding]:
    from logstore.checkpoint.identity import META_PROPERTIES, parse_properties
    from logstore.cli.inspection import read_whole
    from logstore.disk.errors import EngineError

    path = f"{place.path}/{META_PROPERTIES}"
    data = read_whole(place.disk, place.path, META_PROPERTIES)
    if version not in _KAFKA:
        return
    if data is None:
        text = "missing: a KRaft broker does not start before kafka-storage format"
        yield Finding(Effect.REFUSES, path, text)
        return
    try:
        properties = parse_properties(data, path=META_PROPERTIES)
    except EngineError as error:
        yield Finding(Effect.REFUSES, path, f"cannot be read: {error}")
        return
    if properties.get("version", "0") == "0":
        if version is Version.KAFKA_4:
            text = (
                "version 0, of ZooKeeper mode, which Kafka 4 does not have: it knows none of the topics. "
                "Migrate with Kafka 3.9 first"
            )
        else:
            text = "version 0: for ZooKeeper mode; a KRaft broker knows none of the topics"
        yield Finding(Effect.DIFFERS if version is Version.KAFKA_4 else Effect.NOTE, path, text)
    elif version is Version.KAFKA_3_9:
        yield Finding(Effect.NOTE, path, "version 1: for KRaft; in ZooKeeper mode the broker does not start")


def _log_dir_checkpoints(place: _Place, version: Version) -> Iterator[Finding]:
    from logstore.checkpoint.entry_files import (
        HIGH_WATERMARK_CHECKPOINT,
        LOG_START_OFFSET_CHECKPOINT,
        RECOVERY_POINT_CHECKPOINT,
        parse_offset_checkpoint,
    )
    from logstore.cli.inspection import read_whole
    from logstore.disk.errors import EngineError

    if version not in _KAFKA:
        return
    effects = {
        HIGH_WATERMARK_CHECKPOINT: (Effect.REFUSES, "the log dir goes offline"),
        "cleaner-offset-checkpoint": (Effect.REFUSES, "the log dir goes offline when it is cleaned"),
        RECOVERY_POINT_CHECKPOINT: (Effect.DIFFERS, "it counts as empty: all segments are read again"),
        LOG_START_OFFSET_CHECKPOINT: (Effect.DIFFERS, "it counts as empty: deleted records are back"),
    }
    for name, (effect, what) in effects.items():
        data = read_whole(place.disk, place.path, name)
        try:
            parse_offset_checkpoint(data or b"")
        except EngineError as error:
            yield Finding(effect, f"{place.path}/{name}", f"{error}; {what}")


def _metadata_version(place: _Place, version: Version) -> Iterator[Finding]:
    from logstore.format.state_records import CLUSTER_METADATA

    name = f"{CLUSTER_METADATA}-0"
    path = f"{place.path}/{name}"
    if name not in place.directories:
        if version in _KAFKA:
            text = "partitions whose topic ids its controller does not know become -stray"
            yield Finding(Effect.NOTE, place.path, f"no {name}: {text}")
        return
    if version not in _KAFKA:
        yield Finding(
            Effect.DIFFERS, path, "KRaft's metadata is a plain log here: no topic is created from it"
        )
        return
    level = _feature_level(place.disk, path)
    levels = _LEVELS_40 if version is Version.KAFKA_4 else _LEVELS_39
    if level is not None and level not in levels:
        text = f"metadata.version {level}; {version} takes {levels[0]} to {levels[-1]}"
        if level > levels[-1] and version is Version.KAFKA_4:
            text += " in its first release; a later 4.x may take it"
        yield Finding(Effect.REFUSES, path, text)


def _feature_level(disk: Disk, path: str) -> int | None:
    """The level of `metadata.version` that the newest snapshot and the log behind it set; None if unknown."""
    from logstore.cli.inspection import Kind, read_whole, role_of
    from logstore.disk.errors import EngineError
    from logstore.format.batch import walk
    from logstore.format.state_records import decode_metadata
    from logstore.log.reader import LogReader

    level = None
    snapshots = [
        entry.name
        for entry in disk.scan(path)
        if (role := role_of(entry.name)) and role.kind is Kind.METADATA_SNAPSHOT and not role.state
    ]
    try:
        data = read_whole(disk, path, max(snapshots)) if snapshots else None
        for batch in (*walk(data or b""), *LogReader(path, disk=disk).batches()):
            for record in batch.records() if not batch.is_control else ():
                found = decode_metadata(record.value)
                if found.name == "FeatureLevelRecord" and (found.data or {})["name"] == "metadata.version":
                    level = int((found.data or {})["featureLevel"])
    except EngineError:
        pass  # damage, or a record that a later version added: what is known stands
    return level


# --- partitions -----------------------------------------------------------------------------------


def _file_names(place: _Place, version: Version) -> Iterator[Finding]:
    from logstore.cli.inspection import Kind, role_of

    if version not in _KAFKA:
        return
    bases = {name.removesuffix(".log") for name in place.files if name.endswith(".log")}
    indexes = (Kind.OFFSET_INDEX, Kind.TIME_INDEX, Kind.TRANSACTION_INDEX)
    for name in place.files:
        path, role = f"{place.path}/{name}", role_of(name)
        stem = name.partition(".")[0]
        if not stem.isdigit() and name.endswith(_NAMELESS) and role is None:
            yield Finding(Effect.REFUSES, path, "no number before the first dot: the broker does not start")
        elif name.endswith(".deleted"):
            yield Finding(Effect.NOTE, path, "its deletion is completed")
        elif name.endswith((".cleaned", ".swap")):
            yield Finding(Effect.NOTE, path, "of an interrupted compaction, which is completed or undone")
        elif stem not in bases and role is not None and role.kind in indexes:
            yield Finding(Effect.REMOVES, path, "an index without its .log")


def _our_files(place: _Place, version: Version) -> Iterator[Finding]:
    from logstore.log.cursor_file import CURSORS_FILE
    from logstore.log.losses import LOST_DIRECTORY, Quarantine

    seals = sum(name.endswith(".seal") for name in place.files)
    if version in _KAFKA:
        if seals:
            text = f"{seals} seals are ignored and kept; they are stale once the broker compacts or deletes"
            yield Finding(Effect.NOTE, place.path, text)
        if CURSORS_FILE in place.files:
            text = "cursors are ignored and kept; a broker's retention does not look at them"
            yield Finding(Effect.NOTE, f"{place.path}/{CURSORS_FILE}", text)
        if LOST_DIRECTORY in place.directories:
            text = "quarantine is ignored and kept, until the topic is deleted"
            yield Finding(Effect.NOTE, f"{place.path}/{LOST_DIRECTORY}", text)
    elif LOST_DIRECTORY in place.directories:
        healed = [each.id for each in Quarantine(place.disk, place.path).losses() if each.who == "heal"]
        if healed:
            text = f"{len(healed)} entries of healed damage are unreadable lines to it"
            yield Finding(Effect.DIFFERS, f"{place.path}/{LOST_DIRECTORY}/ledger.jsonl", text)


def _partition_small_files(place: _Place, version: Version) -> Iterator[Finding]:
    from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT, parse_leader_epoch_checkpoint
    from logstore.checkpoint.identity import PARTITION_METADATA, parse_partition_metadata
    from logstore.cli.inspection import read_whole
    from logstore.disk.errors import EngineError

    if version not in _KAFKA:
        return
    for name, parse in (
        (LEADER_EPOCH_CHECKPOINT, parse_leader_epoch_checkpoint),
        (PARTITION_METADATA, parse_partition_metadata),
    ):
        data = read_whole(place.disk, place.path, name)
        path = f"{place.path}/{name}"
        if data is None:
            if name == PARTITION_METADATA:
                text = "missing: a KRaft broker takes the partition for a stray one and renames it"
                yield Finding(Effect.REMOVES, path, text)
            continue
        try:
            parse(data)
        except EngineError as error:
            yield Finding(Effect.REFUSES, path, f"{error}; the log dir goes offline")


def _batches(place: _Place, version: Version) -> Iterator[Finding]:
    """Old message formats; and what the loader meets in the segments that it reads."""
    from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE
    from logstore.checkpoint.entry_files import RECOVERY_POINT_CHECKPOINT, checkpointed_offset
    from logstore.cli.inspection import LogFile, open_for_reading, segment_offsets
    from logstore.segment.scan import Fault, scan
    from logstore.segment.segment import file_name

    bases = segment_offsets(place.disk, place.path)
    parent = str(Path(place.path).resolve().parent)
    is_clean = any(
        entry.name == CLEAN_SHUTDOWN_FILE for each in (parent, place.path) for entry in place.disk.scan(each)
    )
    recovery_point = checkpointed_offset(place.disk, place.path, RECOVERY_POINT_CHECKPOINT)
    floor = max([base for base in bases if base <= recovery_point], default=bases[0])
    for base in bases:
        name = file_name(base, ".log")
        file = open_for_reading(place.disk, place.path, name)
        if file is None:
            continue
        with closing(file):
            path, size, end, fault = f"{place.path}/{name}", file.size(), 0, None
            for found in scan(file, 0, size, base_offset=base):
                end, fault = found.end, found.fault
            magic = _old_magic(file, end) if fault is not None else None
            if magic is not None:
                yield _old_format(path, end, magic, version)
                continue
            if fault not in (None, Fault.OFFSETS, Fault.EPOCHS) and version in _KAFKA:
                behind = LogFile(file, base).whole_batch_behind(end) is not None or base != bases[-1]
                if is_clean and base == bases[-1]:
                    text = (
                        f"{size - end} bytes behind byte {end} are no batch, and the marker says a clean stop"
                    )
                    yield Finding(Effect.REFUSES, path, f"{text}: the log cannot be loaded")
                elif not is_clean and base >= floor and behind:
                    text = f"truncated at byte {end} ({fault.value}), with the sound batches behind it"
                    yield Finding(Effect.CUTS, path, f"{text}; salvage or recover it first")
                    return


def _old_magic(file: File, position: int) -> int | None:
    """The format version of the message at this byte, if it is a sound one of v0 or v1.

    i64 offset │ i32 size │ u32 CRC-32 of the rest │ i8 magic │ …
    """
    head = file.pread(17, position)
    if len(head) < 17 or head[16] not in (0, 1):
        return None
    size = int.from_bytes(head[8:12], "big", signed=True)
    message = file.pread(max(size, 0), position + 12)
    is_sound = 5 <= size == len(message) and crc32(message[4:]) == int.from_bytes(message[:4], "big")
    return head[16] if is_sound else None


def _old_format(path: str, position: int, magic: int, version: Version) -> Finding:
    text = f"message format v{magic} at byte {position}"
    if version is Version.LOGSTORE_0_1_0:
        return Finding(Effect.REFUSES, path, f"{text}: only v2 is read")
    if version is Version.KAFKA_4:
        return Finding(Effect.DIFFERS, path, f"{text}: read by clients that know it, no longer converted")
    return Finding(Effect.NOTE, path, f"{text}: read, and converted for old clients")


_LOG_DIR_RULES: Final[tuple[_Rule, ...]] = (_names, _identity, _log_dir_checkpoints, _metadata_version)
_PARTITION_RULES: Final[tuple[_Rule, ...]] = (_file_names, _our_files, _partition_small_files, _batches)
