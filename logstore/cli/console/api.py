"""The JSON API of the console: a path and its parameters to an answer (docs/console.md lists them all)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

import typer

from logstore.arguments import whole_number, whole_numbers
from logstore.broker.blocking import BlockingClient
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.http import Page
from logstore.cli.brokers import Brokers
from logstore.cli.cluster_plans import BadPlan, NoSuchSubject, current_plan, encode_plan, proposal
from logstore.cli.console import asking, changing, views
from logstore.cli.console.desk import Desk, Watch
from logstore.cli.console.local import Local
from logstore.cli.console.peers import Peers
from logstore.cli.explanations import Explanation, explain_broker, explain_cluster, explain_partition
from logstore.cli.group_explanations import explain_group
from logstore.cli.observing import observe_group
from logstore.cli.timeline_drawing import draw
from logstore.config import MAX_LONG
from logstore.disk.errors import EngineError, ErrorCode, InvalidTopic
from logstore.disk.topic_partition import TopicPartition, parse_directory_name
from logstore.replication.history import Event, Kind, as_fact, time_of
from logstore.replication.state_change_lines import Wanted
from logstore.version import VERSION

MOST_ROWS: Final = 5_000
"""Partitions in an answer."""
MOST_LISTED: Final = 200
"""Topics, groups or records in an answer."""
MOST_EVENTS: Final = 1_000
MOST_DRAWN: Final = 100
"""Events in a drawing."""
_TIMELINE_HERE: Final = "/api/here/timeline"
_LOG_HERE: Final = "/api/here/log"
_DRAWING: Final = "/api/timeline.svg"
_OF_TIMELINES: Final = ("topic", "partition", "roles", "before_ms", "limit")
PARAMETERS: Final[Mapping[str, Sequence[str]]] = {
    "/api/partitions": ("topic", "only_bad", "offset", "limit", "after_ms"),
    "/api/partition": ("name",),
    "/api/why": ("kind", "name"),
    "/api/topics": ("match", "offset", "limit"),
    "/api/topic": ("name",),
    "/api/groups": ("match", "offset", "limit"),
    "/api/group": ("name",),
    "/api/timeline": _OF_TIMELINES,
    _DRAWING: (*_OF_TIMELINES, "n"),
    _TIMELINE_HERE: _OF_TIMELINES,
    _LOG_HERE: ("name",),
    "/api/messages": ("partition", "offset", "time_ms", "key", "value", "limit", "characters"),
    "/api/reassignments/proposal": ("topics", "brokers", "ignore_racks", "seed"),
}
"""The parameters of a GET. `n` of a drawing means nothing: another value gets past a browser's cache."""
FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "/api/reassignments": ("plan", "additional"),
    "/api/reassignments/cancel": ("partitions",),
    "/api/elections": ("partitions",),
}
"""The fields of a POST."""
_OF_DRAWINGS: Final = "default-src 'none'; style-src 'unsafe-inline'"
_FLAGS: Final = {"1": True, "true": True, "0": False, "false": False}
_MOST_FIELDS: Final = 32
_CHARACTERS: Final = 2_000
_MOST_CHARACTERS: Final = 1 << 20
_GROUP_WATCH_S: Final = 1.5
"""How long `why` looks for commits of a group's members; the command looks longer."""

Given: TypeAlias = Mapping[str, str]
Answer: TypeAlias = dict[str, Any]


