"""The format `logstore`: what Spark asks for a reader or a writer. Thin: all else is imported when needed.

Spark makes this object anew for each load, save or start, in processes of its own, and pickles it: so no
I/O here.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class LogstoreDataSource(DataSource):
    """`spark.read.format("logstore")` and its three sisters; options as of Spark's own source for Kafka."""

    @classmethod
    def name(cls) -> str:
        return "logstore"

    def schema(self) -> Any:
        from logstore.spark.columns import spark_schema
        from logstore.spark.read_options import ReadOptions

        # Of batches and streams, and what both refuse is refused at `load`.
        return spark_schema(ReadOptions.parse(self.options, streaming=None).columns)

    def reader(self, schema: Any) -> Any:
        from logstore.spark.batch_reader import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: Any) -> Any:
        from logstore.spark.stream_reader import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from logstore.spark.writers import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from logstore.spark.writers import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
