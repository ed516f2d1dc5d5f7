"""Random predicates in Spark's SQL, with literals at and beside the values that the rows have."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.spark.read_judge.topics import COLUMNS, T0

ZONES: Final = ("UTC", "America/Los_Angeles", "Asia/Kolkata", "Pacific/Apia", "-03:30")
_LAST_MICROS: Final = 253_402_214_400_000_000
"""Spark cannot hand later times to a source: Python's end with the year 9999, in any zone."""
_COMPARISONS: Final = ("=", "=", "<=>", "!=", "<", "<=", ">", ">=")
_NUMBERS: Final = (
    *("-1", "0", "1", "2", "3.0BD", "2.5", "4e0", "'5'", "' 6 '", "7Y", "8S", "NULL", "double('NaN')"),
    *("2147483647", "2147483648", "-2147483649", "9223372036854775807", "-9223372036854775808"),
    *("9223372036854775808", "99999999999999999999", "float('Infinity')", "cast(NULL as int)"),
)
_TEXTS: Final = ("'ORDERS'", "''", "'orders '", "'x'", "NULL", "cast(5 as string)", "'x_y'", "upper('x_y')")
_TIMES: Final = (
    *("timestamp'2023-11-14 22:13:20'", "timestamp'2023-11-14'", "date'2023-11-14'", "NULL"),
    *("timestamp_ntz'2023-11-14 22:20:00'", "timestamp'1970-01-01 00:00:00Z'", "timestamp_millis(-1)"),
    *("timestamp'9999-12-31 23:59:59.999Z'", "timestamp'0001-01-02'", "timestamp_micros(1)"),
    *("date'1969-12-31'", "timestamp_ntz'1969-12-31 23:59:59.999'", "current_timestamp()"),
)
_BYTES: Final = ("X''", "X'6B33'", "X'FF'", "NULL", "cast('2' as binary)", "encode('text', 'UTF-8')")
_OTHERS: Final = (
    *("partition < offset", "offset = partition", "topic LIKE 'o%'", "topic LIKE '%rders%'", "topic > 'a'"),
    *("headers IS NULL", "size(headers) > 1", "headers[0].key = 'a'", "timestampType IS NOT NULL"),
    *("length(value) > 2", "offset % 2 = 0", "offset + 1 <= 5", "-offset < -3", "value = key", "topic = key"),
    *(
        "cast(offset as int) >= 4",
        "cast(partition as bigint) = 1",
        "cast(partition as boolean)",
        "isnull(key)",
    ),
    *("cast(timestamp as date) = date'2023-11-14'", "cast(timestamp as date) > date'2023-11-13'"),
    *(
        "year(timestamp) = 2023",
        "unix_millis(timestamp) >= 1700000000000",
        "timestamp = '2023-11-14 22:13:20'",
    ),
    *("cast(timestamp as timestamp_ntz) >= timestamp_ntz'2023-11-14 22:20:00'", "true", "false", "NULL"),
    *("topic = 'orders' COLLATE UTF8_LCASE", "topic COLLATE UTF8_LCASE IN ('ORDERS', 'X_Y')", "key = '1'"),
    *("coalesce(key, X'00') = X'00'", "nullif(partition, 1) IS NULL", "offset IN (partition, 3, 4)"),
    *(
        "if(partition = 0, offset < 5, offset > 5)",
        "try_cast(key as string) = '1'",
        "startswith(topic, 'or')",
    ),
    *(
        "offset BETWEEN partition AND 9",
        "greatest(offset, 3) = 3",
        "cast(offset as string) = '3'",
        "topic < 5",
    ),
    *("timestamp < timestamp_millis(253402300800000)", "cast(timestamp as bigint) < 1700000001"),
)


