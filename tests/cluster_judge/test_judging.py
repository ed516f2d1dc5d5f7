"""The judge of clusters notices what differs, waits for rest, and takes nothing else for a difference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from logstore.format.batch import encode_batch
from logstore.format.record import Record
from tests.cluster_judge.known import KNOWN, PARTING, Met, known_difference
from tests.cluster_judge.sides import Side
from tests.cluster_judge.snapshots import UNREST, batches, differences, elections, plain
from tests.cluster_judge.stories import story
from tests.cluster_judge.views import Partition, Place, Told, View, unrest

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from bench.kafka.servers import Servers

PLACE = Place("s.a", 0)
STATE = "/brokers/topics/s.a/partitions/0/state"


def view(
    state: Mapping[str, Any] | None = None,
    topic: Mapping[str, Any] | None = None,
    *,
    awake: tuple[int, ...] = (1, 2, 3),
    more: Mapping[str, bytes] | None = None,
) -> View:
    """Return a cluster at rest, with what is changed about it."""
    state = {"leader": 1, "leader_epoch": 4, "isr": [2, 1], **(state or {})}
    node = {"partitions": {"0": [1, 2]}, **(topic or {})}
    part = Partition(0, state["leader"], state["leader_epoch"], (1, 2), tuple(sorted(state["isr"])), ())
    told = Told(awake, awake[0], {PLACE: part}, {})
    nodes = {"/brokers/topics/s.a": json.dumps(node).encode(), STATE: json.dumps(state).encode()}
    nodes |= {f"/brokers/ids/{number}": b"" for number in awake}
    return View(awake, dict.fromkeys(awake, told), {**nodes, **(more or {})})


def told(changed: View, number: int, **fields: Any) -> View:
    """Return a cluster in which one broker tells something else of the partition."""
    before = changed.told[number]
    part = before.partitions[PLACE]._replace(**fields)
    return replace(changed, told={**changed.told, number: before._replace(partitions={PLACE: part})})


DELETION = {"/admin/delete_topics/s.a": b""}


@pytest.mark.parametrize(
    ("found", "is_at_rest"),
    [
        (view(), True),
        (view({"isr": [1]}), False),
        (view({"isr": [1]}, awake=(1, 3)), True),
        (view(awake=(1, 3)), False),
        (view({"leader": 2, "isr": [2]}, awake=(1, 3)), False),
        (view({"leader": -1, "isr": [2]}, awake=(1, 3)), True),
        (told(view(), 3, epoch=3), False),
        (told(view(), 2, leader=2), False),
        (view(topic={"adding_replicas": {"0": [2]}}), False),
        (view({"isr": [1]}, {"adding_replicas": {"0": [2]}}, awake=(1, 3)), True),
        (view(more=DELETION), False),
        (view({"isr": [1]}, awake=(1, 3), more=DELETION), True),
    ],
)
def test_a_cluster_is_at_rest_when_nothing_more_will_happen(found: View, *, is_at_rest: bool) -> None:
    assert (unrest(found, ["s.a"]) == "") is is_at_rest, unrest(found, ["s.a"])


def test_brokers_that_know_of_others_are_not_at_rest() -> None:
    found = view()
    lone = found.told[1]._replace(brokers=(1, 2))
    assert "lists brokers" in unrest(replace(found, told={**found.told, 1: lone}), [])
    gone = {path: data for path, data in found.nodes.items() if path != "/brokers/ids/2"}
    assert "are registered" in unrest(replace(found, nodes=gone), [])
    other = found.told[1]._replace(controller=2)
    assert "different controllers" in unrest(replace(found, told={**found.told, 1: other}), [])


def test_each_name_counts_and_unrest_stands_for_all() -> None:
    assert differences({"a": 1, "b": 2}, {"a": 1, "c": 2}) == {"b": (2, None), "c": (None, 2)}
    assert differences({UNREST: "why"}, {"a": 1}) == {UNREST: ("why", None)}


def test_nodes_are_compared_without_clocks_ids_and_fields_of_ours() -> None:
    kafka = {"version": 3, "topic_id": "x", "partitions": {"0": [1, 2]}, "adding_replicas": {}}
    ours = {**kafka, "topic_id": "y", "leaving_replicas": {"0": [3]}}
    assert plain(json.dumps(kafka).encode()) == plain(json.dumps(ours).encode())
    assert plain(b'{"isr":[2,1],"leader_epoch":4}') == plain(b'{"isr":[1,2],"leader_epoch":5}')
    assert plain(b'{"partitions":{"0":[1,2]}}') != plain(b'{"partitions":{"0":[2,1]}}')
    assert plain(b"7") != plain(b"8")


def test_batches_are_told_with_the_rank_of_their_epoch() -> None:
    def written(first: int, second: int) -> bytes:
        rows = ((0, first, b"x"), (1, second, b"y"))
        return b"".join(
            encode_batch([Record(at, 1, None, value)], base_offset=at, leader_epoch=epoch)
            for at, epoch, value in rows
        )

    assert batches(written(0, 2)) == batches(written(1, 9)) == [[0, 0, ["x"]], [1, 1, ["y"]]]
    assert batches(written(0, 0)) != batches(written(0, 2))


def test_a_documented_difference_is_known_only_where_it_is_documented() -> None:
    rise = Met("kill 1", "a-0 epoch rise", 2, 1)
    assert known_difference(rise) == ""
    assert known_difference(rise._replace(step="kill 1, the controller")) != ""
    moved = rise._replace(before=["reassign a-0 to [1, 2]"])
    assert known_difference(moved) == "leader epochs of a reassignment"
    assert known_difference(moved._replace(kafka=1, ours=2)) == ""
    assert known_difference(moved._replace(what="b-0 epoch rise")) == ""


def test_deleted_records_may_be_back_where_some_were_deleted_and_nowhere_else() -> None:
    beside = {"a-0 log start": ([0, 0], [0, 2])}
    met = Met("start 3", "a-0 at 3", {}, {}, ["delete records of a-0 to 2"], beside)
    assert known_difference(met) == "deleted records after the kill of a replica"
    assert known_difference(met._replace(before=[])) == ""
    assert known_difference(met._replace(beside={"a-0 log start": ([0, 2], [0, 0])})) == ""
    assert known_difference(met._replace(what="b-0 at 3")) == ""


def test_a_deletion_may_wait_for_an_isr_of_two() -> None:
    met = Met("delete records of a-0 to 1", "outcome", ["NONE", 1], ["REQUEST_TIMED_OUT", 1])
    assert known_difference(met) == ""
    settings = ["set a min.insync.replicas=2"]
    assert known_difference(met._replace(before=settings)) != ""
    assert known_difference(met._replace(before=["set b min.insync.replicas=2"])) == ""


def test_an_isr_may_stay_only_until_the_first_member_is_back() -> None:
    told = Met("start 1, the first", "a-0 told isr", (3,), (2, 3))
    node = told._replace(
        what=f"node {STATE}", kafka={"isr": [3], "leader": -1}, ours={"isr": [2, 3], "leader": -1}
    )
    for met in (told, node):
        assert known_difference(met) == "the ISR of which no member is back"
        assert known_difference(met._replace(step="start 1")) == ""
        assert known_difference(met._replace(kafka=met.ours, ours=met.kafka)) == ""
    assert known_difference(node._replace(ours={"isr": [2, 3], "leader": 2})) == ""


def test_controllers_that_the_judge_has_called_for_do_not_count() -> None:
    side = Side("ours", cast("Servers", None), cast("KazooClient", None))
    found = view(more={"/controller_epoch": b"5"})
    assert elections(side, found) == 5
    side.depositions = 2
    assert elections(side, found) == 3


def test_each_known_difference_is_a_row_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/differences.md").read_text()
    section = page.partition("## Clusters")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")][1:]
    assert sorted(rows) == sorted(KNOWN)
    assert KNOWN.keys() >= PARTING


def test_a_seed_draws_one_story_in_which_all_brokers_come_back() -> None:
    for seed in map(str, range(50)):
        one, other = story(seed), story(seed)
        assert [each.name for each in one.steps] == [each.name for each in other.steps]
        assert not one.down