class BadRequest(Exception):
    """A request that cannot be answered; the message says how to ask."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Permits:
    """Permissions of the console: to change the cluster, and to show records."""

    changes: bool = False
    messages: bool = True


class Api:
    """Answers questions. Any thread may ask."""

    def __init__(
        self,
        watch: Watch,
        desk: Desk[Brokers],
        reader: Desk[BlockingClient],
        local: Local,
        peers: Peers,
        permits: Permits,
    ) -> None:
        self._watch, self._desk, self._reader = watch, desk, reader
        self._local, self._peers, self._permits = local, peers, permits
        self._reads: dict[str, Callable[[Given], Answer]] = {
            "/api": self._about,
            "/api/overview": lambda _: views.overview(watch.latest()),
            "/api/partitions": self._partitions,
            "/api/partition": self._partition,
            "/api/why": self._why,
            "/api/topics": self._topics,
            "/api/topic": self._topic,
            "/api/groups": self._groups,
            "/api/group": lambda given: desk.ask(lambda to: asking.group(to, _needed(given, "name"))),
            "/api/timeline": self._timeline,
            _TIMELINE_HERE: self._timeline_here,
            _LOG_HERE: self._log_here,
            "/api/messages": self._messages,
            "/api/reassignments": lambda _: {"moving": views.moves(watch.latest())},
            "/api/reassignments/proposal": self._proposal,
        }
        self._changes: dict[str, Callable[[Answer], Answer]] = {
            "/api/reassignments": self._execute,
            "/api/reassignments/cancel": self._cancel,
            "/api/elections": self._elect,
        }

    def get(self, path: str, query: str) -> Page:
        """Answer a question."""
        if path == _DRAWING:
            return _answered(lambda: self._drawing(_given(path, query)))
        return _answered(lambda: self._get(path, query))

    def post(self, path: str, body: bytes) -> Page:
        """Carry out a change, if that is permitted."""
        return _answered(lambda: self._post(path, body))

    def _get(self, path: str, query: str) -> Answer:
        read = self._reads.get(path)
        if read is None:
            if path in self._changes:
                raise BadRequest(f"{path} takes a POST", HTTPStatus.METHOD_NOT_ALLOWED)
            raise BadRequest(f"no {path}; there are {', '.join(self._reads)}", HTTPStatus.NOT_FOUND)
        return read(_given(path, query))

    def _post(self, path: str, body: bytes) -> Answer:
        change = self._changes.get(path)
        if path in self._reads and change is None:
            raise BadRequest(f"{path} takes a GET", HTTPStatus.METHOD_NOT_ALLOWED)
        if change is None:
            raise BadRequest(f"no POST to {path}; there are {', '.join(self._changes)}", HTTPStatus.NOT_FOUND)
        if not self._permits.changes:
            raise BadRequest(
                "this console is read-only: start the broker with --console-admin", HTTPStatus.FORBIDDEN
            )
        try:
            given = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise BadRequest("the body is not a JSON object")
        _check_known("field", given, path, FIELDS[path])
        try:
            return change(given)
        finally:
            self._watch.forget()

    # --- the cluster --------------------------------------------------------------------------------

    def _about(self, _: Given) -> Answer:
        return {
            "version": VERSION,
            "broker": self._local.node_id,
            "cluster_id": self._local.cluster_id,
            "may_change": self._permits.changes,
            "may_read_messages": self._permits.messages,
            "decoders": asking.DECODERS,
            "reads": list(self._reads),
            "changes": list(self._changes),
        }

    def _partitions(self, given: Given) -> Answer:
        wanted = views.Wanted(
            _number(given, "offset", 0),
            _limit(given, 1000, MOST_ROWS),
            given.get("topic", ""),
            only_bad=_flag(given, "only_bad"),
        )
        seen = self._watch.latest()
        if "after_ms" in given and seen.at_ms == _number(given, "after_ms", 0):
            return {"as_of_ms": seen.at_ms, "is_unchanged": True}
        return views.partitions(seen, wanted)

    def _partition(self, given: Given) -> Answer:
        each = _partition_named(_needed(given, "name"))
        found = views.partition(self._watch.latest(), each)
        if found is None:
            raise BadRequest(f"no partition {each}", HTTPStatus.NOT_FOUND)
        answers, silent = self._everywhere(_LOG_HERE, {"name": str(each)}, self._log_here)
        logs = sorted((one for one in answers if one["log"]), key=lambda one: int(one["broker"]))
        return {**found, "logs": logs, "silent": silent}

    def _why(self, given: Given) -> Answer:
        kind, name = given.get("kind", "partition"), given.get("name", "")
        found: Explanation | None
        if kind == "group":
            seen = self._desk.ask(lambda to: observe_group(to, _needed(given, "name"), _GROUP_WATCH_S))
            of_home = [each for each in self._watch.latest().troubles if seen.home in each.partitions]
            found = explain_group(seen, tuple(of_home) if seen.refusal else ())
        elif kind == "cluster":
            found = explain_cluster(self._watch.latest().observed)
        elif kind == "broker":
            found = explain_broker(self._watch.latest().observed, _number(given, "name", -1))
        elif kind == "partition":
            found = explain_partition(self._watch.latest().observed, _partition_named(name))
        else:
            raise BadRequest("kind is partition, group, broker or cluster")
        if found is None:
            raise BadRequest(f"no {kind} {name}", HTTPStatus.NOT_FOUND)
        return {**found.facts(), "troubles": [each.facts() for each in found.troubles]}

    def _topics(self, given: Given) -> Answer:
        limit = _limit(given, 100, MOST_LISTED)
        return views.topics(self._watch.latest(), given.get("match", ""), _number(given, "offset", 0), limit)

    def _topic(self, given: Given) -> Answer:
        name = _needed(given, "name")
        seen = self._watch.latest()
        if name not in seen.observed.cluster.topics:
            raise BadRequest(f"no topic {name}", HTTPStatus.NOT_FOUND)
        facts = next(
            each
            for each in views.topics(seen, name, 0, len(seen.observed.cluster.topics))["topics"]
            if each["name"] == name
        )
        return {**facts, "settings": self._desk.ask(lambda to: asking.settings_of(to, name))}

    def _groups(self, given: Given) -> Answer:
        offset, limit = _number(given, "offset", 0), _limit(given, 50, MOST_LISTED)
        return self._desk.ask(lambda to: asking.groups(to, given.get("match", ""), offset, limit))

    # --- history and records --------------------------------------------------------------------------

    def _log_here(self, given: Given) -> Answer:
        each = _partition_named(_needed(given, "name"))
        return {"broker": self._local.node_id, "log": self._local.layout(each)}

    def _timeline_here(self, given: Given) -> Answer:
        topic, number = given.get("topic", ""), given.get("partition", "")
        wanted = Wanted(
            frozenset((topic,)) if topic else frozenset(),
            frozenset((_number(given, "partition", 0),)) if number else frozenset(),
        )
        limit = _limit(given, 200, MOST_EVENTS)
        before_ms = _number(given, "before_ms", MAX_LONG)
        roles = _flag(given, "roles")
        try:
            events = [
                event
                for event in self._local.events(wanted)
                if event.time_ms < before_ms and (roles or event.kind is not Kind.ROLE)
            ]
        except OSError as error:
            raise BadRequest(f"the state-change log: {error}", HTTPStatus.SERVICE_UNAVAILABLE) from error
        shown = [{"time_ms": each.time_ms, **as_fact(each, is_virtual=False)} for each in events[-limit:]]
        return {"broker": self._local.node_id, "total": len(events), "events": shown}

    def _timeline(self, given: Given) -> Answer:
        limit = _limit(given, 200, MOST_EVENTS)
        answers, silent = self._everywhere(_TIMELINE_HERE, given, self._timeline_here)
        events = [event for each in answers for event in each["events"]]
        events.sort(key=lambda event: event["time_ms"])
        return {
            "brokers": sorted(each["broker"] for each in answers),
            "silent": silent,
            "total": sum(each["total"] for each in answers),
            "events": events[-limit:],
        }

    def _drawing(self, given: Given) -> Page:
        """Return the timeline as the SVG that `logstore timeline --svg` writes."""
        events = [_event(fact) for fact in self._timeline(given)["events"][-MOST_DRAWN:]]
        text = draw("", events, lambda event: time_of(event, is_virtual=False))
        return Page(text.encode(), "image/svg+xml", headers={"Content-Security-Policy": _OF_DRAWINGS})

    def _everywhere(
        self, path: str, given: Given, here: Callable[[Given], Answer]
    ) -> tuple[list[Answer], list[dict[str, str]]]:
        """Return what this broker and the other consoles answer, each broker once."""
        told = self._peers.ask(path, dict(given))
        own = here(given)
        others = [each for each in told.answers if each.get("broker") != own["broker"]]
        return [own, *others], told.silent

    def _messages(self, given: Given) -> Answer:
        if not self._permits.messages:
            raise BadRequest(
                "records are not shown: the brokers have logins or permissions, and this port has none. "
                "Start the broker with --console-messages to show them to everyone who reaches the port",
                HTTPStatus.FORBIDDEN,
            )
        each = _partition_named(_needed(given, "partition"))
        limit = _limit(given, 50, MOST_LISTED)
        try:
            how = asking.decoders(each, given.get("key", "utf8"), given.get("value", "utf8"))
        except ValueError as error:
            raise BadRequest(str(error)) from error
        first, end = self._desk.ask(lambda to: asking.bounds(to, each))
        start: int | None = max(end - limit, first)
        if "time_ms" in given and "offset" in given:
            raise BadRequest("give either offset or time_ms")
        if "time_ms" in given:
            at_ms = _number(given, "time_ms", 0)
            start = self._desk.ask(lambda to: asking.offset_at(to, each, at_ms))
        elif "offset" in given:
            start = _number(given, "offset", 0)
        start = end if start is None else min(max(start, first), end)
        characters = _number(given, "characters", _CHARACTERS, _MOST_CHARACTERS)
        page = asking.Page(start, end, limit, characters)
        found = self._reader.ask(lambda client: asking.records(client, each, page, how))
        return {**found, "log_start_offset": first}

    # --- changes --------------------------------------------------------------------------------------

    def _proposal(self, given: Given) -> Answer:
        names = [each for each in _needed(given, "topics").split(",") if each]
        if (ids := whole_numbers(_needed(given, "brokers").split(","))) is None:
            raise BadRequest("brokers is a list of numbers like 1,2,3")
        observed = self._watch.latest().observed
        draw = random.Random(_number(given, "seed", 0))
        plan = proposal(
            observed.cluster,
            names,
            ids,
            with_racks=not _flag(given, "ignore_racks"),
            start=draw.randrange(len(ids)),
            shift=draw.randrange(len(ids)),
        )
        if len(plan) > MOST_ROWS:
            raise BadRequest(f"{len(plan)} partitions are too many for one plan; choose fewer topics")
        current = current_plan(observed.cluster, names)
        return {
            "current": json.loads(encode_plan(current)),
            "proposed": json.loads(encode_plan(plan)),
            "changed": sum(current[each] != replicas for each, replicas in plan.items()),
            "load": views.load(observed, plan),
        }

    def _execute(self, given: Answer) -> Answer:
        if not isinstance(may_join := given.get("additional", False), bool):
            raise BadRequest('"additional" is true or false')
        return self._desk.ask(lambda to: changing.execute(to, given.get("plan"), may_join=may_join))

    def _cancel(self, given: Answer) -> Answer:
        chosen = _partitions_in(given)
        if chosen is None:
            raise BadRequest('"partitions" is a list of names like "orders-0"')
        return self._desk.ask(lambda to: changing.cancel(to, chosen))

    def _elect(self, given: Answer) -> Answer:
        chosen = _partitions_in(given)
        return self._desk.ask(lambda to: changing.elect(to, chosen))


# --- parameters -----------------------------------------------------------------------------------


def _given(path: str, query: str) -> Given:
    try:
        pairs = parse_qsl(query, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise BadRequest(f"more than {_MOST_FIELDS} parameters") from error
    given = dict(pairs)
    _check_known("parameter", given, path, PARAMETERS.get(path, ()))
    if len(given) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadRequest(f"the parameter {twice} is given twice; give it once")
    return given


def _check_known(kind: str, given: Iterable[str], path: str, known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise BadRequest(f"{path} has no {kind} {name!r}; it has {', '.join(known) or 'none'}")


def _needed(given: Given, name: str) -> str:
    value = given.get(name, "")
    if not value:
        raise BadRequest(f"the parameter {name} is missing")
    return value


def _number(given: Given, name: str, default: int, most: int = MAX_LONG, *, least: int = 0) -> int:
    text = given.get(name)
    if text is None:
        return default
    if (number := whole_number(text, least, MAX_LONG)) is None:
        raise BadRequest(f"{name} is a number, {least} or more")
    return min(number, most)


def _limit(given: Given, default: int, most: int) -> int:
    """Return the most entries of a list: one at least."""
    return _number(given, "limit", default, most, least=1)


def _flag(given: Given, name: str) -> bool:
    value = given.get(name, "0")
    if value not in _FLAGS:
        raise BadRequest(f"{name} is 1 or 0")
    return _FLAGS[value]


def _partition_named(text: str) -> TopicPartition:
    try:
        return parse_directory_name(text)
    except InvalidTopic:
        raise BadRequest(f"{text!r} is not a partition; write it like orders-0") from None


def _partitions_in(given: Answer) -> list[TopicPartition] | None:
    """Return the partitions that a body names; None for all of them, where the body has null."""
    if "partitions" not in given:
        raise BadRequest('"partitions" is missing: a list of names like "orders-0"')
    names = given["partitions"]
    if names is None:
        return None
    if not isinstance(names, list) or not names or not all(isinstance(each, str) for each in names):
        raise BadRequest('"partitions" is a list of names like "orders-0"')
    return [_partition_named(each) for each in names]


# --- answers --------------------------------------------------------------------------------------


def _event(fact: Answer) -> Event:
    """Return the event that `as_fact` made an object of."""
    where = None if fact["topic"] is None else TopicPartition(fact["topic"], fact["partition"])
    return Event(fact["time_ms"], fact["node"], where, Kind(fact["kind"]), fact["text"], fact)


def _answered(answer: Callable[[], Answer | Page]) -> Page:
    """Return an answer as a page; a refusal as one with `error`, and its status."""
    try:
        found = answer()
        return found if isinstance(found, Page) else _json(found, HTTPStatus.OK)
    except BadRequest as error:
        return _json({"error": str(error)}, error.status)
    except NoSuchSubject as error:
        return _json({"error": str(error)}, HTTPStatus.NOT_FOUND)
    except (BadPlan, typer.BadParameter) as error:
        return _json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
    except RequestUnanswered as error:
        return _json({"error": str(error)}, HTTPStatus.SERVICE_UNAVAILABLE)
    except RequestRefused as error:
        is_unknown = error.error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND)
        status = HTTPStatus.NOT_FOUND if is_unknown else HTTPStatus.CONFLICT
        return _json({"error": str(error), "code": error.error.name}, status)
    except EngineError as error:
        return _json({"error": str(error)}, HTTPStatus.CONFLICT)


def _json(answer: Answer, status: HTTPStatus) -> Page:
    return Page(json.dumps(answer, separators=(",", ":")).encode() + b"\n", status=status)
