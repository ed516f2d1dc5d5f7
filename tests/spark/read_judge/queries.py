"""Random batch queries: options as docs/spark.md has them, and what they mean for the plain rows."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from logstore.config import MAX_LONG
from logstore.disk.topic_partition import TopicPartition as Where
from tests.spark.read_judge.predicates import ZONES, Predicates
from tests.spark.read_judge.topics import COLUMNS, T0, Plain, Topics

LATEST, EARLIEST = -1, -2
NO_MATCH, INVALID, LOSS = "NoMatchingTime", "InvalidOption", "DataLoss"
_ACTIONS: Final = ("rows", "rows", "rows", "count", "offsets", "times", "limit", "tasks")
_PATTERNS: Final = {".*": "", "rders": "rders", r"\.": ".", "(?i)RDERS": "rders", "^pay": "pay"}
"""Regular expressions, and what a topic's name has that they find."""


@dataclass
class Query:
    """A read, and what must come of it: the rows of `ranges`, or one of `errors` if there are any.

    With `may_fail` the error may also not be met, because less is read.
    """

    paths: list[str]
    options: dict[str, str]
    committed: bool = False
    action: str = "rows"
    select: Sequence[str] = COLUMNS
    where: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    ranges: dict[Where, tuple[int, int]] = field(default_factory=dict)
    errors: set[str] = field(default_factory=set)
    may_fail: bool = False
    limit: int = 0

    def __str__(self) -> str:
        asked = f"{self.action} of {', '.join(self.select)}" + f" LIMIT {self.limit}" * (
            self.action == "limit"
        )
        return f"{asked}\n    {self.options} {self.paths} {self.conf}\n    WHERE {self.where}"


