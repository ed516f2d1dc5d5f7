"""Delta tables of `stream`, as far as they need no Spark: versions that fit, jars, what is durable, refusals.

`make spark-hour` writes such tables, with a Spark that Delta is made for.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from logstore.disk.files import OsDisk
from logstore.spark import delta
from logstore.spark.delta import DeltaMissing, delta_settings, package_of
from logstore.spark.jobs import delta_table
from logstore.spark.jobs.stream import LEDGER_DIRECTORY
from logstore.spark.ledger import Ledger
from tests.spark.jobs.conftest import NOON_MS, Command, append, command  # noqa: F401 - a fixture

REQUIRES = ["pyspark<=4.2.0,>=4.0.1", "importlib_metadata<=8.7.1,>=1.0.0"]


def test_the_package_of_two_versions() -> None:
    assert package_of("4.4.0", REQUIRES, "4.2.0") == "io.delta:delta-spark_4.2_2.13:4.4.0"
    assert package_of("4.4.0", REQUIRES, "4.1.4") == "io.delta:delta-spark_4.1_2.13:4.4.0"
    assert package_of("9.9", ["pyspark"], "4.10.0") == "io.delta:delta-spark_4.10_2.13:9.9"
    with pytest.raises(
        DeltaMissing, match=r"4\.4\.0 is made for Spark up to 4\.2\.0, and 4\.3\.0 is installed"
    ):
        package_of("4.4.0", REQUIRES, "4.3.0")


def test_without_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(DeltaMissing, match=r"pip install 'pylogstore\[delta\]'"):
        delta_settings()


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `spark-submit` to be written, Delta in versions that fit, and a cache of the test's own."""
    script = tmp_path / "spark-submit"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(delta, "_spark_submit", lambda: script)
    monkeypatch.setattr(delta, "check_java", lambda: None)
    monkeypatch.setattr(metadata, "version", {"delta-spark": "4.4.0", "pyspark": "4.2.0"}.__getitem__)
    monkeypatch.setattr(metadata, "requires", lambda _: REQUIRES)
    return script


def written(script: Path, text: str) -> None:
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)


def test_jars_are_fetched_once(submit: Path, tmp_path: Path) -> None:
    fetch = 'test "$2" = io.delta:delta-spark_4.2_2.13:4.4.0 && folder=${4#spark.jars.ivy=} || exit 1'
    written(submit, f"{fetch}\nmkdir $folder/jars\ntouch $folder/jars/b.jar $folder/jars/a.jar")
    settings = delta_settings()
    folder = tmp_path / "cache" / "logstore" / "delta" / "delta-spark_4.2_2.13-4.4.0"
    assert settings["spark.jars"] == f"{folder}/a.jar,{folder}/b.jar"
    assert "DeltaCatalog" in settings["spark.sql.catalog.spark_catalog"]
    written(submit, "exit 1")
    assert delta_settings() == settings
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]


def test_jars_that_cannot_be_fetched(submit: Path, tmp_path: Path) -> None:
    said = "Server access error\\n  unresolved dependency: io.delta#delta: not found\\nat java"
    written(submit, f"printf '{said}' >&2; exit 1")
    with pytest.raises(DeltaMissing, match=r"fetched \(unresolved dependency: io.delta#delta: not found\)"):
        delta_settings()
    assert not list((tmp_path / "cache" / "logstore" / "delta").iterdir())


def test_what_a_batch_added_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data files and the entry of its own commit; others write to the table, too."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    for number, (application, version, path) in enumerate(
        [("query", 6, "old.parquet"), ("query", 7, "day=1%252/new.parquet"), ("other", 7, "theirs.parquet")]
    ):
        actions = [{"txn": {"appId": application, "version": version}}, {"add": {"path": path}}]
        (log / f"{number:020d}.json").write_text("".join(f"{json.dumps(each)}\n" for each in actions))
    synced: list[str] = []
    monkeypatch.setattr(delta_table, "sync_file", lambda _, path: synced.append(path))
    (tmp_path / "day=1%2").mkdir()
    delta_table.sync(OsDisk(), str(tmp_path), "query", 7)
    assert synced == [f"{tmp_path}/day=1%2/new.parquet", f"{log}/{1:020d}.json"]


def test_a_table_keeps_its_format(command: Command, tmp_path: Path) -> None:  # noqa: F811
    append(tmp_path / "data" / "t-0", [(NOON_MS, "k", "v")])
    table = tmp_path / "table"
    with Ledger(OsDisk(), f"{table}/{LEDGER_DIRECTORY}") as ledger:
        ledger.decide(0, {"state": {"query": "q"}})
        ledger.finish({"query": "q"})
    refused = command("stream", tmp_path / "data", "--output", table, "--table-format", "delta")
    assert (refused.code, refused.err) == (
        1,
        f"logstore: {table} is a parquet table: --table-format parquet, or stream to a new directory\n",
    )
