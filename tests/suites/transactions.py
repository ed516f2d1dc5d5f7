"""Apache Kafka's `kafka-transactions.sh` against brokers of ours. Runs after the checks of `tools.py`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from logstore import Log, Record, encode_batch
from tests.suites.tools import TOOLS, Check, Tools

_TRANSACTIONS: Final = f"{TOOLS}.TransactionsCommand"
_HANGS: Final = "hangs"
_HOUR_MS: Final = 3_600_000


def transactions_describe_producers(tools: Tools) -> None:
    """The performance tool's producer is idempotent: `acks=all`."""
    of_partition = ("describe-producers", "--topic", "console", "--partition", "0")
    said = tools.ask(_TRANSACTIONS, *of_partition)
    assert said.startswith("ProducerId\tProducerEpoch\tLatestCoordinatorEpoch\tLastSequence"), said
    rows = [row.split() for row in said.splitlines() if row[:1].isdecimal()]
    assert rows, said
    assert all(int(row[3]) >= 0 and row[5] == "None" for row in rows), said


def transactions_list(tools: Tools) -> None:
    """None is coordinated here: the heads of the columns alone."""
    said = tools.ask(_TRANSACTIONS, "list")
    assert [row.split()[0] for row in said.splitlines() if "\t" in row] == ["TransactionalId"], said


def transactions_describe(tools: Tools) -> None:
    said = tools.ask(_TRANSACTIONS, "describe", "--transactional-id", "mine", code=1)
    assert "Failed to describe transaction state of transactional-id `mine`" in said, said


def _hanging(tools: Tools, *where: str) -> list[list[str]]:
    """Return topic, partition, producer id, epochs and start offset of each hanging transaction."""
    said = tools.ask(_TRANSACTIONS, "find-hanging", *where)
    head, *rows = [row.split() for row in said.splitlines() if row.startswith((_HANGS, "Topic"))]
    assert head[:3] == ["Topic", "Partition", "ProducerId"], said
    return [row[:6] for row in rows]


def transactions_find_hanging(tools: Tools) -> None:
    """Written to a broker's directory while it is stopped, as a directory of Apache Kafka may hold them."""
    tools.topics("--create", "--topic", _HANGS, "--replica-assignment", "0")
    assert _hanging(tools, "--topic", _HANGS) == []
    tools.cluster.stop(0)
    (directory,) = (each for root in tools.cluster.log_dirs[0] for each in Path(root).glob(f"{_HANGS}-0"))
    now_ms = int(time.time() * 1000)
    with Log.open(directory) as log:
        for producer_id in (7, 8):
            log.append_batches(
                encode_batch(
                    [Record(0, now_ms - _HOUR_MS, None, b"of %d" % producer_id)],
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=0,
                    is_transactional=True,
                )
            )
        log.append(b"plain")
    tools.cluster.start(0)
    tools.until(lambda: tools.cluster.knows(_HANGS, 1), "the return of the leader")
    expected = [[_HANGS, "0", "7", "0", "-1", "0"], [_HANGS, "0", "8", "0", "-1", "1"]]
    assert sorted(_hanging(tools, "--topic", _HANGS)) == expected
    assert sorted(_hanging(tools, "--broker-id", "0")) == expected
    assert _hanging(tools, "--topic", _HANGS, "--max-transaction-timeout", "120") == []


def transactions_abort(tools: Tools) -> None:
    """By start offset; by the producer, as for brokers before 3.0; and what is not open."""
    abort = ("abort", "--topic", _HANGS, "--partition", "0")
    tools.ask(_TRANSACTIONS, *abort, "--start-offset", "0")
    assert _hanging(tools, "--topic", _HANGS) == [[_HANGS, "0", "8", "0", "-1", "1"]]
    said = tools.ask(_TRANSACTIONS, *abort, "--start-offset", "0", code=1)
    assert "Could not find any open transactions starting at offset 0" in said, said
    producer = ("--producer-id", "8", "--producer-epoch", "0", "--coordinator-epoch", "-1")
    tools.ask(_TRANSACTIONS, *abort, *producer)
    assert _hanging(tools, "--topic", _HANGS) == []
    said = tools.ask(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--topic", _HANGS, "--from-beginning", "--isolation-level", "read_committed"),
        *("--max-messages", "1", "--timeout-ms", "60000"),
    )
    assert [row for row in said.splitlines() if row in ("of 7", "of 8", "plain")] == ["plain"], said
    fenced = ("--producer-id", "8", "--producer-epoch", "0", "--coordinator-epoch", "5")
    tools.ask(_TRANSACTIONS, *abort, *fenced)
    said = tools.ask(_TRANSACTIONS, *abort, *producer, code=1)
    assert "has been fenced by the active coordinator" in said, said


CHECKS: Final[list[Check]] = [
    transactions_describe_producers,
    transactions_list,
    transactions_describe,
    transactions_find_hanging,
    transactions_abort,
]
