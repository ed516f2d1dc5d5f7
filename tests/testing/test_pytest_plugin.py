"""The plugin as its users meet it: in a pytest run of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from logstore.testing import CrashLab, SimulatedCluster
from tests.plants import planted

pytest_plugins = ["pytester"]
# The runs inside this process forget what they imported, and numpy cannot be imported twice.
_ = CrashLab, SimulatedCluster, planted

ROOT = Path(__file__).parents[2]
NAME, MODULE = "logstore", "logstore.testing.pytest_plugin"
# Loaded twice, by entry point and by name, a plugin is refused; a checkout may be installed or not.
LOADED = [] if NAME in entry_points(group="pytest11").names else ["-p", MODULE]
ALONE = ["-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:hypothesispytest"]

LOSES = """
    import pytest
    from tests.plants import planted

    @pytest.fixture(autouse=True)
    def too_early():
        with planted("acknowledged-too-early"):
            yield

    @pytest.mark.simulation(seeds=range(4))
    def test_of_a_cluster_that_lies(simulated_cluster, simulation_seed):
        assert simulated_cluster.seed == simulation_seed
        simulated_cluster.create_topic("t")
        if simulation_seed == 2:
            simulated_cluster.partition({0}, {1, 2})
            simulated_cluster.produce("t", b"on one node only")
"""


def run(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess(*LOADED, *ALONE, *arguments)


def test_a_cluster_comes_as_its_marker_says(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
        import pytest

        def test_plain(simulated_cluster, simulation_seed):
            assert "nodes=3, seed=0" in repr(simulated_cluster)

        @pytest.mark.simulation(nodes=5, seed=9, durability="synced")
        def test_marked(simulated_cluster):
            assert "nodes=5, seed=9, replication_factor=3" in repr(simulated_cluster)
            simulated_cluster.create_topic("t")
            assert simulated_cluster.produce("t", b"one").durability.value == "synced"

        @pytest.mark.simulation(seed=4)
        class TestOfAClass:
            def test_takes_its_marker(self, simulated_cluster):
                assert simulated_cluster.seed == 4

        @pytest.mark.simulation
        def test_without_a_cluster():
            pass
        """,
        "--strict-markers",
    ).assert_outcomes(passed=4)


def test_what_the_judge_finds_is_a_failure_under_its_seed(pytester: pytest.Pytester) -> None:
    """Not an error of the teardown; the report says which seed, how to see it again, and what was done."""
    result = run(pytester, LOSES)
    result.assert_outcomes(passed=3, failed=1)
    text = result.stdout.str()
    assert "test_of_a_cluster_that_lies[seed=2]" in text
    assert "Violation: C4" in text
    assert "--logstore-seed 2" in text
    assert "partition({0}, {1, 2})" in text


def test_the_seed_of_the_command_line_replaces_those_of_the_marker(pytester: pytest.Pytester) -> None:
    result = run(pytester, LOSES, "--logstore-seed", "2")
    result.assert_outcomes(failed=1)
    run(pytester, LOSES, "--logstore-seed", "77").assert_outcomes(passed=1)
    assert "seed 2: run the same program" in result.stdout.str()


def test_a_failed_assertion_tells_of_its_cluster_too(pytester: pytest.Pytester) -> None:
    """The test's own finding is the one that counts, and the cluster as it stood is beside it."""
    result = run(
        pytester,
        """
        def test_fails(simulated_cluster):
            simulated_cluster.create_topic("t")
            simulated_cluster.power_cut()
            assert simulated_cluster.leader("t") is None
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*Simulated cluster*",
            "again: pytest *test_fails' --logstore-seed 0",
            "*node 0: down",
            "*power_cut()",
        ]
    )


def test_a_seed_for_those_who_make_their_own_clusters(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
        import pytest
        from logstore.testing import SimulatedCluster

        @pytest.mark.simulation(seeds=[3, 5])
        def test_own(simulation_seed):
            with SimulatedCluster(1, seed=simulation_seed) as cluster:
                assert cluster.seed in (3, 5)
        """,
    ).assert_outcomes(passed=2)


def test_crash_lab(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from logstore.disk import publish

        def save(run):
            publish(run.disk, "/", "state", b"new")
            run.promise(b"new")

        def promise_too_early(run):
            run.promise(b"new")
            publish(run.disk, "/", "state", b"new")

        def start(disk):
            disk.sync_dir("/")
            names = [entry.name for entry in disk.scan("/")]
            return disk.open("/state").pread(9, 0) if "state" in names else b""

        def judge(found, promise):
            assert promise in (b"", found)

        def test_hasty(crash_lab):
            crash_lab(promise_too_early, b"", recover=start, judge=judge)

        def test_careful(crash_lab):
            report = crash_lab(save, b"", recover=start, judge=judge, depth=2)
            assert report.images > 5
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["promise_too_early: * the simplest:*"])


def test_the_pages_example_passes(pytester: pytest.Pytester) -> None:
    page = (ROOT / "docs/testing-kit.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if "@pytest" in block]
    run(pytester, block).assert_outcomes(passed=20)


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ("5", "pass its settings by name"),
        ("seed=1, seeds=range(2)", "give it a seed or seeds, not both"),
        ("seed='x'", "seed is an int, not 'x'"),
        ("seeds=3", "seeds are ints, such as range(20), not 3"),
        ("seeds='ab'", "seeds are ints, such as range(20), not 'ab'"),
        ("seeds=iter([1])", "seeds are ints, such as range(20), not <*"),
    ],
)
def test_a_marker_that_cannot_be_is_refused(pytester: pytest.Pytester, settings: str, advice: str) -> None:
    result = run(
        pytester,
        f"""
        import pytest

        @pytest.mark.simulation({settings})
        def test_wrong(simulated_cluster):
            pass
        """,
    )
    assert result.ret != 0
    result.stdout.fnmatch_lines([f"*the marker `simulation`: {advice}*"])


def test_a_marker_of_a_test_adds_to_that_of_its_class(pytester: pytest.Pytester) -> None:
    """The settings of the class were forgotten."""
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.simulation(nodes=1, durability="synced", seeds=range(3))
        class TestOne:
            @pytest.mark.simulation(seed=4, durability="replicated")
            def test_one(self, simulated_cluster):
                shown = repr(simulated_cluster)
                assert "nodes=1, seed=4" in shown and "'replicated'" in shown

            def test_all(self, simulated_cluster):
                assert "'synced'" in repr(simulated_cluster)
        """,
    )
    result.assert_outcomes(passed=4)


def test_workers_agree_on_the_tests(pytester: pytest.Pytester) -> None:
    """Under xdist every worker has to collect the same ids."""
    pytest.importorskip("xdist")
    pytester.makepyfile(LOSES)
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}")
    result = pytester.runpytest_inprocess(*LOADED, *ALONE, "-n", "2")
    result.assert_outcomes(passed=3, failed=1)


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
        "logstore.lazily",
        "logstore.testing",
        "logstore.testing.pytest_plugin",
        "logstore.version",
    ]
