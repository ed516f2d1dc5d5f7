"""The alert rules and the dashboard: they ask for what brokers export, and alerts fire when they should."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from logstore.broker.blocking import BlockingClient
from logstore.broker.limits import Address
from logstore.cli import local_cluster
from tests.deploy.serving import DEPLOY, ROOT, served
from tests.troubles.doings import ONE
from tests.troubles.lab import lab
from tests.zookeeper import eventually, free_port

RULES = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "logstore.json"
_NAME = re.compile(r"(?<![\w:./$\"])(?:kafka|logstore|process)_\w+")


def asked_for(text: str) -> set[str]:
    """The metrics in an expression, or in a whole file of rules."""
    return set(_NAME.findall(text))


def expressions(part: Any) -> list[str]:
    """Every query of a dashboard."""
    if isinstance(part, dict):
        own = [part[key] for key in ("expr", "query") if isinstance(part.get(key), str)]
        return own + [each for value in part.values() for each in expressions(value)]
    return [each for value in part for each in expressions(value)] if isinstance(part, list) else []


def exported(page: str) -> set[str]:
    """The names that can be asked for, with those of families that have no sample yet."""
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE):
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names |= {name + suffix for suffix in suffixes}
    return names


def test_a_broker_exports_what_rules_and_dashboard_ask_for(tmp_path: Path) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = expressions(dashboard)
    wanted = asked_for(RULES.read_text()) | {name for each in queries for name in asked_for(each)}
    assert len(wanted) > 40
    assert len(queries) > 40
    with served(tmp_path) as broker:

        def scrape() -> str:
            with urlopen(f"http://{broker['http']}/metrics", timeout=30) as page:
                return str(page.read().decode())

        leads = "kafka_controller_kafkacontroller_activecontrollercount 1.0"
        eventually(lambda: leads in scrape(), "the broker's election as the controller")
        assert wanted - exported(scrape()) == set()
    # What the dashboard takes from the rules is recorded there.
    recorded = set(re.findall(r"- record: (\S+)", RULES.read_text()))
    assert {each for query in queries for each in re.findall(r"cluster:\w+", query)} == recorded


def test_a_name_that_nobody_exports_is_noticed() -> None:
    assert asked_for('rate(kafka_made_up_total{topic="x"}[5m]) > process_x') == {
        "kafka_made_up_total",
        "process_x",
    }
    assert asked_for("cluster:logstore_lag, `logstore.audit`") == set()


def test_panels_have_their_own_places() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for each in panels:
        at = each["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, each["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


# --- with Prometheus itself -----------------------------------------------------------------------

NORMAL = {
    "up": 1,
    "kafka_controller_kafkacontroller_activecontrollercount": 1,
    "kafka_controller_kafkacontroller_offlinepartitionscount": 0,
    "kafka_controller_controllerstats_uncleanleaderelections_total": 0,
    "kafka_server_replicamanager_underminisrpartitioncount": 0,
    "kafka_server_replicamanager_underreplicatedpartitions": 0,
    "kafka_server_replicamanager_partitionswithlatetransactionscount": 0,
    "kafka_server_replicamanager_damagedpartitionscount": 0,
    "kafka_server_replicamanager_damagesfound_total": 0,
    "kafka_server_replicamanager_failedpartitionscount": 0,
    "kafka_server_replicamanager_truncationsbelowhighwatermark_total": 0,
    "kafka_server_replicamanager_recordsatrisk": 20_000,
    "kafka_log_logmanager_offlinelogdirectorycount": 0,
    "kafka_log_logmanager_fulllogdirectorycount": 0,
    "kafka_log_logcleanermanager_uncleanable_partitions_count": 0,
    'logstore_logdir_free_bytes{logdir="/d"}': 600_000_000_000,
    'logstore_logdir_size_bytes{logdir="/d"}': 400_000_000_000,
    "logstore_eventloop_pauses_over_bound_total": 0,
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": 0.6,
    'kafka_server_brokertopicmetrics_failedproducerequests_total{topic="t"}': 0,
    'kafka_server_brokertopicmetrics_failedfetchrequests_total{topic="t"}': 0,
    "kafka_server_socketservermetrics_failed_authentication_total": 0,
    "kafka_server_socketservermetrics_failed_tls_handshakes_total": 0,
    "logstore_audit_failing": 0,
    "process_open_fds": 300,
    "process_max_fds": 1024,
    "kafka_coordinator_group_groupmetadatamanager_loadingpartitions": 0,
    'kafka_topic_partition_current_offset{topic="t",partition="0"}': "100+10x{n}",
    'kafka_consumergroup_current_offset{consumergroup="g",topic="t",partition="0"}': "90+10x{n}",
}
"""A broker that has nothing to complain about: a value, or a series."""

TROUBLES: dict[str, dict[str, object]] = {
    "LogstoreBrokerDown": {"up": 0},
    "LogstoreNoController": {"kafka_controller_kafkacontroller_activecontrollercount": 0},
    "LogstoreOfflinePartitions": {"kafka_controller_kafkacontroller_offlinepartitionscount": 2},
    "LogstoreUnderMinIsr": {"kafka_server_replicamanager_underminisrpartitioncount": 1},
    "LogstoreUnderReplicated": {"kafka_server_replicamanager_underreplicatedpartitions": 1},
    "LogstoreHangingTransactions": {"kafka_server_replicamanager_partitionswithlatetransactionscount": 1},
    "LogstoreDamage": {"kafka_server_replicamanager_damagesfound_total": "0x20 1x{n}"},
    "LogstoreFailedPartitions": {"kafka_server_replicamanager_failedpartitionscount": 1},
    "LogstoreCommittedRecordsLost": {
        "kafka_server_replicamanager_truncationsbelowhighwatermark_total": "0x20 1x{n}"
    },
    "LogstoreLogDirFailed": {"kafka_log_logmanager_offlinelogdirectorycount": 1},
    "LogstoreLogDirFull": {"kafka_log_logmanager_fulllogdirectorycount": 1},
    "LogstoreLogDirNearlyFull": {'logstore_logdir_free_bytes{logdir="/d"}': 30_000_000_000},
    "LogstoreCompactionFails": {"kafka_log_logcleanermanager_uncleanable_partitions_count": 1},
    "LogstoreRecordsAtRisk": {"kafka_server_replicamanager_recordsatrisk": 20_000_000},
    "LogstoreEventLoopPause": {"logstore_eventloop_pauses_over_bound_total": "0x225 1x{n}"},
    "LogstoreBusy": {"kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": 0.05},
    "LogstoreFailedRequests": {
        'kafka_server_brokertopicmetrics_failedproducerequests_total{topic="t"}': "0+1x{n}"
    },
    "LogstoreFailedLogins": {"kafka_server_socketservermetrics_failed_authentication_total": "0+2x{n}"},
    "LogstoreAuditFails": {"logstore_audit_failing": 1},
    "LogstoreDescriptors": {"process_open_fds": 900},
    "LogstoreGroupsNotServed": {"kafka_coordinator_group_groupmetadatamanager_loadingpartitions": 1},
    "LogstoreGroupStandsStill": {
        'kafka_consumergroup_current_offset{consumergroup="g",topic="t",partition="0"}': 90
    },
}
STEPS = 240
"""Of 15 s: an hour."""


def test_every_alert_has_its_trouble() -> None:
    assert set(re.findall(r"- alert: (\w+)", RULES.read_text())) == set(TROUBLES)


def test_the_page_has_every_alert() -> None:
    assert set(re.findall(r"`(Logstore\w+)`", (ROOT / "docs/deploying.md").read_text())) == set(TROUBLES)


def program(name: str) -> str:
    """Where Debian's program is. Fails if it is not, and says how it gets there."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:{ROOT / 'build/parts/usr/bin'}")
    assert found, f"{name} is missing: run `.ci/parts prometheus`, or apt-get install prometheus"
    return found


