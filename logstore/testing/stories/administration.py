"""Stories about what operators ask for: a reassignment whose target fails, a deletion with a dead broker.

The plans and states are the controller's (`Assignment`, `closing_state`, `Deletion`); the script carries them
out.
"""

from __future__ import annotations

from dataclasses import replace

from logstore.replication.controller import reassignment
from logstore.replication.controller.assignment import Assignment
from logstore.replication.controller.deletion import Deletion, Replica, ReplicaState
from logstore.replication.controller.election import Incarnation
from logstore.replication.messages import BEING_DELETED, NO_LEADER
from logstore.replication.metastore.layout import LeaderAndIsr, encode_reassignment
from logstore.testing.stage import TP, Stage
from logstore.testing.stories import rules
from logstore.testing.stories.scene import Scene
from logstore.testing.stories.telling import Story


def failed_target(scene: Scene) -> None:
    """Two replicas move to two other brokers, one of which never comes; then the plan is cancelled."""
    stage = scene.stage
    stage.state = replace(stage.state, replicas=_numbers(stage, "AB"))
    stage.elect("A", isr="AB", to="AB")
    scene.send("A", "m1", "m2")
    scene.follow("B")
    stage.kill("D")
    scene.show("A leads; A and B have m1 and m2. D's disk has failed; its broker is down.")
    plan = encode_reassignment({TP: _numbers(stage, "CD")}).decode()
    moving = Assignment(stage.state.replicas).reassign_to(_numbers(stage, "CD"), stage.state.isr)
    stage.state = replace(stage.state, replicas=moving.replicas)
    stage.elect("A", isr="AB", to="ABC")
    scene.show(f"An operator executes {plan}: all four are replicas now, in a new epoch.")
    if not _close(scene, moving):
        scene.follow("B", "C")
        scene.settle_isr()
        scene.show("C copies the log, and joins the ISR. D does not.")
        assert not _close(scene, moving), "D is not in sync"
        scene.send("A", "m3")
        scene.follow("B", "C")
        scene.show("The reassignment waits for D. Meanwhile A takes m3, as always.")
        back = moving.reassign_to(moving.origin)
        stage.state = replace(stage.state, replicas=back.target)
        stage.elect("A", isr="AB", to="AB")
        stage.stop_replica("C", leader_epoch=stage.state.leader_epoch)
        scene.follow("B")
        scene.show("The operator cancels it: A and B are the replicas again. C deletes its copy.")
        return
    scene.show("The plan is carried out at once: C leads, with nothing. A and B delete their copies.")
    scene.send("C", "m3", acks=1)
    scene.show("C takes m3 at offset 0.")


def _close(scene: Scene, moving: Assignment) -> bool:
    """End the reassignment if the controller's rule says so; the replicas that leave delete their logs."""
    stage = scene.stage
    live = {
        stage.number(name): Incarnation(stage.broker_epochs[stage.number(name)], clean=False)
        for name in stage.running()
    }
    before = stage.state
    known = LeaderAndIsr(
        before.leader,
        before.leader_epoch,
        before.isr,
        before.controller_epoch,
        tuple(stage.broker_epochs[each] for each in before.isr),
    )
    after = reassignment.closing_state(moving, known, live, (), before.controller_epoch)
    if after is None:
        return False
    stage.state = replace(before, replicas=moving.target)
    members = "".join(stage.names[each] for each in after.isr)
    stage.elect(stage.names[after.leader], isr=members, to="C")
    for each in moving.removing:
        stage.stop_replica(stage.names[each], leader_epoch=stage.state.leader_epoch)
    return True


def dead_broker(scene: Scene) -> None:
    """A topic is deleted while one of its brokers is down, and made anew under the same name."""
    stage = scene.stage
    stage.elect("A", isr="ABC")
    scene.send("A", "old1", "old2")
    scene.follow()
    scene.show("A leads; all have old1 and old2.")
    stage.kill("C")
    deletion = Deletion("", [Replica(TP, stage.number(name)) for name in stage.names])
    _delete(stage, deletion)
    scene.forget()
    scene.show(f"C dies, and the topic is deleted. A and B delete their logs. {_said(deletion)}")
    if deletion.is_complete:
        _create(stage, "AB")
        scene.send("A", "new1", "new2")
        scene.follow("B")
        scene.show("The topic is made anew, on A and B, then C. A takes new1 and new2.")
        stage.start("C")
        stage.tell("C")
        scene.follow()
        scene.settle_isr()
        scene.show(
            "C is back with its old log. Same name, same epoch: it goes on behind it, and joins the ISR."
        )
        return
    stage.start("C")
    deletion.retry(lambda replica: "")
    _delete(stage, deletion)
    scene.show(f"C is back, and deletes its log before anything else. {_said(deletion)}")
    assert deletion.is_complete
    _create(stage, "ABC")
    scene.send("A", "new1", "new2")
    scene.follow()
    scene.show("The topic is made anew. A takes new1 and new2; B and C copy them.")


def _delete(stage: Stage, deletion: Deletion) -> None:
    """Send the orders that are due, and take the confirmations."""
    stage.state = replace(stage.state, leader=NO_LEADER)
    told = deletion.start(lambda each: "" if stage.names[each.broker_id] in stage.running() else "not alive")
    for broker_id in told:
        stage.stop_replica(stage.names[broker_id], leader_epoch=BEING_DELETED)
        deletion.move(Replica(TP, broker_id), ReplicaState.SUCCESSFUL)


def _said(deletion: Deletion) -> str:
    return "The topic is gone." if deletion.is_complete else f"It waits for {deletion.awaited}."


def _create(stage: Stage, isr: str) -> None:
    """Write the first state of a new topic: its epochs begin anew."""
    stage.state = replace(stage.state, leader_epoch=-1, partition_epoch=-1)
    stage.elect("A", isr=isr)


def _numbers(stage: Stage, names: str) -> tuple[int, ...]:
    return tuple(map(stage.number, names))


STORIES = (
    Story(
        "failed-target",
        "A reassignment whose target fails",
        "the old replicas stay until every new one is in sync; until then the plan can be cancelled.",
        "a reassignment does not wait for the new replicas.",
        lambda _: Scene(Stage("ABCD")),
        failed_target,
        rules.reassignment_does_not_wait,
    ),
    Story(
        "deletion-with-a-dead-broker",
        "A topic is deleted while a broker is down",
        "a topic is gone, and its name free, when the broker of every replica has deleted its log.",
        "a topic is gone when the live brokers have deleted their logs.",
        lambda _: Scene(Stage("ABC")),
        dead_broker,
        rules.deletion_forgets_the_dead,
    ),
)
