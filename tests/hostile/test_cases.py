"""What strangers send, case by case, to one broker that has to live through all of it.

After each case: what had to come of it came; the broker runs and no handler of its failed; a connection
that was there before produces and fetches what it produced; memory stayed below the case's bound.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from logstore.broker.limits import LONGEST_WAIT_MS
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.codec import decode
from logstore.broker.wire.headers import decode_response_header
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch, walk
from logstore.format.record import Record
from tests.broker.asking import Asker
from tests.broker.nodes import Nodes
from tests.hostile import make_cases
from tests.hostile.casefiles import DIRECTORY, Case, errors_of, load, text_of

LONGEST_S: Final = 60
FOR_EVER: Final = {"retention.ms": "-1"}
"""The records' times are fixed, and this process's clock is not."""
TOPICS: Final[dict[str, dict[str, str]]] = {
    "t": FOR_EVER,
    "spare": FOR_EVER,
    "idle": FOR_EVER,
    "compacted": {"cleanup.policy": "compact"},
    "plain": FOR_EVER | {"compression.type": "uncompressed"},
    "witness": FOR_EVER,
}
CASES: Final = {
    f"{path.stem}: {case.name}": case for path in sorted(DIRECTORY.glob("*.json")) for case in load(path)
}


class Bench:
    """A broker with a few topics, a witness that was connected before, and one loop for all of it."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.nodes, self.witness = self.runner.run(self._start())
        self._produced = 0

    async def _start(self) -> tuple[Nodes, Asker]:
        nodes = await Nodes(1).__aenter__()
        await nodes.until(
            lambda: nodes.controller() >= 0 and bool(nodes.running[0].node.replicas.metadata.brokers)
        )
        witness = await Asker(nodes.addresses[0], "witness").__aenter__()
        topics = [
            t.CreateTopicsRequestCreatableTopic(
                name=name,
                num_partitions=1,
                replication_factor=1,
                configs=[
                    t.CreateTopicsRequestCreatableTopicConfig(name=key, value=value)
                    for key, value in each.items()
                ],
            )
            for name, each in TOPICS.items()
        ]
        made = await witness.ask(t.CreateTopicsRequest(topics=topics, timeout_ms=10_000), 5)
        assert not any(each.error_code for each in made.topics), made
        wanted = t.FindCoordinatorRequest(key="any", key_type=0)
        while (await witness.ask(wanted, 3)).error_code:
            await asyncio.sleep(0.01)
        known = t.HeartbeatRequest(group_id="any", generation_id=1, member_id="x")
        for group in ("any", "hostile", "alone", "blob", "nowhere", "nobody", ""):
            known.group_id = group
            while (await witness.ask(known, 3)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                await asyncio.sleep(0.01)
        await nodes.until(lambda: all(nodes.leader(TopicPartition(name, 0)) == 0 for name in TOPICS))
        return nodes, witness

    def close(self) -> None:
        self.runner.run(self.witness.__aexit__())
        self.runner.run(self.nodes.__aexit__(None))
        self.runner.close()

    def run(self, case: Case) -> list[Any]:
        return self.runner.run(self._bounded(case))

    async def _bounded(self, case: Case) -> list[Any]:
        async with asyncio.timeout(LONGEST_S):
            found = await self._outcome(case)
            await self._check_others()
            return found

    async def _outcome(self, case: Case) -> list[Any]:
        """What came of it, in the terms of `expect`."""
        found: list[Any] = []
        data = case.data
        async with Asker(self.nodes.addresses[0]) as stranger:
            for at in range(0, len(data), case.piece or len(data) or 1):
                stranger.send_bytes(data[at : at + (case.piece or len(data))])
                await asyncio.sleep(0)
            for expected in case.expect:
                found.append(await self._step(expected, stranger))
        return found

    async def _step(self, expected: Any, stranger: Asker) -> Any:
        if isinstance(expected, dict):
            api, version = APIS[expected["api"]], expected["version"]
            try:
                frame = memoryview(await stranger.answer_bytes())
            except (asyncio.IncompleteReadError, ConnectionResetError):
                return "closed"
            _, at = decode_response_header(frame, api, version)
            answer, size = decode(api.response, version, frame[at:])
            assert at + size == len(frame), "nothing follows an answer of ours"
            return {**expected, "errors": errors_of(answer, version)}
        if expected == "closed":
            return "closed" if await stranger.is_cut_off() else "an answer"
        if expected == "nothing":
            return "nothing" if await self._is_served(stranger) else "closed"
        # Whoever is asked in the meantime is answered; this one is not, and is not hung up on.
        for _ in range(3):
            await self.witness.ask(t.ApiVersionsRequest(), 0)
        return "closed or answered" if await stranger.has_news() else "waiting"

    async def _is_served(self, client: Asker) -> bool:
        try:
            answer = await client.ask(t.ApiVersionsRequest(), 0)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return False
        return not answer.error_code

    async def _check_others(self) -> None:
        """The witness is served, and served right."""
        assert not self.nodes.running[0].ended.done(), "the broker has ended"
        self._produced += 1
        value = b"%d" % self._produced
        part = t.ProduceRequestPartitionProduceData(
            index=0, records=encode_batch([Record(0, 1, None, value)])
        )
        topic = t.ProduceRequestTopicProduceData(name="witness", partition_data=[part])
        answer = await self.witness.ask(t.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic]), 9)
        produced = answer.responses[0].partition_responses[0]
        assert (produced.error_code, produced.base_offset) == (0, self._produced - 1)
        wanted = t.FetchRequestFetchPartition(
            partition=0, fetch_offset=produced.base_offset, partition_max_bytes=4096
        )
        asked = t.FetchRequestFetchTopic(topic="witness", partitions=[wanted])
        got = await self.witness.ask(
            t.FetchRequest(max_wait_ms=5_000, min_bytes=1, max_bytes=4096, topics=[asked]), 12
        )
        assert got.responses[0].partitions[0].error_code == 0
        records = [
            each.value for batch in walk(got.responses[0].partitions[0].records) for each in batch.records()
        ]
        assert records == [value]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


