"""The format `logstore`: its schema, readers and writers for Spark; the rest is imported when needed.

Spark creates and pickles this object for each load, save or start, in several processes, so it does no I/O.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from logstore.spark.brief_errors import briefly


@briefly
class LogstoreDataSource(DataSource):
    """The source and sink `logstore`, for batches and streams, with the options of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "logstore"

    def schema(self) -> Any:
        """Return the schema of a read. Raises `InvalidOption`."""
        from logstore.spark.columns import spark_schema
        from logstore.spark.read_options import ReadOptions

        # Options that neither a batch nor a stream accepts fail at `load`.
        return spark_schema(ReadOptions.parse(self.options, streaming=None).columns)

    def reader(self, schema: Any) -> Any:
        """Return the reader of a batch. Raises `InvalidOption`."""
        from logstore.spark.readers import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: Any) -> Any:
        """Return the reader of a stream. Raises `InvalidOption`."""
        from logstore.spark.readers import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Return the writer of a batch. Raises `InvalidOption` and `WriteRefused`."""
        from logstore.spark.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """Return the writer of a stream. Raises `InvalidOption` and `WriteRefused`."""
        from logstore.spark.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)
