"""Stories about the in-sync replicas: who counts, who may lead, and what a client is promised.

A is the preferred replica. Elections follow the controller's rules (`election.offline_leader`,
`election.preferred_leader`).
"""

from __future__ import annotations

from logstore.replication.config import NodeConfig
from logstore.replication.partition import ACKS_ALL
from logstore.testing.stage import Stage
from logstore.testing.stories import rules
from logstore.testing.stories.scene import Scene
from logstore.testing.stories.telling import Story

_LAG_MS = 10_000
_LOOK_MS = _LAG_MS // 2
"""How often a leader looks at its followers."""
_LAG_RECORDS = 4


def leader_and_isr_die(scene: Scene) -> None:
    """The last member of the ISR dies, and another replica is back first."""
    stage = scene.stage
    stage.elect("A", isr="ABC")
    scene.send("A", "m1")
    scene.follow("B", "C")
    scene.show("A leads; all have m1.")
    stage.kill("C")
    scene.elect()
    stage.kill("B")
    scene.elect()
    scene.send("A", "m2")
    scene.show("C dies, then B. A is the ISR, and acknowledges m2 alone.")
    stage.kill("A")
    scene.elect()
    scene.show("A dies.")
    stage.start("C")
    scene.hear("C")
    scene.show("C is back, without m2.")
    stage.start("A")
    scene.hear("A")
    scene.follow()
    scene.settle_isr()
    scene.show("A is back. One leads, the other fetches.")


def cp_or_ap(scene: Scene) -> None:
    """The leader dies with a record that nobody has copied; then a majority is gone."""
    stage = scene.stage
    stage.elect("A", isr="ABCD")
    scene.send("A", "m1", "m2", "m3")
    scene.follow("B", "C", "D")
    scene.show("A leads; all have m1, m2 and m3.")
    scene.send("A", "m4")
    scene.show("A takes m4. Nobody has copied it yet.")
    stage.kill("A")
    scene.elect()
    scene.show("A dies, and B is elected.")
    scene.send_again("B")
    scene.follow("C", "D")
    scene.show("The producer sends again what was not acknowledged.")
    stage.kill("C")
    scene.elect()
    stage.kill("D")
    scene.elect()
    scene.send("B", "m5")
    scene.show("C and D die: B is alone. A client sends m5.")


def slow_by_time(scene: Scene) -> None:
    """A follower is silent for longer than `replica.lag.time.max.ms`."""
    stage = scene.stage
    stage.elect("A", isr="ABC")
    scene.send("A", "m1")
    scene.follow("B", "C")
    scene.show("A leads; all have m1.")
    scene.send("A", "m2")
    scene.follow("B")
    scene.show("B copies m2; C is silent. m2 waits for it.")
    stage.advance(_LOOK_MS)
    scene.follow("B")
    stage.advance(_LOOK_MS)
    scene.follow("B")
    scene.settle_isr()
    scene.show("10 s later: not longer than replica.lag.time.max.ms.")
    stage.advance(_LOOK_MS)
    scene.settle_isr()
    scene.follow("B")
    scene.show("A looks again, 5 s later.")
    if not scene.outcome().unanswered:
        scene.follow("C")
        scene.settle_isr()
        scene.show("C fetches again, and is at the leader's HW.")


def slow_by_count(scene: Scene) -> None:
    """A follower fetches all the time, and is more than `replica.lag.max.messages` behind."""
    stage = scene.stage
    stage.elect("A", isr="ABC")
    scene.send("A", "m1")
    scene.follow("B", "C")
    scene.show("A leads; all have m1.")
    scene.send("A", "m2", "m3", "m4", "m5")
    answer = stage.fetch("C", answer=False)
    scene.follow("B")
    stage.advance(_LOOK_MS)
    scene.settle_isr()
    scene.show("A takes four records. B copies them; the answer to C's fetch is slow. C is 4 behind.")
    scene.send("A", "m6")
    scene.follow("B")
    stage.advance(_LOOK_MS)
    scene.settle_isr()
    scene.follow("B")
    scene.show(
        "A takes m6: C is 5 behind. It counts while it may be about to join: it was at the end 10 s ago."
    )
    stage.advance(_LOOK_MS)
    scene.settle_isr()
    scene.follow("B")
    scene.show("5 s later.")
    if answer is not None and not scene.outcome().unanswered:
        stage.deliver(answer)
        scene.follow("C")
        scene.settle_isr()
        scene.show("C gets its answer, and fetches on.")


def stale_log(scene: Scene) -> None:
    """The preferred replica is back with an old log, and a tail that nobody copied."""
    stage = scene.stage
    stage.elect("A", isr="ABC")
    scene.send("A", "m1")
    scene.follow("B", "C")
    scene.send("A", "x")
    scene.show("A leads; all have m1. Nobody has copied x yet.")
    stage.kill("A")
    scene.elect()
    scene.follow("C")
    scene.send("B", "m2", "m3")
    scene.follow("C")
    scene.show("A dies. B leads, and commits m2 and m3 with C.")
    stage.start("A")
    stage.tell("A")
    scene.show("A is back, and hears that B leads.")
    scene.elect_preferred()
    scene.show("An election of preferred leaders.")
    scene.follow()
    scene.settle_isr()
    scene.show("The followers fetch.")
    scene.elect_preferred()
    scene.follow()
    scene.show("Another election of preferred leaders.")


def _with_lag(*, messages: int = -1) -> Scene:
    config = NodeConfig(
        node_id=0,
        replica_fetch_wait_max_ms=0,
        replica_lag_time_max_ms=_LAG_MS,
        replica_lag_max_messages=messages,
    )
    return Scene(Stage("ABC", config=config))


def _recipe(is_cp: bool) -> Scene:
    stage = Stage("ABCD", min_insync=3 if is_cp else 1)
    return Scene(stage, acks=ACKS_ALL if is_cp else 1)


STORIES = (
    Story(
        "leader-and-isr-die",
        "A leader dies with its ISR",
        "unclean.leader.election.enable=false: only members of the ISR lead.",
        "unclean.leader.election.enable=true: any live replica leads if no member of the ISR lives.",
        lambda is_on: Scene(Stage("ABC"), unclean=not is_on),
        leader_and_isr_die,
    ),
    Story(
        "slow-by-time",
        "A silent follower holds the high watermark back",
        "a follower leaves the ISR if it was not at the leader's end for replica.lag.time.max.ms (10 s).",
        "nobody leaves the ISR.",
        lambda _: _with_lag(),
        slow_by_time,
        rules.nobody_leaves_the_isr,
    ),
    Story(
        "slow-by-count",
        "A slow follower holds the high watermark back",
        "a follower leaves the ISR if it is more than replica.lag.max.messages (4 here) behind (Kafka 0.8).",
        "nobody leaves the ISR.",
        lambda _: _with_lag(messages=_LAG_RECORDS),
        slow_by_count,
        rules.nobody_leaves_the_isr,
    ),
    Story(
        "cp-or-ap",
        "A consistent recipe and an available one",
        "acks=all, min.insync.replicas=3 of 4: nothing acknowledged is lost, and fewer than 3 take nothing.",
        "acks=1, min.insync.replicas=1: any leader takes records, and what only it had is lost with it.",
        _recipe,
        cp_or_ap,
    ),
    Story(
        "stale-log",
        "A broker is back with a stale log",
        "the preferred replica leads again only when it is in the ISR.",
        "the preferred replica leads as soon as it is back.",
        lambda _: Scene(Stage("ABC")),
        stale_log,
        rules.preferred_leads_at_once,
    ),
)
