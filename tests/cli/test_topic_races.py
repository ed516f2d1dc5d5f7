"""`logstore topics create --if-not-exists` beside another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import logstore.cli.operating
from logstore.broker.errors import RequestRefused
from logstore.cli import topics
from logstore.cli.cluster_state import Cluster, Topic
from logstore.disk.errors import ErrorCode
from logstore.replication.metastore.layout import TopicAssignment
from tests.cli.conftest import Outcome


class Raced:
    """A cluster in which another command creates the topic; the broker asked hears of it after some reads."""

    def __init__(self, reads: int) -> None:
        self._left = reads

    def read(self, *_: object, **__: object) -> Cluster:
        self._left -= 1
        there = {"t": Topic(TopicAssignment("id", {0: (1,)}), {}, 0, -1)}
        return Cluster({}, there if self._left < 0 else {}, {}, 1)

    def create(self, *_: object) -> str:
        raise RequestRefused(ErrorCode.TOPIC_ALREADY_EXISTS, "topic t: topic 't' exists")


@pytest.mark.parametrize(("options", "code"), [(["--if-not-exists", "--json"], 0), ([], 1)])
def test_the_slower_one_of_two_finds_the_topic(
    command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, options: list[str], code: int
) -> None:
    @contextmanager
    def operator(*_: object) -> Iterator[Raced]:
        yield Raced(4)

    monkeypatch.setattr(topics, "operator", operator)
    monkeypatch.setattr(logstore.cli.operating, "pause", lambda: None)
    ended = command("topics", "create", "t", "--bootstrap", "one:1", *options)
    assert ended.code == code
    assert ended.out == ("" if code else '{"topic": "t", "topic_id": "id", "is_done": null}\n')
