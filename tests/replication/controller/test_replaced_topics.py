"""A topic to be deleted that somebody replaces in the store, at any step of its deletion."""

from __future__ import annotations

from itertools import count

from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Get
from tests.replication.controller.test_topic_deletion import context_of, made, nodes, replace, request


def test_the_new_one_goes_too_as_the_request_stands() -> None:
    """Also once every replica is confirmed and the nodes are about to go: the request outlives that."""
    for steps in count():
        world = made()
        request(world)
        for _ in range(steps):
            if not world._one_step():
                break
        if world.admin(Get(layout.delete_topic_path("t"))).stat is None:
            assert steps > 20, "the enumeration ended before the deletion did"
            return
        replace(world, keeps_request=True)
        world.run()
        assert nodes(world) == [], f"replaced after {steps} steps"
        assert "t" not in {*context_of(world).deletions, *context_of(world).topics}
