"""A text that is no plain number, or has thousands of digits, ends in the error of its parser: no trace."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import cast

import pytest
import typer

from logstore.broker.configs import _count, _rate
from logstore.broker.limits import _overrides, parse_address
from logstore.broker.security.config import _creation_rate
from logstore.cli.brokers import Brokers
from logstore.cli.cluster_state import Cluster, Topic
from logstore.cli.console.api import BadRequest, _number
from logstore.cli.group_resets import parsed, targets
from logstore.cli.merge_state_changes import partitions_wanted
from logstore.cli.operating import time_ms
from logstore.cli.security import _problems_of_settings
from logstore.cli.serve import _options
from logstore.cli.store_operator import own_min_isr
from logstore.cli.throttles import rates_in
from logstore.cli.why import parse_subject
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidConfig
from logstore.replication.metastore.layout import TopicAssignment
from logstore.spark.errors import InvalidOption
from logstore.spark.jobs.ingest import _write_id
from logstore.spark.jobs.job import BadUsage, milliseconds
from logstore.spark.offsets import parse_offsets
from logstore.spark.read_options import _duration_ms, number_option
from logstore.testing.__main__ import seeds_of


def _moved(text: str) -> object:
    where = TopicPartition("orders", 0)

    class OneLog:
        def offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
            return dict.fromkeys(wanted, 1)

    return targets(cast(Brokers, OneLog()), text, [where], {where: 1})


PARSERS: dict[str, tuple[Callable[[str], object], type[Exception]]] = {
    "a rate": (lambda text: _rate("name", text), InvalidConfig),
    "a count": (lambda text: _count("name", text), InvalidConfig),
    "connections of an address": (lambda text: list(_overrides(f"host:{text}")), InvalidConfig),
    "a port": (lambda text: parse_address(f"host:{text}"), ValueError),
    "connections a second": (lambda text: _creation_rate("plain", text), InvalidConfig),
    "a parameter of the console": (lambda text: _number({"n": text}, "n", 0), BadRequest),
    "partitions of a timeline": (lambda text: partitions_wanted(text, "orders"), typer.BadParameter),
    "a time": (lambda text: time_ms("--at", text), typer.BadParameter),
    "a node": (
        lambda text: _options({"node.id": text, "listen": "h:1", "log.dirs": "d"}, {}, {}),
        typer.BadParameter,
    ),
    "a throttle": (lambda text: rates_in({"rate": text}, ["rate"]), InvalidConfig),
    "a broker": (lambda text: parse_subject(["broker", text]), typer.BadParameter),
    "an offset for a group": (_moved, typer.BadParameter),
    "a shift for a group": (lambda text: _moved(f"+{text}"), typer.BadParameter),
    "a line of offsets": (lambda text: parsed(f"orders,0,{text}", ["g"]), ValueError),
    "the number of a write": (lambda text: _write_id(f"orders:{text}"), BadUsage),
    "a time for a job": (lambda text: milliseconds("--since", text), InvalidOption),
    "a partition for Spark": (
        lambda text: parse_offsets(f'{{"orders": {{"{text}": 1}}}}', "o"),
        InvalidOption,
    ),
    "an offset for Spark": (lambda text: parse_offsets(f'{{"orders": {{"0": {text}}}}}', "o"), InvalidOption),
    "a duration of Spark": (lambda text: _duration_ms("name", f"{text}s"), InvalidOption),
    "an option of Spark": (lambda text: number_option("name", text), InvalidOption),
    "seeds": (lambda text: seeds_of(f"1..{text}"), argparse.ArgumentTypeError),
}

WRONG = ["", "٣", "1_000", "1.5", "--1", "9" * 5000]


@pytest.mark.parametrize(
    "text", WRONG, ids=["none", "other digits", "underscore", "point", "signs", "too many"]
)
@pytest.mark.parametrize("parser", PARSERS)
def test_a_text_that_is_no_number(parser: str, text: str) -> None:
    parse, error = PARSERS[parser]
    with pytest.raises(error) as refused:
        parse(text)
    assert "Exceeds the limit" not in str(refused.value) or "JSON" in str(refused.value)


@pytest.mark.parametrize("text", WRONG)
def test_settings_of_others_that_are_no_numbers(text: str) -> None:
    """They are in the store, or in a file to be checked: one that is wrong is left out or told."""
    assert list(_problems_of_settings(text, {})) == [f"node.id: {text!r} is not a number, 0 or more"]
    topic = Topic(TopicAssignment("id", {0: (1,)}), {"min.insync.replicas": text}, -1, -1)
    assert own_min_isr(Cluster({}, {"orders": topic}, {}, 1)) == {}
