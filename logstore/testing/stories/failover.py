"""A story about controllers: one stalls in the middle of an election, and wakes up after it was replaced."""

from __future__ import annotations

from dataclasses import replace

from logstore.testing.stage import Stage
from logstore.testing.stories import rules
from logstore.testing.stories.scene import Scene
from logstore.testing.stories.telling import Story


def controller_failover(scene: Scene) -> None:
    """The next controller finishes the election from the store alone; an order of the former one is late."""
    stage = scene.stage
    stage.elect("A", isr="ABC")
    scene.send("A", "m1")
    scene.follow()
    scene.show("A leads; all have m1. Controller 1 is in charge.")
    stage.kill("A")
    scene.elect(to="B")
    scene.send("B", "m2")
    scene.show("A dies. Controller 1 writes that B leads, tells B, and stalls. B takes m2; C waits for A.")
    late = replace(
        stage.state,
        leader=stage.number("C"),
        leader_epoch=stage.state.leader_epoch + 1,
        partition_epoch=stage.state.partition_epoch + 1,
    )
    stage.replace_controller()
    for name in stage.running():
        stage.tell(name)
    scene.follow()
    scene.show("Controller 2 reads the store, and tells everybody. C follows B; m2 is committed.")
    stage.tell_state("C", late)
    scene.show("Controller 1 wakes up, and sends C an order that it had prepared: lead epoch 2.")
    scene.send("C", "m3'", acks=1)
    scene.send("B", "m3", acks=1)
    scene.follow()
    scene.show("One client sends m3' to C, another sends m3 to B.")


STORIES = (
    Story(
        "controller-failover",
        "A controller is replaced in the middle of an election",
        "a broker refuses orders with a smaller controller epoch: STALE_CONTROLLER_EPOCH (11).",
        "a broker obeys every order.",
        lambda _: Scene(Stage("ABC")),
        controller_failover,
        rules.former_controller_obeyed,
    ),
)
