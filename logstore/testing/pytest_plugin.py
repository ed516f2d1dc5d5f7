"""The pytest plugin: a simulated cluster in a fixture, a test repeated over seeds, a seed in every report.

    @pytest.mark.simulation(nodes=3, seeds=range(20))
    def test_nothing_is_lost(simulated_cluster: SimulatedCluster) -> None: ...

    pytest --logstore-seed 7        that seed, in every test that takes one

It is found by its entry point (`logstore`), so every run of pytest in an environment with this package
imports it, also of those who want none of it: nothing else of the package is imported before a test asks for
a fixture. `-p no:logstore` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from logstore.testing.crash import CrashReport
    from logstore.testing.kit import SimulatedCluster

_CLUSTER: pytest.StashKey[SimulatedCluster] = pytest.StashKey()
_SEEDS = ("seed", "seeds")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("logstore", "simulated clusters").addoption(
        "--logstore-seed",
        type=int,
        default=None,
        metavar="N",
        help="run simulated clusters and crash labs under this seed, whatever their markers say",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "simulation(nodes=3, seed=0, seeds=None, **settings): how the `simulated_cluster` of this test is "
        "made; with `seeds`, the test is repeated over them",
    )


def _settings(item: Any) -> dict[str, Any]:
    """What the nearest marker says."""
    marker = item.get_closest_marker("simulation")
    if marker is not None and marker.args:
        raise pytest.UsageError(f"{item.nodeid}: the marker `simulation` takes its settings by name")
    return dict(marker.kwargs) if marker is not None else {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each of the marker's seeds; the ids tell them apart, in reports and across workers."""
    if "simulation_seed" not in metafunc.fixturenames:
        return
    seeds = _settings(metafunc.definition).get("seeds")
    if seeds is not None:
        only = metafunc.config.getoption("--logstore-seed")
        chosen = list(seeds) if only is None else [only]
        metafunc.parametrize("simulation_seed", chosen, ids=[f"seed={seed}" for seed in chosen])


@pytest.fixture
def simulation_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test: of the command line, else of its marker (one of `seeds`, or `seed`), else 0."""
    only: int | None = request.config.getoption("--logstore-seed")
    return only if only is not None else int(_settings(request.node).get("seed", 0))


@pytest.fixture
def simulated_cluster(request: pytest.FixtureRequest, simulation_seed: int) -> SimulatedCluster:
    """A `SimulatedCluster`, made as the marker `simulation` says; healed and judged when the test has passed.

    What the judge finds is a failure of the test.
    """
    from logstore.testing.kit import SimulatedCluster

    settings = {name: value for name, value in _settings(request.node).items() if name not in _SEEDS}
    cluster = request.node.stash[_CLUSTER] = SimulatedCluster(seed=simulation_seed, **settings)
    return cluster


@pytest.fixture
def crash_lab(simulation_seed: int) -> Callable[..., CrashReport]:
    """`crash_lab(workload, promise, recover=…, judge=…)`: explore every crash, fail the test for a violation.

    `promise` is what holds before the workload begins; other arguments are those of `CrashLab`. Returns the
    report of an exploration that was good.
    """

    def explore(
        workload: Any,
        promise: Any,
        *,
        recover: Callable[..., Any],
        judge: Callable[..., None],
        **settings: Any,
    ) -> CrashReport:
        from logstore.testing.crash import CrashLab

        settings = {"seed": simulation_seed, **settings}
        report = CrashLab(recover, judge, **settings).explore(workload, promise)
        if not report.is_good:
            pytest.fail(str(report), pytrace=False)
        return report

    return explore


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    result = yield
    # Here, not when the fixture is torn down: a violation is a failure of the test, not an error behind it.
    cluster = pyfuncitem.stash.get(_CLUSTER, None)
    if cluster is not None:
        cluster.finish()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cluster = item.stash.get(_CLUSTER, None)
    if cluster is not None and report.failed and call.excinfo is not None:
        lines = [f"again: pytest '{item.nodeid}' --logstore-seed {cluster.seed}", cluster.describe()]
        if not getattr(call.excinfo.value, "__notes__", None):
            lines.append(cluster.account())
        report.sections.append(("Simulated cluster", "\n".join(lines)))
    return report
