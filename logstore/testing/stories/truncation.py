"""Stories about truncation: what leader epochs are for (KIP-101, KIP-279).

In each, A leads first and B follows. Records are called m1, m2 …, so m1 is at offset 0.
"""

from __future__ import annotations

from logstore.replication.config import NodeConfig
from logstore.testing.stage import Stage
from logstore.testing.stories import rules
from logstore.testing.stories.scene import Scene
from logstore.testing.stories.telling import Story

_EPOCHS = "a follower asks the leader where its last epoch ends, and truncates there (KIP-101)."
_WATERMARK = "a follower truncates to its own high watermark, as before KIP-101."


def _two(_: bool) -> Scene:
    return Scene(Stage("AB"))


def _asking() -> NodeConfig:
    return NodeConfig(node_id=0, replica_fetch_wait_max_ms=0, truncate_on_fetch=False)


def lost_record(scene: Scene) -> None:
    """A record that everybody had is lost because its follower restarts and its leader dies."""
    stage = scene.stage
    stage.elect("A", isr="AB")
    scene.send("A", "m1")
    stage.fetch("B")
    scene.show("A takes m1, and B's first fetch copies it.")
    stage.fetch("B", answer=False)
    scene.show("B's second fetch says that it has m1, and A acknowledges m1. The answer is still on its way.")
    stage.kill("B")
    stage.start("B")
    stage.tell("B")
    scene.show("B restarts, and follows A again.")
    stage.kill("A")
    scene.show("A dies before B fetched again.")
    stage.elect("B", isr="B")
    scene.show("B is elected.")
    stage.start("A")
    stage.tell("A")
    scene.follow("A")
    scene.show("A is back, follows B and fetches.")


def diverging_replicas(scene: Scene) -> None:
    """Both lose power; the one that lost its tail leads, and writes another record at that offset."""
    stage = scene.stage
    stage.elect("A", isr="AB")
    scene.send("A", "m1")
    scene.follow("B")
    stage.log("B").flush()
    stage.checkpoint("B")
    scene.show("A and B have m1, and B has it on its disk.")
    scene.send("A", "m2", acks=1)
    stage.fetch("B")
    stage.fetch("B", answer=False)
    stage.log("A").flush()
    stage.checkpoint("A")
    scene.show("B copies m2 into memory and says so. A's HW is 2; A has m2 and its HW on its disk.")
    stage.power_cut("A")
    stage.power_cut("B")
    scene.show("Both lose power.")
    stage.start("B")
    stage.elect("B", isr="B")
    scene.show("B is up first, without m2, and is elected.")
    scene.send("B", "m2'", acks=1)
    scene.show("B takes m2' where m2 was.")
    stage.start("A")
    stage.tell("A")
    scene.follow("A")
    scene.show("A is back, follows B and fetches.")
    scene.send("B", "m3", acks=1)
    scene.follow("A")
    scene.show("B takes m3, and A copies it.")


def leader_epochs(scene: Scene) -> None:
    """A's epoch 1 ended at B where B's epoch 2 began: A drops what it wrote after that."""
    stage = scene.stage
    stage.elect("A", isr="AB")
    scene.send("A", "m1", "m2", "m3", "m4", acks=1)
    scene.follow("B")
    stage.log("B").flush()
    scene.send("A", "m5", "m6", acks=1)
    stage.fetch("B")
    stage.fetch("B", answer=False)
    stage.log("A").flush()
    stage.checkpoint("A")
    stage.power_cut("B")
    stage.start("B")
    scene.show("A leads epoch 1 with m1 to m6. B has m1 to m4: a power cut took m5 and m6 from its memory.")
    stage.kill("A")
    stage.elect("B", isr="B")
    scene.send("B", "m5'", "m6'", "m7'", acks=1)
    scene.show("A dies. B leads epoch 2, and writes m5', m6' and m7'.")
    stage.start("A")
    stage.tell("A")
    scene.show("A is back, and hears that B leads.")
    stage.fetch("A")
    scene.show("A's first exchange with B.")
    scene.follow("A")
    scene.show("A fetches on.")


def fast_leader_change(scene: Scene) -> None:
    """B led epoch 2 for a moment. A never heard of it, so its answer must say which epoch it speaks of."""
    stage = scene.stage
    stage.elect("A", isr="AB")
    scene.send("A", "m1", "m2", acks=1)
    scene.follow("B")
    scene.send("A", "m3", "m4", acks=1)
    scene.show("A leads epoch 1. B has not fetched m3 and m4 yet.")
    stage.elect("B", isr="AB", to="B")
    scene.send("B", "m3'", acks=1)
    scene.show("B leads epoch 2 for a moment, and takes m3'. A does not hear of it.")
    stage.elect("A", isr="AB", to="A")
    scene.send("A", "m5", acks=1)
    scene.show("A leads again, in epoch 3, and takes m5.")
    stage.tell("B")
    stage.fetch("B")
    scene.show("B follows A, and asks where epoch 2 ends. A knows nothing of it: epoch 1 ends at 4 for A.")
    scene.follow("B")
    scene.show("B fetches on.")


STORIES = (
    Story(
        "lost-record",
        "Truncation to the high watermark loses a record",
        _EPOCHS,
        _WATERMARK,
        _two,
        lost_record,
        rules.without_leader_epochs,
    ),
    Story(
        "diverging-replicas",
        "Truncation to the high watermark makes replicas diverge",
        _EPOCHS,
        _WATERMARK,
        _two,
        diverging_replicas,
        rules.without_leader_epochs,
    ),
    Story(
        "leader-epochs",
        "Leader epochs say where two histories part",
        _EPOCHS,
        _WATERMARK,
        lambda _: Scene(Stage("AB", first_epoch=1)),
        leader_epochs,
        rules.without_leader_epochs,
    ),
    Story(
        "fast-leader-change",
        "An end offset counts for the epoch it is of",
        "the leader's answer names its epoch, and the follower looks up where it left that one (KIP-279).",
        "the follower looks at the end offset only, as between KIP-101 and KIP-279.",
        # As before Kafka 2.7: a follower asks for the end of its epoch before it fetches.
        lambda _: Scene(Stage("AB", first_epoch=1, config=_asking())),
        fast_leader_change,
        rules.without_epochs_in_answers,
    ),
)
