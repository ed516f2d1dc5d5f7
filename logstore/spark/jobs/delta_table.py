"""The Delta table of `stream`: rows are appended once, even if batches are repeated.

A commit of Delta's log can have a transaction: the id of an application and a number. Delta skips an append
whose number is not above the last one of its application. Here these are the id of the query and the number
of the batch, so that a batch which is carried out again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from logstore.disk.copying import is_there
from logstore.disk.files import Disk, read_small_file
from logstore.spark.delta import SQL_SETTINGS, DeltaMissing, delta_settings
from logstore.spark.jobs.work import Workers
from logstore.spark.ledger import sync_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOG: Final = "_delta_log"
_EXTENSIONS: Final = "spark.sql.extensions"


def prepare(workers: Workers) -> None:
    """Give the session that is started the settings for Delta; check one that is there.

    Raises `DeltaMissing` and `JavaMissing`.
    """
    if workers.is_to_start:
        has_jars = workers.has_setting("spark.jars") or workers.has_setting("spark.jars.packages")
        workers.prefer(SQL_SETTINGS if has_jars else delta_settings())
    if "delta" not in str(workers.session.conf.get(_EXTENSIONS, "")).lower():
        raise DeltaMissing(
            "the session has no Delta: start it with --packages, spark.sql.extensions and "
            "spark.sql.catalog.spark_catalog, as Delta's documentation says, or run the job without "
            "spark-submit"
        )


def mismatch(disk: Disk, rows: DataFrame, table: str, partition_by: Sequence[str] | None) -> str | None:
    """Return why the rows cannot be appended to a table, None if they can; new columns are added.

    `partition_by` None: the table is known to have the right directories.
    """
    if not is_there(disk, f"{table}/{LOG}"):
        return None
    session = rows.sparkSession
    there = {field.name: field.dataType for field in session.read.format("delta").load(table).schema}
    for field in rows.schema:
        known = there.get(field.name, field.dataType)
        if known.simpleString() != field.dataType.simpleString():
            return (
                f"column {field.name} is {field.dataType.simpleString()}, in {table} it is "
                f"{known.simpleString()}: stream to a new directory, or give the schema of the table"
            )
    if partition_by is None:
        return None
    (detail,) = session.sql(f"DESCRIBE DETAIL delta.`{table}`").collect()
    if list(detail["partitionColumns"]) == list(partition_by):
        return None
    found, wanted = (",".join(each) or "no columns" for each in (detail["partitionColumns"], partition_by))
    return f"{table} is partitioned by {found}, not by {wanted}: see --partition-by"


def append_once(
    rows: DataFrame, table: str, partition_by: Sequence[str], application: str, number: int
) -> None:
    """Append the rows as a commit with this number, unless the table has it."""
    writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.option("txnAppId", application).option("txnVersion", number).save(f"file://{table}")


def sync(disk: Disk, table: str, application: str, number: int) -> None:
    """Make the commit with this number durable: Delta leaves that to the file system."""
    log = f"{table}/{LOG}"
    commits = sorted(
        (each.name for each in disk.scan(log) if each.name.endswith(".json") and each.name[:-5].isdecimal()),
        reverse=True,
    )
    for name in commits:
        actions = [json.loads(line) for line in (read_small_file(disk, f"{log}/{name}") or b"").splitlines()]
        if not any(_is_of(action.get("txn"), application, number) for action in actions):
            continue
        directories = {log, table}
        for path in (unquote(action["add"]["path"]) for action in actions if "add" in action):
            with suppress(FileNotFoundError):  # rewritten and vacuumed by others meanwhile
                sync_file(disk, f"{table}/{path}")
            while path := path.rpartition("/")[0]:
                directories.add(f"{table}/{path}")
        for directory in sorted(directories):
            with suppress(FileNotFoundError):
                disk.sync_dir(directory)
        sync_file(disk, f"{log}/{name}")
        return


def _is_of(transaction: dict[str, object] | None, application: str, number: int) -> bool:
    return transaction is not None and (transaction["appId"], transaction["version"]) == (application, number)
