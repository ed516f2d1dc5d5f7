"""The console's requests to brokers: groups, settings, records. Each runs in the thread of a `Desk`."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from logstore.broker.blocking import BlockingClient
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.wire import types as t
from logstore.cli.broker_operator import TOPIC, described_settings
from logstore.cli.brokers import Brokers, check
from logstore.cli.decoders import Decoders, decoder_named, internal_topic
from logstore.cli.facts import Selection, Shown, record_facts
from logstore.cli.group_facts import committed_offsets, membership
from logstore.cli.terminal import Encoding
from logstore.cli.verification import Problem
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import walk
from logstore.replication.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

DECODERS: Final = ("utf8", "hex", "base64", "json", "int")
"""Those that run no code of others."""
MOST_FETCHES: Final = 8
MOST_BYTES: Final = 1 << 20
_SOURCES: Final = {1: "topic", 2: "broker, live", 3: "all brokers, live", 4: "broker", 5: "default"}


# --- topics ---------------------------------------------------------------------------------------


def settings_of(brokers: Brokers, topic: str) -> list[dict[str, Any]]:
    """Return every setting of a topic, and where its value is from. Secrets have no value."""
    found = described_settings(brokers, TOPIC, [topic]).get(topic, [])
    return [
        {
            "name": each.name,
            "value": None if each.is_sensitive else each.value,
            "source": _SOURCES.get(each.config_source, "unknown"),
            "is_own": each.config_source == 1,
        }
        for each in sorted(found, key=lambda one: (one.config_source != 1, one.name))
    ]


# --- groups ---------------------------------------------------------------------------------------


def groups(brokers: Brokers, match: str, offset: int, limit: int) -> dict[str, Any]:
    """Return a page of the groups whose name contains `match`, with members and lag."""
    names: dict[str, str] = {}
    silent = []
    for each in brokers.metadata(()).brokers:
        try:
            answer = brokers.broker(each.node_id, t.ListGroupsRequest())
            # A broker that loads some of its groups lists the others beside the error.
            names |= {group.group_id: group.group_state for group in answer.groups if match in group.group_id}
            check(answer.error_code, f"groups of broker {each.node_id}")
        except (RequestUnanswered, RequestRefused) as error:
            silent.append({"broker": each.node_id, "error": str(error)})
    rows: list[dict[str, Any]] = []
    for name in sorted(names)[offset : offset + limit]:
        try:
            found = group(brokers, name)
        except (RequestUnanswered, RequestRefused) as error:
            rows.append({"name": name, "state": names[name], "error": str(error)})
            continue
        lag = [each["lag"] for each in found["partitions"] if each["lag"] is not None]
        counts = {"members": len(found["members"]), "partitions": len(found["partitions"])}
        rows.append({"name": name, "state": found["state"], **counts, "lag": sum(lag)})
    return {"total": len(names), "offset": offset, "groups": rows, "silent": silent}


def group(brokers: Brokers, name: str) -> dict[str, Any]:
    """Return a group: its members, and its offset and lag in each partition. Raises for an unknown one."""
    found, members = membership(brokers, name)
    committed = committed_offsets(brokers, name)
    if found.group_state == "Dead" and not committed:
        raise RequestRefused(ErrorCode.GROUP_ID_NOT_FOUND, f"no group {name}")
    reads = {each: member for member in members for each in member.partitions}
    ends = _ends(brokers, {*committed, *reads})
    return {
        "name": name,
        "state": found.group_state,
        "protocol_type": found.protocol_type,
        "members": [
            {
                "id": each.member_id,
                "client": each.client_id,
                "host": each.host,
                "partitions": sorted(map(str, each.partitions)),
                "is_awaited": each.is_awaited,
            }
            for each in members
        ],
        "partitions": [
            {
                "partition": str(each),
                "committed": committed.get(each),
                "end": ends.get(each),
                "lag": _lag(committed.get(each), ends.get(each)),
                "member": reads[each].client_id or reads[each].member_id if each in reads else None,
            }
            for each in sorted({*committed, *reads})
        ],
    }


def _lag(committed: int | None, end: int | None) -> int | None:
    return None if committed is None or end is None else max(end - committed, 0)


def _ends(brokers: Brokers, wanted: set[TopicPartition]) -> dict[TopicPartition, int | None]:
    """Return the ends that can be had: one dead leader must not hide the offsets of all others."""
    try:
        return brokers.offsets(dict.fromkeys(wanted, LATEST_TIMESTAMP))
    except EngineError:
        found: dict[TopicPartition, int | None] = {}
        for each in sorted(wanted):
            try:
                found |= brokers.offsets({each: LATEST_TIMESTAMP})
            except EngineError:
                found[each] = None
        return found


# --- records --------------------------------------------------------------------------------------


def decoders(each: TopicPartition, key: str, value: str) -> Decoders:
    """Return the decoders of these names. Raises `ValueError` for others than `DECODERS`."""
    for name in (key, value):
        if name not in DECODERS:
            raise ValueError(f"{name!r} is not a decoder; expected one of {', '.join(DECODERS)}")
    makers = decoder_named("key", key), decoder_named("value", value)
    encoding = Encoding.HEX if "hex" in (key, value) else Encoding.UTF8
    return Decoders(*makers, encoding, internal_topic(str(each)))


def bounds(brokers: Brokers, each: TopicPartition) -> tuple[int, int]:
    """Return the log start offset and the high watermark. Raises `RequestRefused` without a leader."""
    first, end = (brokers.offsets({each: at})[each] or 0 for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP))
    return first, end


def offset_at(brokers: Brokers, each: TopicPartition, time_ms: int) -> int | None:
    """Return the first offset at or after a time; None if there is none."""
    return brokers.offsets({each: time_ms})[each]


class Page(NamedTuple):
    """The records to show: at most `limit` in [`start`, `end`); texts up to `most_characters`."""

    start: int
    end: int
    limit: int
    most_characters: int


def records(client: BlockingClient, each: TopicPartition, page: Page, how: Decoders) -> dict[str, Any]:
    """Return a page of committed records, control records included."""
    position = page.start
    shown: list[dict[str, Any]] = []
    problems: list[str] = []
    for _ in range(MOST_FETCHES):
        if position >= page.end or len(shown) >= page.limit:
            break
        answer = client.fetch(each, position, max_bytes=MOST_BYTES, max_wait_ms=0)
        before = position
        for batch in walk(answer.records):
            batch.check_crc()
            wanted = Shown(True, how, Selection(from_offset=before))
            for found in record_facts(batch, str(each), wanted, segment=0, position=0):
                if isinstance(found, Problem):
                    problems.append(found.text)
                    continue
                shown.append(_bounded(found, page.most_characters) | {"is_control": batch.is_control})
                if len(shown) >= page.limit:
                    break
            if len(shown) >= page.limit:
                break
            position = batch.next_offset
        if position == before:
            break
    after = int(shown[-1]["offset"]) + 1 if len(shown) >= page.limit else position
    return {
        "partition": str(each),
        "from": page.start,
        "next": after,
        "high_watermark": page.end,
        "records": shown,
        "problems": problems[: page.limit],
    }


def _bounded(fact: dict[str, Any], most: int) -> dict[str, Any]:
    """Cut texts that are too long; `is_cut` says so."""
    is_cut = False
    for name in ("key", "value", "headers"):
        text = fact[name] if isinstance(fact[name], str) else json.dumps(fact[name])
        if len(text) > most:
            fact[name], is_cut = text[:most], True
    del fact["segment"], fact["position"]
    return {**fact, "is_cut": is_cut}
