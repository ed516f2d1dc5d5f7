"""An outbox: what a database transaction decides reaches the log, once and in order.

    python examples/outbox.py DIRECTORY

A program that writes to its database and to a log may die between the two. So it writes events into a table,
`outbox`, in the same transaction as its own rows, and a relay moves them to the log. A relay that died after
its append finds the ids of its last batch in the log and leaves them out.

This one runs on SQLite. On PostgreSQL pass `psycopg.connect(...)` and `placeholder="%s"`. The lock of the log
sees to it that one relay runs at a time.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from typing import Any

from logstore import Log

MOST = 500
"""Events in one step."""

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, event TEXT);
"""


def place(database: Any, item: str, placeholder: str = "?") -> None:
    """Place an order: one transaction, with the event in it."""
    cursor = database.execute(f"INSERT INTO orders (item) VALUES ({placeholder}) RETURNING id", (item,))
    event = (str(cursor.fetchone()[0]), f"placed {item}")
    database.execute(f"INSERT INTO outbox (key, event) VALUES ({placeholder}, {placeholder})", event)
    database.commit()


def relay(database: Any, log: Log, placeholder: str = "?") -> int:
    """Move the oldest events to the log; returns how many rows left the table."""
    rows = database.execute(f"SELECT id, key, event FROM outbox ORDER BY id LIMIT {MOST}").fetchall()
    sent = {json.loads(record.value or b"")["id"] for record in log.read_reverse(max_records=MOST)}
    # A relay that died between append and delete left these. They go first, on their own.
    done = [row for row in rows if row[0] in sent]
    if not done:
        log.append([(key.encode(), {"id": id, "event": event}) for id, key, event in rows], sync=True)
        done = rows
    for row in done:  # only now: their events survive power loss
        database.execute(f"DELETE FROM outbox WHERE id = {placeholder}", row[:1])
    database.commit()
    return len(done)


def main(directory: str) -> None:
    with Log.open(f"{directory}/orders-0", serializer="json") as log:  # makes the directory
        database = sqlite3.connect(f"{directory}/shop.sqlite")
        database.executescript(TABLES)
        for item in ("nut", "bolt", "washer"):
            place(database, item)
        while relay(database, log):
            pass
        for record in log.read():
            print(record.offset, record.key, record.value)
        database.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
