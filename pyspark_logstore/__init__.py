"""How Spark finds the format `logstore`: it looks for this name in every module called `pyspark_…`."""

from logstore.spark.data_source import LogstoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