class Predicates:
    """Draws predicates about these rows."""

    def __init__(self, rng: random.Random, rows: Sequence[tuple[Any, ...]]) -> None:
        self._rng, self._rows = rng, rows

    def beside_a_row(self) -> str:
        """Draw a conjunction that a row just passes, which shows a bound that is off by one."""
        rng = self._rng
        row = dict(zip(COLUMNS, rng.choice(self._rows), strict=True)) if self._rows else {}
        parts = [self._passed_by(row) for _ in range(rng.choice((1, 1, 2, 3)))] if row else ["true"]
        parts += [f"({self.draw(1)})"] if rng.random() < 0.2 else []
        return " AND ".join(parts)

    def _passed_by(self, row: Mapping[str, Any]) -> str:
        column = self._rng.choice(("topic", "partition", "offset", "offset", "timestamp"))
        if row[column] is None:
            return f"{column} IS NULL"
        literal = {"topic": "'{}'", "timestamp": "timestamp_micros({})"}.get(column, "{}").format(row[column])
        if column == "timestamp" and row[column] > _LAST_MICROS:
            return f"{column} > {self._time(T0 * 1000)}"
        forms = ("= {}", "<=> {}", "<= {}", "<= {}", ">= {}", ">= {}", "IN ({}, NULL)", "BETWEEN {0} AND {0}")
        form = self._rng.choice(forms)
        return f"{column} {form.format(literal)}"

    def draw(self, depth: int = 3) -> str:
        rng = self._rng
        what = rng.random()
        if depth == 0 or what < 0.3:
            return self._leaf()
        if what < 0.4:
            return f"NOT ({self.draw(depth - 1)})"
        joined = " OR " if what < 0.55 else " AND "
        return joined.join(f"({self.draw(depth - 1)})" for _ in range(rng.choice((2, 2, 3))))

    def _leaf(self) -> str:
        rng = self._rng
        if rng.random() < 0.15:
            return rng.choice(_OTHERS)
        column = rng.choice(("topic", "partition", *("offset", "timestamp") * 2, *COLUMNS[:7]))
        name = rng.choice((column, column, column.upper(), f"`{column}`"))
        literal = self._literal(column)
        match rng.randrange(10):
            case 0:
                return f"{name} IS {rng.choice(('', 'NOT '))}NULL"
            case 1 | 2:
                listed = ", ".join(self._literal(column) for _ in range(rng.choice((1, 2, 3, 15))))
                return f"{name} {rng.choice(('', '', 'NOT '))}IN ({listed})"
            case 3:
                return f"{name} BETWEEN {literal} AND {self._literal(column)}"
            case 4 | 5:
                return f"{literal} {rng.choice(_COMPARISONS)} {name}"
        return f"{name} {rng.choice(_COMPARISONS)} {literal}"

    def _literal(self, column: str) -> str:
        """Mostly the value of a row, or one beside it."""
        rng = self._rng
        if column == "timestampType":
            return rng.choice(("0", "1", "2", *_NUMBERS))
        kinds = {"topic": _TEXTS, "timestamp": _TIMES, "key": _BYTES, "value": _BYTES}
        if not self._rows or rng.random() < 0.25:
            return rng.choice(kinds.get(column, _NUMBERS))
        value = rng.choice(self._rows)[COLUMNS.index(column)]
        if value is None:
            return "NULL"
        match column:
            case "topic":
                return f"'{value}'"
            case "key" | "value":
                return f"X'{value.hex()}'"
            case "timestamp":
                return self._time(value + rng.choice((0, 0, 1, -1, 999, 1000, -1000)))
        value += rng.choice((0, 0, 1, -1))
        return rng.choice(("{}", "{}", "{}", "'{}'", "{}.0BD", "{}L")).format(value)

    def _time(self, micros: int) -> str:
        if micros > _LAST_MICROS:
            return "timestamp'9999-12-31 23:59:59.999Z'"
        if self._rng.random() < 0.6 or micros < 0:
            return f"timestamp_micros({micros})"
        zone = self._rng.choice(("Z", "+05:30", ""))
        at = datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(microseconds=micros - T0 * 1000)
        kind = self._rng.choice(("timestamp", "timestamp", "timestamp_ntz"))
        return f"{kind}'{at.replace(tzinfo=None).isoformat(sep=' ')}{zone if kind == 'timestamp' else ''}'"
