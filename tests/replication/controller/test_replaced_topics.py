"""A topic to be deleted that somebody replaces in the store, at any step of its deletion."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Get
from tests.replication.controller.test_topic_deletion import context_of, made, nodes, replace, request
from tests.replication.controller.world import World


def at_every_step() -> Iterator[tuple[int, World]]:
    """Worlds in which the deletion has come so far, and the number of steps."""
    for steps in count():
        world = made()
        request(world)
        for _ in range(steps):
            if not world._one_step():
                break
        if world.admin(Get(layout.delete_topic_path("t"))).stat is None:
            assert steps > 20, "the enumeration ended before the deletion did"
            return
        yield steps, world


def test_the_new_one_goes_too_if_the_request_stands() -> None:
    """Also once every replica is confirmed and the nodes are about to go: the request outlives that."""
    for steps, world in at_every_step():
        replace(world, keeps_request=True)
        world.run()
        assert nodes(world) == [], f"replaced after {steps} steps"
        assert "t" not in {*context_of(world).deletions, *context_of(world).topics}


def test_the_new_one_stays_if_its_request_is_gone() -> None:
    """The controller may have read the request before, and meet the new topic when it is about to begin."""
    for steps, world in at_every_step():
        other = replace(world, keeps_request=False)
        world.run()
        assert nodes(world), f"replaced after {steps} steps"
        assert [world.view(partition)[0] for partition in other.partitions] == [3, 4, 3]
        assert context_of(world).topics["t"].topic_id == other.topic_id
        assert "t" not in context_of(world).deletions
