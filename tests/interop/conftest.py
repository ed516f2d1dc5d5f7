"""One behaviour, every client that offers it, one broker and three.

Brokers and clients' administrators live as long as the run; topics and groups are each test's own.
"""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.interop.absent import ABSENT, NEEDS_THREE
from tests.interop.clients import CLIENTS
from tests.interop.cluster import Cluster, running
from tests.interop.kit import Kit, until
from tests.interop.seam import Admin, Client

SIZES = (1, 3)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leave out what `absent.py` lists; a test there holds each of its lines to be true."""
    if "kit" not in metafunc.fixturenames:
        return
    behaviour = metafunc.function.__name__.removeprefix("test_")
    is_whole_suite = metafunc.definition.get_closest_marker("interop") is not None
    sizes = [size for size in SIZES if size == 3 or behaviour not in NEEDS_THREE] if is_whole_suite else [1]
    names = [name for name in CLIENTS if (name, behaviour) not in ABSENT]
    metafunc.definition.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
    metafunc.parametrize("size", sizes)
    metafunc.parametrize("client_name", names)


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Cluster]]:
    """Clusters by size, each started when it is first asked for."""
    found: dict[int, Cluster] = {}
    with ExitStack() as stack:

        def of(size: int) -> Cluster:
            if size not in found:
                directory = tmp_path_factory.mktemp(f"cluster-of-{size}-")
                found[size] = stack.enter_context(running(size, directory))
            return found[size]

        yield of


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker that makes no topics by itself."""
    directory = tmp_path_factory.mktemp("strict-cluster")
    with running(1, directory, {"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def clients() -> Iterator[dict[str, Client]]:
    with ExitStack() as stack:
        found: dict[str, Client] = {}
        for name, make in CLIENTS.items():
            found[name] = client = make()
            stack.callback(client.close)
        yield found
    _collect()


@pytest.fixture(scope="session")
def administrators(
    clusters: Callable[[int], Cluster], clients: dict[str, Client]
) -> Iterator[Callable[[str, int], Admin]]:
    """Each client's administrator of each cluster; another one after brokers came or went.

    For those that there are hold on to the controller they know, and the way there, long after it has gone.
    """
    found: dict[tuple[str, int], tuple[int, Admin]] = {}

    def of(name: str, size: int) -> Admin:
        cluster = clusters(size)
        turns, admin = found.pop((name, size), (-1, None))
        if admin is None or turns != cluster.turns:
            if admin is not None:
                admin.close()
            until(cluster.is_settled, "all brokers know who runs and who is the controller")
            admin = clients[name].admin(cluster.bootstrap)
        found[name, size] = cluster.turns, admin
        return admin

    yield of
    for _, admin in found.values():
        admin.close()


@pytest.fixture
def kit(
    request: pytest.FixtureRequest,
    client_name: str,
    size: int,
    clusters: Callable[[int], Cluster],
    clients: dict[str, Client],
    administrators: Callable[[str, int], Admin],
) -> Iterator[Kit]:
    name = re.sub(r"[^a-zA-Z0-9_-]", "-", request.node.name.removeprefix("test_")).strip("-")
    with ExitStack() as stack:
        cluster = clusters(size)
        cluster.check()
        yield Kit(clients[client_name], cluster, partial(administrators, client_name, size), name, stack)
    _collect()


def _collect() -> None:
    """Sockets that kafka-python has left open, before another test is told of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