def series(name: str, value: object) -> dict[str, str]:
    """An input series of promtool, on broker `one` of a cluster."""
    bare, _, labels = name.rstrip("}").partition("{")
    where = 'job="logstore",cluster="orders",instance="one"'
    text = value if isinstance(value, str) else f"{value}x{{n}}"
    return {"series": f"{bare}{{{','.join(filter(None, (where, labels)))}}}", "values": text.format(n=STEPS)}


def case(name: str, trouble: dict[str, object], fires: list[str]) -> dict[str, object]:
    """One test of promtool: which alerts fire at the end of an hour."""
    expected = [{"labels": f'{{alertname="{each}"}}', "value": 1} for each in fires]
    return {
        "interval": "15s",
        "name": name,
        "input_series": [series(*each) for each in {**NORMAL, **trouble}.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "58m",
                "exp_samples": expected,
            }
        ],
    }


@pytest.mark.interop
def test_the_rules_are_valid() -> None:
    for arguments in (["rules", str(RULES)], ["config", str(RULES.parent / "prometheus.yml")]):
        subprocess.run([program("promtool"), "check", *arguments], check=True)


@pytest.mark.interop
def test_each_alert_fires_in_its_trouble_alone_and_none_in_an_hour_without(tmp_path: Path) -> None:
    tests = [case("nothing", {}, []), *(case(name, each, [name]) for name, each in TROUBLES.items())]
    file = tmp_path / "test.json"  # which is YAML, too
    rules = {"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": tests}
    file.write_text(json.dumps(rules))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A Prometheus on loopback with the rules as they are; if quick, a scrape a second and no patience."""

    def __init__(self, directory: Path, *targets: str, is_quick: bool = True) -> None:
        self._directory, self._port = directory, free_port()
        rules, config = RULES.read_text(), (RULES.parent / "prometheus.yml").read_text()
        if is_quick:
            rules, config = re.sub(r"for: \d+[ms]", "for: 0s", rules), config.replace("15s", "1s")
        (directory / "alerts.yml").write_text(rules)
        (directory / "prometheus.yml").write_text(
            re.sub(r"targets: \[.*\]", f"targets: {json.dumps(targets)}", config)
        )

    def __enter__(self) -> Prometheus:
        command = [
            program("prometheus"),
            f"--config.file={self._directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with open(self._directory / "prometheus.log", "wb") as log:
            self._process = subprocess.Popen(command, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def value(self, expression: str) -> float | None:
        """The first value; None if there is none, or if it does not answer yet."""
        try:
            found = self.ask("query", query=expression)["result"]
        except OSError:
            return None
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        alerts = self.ask("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def are_rules_well(self) -> bool:
        (group,) = self.ask("rules")["groups"]
        assert len(group["rules"]) == len(TROUBLES) + 1
        return all(each["health"] == "ok" for each in group["rules"])


@pytest.mark.interop
def test_a_real_prometheus_scrapes_a_broker(tmp_path: Path) -> None:
    with served(tmp_path) as broker, Prometheus(tmp_path, broker["http"]) as prometheus:
        with BlockingClient([Address("127.0.0.1", broker["port"])]) as client:
            client.create_topic("orders")
            client.append("orders", b"placed")
            client.append("orders", b"paid")
        records = "sum(kafka_server_brokertopicmetrics_messagesin_total)"
        eventually(lambda: prometheus.value(records) == 2, "a scrape with two records")
        controllers = "kafka_controller_kafkacontroller_activecontrollercount"
        eventually(lambda: prometheus.value(controllers) == 1, "a scrape of the controller")
        (target,) = prometheus.ask("targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        eventually(prometheus.are_rules_well, "a round of the rules")


@pytest.mark.interop
def test_alerts_fire_when_a_broker_is_killed_and_end_when_it_is_back(tmp_path: Path) -> None:
    expected = {"LogstoreBrokerDown", "LogstoreUnderReplicated", "LogstoreUnderMinIsr"}
    settings = {"zookeeper.session.timeout.ms": "6000", "min.insync.replicas": "3"}
    cluster = local_cluster.start(tmp_path, 3, settings, patience_s=60)
    try:
        targets = [f"127.0.0.1:{node.http_port}" for node in cluster.nodes]
        with Prometheus(tmp_path, *targets) as prometheus:
            with BlockingClient([Address("127.0.0.1", node.port) for node in cluster.nodes]) as client:
                client.create_topic("orders", 6, replication_factor=3)
            leaders = "sum(kafka_server_replicamanager_leadercount)"
            eventually(lambda: prometheus.value(leaders) == 6, "scrapes of all leaders")
            eventually(lambda: not prometheus.firing(), "quiet")
            local_cluster.send_signal(tmp_path, "node-3", signal.SIGKILL)
            eventually(lambda: expected <= prometheus.firing(), "the alerts")
            assert prometheus.value("cluster:logstore_consumergroup_lag") is None, "there is no group"
            local_cluster.launch(tmp_path, ["node-3"], patience_s=60)
            eventually(lambda: not expected & prometheus.firing(), "their end")
    finally:
        local_cluster.stop(tmp_path, patience_s=60)


@pytest.mark.interop
@pytest.mark.timeout(400)
def test_alerts_fire_when_a_disk_is_full_and_end_when_there_is_room(tmp_path: Path) -> None:
    """Broker 3 has a disk of 64 MiB; mounting it needs root."""
    expected = {"LogstoreLogDirFull", "LogstoreLogDirNearlyFull"}
    with lab(tmp_path / "cluster", small_disk=True) as troubled:
        targets = [f"127.0.0.1:{node.http_port}" for node in troubled.cluster.nodes]
        with Prometheus(tmp_path, *targets) as prometheus:
            troubled.create(ONE, "3")
            leaders = "sum(kafka_server_replicamanager_leadercount)"
            eventually(lambda: prometheus.value(leaders) == 1, "scrapes of all leaders")
            eventually(lambda: not prometheus.firing(), "quiet")
            troubled.fill(3, leaving=1 << 20)
            troubled.append_until_refused(ONE)
            eventually(lambda: expected <= prometheus.firing(), "the alerts")
            # As in Kafka, refusals of a failed log dir are no failed requests.
            assert prometheus.firing() == expected
            troubled.filler(3).unlink()
            eventually(lambda: "LogstoreLogDirFull" not in prometheus.firing(), "its end")
            troubled.append(ONE, b"there is room")


LOAD = """
import sys, time
from kafka import KafkaConsumer, KafkaProducer

