"""Read 100-byte records, beside SQLite and LMDB as a Python user would use them; all from the page cache.

SQLite has the records by rowid, LMDB by eight big-endian bytes. Ours lie in batches of one record, as single
appends write them, or of 1,000.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.bars import NO_BAR, Bar, ratio_bar
from bench.material import fresh_log
from logstore.columnar.python_rows import locate_rows
from logstore.format.record_columns import use_compiled_locator
from logstore.log.log import Log

lmdb = pytest.importorskip("lmdb")
pytestmark = pytest.mark.peers

RECORDS = 200_000
VALUES = [os.urandom(100) for _ in range(1000)]
GETS = 5_000
LONG_READ = 2_000_000
SINGLE, LARGE = "in batches of one record", "in batches of 1,000"


class Sides(NamedTuple):
    """The same records four times."""

    logs: dict[str, Log]
    database: sqlite3.Connection
    environment: Any


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    directory = tmp_path_factory.mktemp("peers")
    values = VALUES * (RECORDS // len(VALUES))
    logs = {SINGLE: fresh_log(directory / "single"), LARGE: fresh_log(directory / "large")}
    for value in values:
        logs[SINGLE].append(value)
    for first in range(0, RECORDS, 1000):
        logs[LARGE].append(values[first : first + 1000])
    database = sqlite3.connect(directory / "sqlite")
    database.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, value BLOB)")
    with database:
        database.executemany("INSERT INTO log VALUES (?, ?)", enumerate(values))
    environment = lmdb.open(str(directory / "lmdb"), map_size=1 << 30, sync=False)
    with environment.begin(write=True) as transaction:
        rows = [(number.to_bytes(8, "big"), value) for number, value in enumerate(values)]
        transaction.cursor().putmulti(rows, append=True)
    yield Sides(logs, database, environment)
    for log in logs.values():
        log.close()
    database.close()
    environment.close()


def consume(items: Iterator[object]) -> None:
    deque(items, maxlen=0)


@pytest.mark.parametrize("batches", [SINGLE, LARGE])
@pytest.mark.parametrize(("order", "least"), [("random", 0.5), ("ascending", 1.0)])
def test_get_by_offset(
    beside: Callable[..., object], sides: Sides, batches: str, order: str, least: float
) -> None:
    offsets = list(range(RECORDS // 2, RECORDS // 2 + GETS))
    if order == "random":
        offsets = random.Random(1).sample(range(RECORDS), GETS)
    get, execute = sides.logs[batches].get, sides.database.execute

    def select() -> None:
        for offset in offsets:
            execute("SELECT value FROM log WHERE offset = ?", (offset,)).fetchone()

    def ours() -> None:
        for offset in offsets:
            get(offset)

    beside(
        raw=select,
        ours=ours,
        name=f"get one record, {order} offsets, {batches}",
        rival="sqlite SELECT",
        units=GETS,
        unit="records/s",
        bar=ratio_bar(least),
        rounds=5,
    )


@pytest.mark.parametrize("batches", [SINGLE, LARGE])
@pytest.mark.parametrize("what", ["values", "keys and values", "records"])
@pytest.mark.parametrize("rival", ["sqlite", "lmdb"])
def test_read_all(beside: Callable[..., object], sides: Sides, batches: str, what: str, rival: str) -> None:
    log = sides.logs[batches]
    read: dict[str, Callable[[], Iterator[object]]] = {
        "values": log.read_values,
        "keys and values": log.read_keys_values,
        "records": log.read,
    }
    column = "value" if what == "values" else "offset, value"

    def select() -> None:
        consume(sides.database.execute(f"SELECT {column} FROM log ORDER BY offset"))

    def iterate() -> None:
        with sides.environment.begin() as transaction:
            consume(transaction.cursor().iternext(keys=what != "values", values=True))

    bars = {
        ("sqlite", "values", LARGE): ratio_bar(1.5),
        ("sqlite", "values", SINGLE): ratio_bar(1.0),
        ("sqlite", "records", LARGE): ratio_bar(1.0),
        ("lmdb", "values", LARGE): ratio_bar(0.5),
    }
    beside(
        raw={"sqlite": select, "lmdb": iterate}[rival],
        ours=lambda: consume(read[what]()),
        name=f"read all {what}, {batches}",
        rival=rival,
        units=RECORDS,
        unit="records/s",
        bar=bars.get((rival, what, batches), NO_BAR),
        rounds=5,
    )


@contextmanager
def log_and_table(
    directory: Path, values: list[bytes], count: int
) -> Iterator[tuple[Log, sqlite3.Connection]]:
    """An empty log, and a table of `count` rows with these values again and again."""
    with fresh_log(directory / "log") as log, closing(sqlite3.connect(directory / "sqlite")) as database:
        database.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, value BLOB)")
        with database:
            rows = ((number, values[number % len(values)]) for number in range(count))
            database.executemany("INSERT INTO log VALUES (?, ?)", rows)
        yield log, database


def read_both(
    beside: Callable[..., object],
    log: Log,
    database: sqlite3.Connection,
    what: str,
    of: str,
    units: int,
    bar: Bar,
) -> None:
    """Read all values or records of the log, beside the same column or columns of the table."""
    column = "value" if what == "values" else "offset, value"
    beside(
        raw=lambda: consume(database.execute(f"SELECT {column} FROM log ORDER BY offset")),
        ours=lambda: consume(log.read_values() if what == "values" else log.read()),
        name=f"read all {what} of {of}",
        rival="sqlite",
        units=units,
        unit="records/s",
        bar=bar,
        rounds=5,
    )


@pytest.mark.parametrize("what", ["values", "records"])
@pytest.mark.parametrize("size", [1000, 50])
@pytest.mark.parametrize("way", ["plain", "compiled"])
def test_read_values_of_different_sizes(
    beside: Callable[..., object], tmp_path: Path, what: str, size: int, way: str
) -> None:
    """Compiled: after `columnar.warm_up()`, which a program calls once at its start."""
    values = [os.urandom(60 + number % 80) for number in range(1000)]
    with log_and_table(tmp_path, values, RECORDS) as (log, database):
        for number in range(0, RECORDS, size):
            log.append(values[number % 1000 : number % 1000 + size])
        use_compiled_locator(locate_rows if way == "compiled" else None)
        of = f"60 to 139 bytes, in batches of {size:,}, {way}"
        read_both(beside, log, database, what, of, RECORDS, NO_BAR)
        use_compiled_locator(None)


@pytest.mark.parametrize("what", ["values", "records"])
def test_read_many_small_batches(beside: Callable[..., object], tmp_path: Path, what: str) -> None:
    """A read of 340 MB, for which no compiled code is loaded either."""
    with log_and_table(tmp_path, VALUES, LONG_READ) as (log, database):
        for number in range(LONG_READ):
            log.append(VALUES[number % len(VALUES)])
        of = f"{LONG_READ:,} batches of one record"
        read_both(beside, log, database, what, of, LONG_READ, ratio_bar(1.0) if what == "values" else NO_BAR)
