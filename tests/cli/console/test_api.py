"""The JSON API over three real brokers: what it answers, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore.broker import BrokerCluster
from logstore.broker.http import Asked
from logstore.broker.limits import Address
from logstore.broker.settings import read_settings
from logstore.cli.console import ConsoleOptions, api, open_console
from logstore.cli.console.api import Permits
from logstore.cli.console.console import is_secured
from logstore.cli.console.peers import Peer
from logstore.cli.console.site import ConsoleSite
from logstore.cli.operating import wait_until
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.state_change import Side, StateChange, format_line

HERE = Address("127.0.0.1", 0)
PATIENCE_S = 60


class Console:
    """A console without a port."""

    def __init__(self, site: ConsoleSite) -> None:
        self.site = site

    def get(self, path: str, **given: object) -> Any:
        query = "&".join(f"{name}={value}" for name, value in given.items())
        return self._answer("GET", path, query, b"", {})

    def anew(self, path: str, **given: object) -> Any:
        """Ask, and have the cluster read again first."""
        self.site._api._watch.forget()
        return self.get(path, **given)

    def post(self, path: str, body: object) -> Any:
        return self._answer("POST", path, "", json.dumps(body).encode(), {"content-type": "application/json"})

    def _answer(self, method: str, path: str, query: str, body: bytes, headers: dict[str, str]) -> Any:
        found = self.site.answer(Asked(method, path, query, {"host": "127.0.0.1", **headers}, body))
        facts = json.loads(found.content)
        return facts if found.status == 200 else (int(found.status), facts["error"])


def opened(cluster: BrokerCluster, node_id: int = 1, **options: Any) -> Console:
    broker = cluster.brokers[node_id]._client._running
    return Console(open_console(broker, ConsoleOptions(HERE, **options)))


@pytest.fixture(scope="module")
def cluster() -> Iterator[BrokerCluster]:
    with BrokerCluster(3) as running:
        running.create_topic("orders", 2, settings={"retention.ms": "7200000"})
        running.append("orders", [b'{"total": 7}', b"plain \xff", b"x" * 5000], partition=0)
        yield running


@pytest.fixture(scope="module")
def console(cluster: BrokerCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    path = tmp_path_factory.mktemp("console") / "state-changes"
    path.write_text("".join(f"{format_line(change)}\n" for change in CHANGES))
    found = opened(cluster, may_change=True, state_changes=str(path))
    yield found
    found.site.close()


def change(time_ms: int, side: Side, what: str, partition: int = 0) -> StateChange:
    return StateChange(
        time_ms=time_ms,
        node_id=1,
        side=side,
        controller_epoch=1,
        topic_partition=TopicPartition("orders", partition),
        change=what,
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        isr=(1, 2),
        replicas=(1, 2),
        reason="the test says so",
    )


ROW: dict[str, object] = {"topic": "orders", "partition": 0, "replicas": [1]}
CHANGES = [
    change(1_700_000_000_000, Side.CONTROLLER, "elects a leader"),
    change(1_700_000_000_500, Side.BROKER, "becomes leader"),
    change(1_700_000_001_000, Side.CONTROLLER, "changes the ISR", 1),
]


def test_the_first_view(console: Console) -> None:
    about = console.get("/api")
    assert (about["broker"], about["may_change"], about["may_read_messages"]) == (1, True, True)
    found = console.get("/api/overview")
    assert [each["state"] for each in found["brokers"]] == ["up"] * 3
    assert (found["is_sound"], found["troubles"]) == (True, [])
    page = console.get("/api/partitions", topic="orders")
    assert (page["total"], page["topics"], len(page["rows"])) == (2, ["orders"], 2)
    assert sorted(page["rows"][0][5]) == ["I", "I", "L"]
    console.site._api._watch._until_s = float("inf")
    as_of_ms = console.get("/api/overview")["as_of_ms"]
    assert console.get("/api/partitions", after_ms=as_of_ms)["is_unchanged"]
    assert "rows" in console.get("/api/partitions", after_ms=as_of_ms - 1)
    console.site._api._watch.forget()


def test_why_says_what_the_command_says(console: Console) -> None:
    assert console.get("/api/why", name="orders-0")["is_sound"]
    assert console.get("/api/why", kind="cluster")["subject"] == "cluster"
    assert console.get("/api/why", kind="broker", name=2)["subject"] == "broker 2"
    assert console.get("/api/why", name="none-0") == (404, "no partition none-0")
    assert console.get("/api/why", kind="broker", name=9) == (404, "no broker 9")
    assert console.get("/api/why", kind="thing")[0] == 400
    assert console.get("/api/why", name="orders") == (
        400,
        "'orders' is not a partition; write it like orders-0",
    )


def test_topics_with_their_settings(console: Console) -> None:
    found = console.get("/api/topics", match="ord")
    assert [each["name"] for each in found["topics"]] == ["orders"]
    assert console.get("/api/topics", match="none")["topics"] == []
    own = [each for each in console.get("/api/topic", name="orders")["settings"] if each["is_own"]]
    assert own == [{"name": "retention.ms", "value": "7200000", "source": "topic", "is_own": True}]
    assert console.get("/api/topic", name="none") == (404, "no topic none")
    assert console.get("/api/topic") == (400, "the parameter name is missing")


def test_the_log_of_a_replica(console: Console) -> None:
    assert wait_until(PATIENCE_S, lambda: layout(console)["high_watermark"] == 3)
    log = layout(console)
    assert (log["log_start_offset"], log["last_stable_offset"], log["log_end_offset"]) == (0, 3, 3)
    (segment,) = log["segments"]
    assert (segment["base_offset"], segment["end_offset"], segment["is_active"]) == (0, 3, True)
    assert log["epochs"] == [{"epoch": 0, "start_offset": 0}]
    assert log["losses"] == []
    assert console.get("/api/partition", name="none-1") == (404, "no partition none-1")


def layout(console: Console) -> Any:
    (found,) = console.get("/api/partition", name="orders-0")["logs"]
    assert found["broker"] == 1
    return found["log"]


def test_the_timeline_of_this_broker(console: Console) -> None:
    found = console.get("/api/timeline")
    assert [each["kind"] for each in found["events"]] == ["election", "isr"]
    assert (found["brokers"], found["total"], found["silent"]) == ([1], 2, [])
    with_roles = console.get("/api/timeline", topic="orders", partition=0, roles=1)
    assert [each["kind"] for each in with_roles["events"]] == ["election", "role"]
    assert console.get("/api/timeline", limit=1)["events"] == found["events"][1:]
    assert console.get("/api/timeline", before_ms=1_700_000_000_100)["events"] == found["events"][:1]
    drawn = console.site.answer(Asked("GET", "/api/timeline.svg", "topic=orders", {"host": "127.0.0.1"}))
    assert drawn.content_type == "image/svg+xml"
    assert b"elects a leader" in drawn.content
    assert "script-src" not in drawn.headers["Content-Security-Policy"]


def test_another_console_that_does_not_answer_is_named(cluster: BrokerCluster) -> None:
    console = opened(cluster, peers=(Peer(Address("127.0.0.1", 1)),))
    try:
        (silent,) = console.get("/api/timeline")["silent"]
        assert silent["console"] == "127.0.0.1:1"
        assert "no answer" in silent["error"]
        assert console.get("/api/partition", name="orders-0")["silent"] == [silent]
    finally:
        console.site.close()


def test_records_with_decoders(console: Console) -> None:
    found = console.get("/api/messages", partition="orders-0", offset=0, value="json")
    assert (found["from"], found["next"], found["high_watermark"]) == (0, 3, 3)
    assert [each["offset"] for each in found["records"]] == [0, 1, 2]
    assert found["records"][0]["value"] == {"total": 7}
    assert found["records"][1]["value"] == "plain \\xff"
    assert len(found["problems"]) == 2
    assert (len(found["records"][2]["value"]), found["records"][2]["is_cut"]) == (2000, True)
    whole = console.get("/api/messages", partition="orders-0", offset=2, characters=10_000)
    assert (len(whole["records"][0]["value"]), whole["records"][0]["is_cut"]) == (5000, False)
    last = console.get("/api/messages", partition="orders-0", limit=1, value="hex", characters=9)
    assert [(each["offset"], each["value"]) for each in last["records"]] == [(2, "787878787")]
    assert console.get("/api/messages", partition="orders-0", time_ms=1 << 60)["records"] == []
    page = console.get("/api/messages", partition="orders-0", offset=0, limit=1)
    assert (page["next"], len(page["records"])) == (1, 1)


def test_a_decoder_that_runs_code_of_others_is_refused(console: Console) -> None:
    for name in ("os:system", "none", "logstore.cli:main"):
        status, text = console.get("/api/messages", partition="orders-0", value=name)
        assert (status, "expected one of utf8, hex" in text) == (400, True)


def test_groups_with_their_lag(cluster: BrokerCluster, console: Console) -> None:
    cluster._wait(cluster._client.commit("billing", {TopicPartition("orders", 0): 1}))
    # The coordinators may be loading other partitions of `__consumer_offsets`, which that commit has made.
    assert wait_until(PATIENCE_S, lambda: bool(console.get("/api/groups")["groups"]))
    (billing,) = console.get("/api/groups")["groups"]
    assert (billing["name"], billing["state"], billing["lag"]) == ("billing", "Empty", 2)
    (row,) = console.get("/api/group", name="billing")["partitions"]
    assert (row["partition"], row["committed"], row["end"], row["lag"]) == ("orders-0", 1, 3, 2)
    assert console.get("/api/groups", match="none")["total"] == 0
    status, text = console.get("/api/group", name="none")
    assert (status, "no group none" in text) == (404, True)
    assert "2 records waiting" in json.dumps(console.get("/api/why", kind="group", name="billing"))


def test_a_reassignment_and_an_election(cluster: BrokerCluster, console: Console) -> None:
    cluster.create_topic("moved", 1, replication_factor=2)
    assert wait_until(PATIENCE_S, lambda: bool(console.anew("/api/partitions", topic="moved")["rows"]))
    proposal = console.get("/api/reassignments/proposal", topics="moved", brokers="1,2,3")
    assert proposal["current"]["partitions"][0]["topic"] == "moved"
    assert [each["broker"] for each in proposal["load"]] == [1, 2, 3]
    now = proposal["current"]["partitions"][0]["replicas"]
    wanted = [({1, 2, 3} - set(now)).pop(), now[0]]
    plan = {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": wanted}]}
    done = console.post("/api/reassignments", {"plan": plan})
    assert done == {"partitions": 1, "rollback": proposal["current"]}

    def row() -> Any:
        return console.anew("/api/partitions", topic="moved")["rows"][0]

    assert wait_until(PATIENCE_S, lambda: row()[4] == wanted and not row()[7])
    assert console.get("/api/reassignments")["moving"] == []
    elected = console.post("/api/elections", {"partitions": ["moved-0"]})
    assert elected["partitions"] == 1
    assert wait_until(PATIENCE_S, lambda: row()[2] == wanted[0])


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/api/reassignments", {}, 400, '"plan" is missing'),
        ("/api/reassignments", {"plan": {"partitions": []}}, 400, "the plan is empty"),
        (
            "/api/reassignments",
            {"plan": {"partitions": [{"topic": "none", "partition": 0, "replicas": [1]}]}},
            404,
            "no partition none-0",
        ),
        (
            "/api/reassignments",
            {"plan": {"partitions": [{"topic": "orders", "partition": 0, "replicas": [9]}]}},
            400,
            "brokers [9] are not alive",
        ),
        ("/api/reassignments/cancel", {"partitions": ["orders-0"]}, 400, "none of these partitions is being"),
        ("/api/reassignments/cancel", {"partitions": None}, 400, "is a list of names"),
        ("/api/reassignments/cancel", {"partitions": [1]}, 400, "is a list of names"),
        ("/api/elections", {}, 400, '"partitions" is missing'),
        ("/api/reassignments/cancel", {"partitions": ["orders-9"]}, 404, "no partition orders-9"),
        ("/api/elections", {"partitions": ["orders-9"]}, 404, "no partition orders-9"),
        ("/api/elections", [], 400, "the body is not a JSON object"),
        ("/api/elections", {"partitions": ["\ud800-0"]}, 400, "'\\ud800-0' is not a partition"),
        ("/api/reassignments", {"plan": {"partitions": [ROW | {"partition": float("nan")}]}}, 400, "NaN"),
        (
            "/api/reassignments",
            {"plan": {"partitions": [ROW | {"partition": 1 << 63}]}},
            400,
            "is not a topic",
        ),
        ("/api/reassignments", {"plan": {"partitions": [ROW | {"log_dirs": 7}]}}, 400, "has log dirs"),
        ("/api/reassignments", {"plan": {"partitions": [ROW | {"topic": "\ud800"}]}}, 400, "is not a topic"),
        (
            "/api/elections",
            {"partitions": None, "dry_run": True},
            400,
            "has no field 'dry_run'; it has partitions",
        ),
        ("/api/reassignments", {"plan": {"partitions": [ROW]}, "additional": "no"}, 400, "true or false"),
        ("/api/overview", {}, 405, "/api/overview takes a GET"),
        ("/api/none", {}, 404, "no POST to /api/none"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(
    console: Console, path: str, body: object, status: int, text: str
) -> None:
    found, said = console.post(path, body)
    assert (found, text in said) == (status, True), said


@pytest.mark.parametrize(
    "row", ["1e400", "NaN", "9" * 5000, "[" * 100_000, *(f"{'[' * n}{']' * n}" for n in range(900, 1000, 3))]
)
@pytest.mark.parametrize("path", ["/api/reassignments", "/api/elections", "/api/reassignments/cancel"])
def test_a_body_that_is_out_of_all_bounds(console: Console, path: str, row: str) -> None:
    body = f'{{"plan": {{"partitions": [{row}]}}, "partitions": [{row}]}}'.encode()
    asked = Asked("POST", path, "", {"host": "127.0.0.1", "content-type": "application/json"}, body)
    found = console.site.answer(asked)
    assert (found.status, json.loads(found.content)["error"] != "") == (400, True)


def test_a_console_to_look_at_changes_nothing(cluster: BrokerCluster) -> None:
    console = opened(cluster)
    try:
        for path in ("/api/reassignments", "/api/reassignments/cancel", "/api/elections"):
            status, text = console.post(path, {"partitions": None})
            assert (status, "--console-admin" in text) == (403, True)
        assert console.get("/api")["may_change"] is False
    finally:
        console.site.close()


def test_bad_questions(console: Console) -> None:
    assert console.get("/api/none")[0] == 404
    assert console.get("/api/elections") == (405, "/api/elections takes a POST")
    assert console.get("/api/partitions", limit="x") == (400, "limit is a number, 1 or more")
    assert console.get("/api/partitions", offset="x") == (400, "offset is a number, 0 or more")
    assert console.get("/api/partitions", limit="9" * 30)[0] == 400
    assert console.get("/api/reassignments/proposal", topics="orders", brokers="a")[0] == 400
    assert console.get("/api/reassignments/proposal", topics="orders", brokers="9")[0] == 400
    assert console.get("/api/reassignments/proposal", topics="none", brokers="1")[0] == 404
    assert console.get("/api/partitions", **{f"p{number}": 1 for number in range(40)})[0] == 400
    assert console.get("/api/partitions", only_bad="yes") == (400, "only_bad is 1 or 0")
    assert console.get("/api/group", names="x") == (400, "/api/group has no parameter 'names'; it has name")
    assert console.get("/api/overview", x=1) == (400, "/api/overview has no parameter 'x'; it has none")
    assert console.get("/api/topic", name="a&name=b") == (
        400,
        "the parameter name is given twice; give it once",
    )
    assert console.get("/api/messages", partition="orders-0", offset=0, time_ms=0) == (
        400,
        "give either offset or time_ms",
    )


def test_the_page_names_every_parameter() -> None:
    page = (Path(__file__).parents[3] / "docs" / "console.md").read_text()
    for path, names in {**api.PARAMETERS, **api.FIELDS}.items():
        if "/here/" in path or path.endswith(".svg"):
            continue
        rows = [line for line in page.splitlines() if line.startswith("|") and f"`{path}`" in line]
        for name in names:
            assert any(f"`{name}" in row or f'"{name}"' in row for row in rows), (path, name)


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/api/partitions", {}),
        ("/api/topics", {}),
        ("/api/groups", {}),
        ("/api/timeline", {}),
        ("/api/here/timeline", {}),
        ("/api/messages", {"partition": "orders-0"}),
    ],
)
def test_a_list_of_no_entries_is_refused(console: Console, path: str, given: dict[str, str]) -> None:
    """Of messages it was an internal error, and of events it was all of them, beyond the bound."""
    assert console.get(path, limit=0, **given) == (400, "limit is a number, 1 or more")


def test_brokers_with_logins_or_permissions_are_told_apart() -> None:
    def security(**given: str) -> bool:
        settings = {name.replace("_", "."): value for name, value in given.items()}
        return is_secured(read_settings(settings, node_id=1, host="127.0.0.1", port=9092).security)

    assert not security()
    assert not security(listeners="PLAINTEXT://127.0.0.1:0")
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    assert security(listeners="PLAINTEXT://127.0.0.1:0", authorizer_class_name=authorizer)


def test_records_are_not_shown_where_that_is_not_permitted(console: Console) -> None:
    permitted = console.site._api._permits
    console.site._api._permits = Permits(changes=True, messages=False)
    try:
        status, text = console.get("/api/messages", partition="orders-0")
        assert (status, "--console-messages" in text) == (403, True)
        assert console.get("/api")["may_read_messages"] is False
    finally:
        console.site._api._permits = permitted


def test_a_dead_leader_is_red_at_once() -> None:
    with BrokerCluster(2) as cluster:
        cluster.create_topic("orders", 1, replication_factor=2)
        leader = cluster.leader("orders")
        console = opened(cluster, 3 - leader)
        try:
            assert wait_until(PATIENCE_S, lambda: bool(console.anew("/api/partitions")["rows"]))
            cluster.kill(leader)

            def is_red() -> bool:
                return bool({"S", "D"} & set(console.anew("/api/partitions")["rows"][0][5]))

            assert wait_until(PATIENCE_S, is_red)
            assert not console.get("/api/overview")["is_sound"]
            assert not console.get("/api/why", name="orders-0")["is_sound"]
        finally:
            console.site.close()
