"""Settings as administrators see and change them, each with its value and its source. Pure.

    topic's own          /config/topics/<t>           source 1
    this broker's, live  /config/brokers/<id>         source 2
    all brokers', live   /config/brokers/<default>    source 3
    given at the start   --set, properties file       source 4
    built in                                          source 5

The first source that has a value wins; the others are synonyms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from logstore.arguments import whole_number
from logstore.broker.limits import Address
from logstore.broker.properties import WITHOUT_EFFECT
from logstore.broker.security.config import PLAINTEXT
from logstore.broker.settings import OTHER_NAMES, Settings
from logstore.config import MAX_INT, MAX_LONG, MAX_SHORT, LogConfig, formatted, kafka_name
from logstore.disk.errors import EngineError, ErrorCode
from logstore.errors import InvalidConfig
from logstore.log.manager_config import PARTS, LogManagerConfig, broker_names, check_names, settings_of

T = TypeVar("T")

LIVE_DEFAULTS: Final = {broker_names(each)[0]: each.name for each in fields(LogConfig) if broker_names(each)}
"""Brokers' defaults of topics' settings, by the name under which they can be changed while brokers run."""
_OF_CLUSTER: Final = frozenset({"unclean.leader.election.enable", "min.insync.replicas"})
"""Those on which the controller decides: they are the same for all brokers."""
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
MOVES_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
RATES: Final = {
    LEADER_RATE: "The maximum bytes per second sent to throttled replicas that this broker leads.",
    FOLLOWER_RATE: "The maximum bytes per second fetched for throttled replicas on this broker.",
    MOVES_RATE: "The maximum bytes per second copied when replicas move between log dirs of a broker.",
}
"""Settings of one broker or of all that can be changed while they run, and what they mean."""
FETCHERS: Final = "num.replica.fetchers"
"""Can be changed while brokers run, too: each followed partition then moves to its new fetcher."""
REPLICATION_RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
"""Those of moves between brokers."""
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
SMALLEST_SEGMENT: Final = 1 << 20
"""The least `segment.bytes` that a client may set, as in Kafka since 4.0 (KIP-1030)."""
_LISTS: Final = frozenset({"cleanup.policy", "log.cleanup.policy", LEADER_REPLICAS, FOLLOWER_REPLICAS})


_OF_IDENTITY: Final = frozenset({"broker.id", "node.id", "log.dir", "log.dirs", "state.change.log"})
_LISTENERS: Final = {
    "listeners": "The addresses on which the broker listens, each with the name of its listener.",
    "advertised.listeners": "The addresses given to clients and brokers.",
    "listener.security.protocol.map": "The security protocol of each listener.",
    "inter.broker.listener.name": "The listener that brokers use among themselves.",
    "control.plane.listener.name": "The listener between the controller and the brokers.",
    "super.users": "Principals with full access.",
    "allow.everyone.if.no.acl.found": "Whether resources without a rule are open to everyone.",
}
_NOT_LISTED: Final = ("http.", "listener.name.", "zookeeper.", "authorizer.")
"""How brokers' settings begin that are read elsewhere."""


class Source(IntEnum):
    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5


