"""A process that reads a log which another one owns, until it is told to stop.

    python -m tests.reader.reading DIR SEED

Reads on and on, from where it is or from anywhere, until a line comes in; then once more from the start, and
prints what it has seen. Any record that nobody wrote, any record that was skipped, and any error that
`LogReader` does not document ends it with a traceback.
"""

from __future__ import annotations

import json
import select
import sys
from random import Random

from logstore import LogReader, OffsetOutOfRange
from tests.reader.owner import KEPT_EVERY, offset_of


def read_on(reader: LogReader) -> int:
    """Read to the end; returns how many records that were."""
    count, before = 0, reader.next_offset - 1
    for record in reader.records():
        assert record.value is not None
        assert offset_of(record.value) == record.offset, f"{record} lies at another offset than it was given"
        assert record.offset > before >= -1 or before < 0, f"offset {record.offset} after {before}"
        if count:
            skipped = [offset for offset in range(before + 1, record.offset) if offset % KEPT_EVERY == 0]
            assert not skipped, f"offsets {skipped} were passed over between {before} and {record.offset}"
        before = record.offset
        count += 1
    return count


def stop_is_asked() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main(directory: str, seed: int) -> None:
    random = Random(seed)
    reader = LogReader(directory)
    seen = {"records": 0, "readings": 0, "out of range": 0}
    last_time = False
    while True:
        last_time = stop_is_asked()
        if last_time:
            reader = LogReader(directory)
        elif random.random() < 0.1:
            reader = LogReader(directory, start_offset=random.randint(0, max(reader.log_end_offset, 0)))
        try:
            seen["records"] += read_on(reader)
            seen["readings"] += 1
            if last_time:
                break
        except OffsetOutOfRange as error:
            seen["out of range"] += 1
            reader.seek(min(max(error.offset, error.log_start_offset), error.log_end_offset))
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
