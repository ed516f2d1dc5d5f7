"""Sealed segments in an object store, read together with the live log.

    URL/orders-0/manifest.json                                     what is there, replaced as a whole
    URL/orders-0/00000000000000000000-00000000000000369768-6f2….log  the batches of [0, 369768), as in the log

An object has the batches of one segment, in Kafka's format. Its name ends in the id of the attempt that wrote
it. Objects are written before the manifest that names them, and never change, so a reader sees whole ones.
The manifest has offsets, leader epochs, sizes, SHA-256 digests, a sparse index, and the aborted transactions,
which is all that readers need.

    tier   [0 ──────── 369768)[369768 ──── 512004)
    live                  [300000 ────────────────────────── 700000)
    read   ──────────────── tier ────────────────▶│──── live ──────▶

Below the end of the tier, the tier is read, also where the live log still has the records. So no record comes
twice, and none is missed if retention removes it from the live log meanwhile. What retention removes while
a task reads the live log may be in the tier by now: the manifest is read again, and the tier goes on from
there.

A manifest has the topic id, where the log has one. A topic that was deleted and made anew has another id, and
is not read together with the tier of the old one. Nor is a log that has ended the leader epoch of a tiered
record below it: an unclean election cut what had been tiered.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from logstore.disk.clocks import steady_s
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import OsDisk, make_durable_dir, publish
from logstore.disk.topic_partition import TopicPartition, partitions_among
from logstore.log.stretches import Stretch
from logstore.segment.scan import scan_chunks
from logstore.segment.transaction_index import AbortedTransaction
from logstore.spark.columns import SEGMENT
from logstore.spark.counting import Count
from logstore.spark.errors import InvalidOption, UnknownTopic
from logstore.spark.ledger import sync_file
from logstore.spark.logs import Bounds, Cause, Headers, Logs, Missing, OffsetRange
from logstore.spark.stretch_rows import first_as_young, stretch_rows

VERSION: Final = 1
MANIFEST: Final = "manifest.json"
CHUNK_BYTES: Final = 4 << 20
REFRESH_S: Final = 60.0
"""How long a reader takes the manifests for current."""


class CorruptTier(EngineError):
    """A manifest that cannot be read, or does not fit. The message names it."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