servers = sys.argv[1].split(",")
producer = KafkaProducer(bootstrap_servers=servers, acks="all")
consumer = KafkaConsumer("orders", bootstrap_servers=servers, group_id="billing")
while True:
    for number in range(20):
        producer.send("orders", b"order %d" % number, key=b"%d" % number)
    producer.flush()
    consumer.poll(1000)
"""


@pytest.mark.skipif("QUIET_MINUTES" not in os.environ, reason="takes QUIET_MINUTES; make watching-quiet")
@pytest.mark.slow
@pytest.mark.timeout(2 * 60 * 60)
def test_no_alert_fires_under_normal_load(tmp_path: Path) -> None:
    """Three brokers with 1,000 partitions, a producer and a consumer; rules and intervals as they are."""
    minutes, partitions = float(os.environ["QUIET_MINUTES"]), 1_000
    cluster = local_cluster.start(tmp_path, 3, {"min.insync.replicas": "2"}, patience_s=60)
    targets = [f"127.0.0.1:{node.http_port}" for node in cluster.nodes]
    program = [sys.executable, "-W", "ignore", "-c", LOAD, cluster.bootstrap]
    load: subprocess.Popen[bytes] | None = None
    try:
        with BlockingClient([Address("127.0.0.1", node.port) for node in cluster.nodes]) as client:
            client.create_topic("orders", partitions, replication_factor=3)
        with Prometheus(tmp_path, *targets, is_quick=False) as prometheus:
            load = subprocess.Popen(program, stderr=subprocess.DEVNULL)
            sent = "sum(kafka_server_brokertopicmetrics_messagesin_total)"
            eventually(lambda: (prometheus.value(sent) or 0) > 0, "load")
            time.sleep(60 * minutes)
            since = f"[{minutes + 5:.0f}m]"
            fired = prometheus.ask("query", query=f'count_over_time(ALERTS{{alertstate="firing"}}{since})')
            for what in ("quantile_over_time(0.5,", "quantile_over_time(0.99,", "max_over_time("):
                value = prometheus.value(f"max({what} scrape_duration_seconds{since}))")
                print(f"scrape, the slowest broker: {what} … {1000 * (value or 0):.0f} ms")
            print(f"{minutes:g} minutes, {prometheus.value(sent):.0f} records, {partitions} partitions")
            assert load.poll() is None, "the clients have gone on"
            assert fired["result"] == []
    finally:
        if load is not None:
            load.kill()
            load.wait()
        local_cluster.stop(tmp_path, patience_s=60)
