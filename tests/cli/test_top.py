"""`logstore top`: what a line says, and the command against brokers that answer and one that does not."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from logstore.broker import Broker
from logstore.broker.http import HttpServer
from logstore.broker.http_access import HttpAccess, read_http
from logstore.broker.limits import Address
from logstore.broker.metrics import Watched, page
from logstore.cli.top import Row, Scrape, lags, read, row, table
from tests.cli.conftest import Outcome
from tests.zookeeper import free_port

Command = Callable[..., Outcome]
LEADS = "kafka_controller_kafkacontroller_activecontrollercount"
BYTES = "kafka_server_brokertopicmetrics_bytesin_total"


def test_rates_are_between_two_scrapes_and_a_restart_begins_at_0() -> None:
    before, now = Scrape(10.0, {LEADS: 0, BYTES: 100}), Scrape(12.0, {LEADS: 1, BYTES: 500})
    found = row("one:1", before, now)
    assert (found.state, found.bytes_in, found.leaders) == ("controller", 200.0, None)
    assert row("one:1", now, replace(before, at_s=13.0)).bytes_in == 0.0
    assert row("one:1", None, now).bytes_in is None
    assert row("one:1", before, "timed out") == Row("one:1", "down", reason="timed out")
    assert row("one:1", None, Scrape(1.0, {})).state == "loading"


def test_lag_is_of_the_leaders_ends_and_the_coordinators_offsets() -> None:
    watched = 'kafka_topic_partition_current_offset{topic="t",partition="%d"} %d\n'
    committed = 'kafka_consumergroup_current_offset{consumergroup="%s",topic="t",partition="%d"} %d\n'
    one = read(watched % (0, 10), 0.0)
    two = read(watched % (1, 7) + committed % ("a", 0, 4) + committed % ("a", 1, 7), 0.0)
    three = read(committed % ("b", 1, 0) + committed % ("gone", 9, 5), 0.0)
    assert lags([one, two, three]) == [("b", 7), ("a", 6), ("gone", 0)]


def test_lag_without_the_leader_is_what_the_coordinator_says() -> None:
    labels = '{consumergroup="a",topic="t",partition="%d"} %d\n'
    committed, lag = (f"kafka_consumergroup_{each}{labels}" for each in ("current_offset", "lag"))
    watched = 'kafka_topic_partition_current_offset{topic="t",partition="1"} 9\n'
    told = committed % (0, 4) + lag % (0, 6) + committed % (1, 5) + lag % (1, 1)
    assert lags([read(told, 0.0)]) == [("a", 7)]
    assert lags([read(told, 0.0), read(watched, 0.0)]) == [("a", 10)]  # the leader knows its end best


def test_a_table_has_every_broker_and_the_largest_lags() -> None:
    told = io.StringIO()
    rows = [
        Row("one:1", "up", 3, 0, 1, 1_234_567.0, 0.0, 12.0, 5.0, 0.25, 0.012, 2e8, 5e13),
        Row("two:1", "down", reason="timed out"),
    ]
    console = Console(file=told, width=200)
    console.print(table(rows, [(f"g{number}", 100 - number) for number in range(12)]))
    text = told.getvalue()
    assert all(
        each in text for each in ("1.23M", "25%", "12ms", "200M", "50T", "two:1 is down: timed out", "g0 100")
    )
    assert "and 2 groups more" in text


def test_the_names_of_brokers_give_way_on_a_narrow_terminal() -> None:
    told = io.StringIO()
    name = "https://three.example.org:9644"
    row = Row(name, "controller", 3, 0, 1, 1_234_567.0, 123_456.0, 12.0, 5.0, 0.25, 0.012, 2e8, 78.9e9)
    Console(file=told, width=72).print(table([row], []))
    text = told.getvalue()
    assert all(each in text for each in ("leads", "<repl", "pause", "1.23M", "123K", "12ms", "78.9G"))
    assert name in "".join(line.split(" ")[0] for line in text.splitlines()[1:])


@contextmanager
def answering(access: HttpAccess | None = None) -> Iterator[str]:
    """The HTTP port of a broker, in a thread; yields its name."""
    name, ends, known = list[str](), threading.Event(), threading.Event()

    async def serve() -> None:
        watched = Watched()
        watched.traffic.bytes_in["orders"] += 500
        server = HttpServer(Address("127.0.0.1", 0), {"/metrics": lambda: page(watched)}, access=access)
        name.append(server.name)
        known.set()
        while not ends.is_set():
            await asyncio.sleep(0.005)
        await asyncio.to_thread(server.close)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert known.wait(30)
        yield name[0]
    finally:
        ends.set()
        thread.join()


def test_one_that_answers_and_one_that_does_not(command: Command) -> None:
    with answering() as there:
        gone = f"127.0.0.1:{free_port()}"
        outcome = command("top", there, gone, "--once", "--interval", "0.1", "--json")
        assert outcome.code == 0
        first, second = map(json.loads, outcome.out.splitlines())
        assert (first["broker"], first["state"], first["bytes_in"]) == (there, "loading", 0.0)
        assert (second["broker"], second["state"], second["bytes_in"]) == (gone, "down", None)
        assert "Connection refused" in command("top", there, gone, "--once", "--interval", "0.1").out
        assert command("top", gone, "--once", "--interval", "0.1").code == 1
    for interval in ("inf", "nan", "1e10"):
        assert command("top", gone, "--once", "--interval", interval).code == 2


def test_the_listener_of_clients_is_no_place_for_metrics(command: Command) -> None:
    with Broker() as broker:
        outcome = command("top", broker.bootstrap, "--once", "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["reason"].endswith(
        "name the address of --http, not the listener of clients"
    )


def test_one_with_tls_and_a_password(command: Command, tmp_path: Path) -> None:
    command("certs", tmp_path)
    login = {"http.basic.user": "me", "http.basic.password": "hush"}
    own = {"ssl.keystore.location": str(tmp_path / "broker.pem")}
    trusting = f"ssl.truststore.location={tmp_path / 'ca.pem'}\n"
    config = tmp_path / "http.properties"
    with answering(HttpAccess(read_http(login, own, is_tls=True))) as there:
        for more, code in (("http.basic.user=me\nhttp.basic.password=hush\n", 0), ("", 1)):
            config.write_text(trusting + more)
            options = ("--once", "--interval", "0.1", "--command-config", config)
            assert command("top", there, *options).code == code


@pytest.mark.parametrize("bad", ["nowhere", "host:port"])
def test_a_wrong_address_is_refused(command: Command, bad: str) -> None:
    outcome = command("top", bad, "--once")
    assert outcome.code == 2
    assert bad in outcome.err


def test_a_password_is_not_sent_in_plain(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "http.properties"
    config.write_text("http.basic.user=ann\nhttp.basic.password=ann-secret\n")
    done = command("top", "broker.example:8080", "--once", "--command-config", config)
    assert done.code == 2
    assert "the password would be sent in plain" in done.err