@dataclass(frozen=True, slots=True)
class Tiered:
    """An object: the batches of one segment with the offsets [start_offset, end_offset).

    The first batch may begin below `start_offset`, and the last one end below `end_offset` - 1. `index` has
    offsets and byte positions of some batches.
    """

    name: str
    start_offset: int
    end_offset: int
    bytes: int
    sha256: str
    first_epoch: int
    last_epoch: int
    max_timestamp_ms: int
    index: tuple[tuple[int, int], ...]
    aborted: tuple[AbortedTransaction, ...] = ()
    last_offset: int = -1
    """of the last batch; -1 if there is none, or it was not written down"""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The objects of a partition, in offset order. `topic_id` is "" where the log has none."""

    topic_id: str = ""
    objects: tuple[Tiered, ...] = ()

    @property
    def bounds(self) -> Bounds:
        """The offsets that are there; holes are possible where retention was faster than the job."""
        if not self.objects:
            return Bounds(0, 0)
        return Bounds(self.objects[0].start_offset, self.objects[-1].end_offset)

    def encode(self) -> bytes:
        """Return the content of the file."""
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """Return the manifest in `data`. Raises `CorruptTier`."""
        try:
            facts = json.loads(data)
            if facts["version"] != VERSION:
                raise ValueError(f"its version is {facts['version']}, not {VERSION}")
            objects = tuple(
                Tiered(
                    **{
                        **each,
                        "index": tuple((int(offset), int(place)) for offset, place in each["index"]),
                        "aborted": tuple(AbortedTransaction(*entry) for entry in each["aborted"]),
                    }
                )
                for each in facts["objects"]
            )
            return cls(facts["topic_id"], objects)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptTier(f"{path} is not a manifest of a tier: {error}") from error


class Tier:
    """The objects below a URL of `fsspec`: `file:///…`, `s3://bucket/…`, `memory://…`.

    Methods raise `OSError`, and `InvalidOption` for a URL that no installed package serves.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self.files, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise InvalidOption(f"tier {url!r} cannot be opened: {error}") from error
        self.root = root.rstrip("/")
        self._is_local = "file" in self.files.protocol

    def path(self, partition: TopicPartition, name: str) -> str:
        """Return the path of an object."""
        return posixpath.join(self.root, str(partition), name)

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that have a directory, sorted."""
        try:
            entries = self.files.ls(self.root, detail=False, refresh=True)
        except FileNotFoundError:
            return []
        names = (str(entry).rstrip("/").rpartition("/")[2] for entry in entries)
        return sorted(partition for partition, _ in partitions_among(names))

    def manifest(self, partition: TopicPartition) -> Manifest:
        """Return the manifest of a partition; an empty one if there is none. Raises `CorruptTier`."""
        path = self.path(partition, MANIFEST)
        try:
            return Manifest.decode(self.files.cat_file(path), path)
        except FileNotFoundError:
            return Manifest()

    def put_manifest(self, partition: TopicPartition, manifest: Manifest) -> None:
        """Replace the manifest of a partition as a whole."""
        path, content = self.path(partition, MANIFEST), manifest.encode()
        if self._is_local:  # stores put an object as a whole, and durably
            publish(OsDisk(), posixpath.dirname(path), MANIFEST, content)
        else:
            self.files.pipe_file(path, content)

    def make_place(self, partition: TopicPartition) -> None:
        """Make the directory of a partition's objects."""
        place = posixpath.join(self.root, str(partition))
        if self._is_local:
            make_durable_dir(OsDisk(), place)
        else:
            self.files.makedirs(place, exist_ok=True)

    def sync(self, path: str) -> None:
        """Make an object durable: retention may delete the segment once a manifest names it."""
        if self._is_local:
            disk = OsDisk()
            sync_file(disk, path)
            disk.sync_dir(posixpath.dirname(path))

    def read(self, partition: TopicPartition, tiered: Tiered, start_offset: int) -> Iterator[Any]:
        """Yield chunks of an object as bytes and `Scanned`, from near `start_offset` on.

        The last one has the fault, if the object is damaged or cut.
        """
        first, position = max((each for each in tiered.index if each[0] <= start_offset), default=(0, 0))
        with self.files.open(self.path(partition, tiered.name), "rb", block_size=CHUNK_BYTES) as file:
            source: Any = _Source(file)
            yield from scan_chunks(source, position, tiered.bytes, base_offset=first, chunk_bytes=CHUNK_BYTES)


