"""What handlers of requests may use: the engine and what this broker knows, and nothing of its sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from random import Random
from typing import Any, ParamSpec, TypeVar

from logstore.broker.call import Call
from logstore.broker.errors import MalformedMessage
from logstore.broker.groups.coordinator import OFFSETS_TOPIC
from logstore.broker.groups.requests import GroupRequest, GroupResponse
from logstore.broker.groups.service import GroupService
from logstore.broker.metrics import Traffic
from logstore.broker.producer_ids import ProducerIds
from logstore.broker.runtime import CLIENT, Asked, Runtime
from logstore.broker.settings import Settings
from logstore.broker.store_session import StoreSession
from logstore.broker.topic_creation import TopicCreation
from logstore.broker.wire.declarations import Struct
from logstore.replication.messages import NewTopic, RequestBody, ResponseBody
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.node import Node

P = ParamSpec("P")
T = TypeVar("T")


class Services:
    """One for all handlers of a broker. Everything here belongs to the event loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        served: Collection[int],
        *,
        cluster_id: str,
        store: StoreSession,
        random: Random,
    ) -> None:
        """`served` are the keys of the APIs that have a handler; `store` stays the caller's to close."""
        self.runtime, self.settings, self.served = runtime, settings, served
        self.cluster_id = cluster_id
        self.ask_store = store.ask
        self.topic_creation = TopicCreation(runtime.ask_controller)
        self.producer_ids = ProducerIds(runtime.node.node_id, store.ask, random)
        self.groups = GroupService(runtime, settings.groups, ask_store=store.ask, random=random)
        self.traffic = Traffic()
        self._tasks: set[asyncio.Task[Struct]] = set()

    @property
    def node(self) -> Node:
        return self.runtime.node

    @property
    def metadata(self) -> MetadataCache:
        """What this broker last heard of the whole cluster."""
        return self.runtime.node.replicas.metadata

    def now_ms(self) -> int:
        return self.runtime.now_ms()

    def ask(
        self,
        call: Call,
        body: RequestBody,
        then: Callable[[ResponseBody], Struct | None],
        *,
        source: int = CLIENT,
        number: int = 0,
    ) -> None:
        """Put a request to the engine; what `then` makes of its answer is the call's (None: later).

        `then` may be called at once or much later, or never: the call is then cut off. `source` and `number`
        are of a request that another node made.
        """

        def answered(answer: ResponseBody | None) -> None:
            if answer is None:
                call.end()
                return
            finish(call, then, answer)

        self.runtime.ask(body, Asked(answered, call.refuse), source=source, number=number)

    def ask_group(self, call: Call, request: GroupRequest, then: Callable[[GroupResponse], Struct]) -> None:
        """Put a request to the group coordinator; what `then` makes of its answer is the call's."""

        def answered(answer: GroupResponse) -> None:
            finish(call, then, answer)

        self.groups.ask(request, answered, call.refuse)

    def want_offsets_topic(self) -> None:
        """Have `__consumer_offsets` made, as the groups' settings say."""
        config = self.settings.groups
        topic = NewTopic(
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            configs=config.topic_settings,
        )
        self.topic_creation.want(topic)

    def begin(self, call: Call, work: Coroutine[Any, Any, Struct]) -> None:
        """Do something for a call that waits for others, the store say; its result is the answer."""

        def done(task: asyncio.Task[Struct]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                finish(call, task.result)

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(done)

    def in_thread(self, call: Call, work: Callable[[], T], then: Callable[[T], Struct | None]) -> None:
        """Do what may wait for a disk on a thread; what `then` makes of it, here again, is the call's."""

        def done(future: asyncio.Future[T]) -> None:
            if not future.cancelled():
                finish(call, lambda: then(future.result()))

        self.runtime.in_thread(work).add_done_callback(done)

    def later(self, call: Call, delay_ms: int, then: Callable[[], Struct | None]) -> asyncio.TimerHandle:
        """Do something for a call after a while."""
        loop = asyncio.get_running_loop()
        return loop.call_later(delay_ms / 1000, finish, call, then)


def finish(call: Call, then: Callable[P, Struct | None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Answer with what `then` gives, if anything. A bug in it costs the client its connection, no more."""
    try:
        response = then(*args, **kwargs)
    except MalformedMessage as error:
        call.refuse(str(error))
    except Exception:
        call.fail("its handler failed")
    else:
        if response is not None:
            call.answer(response)
