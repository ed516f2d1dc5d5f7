"""The story of eight brokers: where leaderships go, and how they come back.

It plays on a whole cluster (`InProcessCluster`): its controller elects and moves. The article's text has two
leaders that no order of replicas gives; here the first live replica in the ISR leads, in the order of the
list.
"""

from __future__ import annotations

from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.driver import InProcessCluster
from logstore.replication.messages import ElectionType, ElectLeadersRequest, NewTopic
from logstore.replication.metastore.layout import encode_partitions, encode_reassignment
from logstore.testing.stories.board import Board, Seat
from logstore.testing.stories.scene import Outcome, Step
from logstore.testing.stories.telling import Story

_BROKERS = range(1, 9)
_TOPIC = "topic1"
_PARTITIONS = [TopicPartition(_TOPIC, number) for number in range(8)]


def _replicas(partition: int) -> tuple[int, ...]:
    """Three brokers: the one of the partition, then the second and the third behind it."""
    return tuple((partition + step) % 8 + 1 for step in (0, 2, 3))


class ClusterScene:
    """A cluster, and the steps shown so far. Without `elects` nobody asks for preferred leaders."""

    def __init__(self, *, elects: bool) -> None:
        settled = ControllerConfig(auto_leader_rebalance_enable=False)
        self.elects = elects
        self.steps: list[Step] = []
        self._idle: tuple[str, ...] = ()
        self.cluster = InProcessCluster(
            [NodeConfig(node_id=number, controller=settled) for number in _BROKERS],
            disk_of=lambda _: MemoryDisk(),
        )
        self.cluster.start()
        lists = tuple(map(_replicas, range(8)))
        self.cluster.create_topic(NewTopic(_TOPIC, assignment=lists))

    def show(self, text: str) -> None:
        """Wait until all is quiet, and take a picture under the sentence `text`."""
        self.cluster.advance(20_000)
        self.steps.append(Step(text, self._board()))

    def elect(self) -> None:
        """Ask for preferred leaders of all partitions."""
        request = ElectLeadersRequest(ElectionType.PREFERRED, tuple(_PARTITIONS))
        self.cluster.administer(request)

    def outcome(self) -> Outcome:
        """Return which brokers lead nothing after all came back."""
        return Outcome(idle=self._idle)

    def judge(self) -> None:
        """Note the brokers that lead nothing now."""
        self._idle = self._board().idle

    def _board(self) -> Board:
        controller = next(
            node.controller for node in self.cluster.nodes.values() if node.controller.is_active
        )
        context = controller.context
        assert context is not None, "it is active"
        states = {each: context.states[each].state for each in _PARTITIONS}
        return Board(
            tuple(
                Seat(
                    str(broker),
                    broker in self.cluster.nodes,
                    tuple(_name(each) for each in _PARTITIONS if states[each].leader == broker),
                    tuple(
                        _name(each)
                        for each in _PARTITIONS
                        if broker in states[each].isr and states[each].leader != broker
                    ),
                )
                for broker in _BROKERS
            ),
            tuple((_name(each), str(context.replicas[each][0])) for each in _PARTITIONS),
        )


def _name(each: TopicPartition) -> str:
    return f"P{each.partition}"


def eight_brokers(scene: ClusterScene) -> None:
    """Three of eight brokers stop and come back; elections of preferred leaders; a reassignment."""
    cluster = scene.cluster
    scene.show("topic1 has 8 partitions on 8 brokers: each leads one.")
    for broker in (1, 2, 4):
        cluster.kill_node(broker, expire_session=True)
        cluster.advance(1_000)
    scene.show("Brokers 1, 2 and 4 stop. The next replicas in sync lead.")
    cluster.start_node(1)
    scene.show("Broker 1 is back, and in sync. It leads nothing.")
    node = encode_partitions(_PARTITIONS[:2]).decode().replace("}]}", "}, …]}")
    if scene.elects:
        scene.elect()
        scene.show(f"An election of preferred leaders, {node}: broker 1 leads P0 again.")
    for broker in (2, 4):
        cluster.start_node(broker)
    scene.show("Brokers 2 and 4 are back. Nothing moves by itself.")
    if scene.elects:
        scene.elect()
        scene.show("Another election of preferred leaders: each leads one.")
    scene.judge()
    target = {each: tuple(4 + (each.partition + step) % 4 for step in range(3)) for each in _PARTITIONS}
    plan = encode_reassignment({each: target[each] for each in _PARTITIONS[:1]}).decode()
    for each, replicas in target.items():
        cluster.reassign(each, replicas)
    plan = plan.replace("}]}", "}, …]}")
    scene.show(f"All move to the brokers 4 to 7 by the plan {plan}.")


STORIES = (
    Story(
        "eight-brokers",
        "Leaderships leave brokers that stop, and come back when asked to",
        "an election of preferred leaders gives each broker its leaderships back, where it is in sync.",
        "nobody asks for an election of preferred leaders (auto.leader.rebalance.enable=false).",
        lambda is_on: ClusterScene(elects=is_on),
        eight_brokers,
    ),
)
