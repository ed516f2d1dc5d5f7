"""Failure schedules over a network that repeats itself: every message between nodes arrives more than once.

A test named for a schedule (`test_s12_…`) runs as written, and again with each of these networks:

    twice   each request, answer and controller request arrives twice in a row
    late    a copy of each arrives after later messages; the remaining copies after the end

The result must not change: transcripts and assertions are the same, and copies that arrive after the end
change no log, no high watermark and no state. Requests of clients are not repeated (a second produce is a
second record), nor are messages that a script holds back or loses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.controller import Controller
from logstore.replication.driver import InProcessCluster
from logstore.replication.effects import Address, Effect, Event, Peer, Request, Response, Send
from logstore.replication.in_process import Envelope, Links
from logstore.replication.messages import (
    AlterPartitionResult,
    LeaderAndIsrRequest,
    RequestBody,
    ResponseBody,
    UpdateMetadataRequest,
)
from logstore.testing.stage import Message, Stage
from tests.replication.controller.world import Member, World

LATER = 7
"""After how many later messages a late copy comes, on a network that delivers by itself."""


class Network(Enum):
    """How often a message arrives."""

    ONCE = "once"
    TWICE = "twice"
    LATE = "late"


class Copies:
    """Second deliveries, while the fixture lasts; `finish` delivers the rest."""

    def __init__(self, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_late = network is Network.LATE
        self.count = 0
        """how many copies were delivered"""
        self._left: dict[Stage, list[Callable[[], object]]] = {}
        self._backlogs: dict[Links, deque[tuple[Envelope, int]]] = {}
        self._clusters: dict[Links, InProcessCluster] = {}
        self._worlds: dict[World, deque[Callable[[], None]]] = {}
        self._on_stages(monkeypatch)
        self._on_clusters(monkeypatch)
        self._on_worlds(monkeypatch)

    # --- a stage: the script delivers -----------------------------------------------------------

    def _on_stages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        deliver, ask, answer_isr = Stage.deliver, Stage._ask, Stage.answer_isr

        def deliver_again(stage: Stage, message: Message) -> None:
            deliver(stage, message)
            self._copy(stage, lambda: deliver(stage, message))

        def ask_again(
            stage: Stage, number: int, body: LeaderAndIsrRequest | UpdateMetadataRequest
        ) -> ResponseBody:
            response = ask(stage, number, body)
            self._copy(stage, lambda: stage.managers[number] and ask(stage, number, body))
            return response

        def answer_again(stage: Stage, message: Message, result: AlterPartitionResult) -> None:
            answer_isr(stage, message, result)
            self._copy(stage, lambda: stage.managers[message.source] and answer_isr(stage, message, result))

        monkeypatch.setattr(Stage, "deliver", deliver_again)
        monkeypatch.setattr(Stage, "_ask", ask_again)
        monkeypatch.setattr(Stage, "answer_isr", answer_again)

    def _copy(self, stage: Stage, delivery: Callable[[], object]) -> None:
        if self.is_late:
            self._left.setdefault(stage, []).append(delivery)
        else:
            self.count += 1
            delivery()

    # --- a cluster: its queue delivers ----------------------------------------------------------

    def _on_clusters(self, monkeypatch: pytest.MonkeyPatch) -> None:
        post, make = Links.post, InProcessCluster.__init__

        def remember(cluster: InProcessCluster, *args: Any, **settings: Any) -> None:
            make(cluster, *args, **settings)
            self._clusters[cluster._links] = cluster

        def post_again(links: Links, source: int | None, target: int, event: Event) -> None:
            length = len(links.queue)
            post(links, source, target, event)
            if source is None or not isinstance(event, Request | Response) or len(links.queue) == length:
                return
            envelope = links.queue[-1]
            if not self.is_late:
                self.count += 1
                links.queue.append(envelope)
                return
            backlog = self._backlogs.setdefault(links, deque())
            backlog.append((envelope, links.slots[source].life))
            if len(backlog) > LATER:
                self._release(links, backlog)

        monkeypatch.setattr(Links, "post", post_again)
        monkeypatch.setattr(InProcessCluster, "__init__", remember)

    def _release(self, links: Links, backlog: deque[tuple[Envelope, int]]) -> None:
        envelope, life = backlog.popleft()
        assert envelope.source is not None
        if links.slots[envelope.source].life == life:  # a connection does not outlive its process
            self.count += 1
            links.queue.append(envelope)

    # --- controllers alone: `send_request` delivers ---------------------------------------------

    def _on_worlds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        send_request, on_request = World.send_request, Controller.on_request
        asked: dict[Controller, tuple[Address, RequestBody]] = {}

        def send_again(
            world: World, broker_id: int, *, lose: bool = False, lose_answer: bool = False
        ) -> Send:
            send = send_request(world, broker_id, lose=lose, lose_answer=lose_answer)
            if lose or (self.is_late and isinstance(send.body, UpdateMetadataRequest)):
                return send  # brokers that only answer do not know an old update: real ones do
            backlog = self._worlds.setdefault(world, deque())
            backlog.append(partial(self._send, world, broker_id, world.members[broker_id], send, lose_answer))
            if len(backlog) > (LATER if self.is_late else 0):
                backlog.popleft()()
            return send

        def asked_again(
            controller: Controller, address: Address, body: RequestBody, now_ms: int
        ) -> list[Effect]:
            effects = on_request(controller, address, body, now_ms)
            if isinstance(address, Peer):
                again = asked.get(controller, (address, body)) if self.is_late else (address, body)
                asked[controller] = address, body
                self.count += 1
                effects = effects + on_request(controller, *again, now_ms)
            return effects

        monkeypatch.setattr(World, "send_request", send_again)
        monkeypatch.setattr(Controller, "on_request", asked_again)

    def _send(self, world: World, broker_id: int, sender: Member, send: Send, lose_answer: bool) -> None:
        target = world.members[send.target]
        if not target.running or not sender.running or world.members[broker_id] is not sender:
            return
        self.count += 1
        answer = target.broker.serve(send.body)
        if not lose_answer:
            effects = sender.controller.on_response(send.target, send.correlation_id, answer, world.now_ms)
            world.perform(sender, effects)

    # --- the end --------------------------------------------------------------------------------

    def finish(self) -> None:
        """Deliver the remaining copies, and check that they change nothing."""
        for stage, left in self._left.items():
            before = picture_of_stage(stage)
            for delivery in left:
                self.count += 1
                delivery()
            for message in list(stage.wire):
                if not message.is_request:
                    stage.deliver(message)
            assert picture_of_stage(stage) == before
        for links, backlog in list(self._backlogs.items()):
            cluster = self._clusters[links]
            cluster.settle()
            before = picture_of_cluster(cluster)
            while backlog:
                self._release(links, backlog)
            cluster.settle()
            assert picture_of_cluster(cluster) == before
        for world, thunks in list(self._worlds.items()):
            world.run(for_ms=0)
            roles = picture_of_world(world)
            while thunks:
                thunks.popleft()()
            world.run(for_ms=0)
            assert picture_of_world(world) == roles


def picture_of_stage(stage: Stage) -> Any:
    logs = [each.logs() if each is not None else {} for each in stage.logs]
    return [stage.picture(name) for name in stage.names], [
        {key: (log.partition.epochs, [record.value for record in log.read()]) for key, log in found.items()}
        for found in logs
    ]


def picture_of_cluster(cluster: InProcessCluster) -> Any:
    def of(node_id: int, key: TopicPartition) -> Any:
        log = cluster.nodes[node_id].logs.logs()[key]
        return log.partition.epochs, log.log_end_offset, [record.value for record in log.read()]

    logs = [(node_id, key) for node_id, node in cluster.nodes.items() for key in node.logs.logs()]
    return {each: of(*each) for each in logs}


def picture_of_world(world: World) -> Any:
    return {each: world.state(each.partition, each.topic) for each in world.partitions()}, {
        broker_id: dict(member.broker.states) for broker_id, member in world.members.items() if member.running
    }
