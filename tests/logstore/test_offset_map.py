"""The offset map is a dict with a bound: held to one, filled to the brim, in one call or in many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.compact.offset_map import SLOT_BYTES, OffsetMap, hash_keys


def test_row_251_get_put_full_and_how_full() -> None:
    """A key that was never put, the last offset of one that was, and no room for one more."""
    offsets = OffsetMap(7 * SLOT_BYTES, load_factor=0.9)
    assert (offsets.capacity, offsets.get(b"a"), offsets.utilization) == (6, -1, 0.0)
    for number in range(6):
        offsets.put(b"key %d" % number, number)
    offsets.put(b"key 2", 17)
    assert [offsets.get(b"key %d" % number) for number in range(6)] == [0, 1, 17, 3, 4, 5]
    assert (len(offsets), offsets.utilization) == (6, 6 / 7)
    with pytest.raises(ValueError, match="full"):
        offsets.put(b"one more", 18)
    assert offsets.get(b"one more") == -1
    assert offsets.latest_offset == -1
    offsets.latest_offset = 17
    assert offsets.latest_offset == 17


def test_no_more_memory_than_it_was_given() -> None:
    for max_bytes in (2 * SLOT_BYTES, 1000, 65_536):
        assert OffsetMap(max_bytes).memory_bytes <= max_bytes


@pytest.mark.parametrize("max_bytes", [0, SLOT_BYTES - 1, SLOT_BYTES])
def test_a_map_without_room_is_refused(max_bytes: int) -> None:
    with pytest.raises(ValueError, match="holds no key"):
        OffsetMap(max_bytes)


@given(
    calls=st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=8),
    slots=st.integers(2, 60),
    load_factor=st.floats(0.5, 1.0),
)
@settings(derandomize=True, max_examples=150, deadline=None)
def test_it_is_a_dict_with_a_bound(calls: list[list[int]], slots: int, load_factor: float) -> None:
    """Many keys at once, keys twice in a call, and a stop exactly where a new key has no room."""
    offsets = OffsetMap(slots * SLOT_BYTES, load_factor=load_factor)
    model: dict[bytes, int] = {}
    offset = 0
    for call in calls:
        keys = [b"%d" % number for number in call]
        room = 0
        for place, key in enumerate(keys):
            if key not in model and len(model) == offsets.capacity:
                break
            model[key] = offset + place
            room += 1
        places = np.arange(offset, offset + len(keys))
        assert offsets.put_many(hash_keys(keys), places) == room
        offset += len(keys)
        assert len(offsets) == len(model)
    everything = [b"%d" % number for number in range(45)]
    assert offsets.get_many(hash_keys(everything)).tolist() == [model.get(key, -1) for key in everything]


def test_a_full_map_still_says_that_a_key_is_not_there() -> None:
    """Used to the last slot there would be no empty one to end the search."""
    offsets = OffsetMap(7 * SLOT_BYTES, load_factor=1.0)
    keys = [b"%d" % number for number in range(20)]
    assert offsets.put_many(hash_keys(keys), np.arange(20)) == offsets.capacity == 6
    assert [offsets.get(key) for key in keys] == [*range(6), *[-1] * 14]


def test_full_to_the_load_factor() -> None:
    """Thousands of keys in one call: the chains at nine slots in ten come to an end, and nothing is lost."""
    offsets = OffsetMap(5000 * SLOT_BYTES)
    keys = [b"%d" % number for number in range(6000)]
    assert offsets.put_many(hash_keys(keys), np.arange(6000)) == offsets.capacity
    expected = [number if number < offsets.capacity else -1 for number in range(6000)]
    assert offsets.get_many(hash_keys(keys)).tolist() == expected
