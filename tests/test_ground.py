"""The ground: public names, imports that go one way, bans that bite, pages that tell the truth."""

from __future__ import annotations

import ast
import importlib
import os
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STORAGE = {
    "disk",
    "checkpoint",
    "format",
    "segment",
    "log",
    "compact",
    "columnar",
    "arguments",
    "config",
    "errors",
    "lazily",
    "loggers",
    "signals",
    "wording",
}
MAY_IMPORT = {
    "disk": set[str](),
    "checkpoint": {"disk"},
    "format": {"disk", "checkpoint", "errors", "config", "lazily"},
    # `columnar`: the compiled walk, when that pays (docs/decisions/063-reading.md)
    "segment": {"disk", "checkpoint", "errors", "config", "lazily", "signals", "format", "columnar"},
    "log": STORAGE,
    "compact": STORAGE,
    "columnar": STORAGE,
    "queue": STORAGE,
    "replication": STORAGE,
    "broker": STORAGE | {"async_reading", "queue", "replication"},
    "spark": STORAGE | {"replication", "broker"},
    "testing": STORAGE | {"replication", "broker"},
    "cli": STORAGE | {"queue", "replication", "broker", "spark", "testing", "version"},
}
FOLDER = {
    room: ROOT / ("." if room in ("checkpoint", "replication") else "logstore") / room for room in MAY_IMPORT
}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if path.is_file())


def sources(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in sorted(FOLDER[room].rglob("*.py"))]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


# --- rooms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_arrows_point_one_way(room: str) -> None:
    """A room that knew the one above it could not be used without it."""
    for path in sources(room):
        first_party = {name.split(".")[1] for name in imports(path) if name.startswith("logstore.")}
        assert first_party <= MAY_IMPORT[room] | {room}, path.relative_to(ROOT)


def test_the_two_folders_at_the_top_are_rooms_of_the_package() -> None:
    """The links are what makes `replication/` and `checkpoint/` importable as `logstore.…` (decision 041)."""
    for room in ("replication", "checkpoint"):
        assert os.readlink(ROOT / "logstore" / room) == f"../{room}"
    assert (ROOT / "logstore" / "py.typed").is_file()


PUBLIC = {
    "logstore.checkpoint": """
        CLEAN_SHUTDOWN_FILE HIGH_WATERMARK_CHECKPOINT LEADER_EPOCH_CHECKPOINT
        LOG_START_OFFSET_CHECKPOINT META_PROPERTIES PARTITION_METADATA RECOVERY_POINT_CHECKPOINT
        CleanShutdown MetaProperties format_leader_epoch_checkpoint format_meta_properties
        format_offset_checkpoint format_partition_metadata parse_leader_epoch_checkpoint
        parse_meta_properties parse_offset_checkpoint parse_partition_metadata read_clean_shutdown
        read_leader_epoch_checkpoint read_meta_properties read_offset_checkpoint
        read_partition_metadata remove_clean_shutdown write_clean_shutdown
        write_leader_epoch_checkpoint write_meta_properties write_offset_checkpoint
        write_partition_metadata
    """,
    "logstore.disk": """
        LOCK_FILE TEMPORARY_SUFFIX Buffer CorruptCheckpoint DirectoryEntry DirectoryLocked Disk
        EngineError ErrorCode File InvalidTopic Lock OsDisk Room TopicPartition check_topic_name
        id_from_text id_to_text parse_directory_name publish read_small_file remove_if_exists
        set_aside_fate
    """,
    "logstore": """
        AlreadyFinished CorruptCheckpoint DirectoryLocked EngineError LeaseEnded NotAQueue OutOfResources
        QueueClosed
        AbortedTransaction AppendInfo AsyncLog AsyncQueue Batch Codec CorruptBatch Cursor DamagedLog DiskFull
        FetchIsolation FetchedBytes Follower Header InvalidConfig InvalidProducerEpoch InvalidRecord
        InvalidTimestamp InvalidTransactionState Log LogClosed LogConfig LogDirOffline LogGone
        LogManager LogManagerConfig LogReader LogTruncated Loss Message OffsetOutOfRange
        OpenTransaction OutOfOrderSequence Pending PolicyViolation ProducerStateConfig Queue
        QueueConfig Record RecordBatchTooLarge RecordTooLarge Serializer TimestampOffset
        UnsupportedCompression Writer __version__ encode_batch walk
    """,
    "logstore.queue": """
        AlreadyFinished AsyncQueue DeadLetter LaneStats LeaseEnded Message NotAQueue Queue QueueClosed
        QueueConfig QueueStats
    """,
    "logstore.replication": """
        ControllerConfig Durability Envelope InProcessCluster Node NodeConfig PendingReply
    """,
    "logstore.broker": """
        Address Appended AsyncBroker BlockingClient Broker BrokerCluster BrokerConfig BrokerFailed
        BrokerStopped Client ClientSecurity Receipt RequestRefused RequestUnanswered SharedQueue SharedStore
        client_security open_store
    """,
    "logstore.testing": """
        CrashLab CrashReport CrashRun CrashViolation CrashedCopy Delivery Fault FaultyDisk Features Fetched
        MemoryDisk Operation PartitionChecker Profile RecordingDisk Report RequestFailed STORE
        SimulatedCluster SimulatedConsumer SimulatedProducer Stage Swarm Timings Violation VolatileBroker
        VolatileDisk World check_recovery crashed_copy draw every_cut run
    """,
    "logstore.testing.disks": """
        Fault FaultyDisk FaultyFile MemoryDisk MemoryFile MemoryLock Operation Profile RecordingDisk
        RecordingFile VolatileDisk VolatileFile
    """,
}