class Kind(IntEnum):
    """The type of a setting's value, in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Operation(IntEnum):
    """An operation of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class InvalidConfigChange(EngineError):
    """A change that is invalid for any value."""

    code = ErrorCode.INVALID_REQUEST


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str
    source: Source


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting; `synonyms` are its values by source, the effective one first."""

    name: str
    kind: Kind
    documentation: str
    is_read_only: bool
    synonyms: tuple[Synonym, ...]

    @property
    def value(self) -> str:
        return self.synonyms[0].value

    @property
    def source(self) -> Source:
        return self.synonyms[0].source


# --- describing ---------------------------------------------------------------------------------


class Live(NamedTuple):
    """Settings of brokers that were changed while they run: for the broker that is asked, and for all."""

    of_broker: Mapping[str, str]
    of_all: Mapping[str, str]


def describe_topic(own: Mapping[str, str], live: Live, settings: Settings) -> list[Entry]:
    """Return all settings of a topic; `own` are its own."""
    return [_topic_setting(each, own, live, settings.given) for each in fields(LogConfig)]


def _topic_setting(each: Field[Any], own: Mapping[str, str], live: Live, given: Mapping[str, str]) -> Entry:
    name, names = kafka_name(each.name), each.metadata["broker"]
    synonyms = []
    if name in own:
        synonyms.append(Synonym(name, _read(own[name], each.default), Source.TOPIC))
    synonyms += _broker_synonyms(names, live, given)
    synonyms.append(Synonym(next(iter(names), name), formatted(each.default), Source.DEFAULT))
    # Each name has a unit of its own: the value is shown in the topic's.
    if synonyms[0].source is Source.STATIC:
        value = formatted(getattr(LogManagerConfig.from_kafka(_of_topics(given)).topic_defaults, each.name))
        synonyms[0] = Synonym(synonyms[0].name, value, Source.STATIC)
    return Entry(name, _kind(name, each), each.metadata["help"], False, tuple(synonyms))


def _read(value: str, default: object) -> str:
    """Return a value without the spaces and capitals that do not count."""
    value = ",".join(part.strip() for part in value.split(","))
    return value.lower() if isinstance(default, bool) else value


def _broker_synonyms(names: Collection[str], live: Live, given: Mapping[str, str]) -> Iterator[Synonym]:
    sources = ((Source.BROKER, live.of_broker), (Source.ALL_BROKERS, live.of_all), (Source.STATIC, given))
    for source, values in sources:
        for name in names:
            if name in values:
                yield Synonym(name, values[name], source)


def _of_topics(given: Mapping[str, str]) -> dict[str, str]:
    names = {name for each in fields(LogConfig) for name in each.metadata["broker"]}
    return {name: value for name, value in given.items() if name in names}


def describe_broker(live: Live, settings: Settings, log_dirs: Sequence[str] = ()) -> list[Entry]:
    """Return all settings of this broker in alphabetical order, but for those of logins and certificates."""
    numbers = (
        Synonym("broker.id", str(settings.node.node_id), Source.STATIC),
        Synonym("broker.id", "-1", Source.DEFAULT),
    )
    found = {"broker.id": Entry("broker.id", Kind.INT, "This broker's number.", True, numbers)}
    for name, each, value in _broker_settings(settings):
        synonyms = [*_broker_synonyms([name], live, {})]
        if name in settings.given or value != each.default:
            synonyms.append(Synonym(name, formatted(_plain(value)), Source.STATIC))
        synonyms.append(Synonym(name, formatted(_plain(each.default)), Source.DEFAULT))
        is_read_only = name not in _LIVE_CHECKS
        found[name] = Entry(name, _kind(name, each), each.metadata["help"], is_read_only, tuple(synonyms))
    for name, text in RATES.items():
        synonyms = [*_broker_synonyms([name], live, {}), Synonym(name, str(MAX_LONG), Source.DEFAULT)]
        found[name] = Entry(name, Kind.LONG, text, False, tuple(synonyms))
    for name, value in _of_listeners(settings):
        found[name] = Entry(name, Kind.STRING, _LISTENERS[name], True, (Synonym(name, value, Source.STATIC),))
    if log_dirs:
        given = Synonym("log.dirs", ",".join(log_dirs), Source.STATIC)
        found["log.dirs"] = replace(found["log.dirs"], synonyms=(given, *found["log.dirs"].synonyms))
    return [found[name] for name in sorted(found)]


def _of_listeners(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings of listeners and access, none of which is secret."""
    security = settings.security
    if security is None:
        yield "advertised.listeners", f"{PLAINTEXT}://{Address(settings.node.host, settings.node.port)}"
        return
    listeners = security.listeners
    yield "listeners", ",".join(f"{each.name}://{each.bind}" for each in listeners)
    told = [f"{each.name}://{each.advertised}" for each in listeners if each.advertised is not None]
    yield "advertised.listeners", ",".join(told)
    protocols = [f"{each.name}:{each.protocol.name}" for each in listeners]
    yield "listener.security.protocol.map", ",".join(protocols)
    yield "inter.broker.listener.name", security.inter_broker
    if security.control_plane:
        yield "control.plane.listener.name", security.control_plane
    if security.rules is not None:
        supers = sorted(each for each in security.rules.super_users if each.startswith("User:"))
        yield "super.users", ";".join(supers)
        yield "allow.everyone.if.no.acl.found", str(security.rules.allow_if_none).lower()