class _Source:
    """An object of `fsspec` as `scan_chunks` reads a file."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def pread(self, size: int, position: int) -> bytes:
        self._file.seek(position)
        data = b""
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        return data


class TieredLogs:
    """The `Logs` of a tier and of the live logs together."""

    def __init__(
        self,
        live: Logs,
        tier: Tier,
        *,
        committed_only: bool = False,
        on_batches: Callable[[Headers], None] | None = None,
    ) -> None:
        self._live, self._tier, self._on_batches = live, tier, on_batches
        self._committed_only = committed_only
        self._listed: Sequence[TopicPartition] = ()
        self._listed_s = -REFRESH_S
        self._manifests: dict[TopicPartition, tuple[float, Manifest]] = {}
        """with the time of reading; topic id and leader epochs were compared then"""

    def close(self) -> None:
        self._live.close()

    def partitions(self) -> Sequence[TopicPartition]:
        if steady_s() - self._listed_s >= REFRESH_S:
            self._listed, self._listed_s = self._tier.partitions(), steady_s()
        return sorted({*self._live.partitions(), *self._listed})

    def topic_ids(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str]:
        return self._live.topic_ids(partitions)

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Return the bounds of tier and live log together.

        Raises `CorruptTier` for a recreated topic, and if an unclean election cut tiered records.
        """
        there = set(self._live.partitions())
        live = self._live.bounds(
            [each for each in partitions if each in there or not self._manifest(each).objects]
        )
        found = {}
        for each in partitions:
            tiered = self._manifest(each).bounds
            if each not in live:
                found[each] = tiered
                continue
            if 0 < tiered.end_offset < live[each].start_offset:  # what is between them may be tiered by now
                tiered = self._manifest(each, is_new=True).bounds
            if not tiered.end_offset:
                found[each] = live[each]
            else:
                start = min(tiered.start_offset, live[each].start_offset)
                found[each] = Bounds(start, max(tiered.end_offset, live[each].end_offset))
        return found

    def later_epochs(self, partition: TopicPartition, epoch: int) -> Sequence[tuple[int, int]]:
        return self._live.later_epochs(partition, epoch)

    def offsets_by_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for each, time_ms in times_ms.items():
            offset = self._by_time(each, time_ms)
            if offset is not None:
                found[each] = offset
        there = set(self._live.partitions())
        left = {each: time for each, time in times_ms.items() if each not in found and each in there}
        return {**dict.fromkeys(times_ms), **self._live.offsets_by_time(left), **found}

    def _by_time(self, partition: TopicPartition, time_ms: int) -> int | None:
        """Return the offset of the first record in the tier that is at or after a time."""
        for tiered in self._manifest(partition).objects:
            if tiered.max_timestamp_ms < time_ms:
                continue
            start, end = tiered.start_offset, tiered.end_offset
            with suppress(FileNotFoundError):  # the reader of the records reports it
                for chunk, found in self._tier.read(partition, tiered, start):
                    offset = first_as_young(Stretch.of(chunk, found), time_ms, start, end)
                    if offset is not None:
                        return offset
        return None

    def cut_points(self, wanted: OffsetRange, pieces: int) -> Sequence[int]:
        objects = self._manifest(wanted.topic_partition).objects
        if not objects or wanted.start_offset >= objects[-1].end_offset:
            return self._live.cut_points(wanted, pieces)
        return []  # by offsets: the index of an object finds them

    def read(self, wanted: OffsetRange, columns: Sequence[str], missing: list[Missing]) -> Iterator[Any]:
        offset = wanted.start_offset
        while offset < wanted.end_offset:
            left = replace(wanted, start_offset=offset)
            tiered = _first_of(self._manifest(wanted.topic_partition).objects, left)
            if tiered is not None and tiered.start_offset <= offset:
                if SEGMENT in columns:
                    raise InvalidOption(
                        "column segment cannot be read with a tier: its objects are not files of a log"
                    )
                offset = min(tiered.end_offset, wanted.end_offset)
                yield from self._tier_rows(replace(left, end_offset=offset), columns, missing, [tiered])
            else:  # between two objects, or behind the last one
                end = wanted.end_offset if tiered is None else tiered.start_offset
                offset = yield from self._live_rows(replace(left, end_offset=end), columns, missing)

    def _live_rows(
        self, wanted: OffsetRange, columns: Sequence[str], missing: list[Missing]
    ) -> Generator[Any, None, int]:
        """Yield rows of the live log up to the end, or to where retention made the tier go on; return it."""
        lost: list[Missing] = []
        rows = self._live.read(wanted, columns, lost)
        while True:
            batch = next(rows, None)
            for each in lost:
                if each.cause is Cause.EXPIRED and (tiered := self._tiered_since(each)) is not None:
                    if tiered.start_offset > each.start_offset:
                        missing.append(each._replace(end_offset=tiered.start_offset))
                    return max(tiered.start_offset, each.start_offset)
                missing.append(each)
            lost.clear()
            if batch is None:
                return wanted.end_offset
            yield batch

    def _tiered_since(self, lost: Missing) -> Tiered | None:
        """Return the first object with some of these offsets, from a manifest that is read now."""
        wanted = OffsetRange(lost.topic, lost.partition, lost.start_offset, lost.end_offset)
        return _first_of(self._manifest(wanted.topic_partition, is_new=True).objects, wanted)

    def _tier_rows(
        self, wanted: OffsetRange, columns: Sequence[str], missing: list[Missing], objects: Sequence[Tiered]
    ) -> Iterator[Any]:
        read = tuple(columns) or ("offset",)
        for tiered in objects:
            aborted = tiered.aborted if self._committed_only else ()
            count, offset, detail = Count(wanted), wanted.start_offset, ""
            try:
                for chunk, found in self._tier.read(wanted.topic_partition, tiered, offset):
                    stretch = Stretch.of(chunk, found)
                    yield from stretch_rows(stretch, wanted, read, aborted, missing, count)
                    if len(found.last_offsets):
                        offset = max(offset, int(found.last_offsets[-1]) + 1)
                        if self._on_batches is not None:
                            self._on_batches(found.headers)
                    if found.fault is not None:
                        detail = f"{tiered.name} in the tier: {found.fault.value}"
                    if offset >= wanted.end_offset:
                        break
            except FileNotFoundError:
                detail = f"{tiered.name} is not in the tier"
            missing.extend(count.missing())
            if detail and offset < wanted.end_offset:
                missing.append(wanted.lost(offset, wanted.end_offset, Cause.DAMAGED, detail))

    def _manifest(self, partition: TopicPartition, *, is_new: bool = False) -> Manifest:
        """Return a manifest; read it again if it is old, or must be new. Raises `CorruptTier`."""
        read_s, manifest = self._manifests.get(partition, (-REFRESH_S, Manifest()))
        if is_new or steady_s() - read_s >= REFRESH_S:
            manifest = self._tier.manifest(partition)
            if manifest.objects and manifest.topic_id:
                check_topic_id(partition, manifest, self._live.topic_ids([partition]).get(partition, ""))
            if manifest.objects and manifest.objects[-1].last_offset >= 0:
                with suppress(UnknownTopic):  # only the tier has it still
                    epoch = manifest.objects[-1].last_epoch
                    check_epochs(partition, manifest, self._live.later_epochs(partition, epoch))
            self._manifests[partition] = steady_s(), manifest
        return manifest


