"""Data sources with a mistake each, which the judge must find."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import Filter, InputPartition

from logstore.spark.data_source import LogstoreDataSource
from logstore.spark.read_options import ReadOptions
from logstore.spark.readers import BatchReader, PushdownReader, RangePartition, StreamReader


class _LastOffset(PushdownReader):
    """Takes `offset <= n` for `offset < n`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        left = super().pushFilters(filters)
        self._narrowing = replace(self._narrowing, last_offset=self._narrowing.last_offset - 1)
        return left


class _ShortPieces(BatchReader):
    """Leaves out the last offset of each task but the first."""

    def partitions(self) -> list[InputPartition]:
        tasks = [each.wanted for each in super().partitions() if isinstance(each, RangePartition)]
        shorter = [replace(each, end_offset=each.end_offset - 1) for each in tasks[1:]]
        return [RangePartition(each) for each in (*tasks[:1], *shorter)]


class _Twice(StreamReader):
    """Begins each batch but the first with the last offset of the one before."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        earlier = {topic: {n: max(at - 1, 0) for n, at in each.items()} for topic, each in start.items()}
        return super().partitions(earlier, end)


class LastOffset(LogstoreDataSource):
    @classmethod
    def name(cls) -> str:
        return "last-offset"

    def reader(self, schema: Any) -> Any:
        options = ReadOptions.parse(self.options, streaming=False)
        return _LastOffset(options) if options.pushdown else BatchReader(options)


class ShortPieces(LogstoreDataSource):
    @classmethod
    def name(cls) -> str:
        return "short-pieces"

    def reader(self, schema: Any) -> Any:
        return _ShortPieces(ReadOptions.parse(self.options, streaming=False))


class Twice(LogstoreDataSource):
    @classmethod
    def name(cls) -> str:
        return "twice"

    def streamReader(self, schema: Any) -> Any:
        return _Twice(self.options, schema)


PLANTS: Final = {each.name(): each for each in (LastOffset, ShortPieces, Twice)}