class Memory:
    """How far this process grows above what it has now."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        except OSError:
            pass  # then only what passes every earlier peak is seen
        self._before_kib = self._peak_kib()

    @staticmethod
    def _peak_kib() -> int:
        try:
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0])
        except (OSError, IndexError):
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def grown_mib(self) -> float:
        return (self._peak_kib() - self._before_kib) / 1024


@pytest.mark.parametrize("name", CASES)
def test_a_stranger_gets_what_is_due_and_nobody_else_notices(
    name: str, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES[name]
    memory = Memory()
    with caplog.at_level(logging.ERROR):
        found = bench.run(case)
    assert found == case.expect, case.why
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert memory.grown_mib() < case.memory_mib


def test_a_wait_of_24_days_is_bounded_and_ends_with_its_connection() -> None:
    case = next(case for name, case in CASES.items() if "within 24 days" in name)
    bench = Bench()

    async def waits_and_leaves() -> int:
        fetches = bench.nodes.running[0].node.replicas.waiting.fetches
        async with Asker(bench.nodes.addresses[0]) as stranger:
            stranger.send_bytes(case.data)
            assert not await stranger.has_news()
            while (deadline_ms := fetches.deadline_ms) is None:
                await bench.witness.ask(t.ApiVersionsRequest(), 0)
        while fetches.deadline_ms is not None:
            await bench.witness.ask(t.ApiVersionsRequest(), 0)
        return deadline_ms

    try:
        deadline_ms = bench.runner.run(waits_and_leaves())
        assert deadline_ms <= bench.nodes.running[0].now_ms() + LONGEST_WAIT_MS
    finally:
        bench.close()


def test_there_are_cases_of_every_class() -> None:
    """At least 110 in all, none twice, and no class that has only a few."""
    classes = [name.partition(":")[0] for name in CASES]
    assert set(classes) == set(make_cases.CLASSES)
    assert len(CASES) >= 110
    assert all(classes.count(each) >= 10 for each in classes)


@pytest.mark.parametrize("name", make_cases.CLASSES)
def test_the_files_are_those_that_the_script_writes(name: str) -> None:
    """Who adds a case adds it to the script, so that the next one can be made like it."""
    about, make = make_cases.CLASSES[name]
    written = load(DIRECTORY / f"{name}.json")
    made = list(make())
    assert [case.name for case in made] == [case.name for case in written]
    for ours, theirs in zip(made, written, strict=True):
        assert (ours.expect, ours.why) == (theirs.expect, theirs.why), ours.name
        # Another release of a codec's library may write other bytes for the same.
        assert name in ("batches", "compression") or ours.data == theirs.data, ours.name
    assert len({case.name for case in made}) == len(made)
    assert text_of(about, written[:1]).startswith('{"about": ')
