"""Consumer groups: who reads what, what is committed, and what administrators do about it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.interop.kit import Kit, refused, take, until, values, written
from tests.interop.seam import Commit, Consumer, Partition, Record, Refused

pytestmark = pytest.mark.interop

NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, GROUP_SUBSCRIBED_TO_TOPIC = 68, 69, 86
UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 25, 27
_TURN_S = 1.0


def _turn(*members: Consumer) -> list[Record]:
    """All poll once, as members in programs of their own do: rejoining and reading happen there.

    Not one after the other: kafka-python joins anew if a poll's time ends before it is told its partitions,
    and a group's leader that joins anew begins the next rebalance.
    """
    with ThreadPoolExecutor(len(members)) as threads:
        turns = threads.map(lambda member: member.poll(timeout_s=_TURN_S), members)
        return [record for records in turns for record in records]


def _until_shared(members: Sequence[Consumer], partitions: set[Partition]) -> list[Record]:
    """Until each member has something, and together they have all; what was read meanwhile."""
    found: list[Record] = []

    def is_shared() -> bool:
        found.extend(_turn(*members))
        parts = [member.assignment() for member in members]
        return all(parts) and sum(map(len, parts)) == len(partitions) and set().union(*parts) == partitions

    until(is_shared, f"{len(members)} members share {len(partitions)} partitions")
    return found


def _all_of(topic: str, count: int) -> set[Partition]:
    return {Partition(topic, number) for number in range(count)}


def test_subscribe(kit: Kit) -> None:
    topic = kit.topic(3)
    for number in range(3):
        kit.fill(topic, values(5, f"p{number}"), partition=number)
    member = kit.member(kit.name)
    member.subscribe(topic)
    found = take(member, 15)
    assert {each.value for each in found} == {each for n in range(3) for each in values(5, f"p{n}")}
    assert member.assignment() == _all_of(topic, 3)


def test_subscribe_to_several_topics(kit: Kit) -> None:
    topics = [kit.topic(), kit.topic()]
    for topic in topics:
        kit.fill(topic, [topic.encode()])
    member = kit.member(kit.name)
    member.subscribe(*topics)
    assert {each.partition.topic for each in take(member, 2)} == set(topics)


def test_subscribe_by_pattern(kit: Kit) -> None:
    topics = [kit.topic(), kit.topic()]
    for topic in topics:
        kit.fill(topic, [topic.encode()])
    member = kit.member(kit.name, {"metadata.max.age.ms": 1_000})
    member.subscribe_pattern(f"{kit.name}\\..*")
    assert {each.partition.topic for each in take(member, 2)} == set(topics)


def test_subscribe_to_another_topic(kit: Kit) -> None:
    first, second = kit.topic(), kit.topic()
    kit.fill(first, [b"1"])
    kit.fill(second, [b"2"])
    member = kit.member(kit.name)
    member.subscribe(first)
    assert written(take(member, 1)) == [b"1"]
    member.subscribe(second)
    assert written(take(member, 1)) == [b"2"]


def test_unsubscribe(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(3))
    member = kit.member(kit.name)
    member.subscribe(topic)
    take(member, 3)
    member.unsubscribe()
    until(lambda: not member.assignment(), "it has nothing any more")
    until(lambda: kit.admin.describe_group(kit.name).state == "empty", "the group is empty")


def test_commit(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    of = Partition(topic, 0)
    member = kit.member(kit.name, {"enable.auto.commit": False})
    member.subscribe(topic)
    take(member, 10)
    member.commit()
    assert member.committed(of) == 10
    assert kit.admin.group_offsets(kit.name, of) == {of: Commit(10)}


def test_commit_without_waiting(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    member = kit.member(kit.name, {"enable.auto.commit": False})
    member.subscribe(topic)
    take(member, 10)
    member.commit_later()

    def is_committed() -> bool:
        member.poll()
        return member.committed(Partition(topic, 0)) == 10

    until(is_committed, "it is committed")


def test_commit_by_itself(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    settings = {"enable.auto.commit": True, "auto.commit.interval.ms": 200}
    member = kit.member(kit.name, settings)
    member.subscribe(topic)
    take(member, 10)

    def is_committed() -> bool:
        member.poll()
        return member.committed(Partition(topic, 0)) == 10

    until(is_committed, "it is committed")


def test_commit_some_offset_with_metadata(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    of = Partition(topic, 0)
    member = kit.member(kit.name, {"enable.auto.commit": False})
    member.subscribe(topic)
    take(member, 10)
    member.commit({of: Commit(4, "written by größe")})
    assert kit.admin.group_offsets(kit.name, of) == {of: Commit(4, "written by größe")}


def test_commit_without_members(kit: Kit) -> None:
    """By one who is assigned partitions by hand, and uses the group for its offsets alone."""
    topic = kit.topic()
    kit.fill(topic, values(10))
    of = Partition(topic, 0)
    consumer = kit.consumer({"group.id": kit.name, "enable.auto.commit": False})
    consumer.assign(of)
    take(consumer, 10)
    consumer.commit({of: Commit(6)})
    consumer.close()
    other = kit.consumer({"group.id": kit.name, "enable.auto.commit": False})
    other.assign(of)
    assert [each.offset for each in take(other, 4)] == [6, 7, 8, 9]


def test_nothing_committed(kit: Kit) -> None:
    topic = kit.topic()
    member = kit.member(kit.name)
    member.subscribe(topic)
    member.poll()
    assert member.committed(Partition(topic, 0)) is None


def test_go_on_where_the_group_was(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    member = kit.member(kit.name, {"enable.auto.commit": False})
    member.subscribe(topic)
    take(member, 10)
    member.commit({Partition(topic, 0): Commit(7)})
    member.close()
    other = kit.member(kit.name)
    other.subscribe(topic)
    assert [each.offset for each in take(other, 3)] == [7, 8, 9]


def test_two_groups(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    for group in ("a", "b"):
        member = kit.member(f"{kit.name}-{group}")
        member.subscribe(topic)
        assert written(take(member, 10)) == values(10)


def test_rebalance_with_two_and_three_members(kit: Kit) -> None:
    topic = kit.topic(6)
    partitions = _all_of(topic, 6)
    members: list[Consumer] = []
    for _ in range(3):
        members.append(kit.member(kit.name))
        members[-1].subscribe(topic)
        _until_shared(members, partitions)
    for number in range(6):
        kit.fill(topic, values(5, f"p{number}"), partition=number)
    found: list[Record] = []

    def all_read() -> bool:
        found.extend(_turn(*members))
        return len({(each.partition, each.offset) for each in found}) == 30

    until(all_read, "the three read all there is")


def test_member_leaves(kit: Kit) -> None:
    topic = kit.topic(4)
    stays, leaves = kit.member(kit.name), kit.member(kit.name)
    for member in (stays, leaves):
        member.subscribe(topic)
    _until_shared([stays, leaves], _all_of(topic, 4))
    leaves.close()
    _until_shared([stays], _all_of(topic, 4))


def test_static_member_comes_back(kit: Kit) -> None:
    """Within its session's time, with what it had: nobody else is disturbed."""
    topic = kit.topic(4)
    settings = {"session.timeout.ms": 30_000}
    stays = kit.member(kit.name, {**settings, "group.instance.id": "one"})
    goes = kit.member(kit.name, {**settings, "group.instance.id": "two"})
    for member in (stays, goes):
        member.subscribe(topic)
    _until_shared([stays, goes], _all_of(topic, 4))
    had, kept = goes.assignment(), stays.assignment()
    goes.close()
    back = kit.member(kit.name, {**settings, "group.instance.id": "two"})
    back.subscribe(topic)

    def is_back() -> bool:
        _turn(stays, back)
        return back.assignment() == had

    until(is_back, "it has what it had")
    assert stays.assignment() == kept


