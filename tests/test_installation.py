"""The wheel as a user's project meets it: its own folders keep their names, and everything of ours works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from logstore.version import VERSION
from tests.spark.spark_home import quick_environment

ROOT = Path(__file__).parent.parent
NAMES = ("broker", "checkpoint", "pipeline", "replication", "simulation", "tools")
"""The names that earlier releases took from their users."""


def run(
    *command: str | Path, cwd: Path, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as a user's shell would: nothing of this test's environment leads to the checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= variables
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def own_names(folder: Path, packages: Sequence[str]) -> None:
    """Give the folder a package or a module of each of `NAMES`."""
    for name in NAMES:
        if name in packages:
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text("MINE = True\n")
        else:
            (folder / f"{name}.py").write_text("MINE = True\n")


PIP = ("--quiet", "--no-deps", "--no-input", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves files in its tree, and test workers build side by side."""
    tree, folder = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("logstore", "replication", "checkpoint", "pyspark_logstore"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    run(sys.executable, "-m", "pip", "wheel", *PIP, "--wheel-dir", folder, tree, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel; dependencies come from this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    site, interpreter = Path(paths["purelib"]), Path(paths["scripts"]) / "python"
    run(sys.executable, "-m", "pip", "--python", interpreter, "install", *PIP, wheel, cwd=folder)
    # A path in a .pth file is searched, but .pth files in it are not read: the editable install stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return interpreter


@pytest.fixture(params=["packages", "modules"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A project whose own packages, or modules, are called like the ones that we had."""
    own_names(tmp_path, packages=NAMES if request.param == "packages" else ())
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_mine.py").write_text(
        textwrap.dedent(f"""
        import importlib

        import pytest

        import logstore
        from logstore.broker import Broker
        from logstore.testing import SimulatedCluster

        @pytest.mark.parametrize("name", {NAMES})
        def test_my_modules_are_mine(name):
            assert importlib.import_module(name).MINE

        def test_a_log(tmp_path):
            with logstore.Log.open(tmp_path / "orders-0") as log:
                log.append(b"placed", sync=True)
                assert [record.value for record in log.read(0)] == [b"placed"]

        def test_a_broker(kafka_broker: Broker):
            kafka_broker.create_topic("orders", 1)
            kafka_broker.append("orders", b"placed")

        def test_a_cluster(simulated_cluster: SimulatedCluster):
            simulated_cluster.create_topic("orders")
            simulated_cluster.produce("orders", b"placed")
        """)
    )
    return tmp_path


def test_the_wheel_holds_one_package_and_the_name_for_spark(wheel: Path) -> None:
    """Links of the checkout are folders in the wheel; tests, benchmarks and campaigns stay out."""
    assert wheel.name.startswith(f"pylogstore-{VERSION}-")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"logstore", "pyspark_logstore", f"pylogstore-{VERSION}.dist-info"}
    assert {"logstore/replication/__init__.py", "logstore/checkpoint/__init__.py"} <= set(names)
    assert "logstore/py.typed" in names
    pages = ROOT / "logstore/cli/console/static"
    console = {str(path.relative_to(ROOT)) for path in pages.rglob("*") if path.is_file()}
    assert "logstore/cli/console/static/vendor/VENDORED.txt" in console
    assert console <= set(names)
    assert not [name for name in names if "plants" in name or "/model/" in name or "/test_" in name]


@pytest.mark.parametrize(
    "options", [("-m", "pytest"), ("-P", "-c", "import pytest; pytest.main()")], ids=" ".join
)
def test_a_project_with_the_same_names_keeps_them(
    python: Path, project: Path, options: tuple[str, ...]
) -> None:
    """`python -m pytest` puts the project's folder first on the path; the script `pytest` (-P) does not."""
    assert "9 passed" in run(python, *options, cwd=project).stdout


def test_the_command_works_beside_them(python: Path, project: Path) -> None:
    logstore = python.with_name("logstore")
    assert run(logstore, "--version", cwd=project).stdout == f"logstore {VERSION}\n"
    (project / "lines").write_text("one\ntwo\n")
    with (project / "lines").open() as lines:
        subprocess.run(
            [logstore, "append", "data/lines-0"], cwd=project, stdin=lines, check=True, capture_output=True
        )
    assert run(logstore, "cat", "data/lines-0", cwd=project).stdout == "one\ntwo\n"
    seeds = run(
        python, "-m", "logstore.testing", "--seed", "7", "--events", "50", cwd=project
    ).stdout.splitlines()
    assert "seed 7" in seeds[0]


def test_planted_mistakes_are_named_as_missing(python: Path, tmp_path: Path) -> None:
    done = run(python, "-m", "logstore.testing", "--plants", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "checkout" in done.stderr


def test_types_are_seen_from_outside(python: Path, tmp_path: Path) -> None:
    """`py.typed` travels with the package: a user's wrong argument is an error, not an Any."""
    (tmp_path / "mine.py").write_text(
        "from logstore import Log\n"
        "from logstore.broker import Broker\n"
        "from logstore.replication import Node\n"
        "reveal_type(Log.open('orders-0').log_end_offset)\n"
        "Log.open(offset=7)\n"
        "reveal_type(Broker)\n"
        "reveal_type(Node)\n"
    )
    command = (
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--python-executable",
        python,
        "mine.py",
    )
    told = run(*command, cwd=tmp_path, check=False).stdout
    assert 'Revealed type is "int"' in told or 'Revealed type is "builtins.int"' in told, told
    assert "[call-arg]" in told
    assert "Any" not in told
    assert "import-untyped" not in told


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_spark_finds_the_format(python: Path, tmp_path: Path) -> None:
    """Spark's workers are processes of their own, with the project's folder on their path too.

    One start of Spark for both forms: half of the names are packages, the others modules.
    """
    project = tmp_path / "project"
    project.mkdir()
    own_names(project, packages=NAMES[::2])
    (project / "job.py").write_text(
        textwrap.dedent("""
        from pyspark.sql import SparkSession
        from logstore import Log

        with Log.open("data/clicks-0") as log:
            log.append([b"home", b"cart"])
        spark = SparkSession.builder.master("local[1]").getOrCreate()
        print("rows", spark.read.format("logstore").option("subscribe", "clicks").load("data").count())
        spark.stop()
        """)
    )
    quick = quick_environment(tmp_path / "spark")
    done = run(python, "job.py", cwd=project, check=False, PYSPARK_PYTHON=str(python), **quick)
    assert "rows 2" in done.stdout, done.stderr