def describe_all_brokers(of_brokers: Mapping[str, str]) -> list[Entry]:
    """Return the settings that were changed for all brokers."""
    return [
        Entry(name, Kind.STRING, "", False, (Synonym(name, value, Source.ALL_BROKERS),))
        for name, value in sorted(of_brokers.items())
    ]


def _broker_settings(settings: Settings) -> Iterator[tuple[str, Field[Any], Any]]:
    """Yield the name, the field and the value of every setting of a broker."""
    node, logs = settings.node, settings.logs
    of_logs = (logs, *(getattr(logs, name) for name in PARTS))
    for part in (node, node.controller, settings.limits, settings.broker, *of_logs, settings.groups):
        for each in settings_of(type(part)):
            for name in broker_names(each)[:1]:
                yield name, each, getattr(part, each.name)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _kind(name: str, each: Field[Any]) -> Kind:
    most = each.metadata["high"]
    match each.default:
        case bool():
            return Kind.BOOLEAN
        case float():
            return Kind.DOUBLE
        case int() if most is None or most > MAX_INT:
            return Kind.LONG
        case int():
            return Kind.SHORT if most == MAX_SHORT else Kind.INT
    return Kind.LIST if name in _LISTS else Kind.STRING


# --- changing -----------------------------------------------------------------------------------


def changed(now: Mapping[str, str], changes: Sequence[tuple[str, Operation, str | None]]) -> dict[str, str]:
    """Return a topic's own settings after these changes.

    APPEND and SUBTRACT are for lists, and start with the default if there is no value. Raises
    `InvalidConfigChange`, and `InvalidConfig` for an unknown setting or an invalid value.
    """
    _check_once(name for name, _, _ in changes)
    defaults = LogConfig().to_kafka()
    found = dict(now)
    for name, operation, value in changes:
        if name in _LISTS and value is not None and operation in (Operation.APPEND, Operation.SUBTRACT):
            items = [item for item in found.get(name, defaults.get(name, "")).split(",") if item]
            wanted = [item.strip() for item in value.split(",")]
            if operation is Operation.APPEND:
                items += [item for item in wanted if item not in items]
            else:
                items = [item for item in items if item not in wanted]
            operation, value = Operation.SET, ",".join(items)
        _change(found, name, operation, value)
    LogConfig.from_kafka(found)
    check_segment_size({name: found[name] for name, _, _ in changes if name in found})
    return found


def _change(found: dict[str, str], name: str, operation: Operation, value: str | None) -> None:
    if operation is Operation.DELETE:
        found.pop(name, None)
    elif value is None:
        raise InvalidConfigChange(
            f"{name} needs a value; to restore the default, delete it or, in AlterConfigs, leave it out"
        )
    elif operation is not Operation.SET:
        raise InvalidConfig(f"{name} is not a list; set it")
    else:
        found[name] = value