def test_more_members_than_partitions(kit: Kit) -> None:
    topic = kit.topic(1)
    members = [kit.member(kit.name), kit.member(kit.name)]
    for member in members:
        member.subscribe(topic)

    def is_settled() -> bool:
        _turn(*members)
        found = kit.admin.describe_group(kit.name)
        return found.state == "stable" and len(found.members) == 2

    until(is_settled, "both are members")
    assert sorted(len(each) for each in kit.admin.describe_group(kit.name).members) == [0, 1]


def test_topic_grows_under_a_group(kit: Kit) -> None:
    topic = kit.topic(1)
    member = kit.member(kit.name, {"metadata.max.age.ms": 1_000})
    member.subscribe(topic)
    _until_shared([member], _all_of(topic, 1))
    kit.admin.create_partitions(topic, 3)
    _until_shared([member], _all_of(topic, 3))


def test_describe_group(kit: Kit) -> None:
    topic = kit.topic(2)
    member = kit.member(kit.name)
    member.subscribe(topic)
    _until_shared([member], _all_of(topic, 2))
    found = kit.admin.describe_group(kit.name)
    assert found.state == "stable"
    assert found.members == (frozenset(_all_of(topic, 2)),)
    member.close()
    until(lambda: kit.admin.describe_group(kit.name).state in ("empty", "dead"), "nobody is in it")


