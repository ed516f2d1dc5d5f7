"""Compiled loops that write records: `plan` assigns them to batches, `write` writes their bytes."""

from __future__ import annotations

import numpy as np

from logstore.columnar.kernels import Bytes, Ints, Longs, copy, difference, inner, kernel, long


@inner
def varint_bytes(value: int) -> int:
    """The bytes of `value` as a varint or varlong."""
    zigzag = np.uint64(value << 1 ^ value >> 63)
    size = 1
    while zigzag >= np.uint64(0x80):
        zigzag >>= np.uint64(7)
        size += 1
    return size


@inner
def put_varint(out: Bytes, position: int, value: int) -> int:
    zigzag = np.uint64(value << 1 ^ value >> 63)
    while zigzag >= np.uint64(0x80):
        out[position] = zigzag & np.uint64(0x7F) | np.uint64(0x80)
        zigzag >>= np.uint64(7)
        position += 1
    out[position] = zigzag
    return position + 1


@inner
def put_field(out: Bytes, position: int, data: Bytes, at: int, size: int) -> int:
    """Write nullable bytes behind their size."""
    position = put_varint(out, position, long(size))
    size = max(size, 0)
    copy(out, position, data, at, size)
    return position + size


@kernel
def measure_headers(list_at: Longs, list_size: Ints, name_size: Ints, value_size: Ints, sizes: Longs) -> None:
    """Compute the bytes of every record's headers, including their count."""
    for row in range(len(list_at)):
        total = varint_bytes(long(list_size[row]))
        for header in range(list_at[row], list_at[row] + list_size[row]):
            total += varint_bytes(long(name_size[header])) + name_size[header]
            total += varint_bytes(long(value_size[header])) + max(value_size[header], 0)
        sizes[row] = total


@kernel
def plan(
    slots: Longs,
    times: Longs,
    key_size: Ints,
    value_size: Ints,
    header_bytes: Longs,
    limits: Longs,
    batch_records: int,
    filling: Longs,
    lengths: Longs,
    batch_of: Longs,
    slot_of: Longs,
    base_times: Longs,
    counts: Longs,
    sizes: Longs,
    latest: Longs,
) -> int:
    """Assign records to batches of their slots, of at most `limits[slot]` bytes each, or one record.

    `header_bytes` is empty if no record has headers; `filling` is -1 for every slot. Fills in per record its
    length and its batch; per batch its slot, its first and largest time, its records and their bytes.
    Returns the number of batches.
    """
    batches = 0
    for row in range(len(times)):
        slot = slots[row]
        batch = filling[slot]
        fixed = 1 + varint_bytes(long(key_size[row])) + max(key_size[row], 0)
        fixed += varint_bytes(long(value_size[row])) + max(value_size[row], 0)
        fixed += header_bytes[row] if len(header_bytes) else 1
        length = fixed + 2
        is_full = True
        if batch >= 0:
            length = fixed + varint_bytes(difference(times[row], base_times[batch]))
            length += varint_bytes(counts[batch])
            is_full = counts[batch] >= batch_records
            is_full = is_full or length + varint_bytes(length) > limits[slot] - sizes[batch]
        if is_full:
            batch = batches
            batches += 1
            filling[slot] = batch
            slot_of[batch] = slot
            base_times[batch] = times[row]
            latest[batch] = times[row]
            counts[batch] = 0
            sizes[batch] = 0
            length = fixed + 2
        lengths[row] = length
        batch_of[row] = batch
        counts[batch] += 1
        sizes[batch] += length + varint_bytes(length)
        latest[batch] = max(latest[batch], times[row])
    return batches


@kernel
def write(
    out: Bytes,
    origin: int,
    first: int,
    end: int,
    positions: Longs,
    written: Longs,
    batch_of: Longs,
    base_times: Longs,
    lengths: Longs,
    times: Longs,
    keys: Bytes,
    key_at: Longs,
    key_size: Ints,
    values: Bytes,
    value_at: Longs,
    value_size: Ints,
    list_at: Longs,
    list_size: Ints,
    names: Bytes,
    name_at: Longs,
    name_size: Ints,
    header_values: Bytes,
    header_value_at: Longs,
    header_value_size: Ints,
) -> None:
    """Write the planned records `first` to `end` into `out`, which begins at the position `origin`.

    Per batch, `positions` has the position of its next record and `written` how many there are; both advance.
    """
    for row in range(first, end):
        batch = batch_of[row]
        position = put_varint(out, positions[batch] - origin, lengths[row])
        out[position] = 0
        position = put_varint(out, position + 1, difference(times[row], base_times[batch]))
        position = put_varint(out, position, written[batch])
        written[batch] += 1
        position = put_field(out, position, keys, key_at[row], key_size[row])
        position = put_field(out, position, values, value_at[row], value_size[row])
        if len(list_size):
            position = put_varint(out, position, long(list_size[row]))
            for header in range(list_at[row], list_at[row] + list_size[row]):
                position = put_field(out, position, names, name_at[header], name_size[header])
                position = put_field(
                    out, position, header_values, header_value_at[header], header_value_size[header]
                )
        else:
            out[position] = 0
            position += 1
        positions[batch] = position + origin