def replaced(settings: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Return a topic's own settings if these are all. Raises as `changed`."""
    _check_once(name for name, _ in settings)
    found: dict[str, str] = {}
    for name, value in settings:
        _change(found, name, Operation.SET, value)
    LogConfig.from_kafka(found)
    check_segment_size(found)
    return found


def check_segment_size(settings: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for valid settings with segments that are too small for a cluster.

    Each segment needs several open files. A topic of segments of 14 bytes uses up a broker's descriptors.
    """
    given = settings.get("segment.bytes")
    if given is not None and LogConfig.from_kafka({"segment.bytes": given}).segment_bytes < SMALLEST_SEGMENT:
        raise InvalidConfig(f"segment.bytes is {given}; it must be at least {SMALLEST_SEGMENT}")


def changed_for_broker(
    now: Mapping[str, str], changes: Sequence[tuple[str, Operation, str | None]]
) -> dict[str, str]:
    """Return one broker's own settings after these changes. Raises as `changed`."""
    for name, operation, _ in changes:
        if name in _OF_CLUSTER and operation is not Operation.DELETE:
            raise InvalidConfigChange(f"{name} is the same for all brokers; change it for all of them")
    return changed_for_all_brokers(now, changes)


def live_defaults(base: LogManagerConfig, live: Live) -> LogConfig:
    """Return the defaults of topics' settings that count for a broker that was started with `base`.

    Raises `InvalidConfig` for values that are invalid, or invalid together.
    """
    values = {**live.of_all, **live.of_broker}
    known = {name: value for name, value in values.items() if name in LIVE_DEFAULTS}
    return LogManagerConfig.from_kafka(known, base=base).topic_defaults


def number_of(name: str, live: Live, given: T) -> int | T:
    """Return the rate, or the number of fetchers, of a broker; `given` if it was not changed.

    Raises `InvalidConfig`.
    """
    text = live.of_broker.get(name, live.of_all.get(name))
    return int(_LIVE_CHECKS[name](name, text)) if text is not None else given


def _default(name: str, text: str) -> str:
    value = getattr(LogManagerConfig.from_kafka({name: text}).topic_defaults, LIVE_DEFAULTS[name])
    if name == "log.segment.bytes":
        check_segment_size({"segment.bytes": text})
    return formatted(value)


def _rate(name: str, text: str) -> str:
    return _digits(name, text, 0, MAX_LONG, "bytes a second")


def _count(name: str, text: str) -> str:
    return _digits(name, text, 1, MAX_INT, "a number, at least 1")


def _digits(name: str, text: str, least: int, most: int, expected: str) -> str:
    digits = text.strip()
    if whole_number(digits, least, most) is None:
        raise InvalidConfig(f"{name} is {text!r}; expected {expected}")
    return digits


_LIVE_CHECKS: Final[Mapping[str, Callable[[str, str], str]]] = {
    **dict.fromkeys(LIVE_DEFAULTS, _default),
    **dict.fromkeys(RATES, _rate),
    FETCHERS: _count,
}
"""The settings that can be changed while brokers run, each with the function that checks its value."""


def changed_for_all_brokers(
    now: Mapping[str, str], changes: Sequence[tuple[str, Operation, str | None]]
) -> dict[str, str]:
    """Return the settings of all brokers after these changes. Raises as `changed`."""
    _check_once(name for name, _, _ in changes)
    found = dict(now)
    for name, operation, value in changes:
        if name not in _LIVE_CHECKS:
            if name in WITHOUT_EFFECT:
                raise InvalidConfigChange(f"{name} has no effect here: it cannot be changed")
            if name not in OTHER_NAMES | _OF_IDENTITY and not name.startswith(_NOT_LISTED):
                check_names({name}, OTHER_NAMES)  # unknown, or the name that a topic's setting has
            raise InvalidConfigChange(f"{name} cannot be changed while brokers run; set it at their start")
        if value is not None and operation is Operation.SET:
            value = _LIVE_CHECKS[name](name, value)
        _change(found, name, operation, value)
    live_defaults(LogManagerConfig(), Live({}, found))
    return found


def _check_once(names: Iterable[str]) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise InvalidConfigChange(f"{', '.join(twice)}: listed more than once")