def test_describe_unknown_group(kit: Kit) -> None:
    found = kit.admin.describe_group(f"{kit.name}-nobody")
    assert (found.state, found.members) == ("dead", ())


def test_list_groups(kit: Kit) -> None:
    topic = kit.topic()
    member = kit.member(kit.name)
    member.subscribe(topic)
    _until_shared([member], _all_of(topic, 1))
    until(lambda: kit.name in kit.admin.groups(), "its coordinator lists it")


def _committed_group(kit: Kit) -> Partition:
    """An empty group with a commit at 5 of 10."""
    topic = kit.topic()
    kit.fill(topic, values(10))
    of = Partition(topic, 0)
    consumer = kit.consumer({"group.id": kit.name, "enable.auto.commit": False})
    consumer.assign(of)
    take(consumer, 10)
    consumer.commit({of: Commit(5)})
    consumer.close()
    return of


def test_delete_group(kit: Kit) -> None:
    of = _committed_group(kit)
    kit.admin.delete_group(kit.name)
    assert kit.name not in kit.admin.groups()
    assert kit.admin.group_offsets(kit.name, of)[of].offset == -1


def test_delete_group_with_members(kit: Kit) -> None:
    topic = kit.topic()
    member = kit.member(kit.name)
    member.subscribe(topic)
    _until_shared([member], _all_of(topic, 1))
    with refused(NON_EMPTY_GROUP):
        kit.admin.delete_group(kit.name)


def test_delete_unknown_group(kit: Kit) -> None:
    with refused(GROUP_ID_NOT_FOUND):
        kit.admin.delete_group(f"{kit.name}-nobody")


def test_all_offsets_of_a_group(kit: Kit) -> None:
    of = _committed_group(kit)
    assert kit.admin.group_offsets(kit.name) == {of: Commit(5)}


def test_alter_group_offsets(kit: Kit) -> None:
    of = _committed_group(kit)
    kit.admin.alter_group_offset(kit.name, of, 2)
    member = kit.member(kit.name)
    member.subscribe(of.topic)
    assert [each.offset for each in take(member, 8)] == list(range(2, 10))


def test_alter_group_offsets_with_members(kit: Kit) -> None:
    topic = kit.topic()
    member = kit.member(kit.name)
    member.subscribe(topic)
    _until_shared([member], _all_of(topic, 1))
    with refused(UNKNOWN_MEMBER_ID):
        kit.admin.alter_group_offset(kit.name, Partition(topic, 0), 2)


def test_delete_group_offsets(kit: Kit) -> None:
    of = _committed_group(kit)
    kit.admin.delete_group_offset(kit.name, of)
    assert kit.admin.group_offsets(kit.name, of)[of].offset == -1


def test_delete_group_offsets_of_a_subscribed_topic(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(3))
    member = kit.member(kit.name)
    member.subscribe(topic)
    take(member, 3)
    member.commit()
    with refused(GROUP_SUBSCRIBED_TO_TOPIC):
        kit.admin.delete_group_offset(kit.name, Partition(topic, 0))


def test_coordinator_moves(kit: Kit) -> None:
    """Whichever broker it is: each is stopped once; the group goes on, and keeps its offsets."""
    topic = kit.topic()
    of = Partition(topic, 0)
    member = kit.member(kit.name, {"enable.auto.commit": False})
    member.subscribe(topic)
    for turn, broker in enumerate(kit.cluster.brokers):
        kit.cluster.stop(broker)
        try:
            kit.fill(topic, [b"%d" % turn])
            assert written(take(member, 1)) == [b"%d" % turn]

            def is_committed(wanted: int = turn + 1) -> bool:
                # While the group moves, a commit may be refused: again then.
                with suppress(Refused):
                    member.commit({of: Commit(wanted)})
                    return member.committed(of) == wanted
                member.poll()
                return False

            until(is_committed, "the commit is taken by the new coordinator")
        finally:
            kit.cluster.start(broker)
        kit.until_ready(topic)
