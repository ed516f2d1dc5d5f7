"""PySpark for logstore: a data source (batch and streaming, read and write) and jobs.

    spark.read.format("logstore")          options and columns: docs/spark.md
    logstore pipeline JOB                  export, stream, replay, tier, compact, profile, verify, repair, …

Spark finds the format by itself, through the module `pyspark_logstore`. Programs import from here:

    session                  a local session whose workers find the format
    table                    a topic as a frame
    LogstoreDataSource       for `spark.dataSource.register`, where Spark does not find the format
    check_java               fail early, in one line, if Java is missing or too old
    delta_settings           settings of a session that has Delta tables
    avro_decoder             a function of Spark for Avro values, with a schema or a schema registry
    lags, Behind             how far a streaming query is behind the end of the log
    reason                   the message of an error of ours, out of the exception that Spark made of it
    InvalidOption, …         the errors; inside Spark's exceptions they are text, outside they are these
    classes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.lazily import names_from

if TYPE_CHECKING:
    from logstore.spark.avro import avro_decoder
    from logstore.spark.brief_errors import reason
    from logstore.spark.data_source import LogstoreDataSource
    from logstore.spark.delta import DeltaMissing, delta_settings
    from logstore.spark.errors import (
        CorruptLedger,
        DataLoss,
        InvalidOption,
        NoMatchingTime,
        PublicationBroken,
        PythonUnfit,
        RowRefused,
        StagedFileGone,
        UnknownTopic,
        WriteRefused,
    )
    from logstore.spark.java import JavaMissing, check_java
    from logstore.spark.local_session import session, table
    from logstore.spark.offsets import Behind, lags

__all__ = [
    "Behind",
    "CorruptLedger",
    "DataLoss",
    "DeltaMissing",
    "InvalidOption",
    "JavaMissing",
    "LogstoreDataSource",
    "NoMatchingTime",
    "PublicationBroken",
    "PythonUnfit",
    "RowRefused",
    "StagedFileGone",
    "UnknownTopic",
    "WriteRefused",
    "avro_decoder",
    "check_java",
    "delta_settings",
    "lags",
    "reason",
    "session",
    "table",
]

__getattr__, __dir__ = names_from(
    __name__,
    {
        "brief_errors": ("reason",),
        "data_source": ("LogstoreDataSource",),
        "avro": ("avro_decoder",),
        "delta": ("DeltaMissing", "delta_settings"),
        "java": ("JavaMissing", "check_java"),
        "offsets": ("Behind", "lags"),
        "local_session": ("session", "table"),
        "errors": (
            *("CorruptLedger", "DataLoss", "InvalidOption", "NoMatchingTime", "PublicationBroken"),
            *("PythonUnfit", "RowRefused", "StagedFileGone", "UnknownTopic", "WriteRefused"),
        ),
    },
)