def _first_of(objects: Sequence[Tiered], wanted: OffsetRange) -> Tiered | None:
    """Return the first object with some of the offsets."""
    return next(
        (
            each
            for each in objects
            if each.end_offset > wanted.start_offset and each.start_offset < wanted.end_offset
        ),
        None,
    )


def check_topic_id(partition: TopicPartition, manifest: Manifest, topic_id: str) -> None:
    """Raise `CorruptTier` if a manifest is of another topic of the same name; "" is not known."""
    if manifest.topic_id and topic_id and manifest.topic_id != topic_id:
        raise CorruptTier(
            f"the tier has {partition} of topic id {manifest.topic_id}, the log has {topic_id}: the topic "
            "was deleted and recreated. Use another folder for the new topic, or remove the old one's"
        )


def check_epochs(partition: TopicPartition, manifest: Manifest, epochs: Sequence[tuple[int, int]]) -> None:
    """Raise `CorruptTier` if the log has left an object's last epoch below the object's last batch.

    `epochs` are (epoch, start offset) of the log, ascending. Leaders only append, so its records were cut.
    """
    for tiered in manifest.objects:
        after = next((start for epoch, start in epochs if epoch > tiered.last_epoch), None)
        if after is not None and after <= tiered.last_offset:
            raise CorruptTier(
                f"{tiered.name} of {partition} in the tier has leader epoch {tiered.last_epoch} up to offset "
                f"{tiered.last_offset}, but the log ended that epoch at {after}: an unclean election cut "
                "records that were in the tier. Use another folder for the log as it is now, and keep this "
                "one: it has the only copy"
            )
