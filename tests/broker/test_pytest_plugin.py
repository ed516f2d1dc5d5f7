"""The plugin as its users meet it: in a pytest run of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from logstore.broker import BrokerCluster
from logstore.broker.secured import secured_broker

pytest_plugins = ["pytester"]
# The runs inside this process forget what they imported; numpy and cryptography cannot be imported twice.
_ = BrokerCluster, secured_broker

ROOT = Path(__file__).parents[2]
NAME, MODULE = "logstore-broker", "logstore.broker.pytest_plugin"
# Loaded twice, by entry point and by name, a plugin is refused; a checkout may be installed or not.
LOADED = [] if NAME in entry_points(group="pytest11").names else ["-p", MODULE]
ALONE = ["-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:hypothesispytest", "-W", "error"]

BROKERS = """
    import threading
    import pytest

    @pytest.fixture(autouse=True)
    def no_thread_is_left():
        before = set(threading.enumerate())
        yield
        assert set(threading.enumerate()) <= before

    def use(broker):
        assert broker.bootstrap.startswith("127.0.0.1:")
        assert broker.topics() == {}, "each test has its own"
        broker.create_topic("t", 2)
        assert broker.append("t", b"x", partition=1).offset == 0
        assert [record.value for record in broker.read("t", 1)] == [b"x"]

    def test_in_memory(kafka_broker, tmp_path):
        use(kafka_broker)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("again", range(2))
    def test_on_disk(kafka_broker_on_disk, tmp_path, again):
        use(kafka_broker_on_disk)
        assert (tmp_path / "kafka" / "t-1").is_dir()

    def test_of_three(kafka_cluster):
        use(kafka_cluster)
        kafka_cluster.kill(kafka_cluster.leader("t", 1))
        assert len(kafka_cluster.bootstrap.split(",")) == 2
        assert kafka_cluster.append("t", b"y", partition=1).offset == 1
        (gone,) = {1, 2, 3} - set(kafka_cluster.brokers)
        kafka_cluster.start(gone)
        assert [record.value for record in kafka_cluster.scan("t", 1)] == [b"x", b"y"]

    def test_of_two_at_once(kafka_broker, kafka_broker_on_disk):
        kafka_broker.create_topic("t")
        assert kafka_broker_on_disk.topics() == {}

    class TestWithSettings:
        @pytest.fixture
        def kafka_settings(self):
            return {"num.partitions": "4", "min.insync.replicas": "1"}

        def test_they_are_heard(self, kafka_broker):
            kafka_broker.create_topic("t")
            assert kafka_broker.topics() == {"t": 4}
"""


def run(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess(*LOADED, *ALONE, *arguments)


def test_brokers_come_and_go_with_their_tests(pytester: pytest.Pytester) -> None:
    run(pytester, BROKERS).assert_outcomes(passed=6)


def test_a_secured_broker(pytester: pytest.Pytester) -> None:
    """It lets its users in, with their passwords, and each test has an authority of its own."""
    source = """
        import pytest
        from logstore.broker import BlockingClient, client_security
        from logstore.broker.errors import AuthenticationFailed

        seen = set()

        @pytest.mark.parametrize("again", range(2))
        def test_of_users(secured_kafka_broker, again):
            found = secured_kafka_broker
            assert found.ca_file.read_bytes() not in seen
            seen.add(found.ca_file.read_bytes())
            assert (found.ca_file.parent / "broker.pem").stat().st_mode & 0o77 == 0
            assert str(found.broker.listeners["SASL_SSL"]) == found.bootstrap
            with BlockingClient([found.bootstrap], security=client_security(found.properties())) as admin:
                admin.create_topic("t", 1)
                assert admin.append("t", b"x").offset == 0
            wrong = found.properties("alice")
            wrong["sasl.jaas.config"] = wrong["sasl.jaas.config"].replace("alice-secret", "x")
            with BlockingClient([found.bootstrap], security=client_security(wrong)) as stranger:
                with pytest.raises(AuthenticationFailed):
                    stranger.append("t", b"y")
    """
    run(pytester, source).assert_outcomes(passed=2)


def test_a_missing_extra_is_named(pytester: pytest.Pytester) -> None:
    source = """
        import sys
        import pytest

        @pytest.fixture(autouse=True)
        def without_cryptography(monkeypatch):
            monkeypatch.delitem(sys.modules, "logstore.broker.secured", raising=False)
            monkeypatch.delitem(sys.modules, "logstore.broker.security.certificates", raising=False)
            monkeypatch.setitem(sys.modules, "cryptography", None)

        def test_of_users(secured_kafka_broker):
            pass
    """
    result = run(pytester, source)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ModuleNotFoundError: cryptography is not installed: pip install*"])


def test_workers_do_not_get_in_each_others_way(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(BROKERS)
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}")
    pytester.runpytest_inprocess(*LOADED, *ALONE, "-n", "2").assert_outcomes(passed=6)


def test_a_broker_that_failed_is_an_error_of_the_teardown(pytester: pytest.Pytester) -> None:
    """Whether the test noticed or not."""
    result = run(
        pytester,
        """
        def test_that_takes_the_disk_away(kafka_broker_on_disk, tmp_path):
            kafka_broker_on_disk.create_topic("t")
            (tmp_path / "kafka").rename(tmp_path / "gone")  # at once, beside the broker's own writes
            (tmp_path / "kafka").write_text("")
            try:
                kafka_broker_on_disk.create_topic("u", timeout=20)
            except Exception:
                pass
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*BrokerFailed: broker 1 failed*"])


def test_the_pages_example_passes(pytester: pytest.Pytester) -> None:
    page = (ROOT / "docs/embedding.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if "@pytest" in block]
    run(pytester, block).assert_outcomes(passed=3)


def test_the_entry_point_names_the_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"][NAME] == MODULE


def test_it_costs_next_to_nothing_to_those_who_do_not_use_it() -> None:
    """Every pytest run in the environment imports it: nothing heavy may come with it."""
    program = (
        f"import pytest, sys; before = set(sys.modules); import {MODULE}; "
        "print(*sorted(set(sys.modules) - before))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [
        "logstore",
        "logstore.broker",
        "logstore.broker.pytest_plugin",
        "logstore.lazily",
        "logstore.version",
    ]