@pytest.mark.parametrize("room", PUBLIC)
def test_public_names(room: str) -> None:
    """What `__all__` names is kept across versions, so a change of it is a decision; the rest is ours."""
    module = importlib.import_module(room)
    assert sorted(module.__all__) == sorted(PUBLIC[room].split())
    assert all(hasattr(module, name) for name in module.__all__)


# --- bans -------------------------------------------------------------------------------------

BANNED = PYPROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
EXEMPT = [
    pattern
    for pattern, codes in PYPROJECT["tool"]["ruff"]["lint"]["per-file-ignores"].items()
    if "TID251" in codes
]


def offences(source: str) -> list[str]:
    """The banned names that a module uses, however it imported them."""
    tree = ast.parse(source)
    known: dict[str, str] = {"open": "builtins.open"}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
                found.append(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found += [node.module, f"{node.module}.{alias.name}"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            parts: list[str] = []
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                parts.insert(0, inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in known:
                found.append(".".join([known[inner.id], *parts]))
    return sorted(name for name in set(found) if name in BANNED)


def test_the_engine_reads_no_clock_draws_no_luck_and_touches_no_file() -> None:
    """One seed, one trace; and a test disk under everything. Exceptions are listed with their reasons."""
    for path in sources(*(room for room in MAY_IMPORT if room not in ("broker", "spark", "cli"))):
        name = str(path.relative_to(ROOT))
        if not any(fnmatch(name, pattern) for pattern in EXEMPT):
            assert offences(path.read_text()) == [], name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time\ntime.time()", "time.time"),
        ("import time as t\nx = t.monotonic", "time.monotonic"),
        ("from time import sleep\nsleep(1)", "time.sleep"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("import random\nrandom.shuffle([])", "random.shuffle"),
        ("import uuid\nuuid.uuid4()", "uuid.uuid4"),
        ("import os\nos.fsync(3)", "os.fsync"),
        ("open('x')", "builtins.open"),
        ("import mmap", "mmap"),
        ("import pickle", "pickle"),
    ],
)
def test_the_bans_bite(source: str, name: str) -> None:
    """A checker that never fails is not a checker."""
    assert offences(source) == [name]


def test_what_is_allowed_is_allowed() -> None:
    assert offences("import random, os\nr = random.Random(1)\nr.shuffle([])\nos.path.join('a')") == []


# --- pages ------------------------------------------------------------------------------------


def test_nothing_names_a_path_of_one_machine() -> None:
    """What works only where it was written does not work."""
    places = re.compile("|".join(f"(?<![\\w.])/{name}/\\w" for name in ("work", "root", "home")))
    files = [
        *PAGES,
        ROOT / "pyproject.toml",
        ROOT / "Makefile",
        *sources(*MAY_IMPORT),
        *sorted((ROOT / "tests").rglob("*.py")),
    ]
    assert [str(path) for path in files if places.search(path.read_text())] == []


_WITHOUT_EFFECT = {"all", "any", "bool", "bytearray", "get", "hasattr", "holds", "isinstance", "issubclass"}
_WITHOUT_EFFECT |= {"items", "len", "search", "set", "startswith", "sum", "tuple", "type", "values"}
_WITHOUT_EFFECT |= {"_close", "_is_mapped"}


def test_assertions_have_no_effect() -> None:
    """An assertion checks. What a program needs done stands in a statement of its own."""
    called = [
        (path.relative_to(ROOT).as_posix(), node.lineno, name)
        for folder in ("logstore", "replication", "checkpoint")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
        for call in ast.walk(node.test)
        if isinstance(call, ast.Call | ast.NamedExpr | ast.Await)
        if (name := _name_of(call)) not in _WITHOUT_EFFECT
    ]
    assert not called


def _name_of(node: ast.Call | ast.NamedExpr | ast.Await) -> str:
    called = node.func if isinstance(node, ast.Call) else node
    return getattr(called, "attr", None) or getattr(called, "id", None) or type(called).__name__