class Drawing:
    """Draws queries of these topics."""

    def __init__(self, rng: random.Random, topics: Topics, plain: Mapping[Where, Plain]) -> None:
        self._rng, self._topics, self._plain = rng, topics, plain

    def everything(self) -> Query:
        """All rows and columns."""
        options = {"subscribePattern": ".*", "columns": "*,headers,leaderEpoch,segment"}
        ranges = {where: (found.start, found.end) for where, found in self._plain.items()}
        return Query([str(each) for each in self._topics.log_dirs], options, ranges=ranges)

    def query(self, *, has_where: bool) -> Query:
        """Draw a query, with or without a predicate."""
        rng = self._rng
        chosen, options = self._selection()
        query = Query(self._paths(), options, rng.random() < 0.4, rng.choice(_ACTIONS))
        query.limit = rng.choice((0, 1, 3, 50))
        if query.committed:
            options[rng.choice(("isolation", "kafka.isolation.level"))] = "read_committed"
        # A task takes Spark a tenth of a second.
        if rng.random() < 0.3:
            options["minPartitions"] = str(rng.choice((1, 2, 5, 5 if has_where else 20)))
        if rng.random() < 0.3:
            options["maxRecordsPerPartition"] = str(
                rng.choice((9, 20, 1000) if has_where else (1, 2, 7, 1000))
            )
        if has_where:
            rows = [row for each in chosen for row in self._plain[each].rows]
            predicates = Predicates(rng, rows)
            query.where = predicates.beside_a_row() if rng.random() < 0.6 else predicates.draw()
            options["pushdown"] = "one_query"
            query.conf["spark.sql.ansi.enabled"] = rng.choice(("true", "false"))
        query.conf["spark.sql.session.timeZone"] = rng.choice(ZONES)
        self._columns(query)
        options["failOnDataLoss"] = rng.choice(("true", "false"))
        self._positions(query, chosen)
        return query

    def _selection(self) -> tuple[list[Where], dict[str, str]]:
        rng, known = self._rng, list(self._plain)
        match rng.randrange(3):
            case 0:
                chosen = sorted(rng.sample(known, rng.randint(1, len(known))))
                named: dict[str, list[int]] = {}
                for topic, partition in chosen:
                    named.setdefault(topic, []).append(partition)
                return chosen, {"assign": json.dumps(named)}
            case 1:
                pattern, part = rng.choice(list(_PATTERNS.items()))
                return [each for each in known if part in each.topic], {"subscribePattern": pattern}
        topics = sorted({each.topic for each in known})
        some = rng.sample(topics, rng.randint(1, len(topics)))
        return [each for each in known if each.topic in some], {"subscribe": " , ".join(some)}

    def _paths(self) -> list[str]:
        dirs = self._topics.log_dirs
        match self._rng.randrange(3):
            case 0:
                return [f"{dirs[0].parent}/node*"]
            case 1:
                return [f"{each}/*-*[0-9]" for each in dirs if any(each.glob("*-*[0-9]"))]
        return [f"file://{dirs[1]}/", str(dirs[0])]

    def _columns(self, query: Query) -> None:
        """The columns that the read makes, and those that are selected; a predicate may name any."""
        rng, options = self._rng, query.options
        made = list(COLUMNS)
        match rng.randrange(3):
            case 0:
                made = made[:7]
                if query.where is not None or rng.random() < 0.5:
                    options["includeHeaders"] = rng.choice(("true", "TRUE"))
                    made.append("headers")
            case 1:
                rng.shuffle(made)
                if query.where is None:
                    needed = {"offsets": "offset", "times": "timestamp"}.get(query.action, "topic")
                    made = made[: rng.randint(1, 3)]
                    made += [needed] * (needed not in made)
                options["columns"] = ", ".join(made)
            case 2:
                made = ["segment", *made[:7], "leaderEpoch", "headers"]
                options["columns"] = "segment,*,LEADEREPOCH,headers"
        query.select = rng.sample(made, rng.randint(1, len(made))) if rng.random() < 0.5 else made

    # --- positions ------------------------------------------------------------------------------------------

    def _positions(self, query: Query, chosen: list[Where]) -> None:
        """Draw where the query starts and ends, and set what must come of it."""
        is_loose = query.options["failOnDataLoss"] == "false"
        starts, ends = self._starts(chosen, query), self._ends(chosen, query)
        is_earliest = query.options.get("startingOffsets", "earliest") == "earliest" and not any(
            name.startswith(("startingTimestamp", "startingOffsetsByTimestamp")) for name in query.options
        )
        for where, start in starts.items():
            first, last, end = self._plain[where].start, self._end(where, query), ends[where]
            if start > last or (start > end and is_earliest):
                query.errors |= set() if is_loose else {LOSS}
            elif start > end:
                query.errors.add(INVALID)
            elif end > last or start < min(first, end):
                query.errors |= set() if is_loose else {LOSS}
                query.may_fail |= end <= last and query.action in ("limit", "tasks")
            query.ranges[where] = start, min(end, last)
        # Spark plans nothing for a predicate that is never true, and for no rows.
        query.may_fail |= query.where is not None or (query.action == "limit" and not query.limit)

    def _end(self, where: Where, query: Query) -> int:
        return self._plain[where].readable(committed=query.committed)

    def _starts(self, chosen: list[Where], query: Query) -> dict[Where, int]:
        rng, options = self._rng, query.options
        starts = {each: self._plain[each].start for each in chosen}
        match rng.randrange(6):
            case 0 if chosen:
                asked = self._offsets(chosen, query, EARLIEST)
                options["startingOffsets"] = as_json(asked)
                return {each: starts[each] if at == EARLIEST else at for each, at in asked.items()}
            case 1 | 2:
                found = self._by_times(chosen, "starting", query)
                strategy = options["startingOffsetsByTimestampStrategy"] = rng.choice(("error", "latest"))
                if strategy == "error" and None in found.values():
                    query.errors.add(NO_MATCH)
                return {each: self._end(each, query) if at is None else at for each, at in found.items()}
            case 3:
                options["startingOffsets"] = "earliest"
        return starts

    def _ends(self, chosen: list[Where], query: Query) -> dict[Where, int]:
        ends = {each: self._end(each, query) for each in chosen}
        match self._rng.randrange(6):
            case 0 if chosen:
                asked = self._offsets(chosen, query, LATEST)
                query.options["endingOffsets"] = as_json(asked)
                ends |= {each: at for each, at in asked.items() if at != LATEST}
            case 1:
                found = self._by_times(chosen, "ending", query)
                ends |= {each: at for each, at in found.items() if at is not None}
            case 2:
                query.options["endingOffsets"] = "latest"
        return ends

    def _offsets(self, chosen: list[Where], query: Query, name: int) -> dict[Where, int]:
        """An offset for each partition, or its name; rarely one that is not there."""
        rng, asked = self._rng, {}
        is_wild = query.where is None and rng.random() < 0.25
        for each in chosen:
            start, end = self._plain[each].start, self._end(each, query)
            near = (max(start - 1, 0), max(start - 2, 0), end + 1, end + 5)
            inside = (name, start, end, rng.randint(start, end))
            asked[each] = rng.choice(near if is_wild and rng.random() < 0.5 else inside)
        return asked

    def _by_times(self, chosen: list[Where], word: str, query: Query) -> dict[Where, int | None]:
        """One time for all, or one for each, and the offsets of these times."""
        rng, options = self._rng, query.options
        if rng.random() < 0.5 or not chosen:
            times = dict.fromkeys(chosen, time_ms := self._time(chosen))
            options[f"{word}Timestamp"] = str(time_ms)
            if chosen and rng.random() < 0.2:  # has no effect then
                options[f"{word}OffsetsByTimestamp"] = as_json(dict.fromkeys(chosen, 5))
        else:
            times = {each: self._time([each]) for each in chosen}
            options[f"{word}OffsetsByTimestamp"] = as_json(times)
        return {each: self._by_time(each, query, at) for each, at in times.items()}

    def _time(self, near: Sequence[Where]) -> int:
        times = [time_ms for each in near for _, time_ms in self._plain[each].times] or [T0]
        near_ms = self._rng.choice(times) + self._rng.choice((0, 0, 1, -1))
        return min(
            max(self._rng.choice((near_ms, near_ms, near_ms, LATEST, EARLIEST, 0)), EARLIEST), MAX_LONG
        )

    def _by_time(self, where: Where, query: Query, time_ms: int) -> int | None:
        if time_ms < 0:
            return {LATEST: self._end(where, query), EARLIEST: self._plain[where].start}[time_ms]
        return self._plain[where].by_time(time_ms, committed=query.committed)


def as_json(offsets: Mapping[Where, int]) -> str:
    """Offsets or times as options have them."""
    made: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        made.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(made)


def without_segment(query: Query) -> Query:
    """The query without the column that only directories have."""
    options = dict(query.options)
    made = [each for each in options.get("columns", "").split(",") if each.strip() != "segment"]
    if made != [""]:
        options["columns"] = ",".join(made)
    select = [each for each in query.select if each != "segment"]
    first = made[0].strip()
    return replace(query, options=options, select=select or [first if first in COLUMNS else "offset"])
