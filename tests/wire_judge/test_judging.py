"""The judge notices what differs, and takes nothing else for a difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logstore.broker.wire import types as t
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.declarations import Struct
from logstore.disk.topic_partition import check_topic_name
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from tests.wire_judge import records
from tests.wire_judge.__main__ import ALL, shortened
from tests.wire_judge.campaign import shrunk
from tests.wire_judge.judging import Renaming, differences, plain
from tests.wire_judge.known import KNOWN, known_difference
from tests.wire_judge.stories import Draw

VERSIONS = {key: api.served for key, api in APIS.items()}


def joined(member: str, leader: str, *others: str) -> t.JoinGroupResponse:
    members = [t.JoinGroupResponseMember(member_id=each, metadata=b"m") for each in (member, *others)]
    return t.JoinGroupResponse(generation_id=1, leader=leader, member_id=member, members=members)


def told(kafka: Struct, ours: Struct, version: int, renaming: Renaming | None = None) -> list[str]:
    one, other = (plain(each, version, {}) for each in (kafka, ours))
    return [path for path, _, _ in differences(one, other, renaming or Renaming())]


def fetched(*values: bytes, error: int = 0) -> t.FetchResponse:
    rows = encode_batch([Record(offset, 1, None, value) for offset, value in enumerate(values)])
    part = t.FetchResponsePartitionData(error_code=error, high_watermark=1, records=rows)
    return t.FetchResponse(responses=[t.FetchResponseFetchableTopicResponse(topic="a", partitions=[part])])


def test_each_field_counts() -> None:
    assert told(fetched(b"x"), fetched(b"x"), 12) == []
    assert told(fetched(b"x"), fetched(b"y"), 12) == ["responses[].partitions[].records[].records[][]"]
    other = fetched(b"x")
    other.responses[0].partitions[0].log_start_offset = 7
    assert told(fetched(b"x"), other, 12) == ["responses[].partitions[].log_start_offset"]
    assert told(fetched(b"x"), other, 4) == [], "the version does not have it"


def test_of_two_codes_only_they_are_told() -> None:
    assert told(fetched(b"x", error=1), fetched(), 12) == ["responses[].partitions[].error_code"]


def test_ids_are_compared_up_to_renaming() -> None:
    renaming = Renaming()
    assert told(joined("k1", "k1"), joined("o1", "o1"), 7, renaming) == []
    assert told(joined("k2", "k2"), joined("o1", "o1"), 7, renaming) == [
        *("leader", "member_id", "members[].member_id"),
    ]
    assert told(joined("k1", "k1"), joined("o1", "o9"), 7) == ["member_id", "members[].member_id"]


def test_texts_may_differ_and_null_is_none() -> None:
    texts = [t.CreatePartitionsResponseCreatePartitionsTopicResult(error_message=each) for each in ("a", "b")]
    kafka, ours = (t.CreatePartitionsResponse(results=[each]) for each in texts)
    assert told(kafka, ours, 1) == []
    ours.results[0].error_message = None
    assert told(kafka, ours, 1) == ["results[].error_message"]


def test_an_entry_that_one_side_lacks_is_told_by_its_name() -> None:
    one = [t.MetadataResponseTopic(name=each) for each in ("a", "b")]
    assert told(t.MetadataResponse(topics=one), t.MetadataResponse(topics=one[:1]), 5) == ["topics[b]"]


def test_a_documented_difference_is_known_only_where_it_is_documented() -> None:
    part = t.ProduceRequestPartitionProduceData(records=b"")
    request = t.ProduceRequest(topic_data=[t.ProduceRequestTopicProduceData(partition_data=[part])])
    path = "responses[].partition_responses[].error_code"
    assert known_difference(request, 9, path, 0, 87) == ""
    part.records = records.Broken(b"")
    part.records.how = "delete horizon"
    assert known_difference(request, 9, path, 0, 87) == "a client's delete horizon"
    assert known_difference(request, 9, path, 0, 2) == ""


def test_each_known_difference_is_a_row_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/differences.md").read_text()
    section = page.partition("## Answers")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")][1:]
    assert sorted(rows) == sorted(KNOWN)


@pytest.mark.parametrize("story", ALL.values(), ids=ALL)
def test_a_seed_draws_one_story_whose_requests_can_be_sent(story: Any) -> None:
    for seed in map(str, range(20)):
        shown = [[each.shown() for each in story(Draw(seed, VERSIONS))] for _ in range(2)]
        assert shown[0] == shown[1]


def test_a_story_shrinks_to_what_it_needs() -> None:
    assert shrunk(9, lambda kept: {2, 7} <= set(kept)) == [2, 7]


def test_names_of_shortened_stories_can_be_topics() -> None:
    check_topic_name(Draw("seed-1", VERSIONS, shortened("seed-1", 3)).name("a"))
