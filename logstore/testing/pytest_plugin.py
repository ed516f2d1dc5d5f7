"""The pytest plugin of the test kit: simulated clusters as a fixture, tests over seeds, seeds in reports.

    @pytest.mark.simulation(nodes=3, seeds=range(20))
    def test_nothing_is_lost(simulated_cluster: SimulatedCluster) -> None: ...

    pytest --logstore-seed 7        run every test that takes a seed with this one

Its entry point is `logstore`, so every pytest run in an environment with this package imports it. It
imports nothing else of the package until a test uses a fixture. `-p no:logstore` disables it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from logstore.testing.crash import CrashReport
    from logstore.testing.kit import SimulatedCluster
    from logstore.testing.volatile_broker import VolatileBroker

_CLUSTER: pytest.StashKey[SimulatedCluster] = pytest.StashKey()
_SEEDS = frozenset({"seed", "seeds"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("logstore", "simulated clusters").addoption(
        "--logstore-seed",
        type=int,
        default=None,
        metavar="N",
        help="run simulated clusters and crash labs under this seed instead of their markers'",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "simulation(nodes=3, seed=0, seeds=None, **settings): settings of the fixture `simulated_cluster`; "
        "with `seeds`, the test runs once per seed",
    )


def _settings(item: Any) -> dict[str, Any]:
    """Return the settings of all markers; those of a nearer one replace others. Raises `UsageError`."""
    found: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("simulation"))):
        given = marker.kwargs
        if marker.args:
            raise _misuse(item, "pass its settings by name")
        if len(given.keys() & _SEEDS) == 2:
            raise _misuse(item, "give it a seed or seeds, not both")
        if not isinstance(given.get("seed", 0), int):
            raise _misuse(item, f"seed is an int, not {given['seed']!r}")
        seeds = given.get("seeds") or ()
        if not isinstance(seeds, Collection) or not all(isinstance(seed, int) for seed in seeds):
            raise _misuse(item, f"seeds are ints, such as range(20), not {seeds!r}")
        if given.keys() & _SEEDS:
            found = {name: value for name, value in found.items() if name not in _SEEDS}
        found.update(given)
    return found


def _misuse(item: Any, what: str) -> pytest.UsageError:
    return pytest.UsageError(f"{item.nodeid}: the marker `simulation`: {what}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat the test for each seed of the marker; the ids name the seeds."""
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
    return only if only is not None else _settings(request.node).get("seed", 0)


@pytest.fixture
def simulated_cluster(request: pytest.FixtureRequest, simulation_seed: int) -> SimulatedCluster:
    """A `SimulatedCluster` with the settings of the marker `simulation`.

    When the test has passed, the cluster is healed and checked. A violation fails the test.
    """
    from logstore.testing.kit import SimulatedCluster

    settings = {name: value for name, value in _settings(request.node).items() if name not in _SEEDS}
    cluster = request.node.stash[_CLUSTER] = SimulatedCluster(seed=simulation_seed, **settings)
    return cluster


@pytest.fixture
def crash_lab(simulation_seed: int) -> Callable[..., CrashReport]:
    """`crash_lab(workload, promise, recover=…, judge=…)`: explore every crash; a violation fails the test.

    `promise` holds before the workload starts; other arguments are those of `CrashLab`. Returns the report
    of an exploration without violations.
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


@pytest.fixture
def volatile_broker(simulation_seed: int) -> Iterator[VolatileBroker]:
    """A real broker at `.bootstrap`, on a disk that loses power: `.power_cut()`, `.rot()`, `.fail_next()`, ….

    The seed is that of the marker `simulation` or of `--logstore-seed`.
    """
    from logstore.testing.volatile_broker import VolatileBroker

    with VolatileBroker(seed=simulation_seed) as broker:
        yield broker


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    result = yield
    # Here and not in the teardown of the fixture: a violation is a failure of the test, not an error after
    # it.
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
