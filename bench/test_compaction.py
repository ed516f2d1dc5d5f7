"""Compact 1 KiB records with keys from a fixed set; measure speed and the memory of the keys.

64 MiB by default; the bar is for `COMPACTION_MIB=1024 COMPACTION_KEYS=1000000`. One pass reads everything
twice (keys, then records) and writes the rest. The figure is log bytes per CPU second.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

from logstore.compact.cleaner_config import CleanerConfig
from logstore.config import LogConfig
from logstore.format.batch import encode_batch_of_pairs
from logstore.log.log import Log

MIB = int(os.environ.get("COMPACTION_MIB", "64"))
KEYS = int(os.environ.get("COMPACTION_KEYS", "65536"))
MAP_BYTES = 64 << 20
RECORD_BYTES = 1024
RECORDS_A_BATCH = 16
BAR_MIB_A_SECOND = 60


def test_compaction_speed(scratch: Path) -> None:
    config = LogConfig(cleanup_policy="compact", segment_bytes=128 << 20)
    log = Log.open(scratch / "bench-0", config)
    random = Random(7)
    value = random.randbytes(RECORD_BYTES - 32)
    for _ in range((MIB << 20) // RECORD_BYTES // RECORDS_A_BATCH // 64):
        log.append_batches(
            b"".join(
                encode_batch_of_pairs(
                    ((b"key-%012d" % random.randrange(KEYS), value) for _ in range(RECORDS_A_BATCH)),
                    timestamp_ms=1,
                )
                for _ in range(64)
            )
        )
    log.partition.roll()
    log.flush()
    size = log.size
    began, cpu_began = time.perf_counter(), time.process_time()
    (report,) = log.compact(settings=CleanerConfig(dedupe_buffer_size=MAP_BYTES))
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    # CPU time: other load on the machine does not count.
    speed = size / cpu_seconds / (1 << 20)
    print(
        f"\n{size >> 20} MiB of 1 KiB records, {report.stats.keys:,} keys: {speed:.0f} MiB "
        f"a CPU second ({size / seconds / (1 << 20):.0f} a second here and now), "
        f"map of {report.stats.map_bytes / (1 << 20):.1f} MiB, {log.size >> 20} MiB left"
    )
    assert report.is_complete
    assert report.stats.records_written == report.stats.keys
    assert report.stats.map_bytes <= MAP_BYTES
    assert speed >= BAR_MIB_A_SECOND
    log.close()
