"""Append 100-byte records, beside LMDB and SQLite as a Python user would use them.

LMDB without syncs, one write transaction per thousand records in the faster of two ways (`putmulti` with
`append`), or one per record; SQLite with its write-ahead log, `synchronous=OFF` and `executemany`. Ours is
`Log.append` of Python objects; compiled: after `columnar.warm_up()`, which a program calls once at its start.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bench.bars import Bar, ratio_bar
from bench.material import fresh_log
from logstore.columnar.python_rows import encode_rows
from logstore.format.record import use_compiled_encoder
from logstore.log.log import Log

lmdb = pytest.importorskip("lmdb")
pytestmark = pytest.mark.peers

VALUES = [os.urandom(100) for _ in range(1000)]
MIXED = [os.urandom(60 + number % 80) for number in range(1000)]
TIMES = 200
SINGLES = 20_000


class _Sides:
    """A new log and a new rival before each round."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.log: Log | None = None
        self.environment: Any = None
        self.database: sqlite3.Connection | None = None

    def before(self) -> None:
        self.log = fresh_log(self._directory)
        self.environment = lmdb.open(
            str(self._directory / "lmdb"), map_size=1 << 30, sync=False, metasync=False
        )
        self.database = sqlite3.connect(self._directory / "sqlite")
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = OFF")
        self.database.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, value BLOB)")
        self.database.commit()

    def after(self) -> None:
        if self.log is not None and self.database is not None:
            self.log.partition.abandon()
            self.environment.close()
            self.database.close()
            self.log = None
        for name in ("lmdb/data.mdb", "lmdb/lock.mdb", "sqlite", "sqlite-wal", "sqlite-shm"):
            with suppress(FileNotFoundError):
                (self._directory / name).unlink()

    def put_many(self) -> None:
        offset = 0
        for _ in range(TIMES):
            with self.environment.begin(write=True) as transaction:
                rows = [((offset + number).to_bytes(8, "big"), value) for number, value in enumerate(VALUES)]
                transaction.cursor().putmulti(rows, append=True)
            offset += len(VALUES)

    def put_in_a_loop(self) -> None:
        offset = itertools.count()
        for _ in range(TIMES):
            with self.environment.begin(write=True) as transaction:
                for value in VALUES:
                    transaction.put(next(offset).to_bytes(8, "big"), value, append=True)

    def put_one_by_one(self) -> None:
        for offset in range(SINGLES):
            with self.environment.begin(write=True) as transaction:
                transaction.put(offset.to_bytes(8, "big"), VALUES[0], append=True)

    def insert_many(self) -> None:
        assert self.database is not None
        for _ in range(TIMES):
            with self.database:
                self.database.executemany(
                    "INSERT INTO log (value) VALUES (?)", ((value,) for value in VALUES)
                )


@pytest.mark.parametrize(
    ("rival", "least"), [("lmdb putmulti", 2.0), ("lmdb put", 2.0), ("sqlite executemany", 5.0)]
)
@pytest.mark.parametrize("sizes", ["100 bytes", "60 to 139 bytes", "100 bytes, from a generator"])
@pytest.mark.parametrize("way", ["plain", "compiled"])
def test_append_a_thousand(
    beside: Callable[..., object], scratch: Path, rival: str, least: float, sizes: str, way: str
) -> None:
    sides = _Sides(scratch)
    use_compiled_encoder(encode_rows if way == "compiled" else None)

    def ours() -> None:
        assert sides.log is not None
        for _ in range(TIMES):
            match sizes:
                case "100 bytes":
                    sides.log.append(VALUES)
                case "60 to 139 bytes":
                    sides.log.append(MIXED)
                case _:
                    sides.log.append(value for value in VALUES)

    raw = {
        "lmdb putmulti": sides.put_many,
        "lmdb put": sides.put_in_a_loop,
        "sqlite executemany": sides.insert_many,
    }[rival]
    has_bar = way == "compiled" and sizes != "100 bytes, from a generator"
    beside(
        raw=raw,
        ours=ours,
        before=sides.before,
        after=sides.after,
        name=f"append records of {sizes}, 1,000 a call, {way}",
        rival=f"{rival}, no sync",
        units=TIMES * len(VALUES),
        unit="records/s",
        bar=Bar(f"≥ {least:g}" if has_bar else "–", lambda ratio, _rate: ratio >= least or not has_bar),
        rounds=15,
    )
    use_compiled_encoder(None)


@pytest.mark.parametrize(("way", "least"), [("Log.append", 1.2), ("Log.writer", 5.0)])
def test_append_one(beside: Callable[..., object], scratch: Path, way: str, least: float) -> None:
    sides = _Sides(scratch)

    def ours() -> None:
        assert sides.log is not None
        if way == "Log.append":
            for _ in range(SINGLES):
                sides.log.append(VALUES[0])
        else:
            with sides.log.writer() as writer:
                for _ in range(SINGLES):
                    writer.append(VALUES[0])

    beside(
        raw=sides.put_one_by_one,
        ours=ours,
        before=sides.before,
        after=sides.after,
        name=f"append one record of 100 bytes a call, {way}",
        rival="lmdb, one transaction a record, no sync",
        units=SINGLES,
        unit="records/s",
        bar=ratio_bar(least),
        rounds=15,
    )
