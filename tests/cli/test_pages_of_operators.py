"""Pages for operators: each command that names brokers is run as it stands, on three brokers in one process.

The commands that start or stop processes, and those that log in, are run by `tests/deploy` and `tests/cli`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logstore.broker import BlockingClient, BrokerCluster
from tests.cli.conftest import Outcome
from tests.test_page_commands import command_words, commands_of_blocks

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("operators.md", "configuration.md", "security.md")
NO = {
    "brokers move-log": "LOG_DIR_NOT_FOUND (57)",
    "transactions abort": "no open transaction that starts at",
}
"""Verbs whose answer is no: these brokers have no /disks/b/kafka, and orders-0 has no transaction."""
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": "1",
}


def commands() -> Iterator[str]:
    for page in PAGES:
        for command in commands_of_blocks(DOCS / page):
            if "--bootstrap" in command and "--command-config" not in command:
                yield command


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Three brokers with the topic `orders`."""
    with BrokerCluster(3, settings=SETTINGS) as running:
        with BlockingClient(running.bootstrap.split(",")) as client:
            client.create_topic("orders", partitions=2, replication_factor=3)
            client.append("orders", [b"one", b"two"], partition=0)
        yield running.bootstrap


def test_commands_in_the_order_of_the_pages(
    command: Callable[..., Outcome], bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read = command("groups", "reset", "billing", "orders", "--to", "latest", "--bootstrap", bootstrap)
    assert read.code == 0, read
    found = list(commands())
    assert len(found) >= 25
    for line in found:
        words = command_words(line)
        words[words.index("--bootstrap") + 1] = bootstrap
        words += ["--count", "1"] if "--interval" in words else []
        ended = command(*words)
        no = NO.get(" ".join(words[:2]))
        assert ended.code == (no is not None), (line, ended)
        assert (no or "") in ended.err, (line, ended)
        if ">" in line:
            (tmp_path / line.partition("> ")[2].strip()).write_text(ended.out)
