"""The HTML page of a profile, drawn from its report. Pure.

One file without scripts, which loads nothing. Every picture has a title for screen readers, and every bar one
that shows its value under the pointer; the tables below have all numbers. Colours follow the reader's system.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from logstore.spark.jobs.dated_files import HOUR_MS
from logstore.spark.jobs.work import amount, amounts, in_bytes

WIDTH: Final = 720
HEIGHT: Final = 120
MOST_BARS: Final = 120

_PAGE: Final = Path(__file__).with_name("profile.html")
"""A template for `str.format`: `title`, `topics`, `width`."""

_COLUMNS: Final = (
    "partition", "offsets", "records", "bytes", "keys", "null keys", "gaps", "late", "most late", "first",
    "last", "longest silence",
)  # fmt: skip


def page(facts: Mapping[str, Any]) -> str:
    """Return the HTML page of a report."""
    topics = "\n".join(map(_topic, facts["topics"])) or "<p>No topic.</p>"
    return _PAGE.read_text(encoding="utf-8").format(
        title="Profile of " + escape(facts["source"]), topics=topics, width=WIDTH
    )


def _topic(topic: Mapping[str, Any]) -> str:
    partitions = topic["partitions"]
    skew = topic["skew"]
    pictures = [
        _rate(topic["rate"]),
        _by_partition("Records by partition", partitions, lambda each: each["records"]),
        _by_partition("Bytes by partition", partitions, lambda each: each["bytes"]),
        _by_partition("Distinct keys by partition", partitions, lambda each: each["distinct_keys"]),
        _summed("Values by size", (each["value_sizes"] for each in partitions)),
        _lag(partitions),
        _by_partition(
            "Offsets without a record by partition", partitions, lambda each: each["gaps"]["offsets"]
        ),
        _summed("Late records by lateness", (each["times"]["lateness"] for each in partitions)),
    ]
    head = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    rows = "\n".join(map(_row, partitions))
    return "\n".join(
        [
            f"<h2>{escape(topic['topic'])}</h2>",
            f"<p>{amounts(topic['records'], 'record')}, {in_bytes(topic['bytes'])} of keys and values, about "
            f"{amounts(topic['distinct_keys'], 'distinct key')}. The largest partition has "
            f"{skew['records']:.2f} times the records and {skew['bytes']:.2f} times the bytes of "
            "the mean.</p>",
            *filter(None, pictures),
            f"<table><caption>Partitions</caption><tr>{head}</tr>\n{rows}</table>",
        ]
    )


def _rate(rate: Mapping[str, Any] | None) -> str:
    if rate is None:
        return ""
    step_ms = rate["step_hours"] * HOUR_MS
    names = [moment(rate["from_ms"] + slot * step_ms)[:16] for slot in range(len(rate["records"]))]
    hours = rate["step_hours"]
    title = "Records by hour (UTC)" if hours == 1 else f"Records by {hours} hours (UTC)"
    return bars(title, names, rate["records"])


def _by_partition(title: str, partitions: Sequence[Mapping[str, Any]], value: Any) -> str:
    """Return bars, or nothing if all are 0."""
    values = [value(each) for each in partitions]
    return bars(title, [str(each["partition"]) for each in partitions], values) if any(values) else ""


def _summed(title: str, counts: Any) -> str:
    """Return bars of the sums by name, up to the last one that is not 0; nothing if all are."""
    sums: Counter[str] = Counter()
    for each in counts:
        sums.update(each)
    names = list(sums)
    while names and not sums[names[-1]]:
        names.pop()
    return bars(title, names, [sums[name] for name in names])


def _lag(partitions: Sequence[Mapping[str, Any]]) -> str:
    """Return how far the newest record of each partition lies behind the newest one of the topic."""
    timed = [each for each in partitions if each["times"]["latest_ms"] is not None]
    newest = max((each["times"]["latest_ms"] for each in timed), default=0)
    return _by_partition(
        "Seconds of the newest record behind the topic's newest, by partition",
        timed,
        lambda each: (newest - each["times"]["latest_ms"]) / 1000,
    )


def _row(each: Mapping[str, Any]) -> str:
    times = each["times"]
    cells = (
        str(each["partition"]),
        f"{each['start_offset']} … {each['end_offset']}",
        amount(each["records"]),
        in_bytes(each["bytes"]),
        amount(each["distinct_keys"]),
        amount(each["null_keys"]),
        amount(each["gaps"]["offsets"]),
        amount(times["late"]),
        span(times["most_late_ms"]) if times["late"] else "",
        moment(times["earliest_ms"]),
        moment(times["latest_ms"]),
        span(times["longest_silence_ms"]),
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def bars(title: str, names: Sequence[str], values: Sequence[float]) -> str:
    """Return a bar chart; neighbours are combined if there are more than `MOST_BARS`."""
    if not names:
        return ""
    step = -(-len(names) // MOST_BARS)
    labels, sums = [], []
    for _, group in groupby(range(len(names)), key=lambda slot: slot // step):
        slots = list(group)
        first, last = names[slots[0]], names[slots[-1]]
        labels.append(first if len(slots) == 1 else f"{first} … {last}")
        sums.append(sum(values[slot] for slot in slots))
    largest = max(sums) or 1
    width = WIDTH / len(sums)
    drawn = []
    for slot, (label, value) in enumerate(zip(labels, sums, strict=True)):
        height = HEIGHT * value / largest
        drawn.append(
            f'<rect x="{slot * width:.1f}" y="{HEIGHT - height:.1f}" width="{max(width - 1, 0.5):.1f}" '
            f'height="{height:.1f}"><title>{escape(label)}: {amount(value)}</title></rect>'
        )
    few = len(labels) <= 12
    for slot in range(len(labels)) if few else (0, len(labels) - 1):
        anchor = "middle" if few else "end" if slot else "start"  # labels at the edges stay inside
        drawn.append(
            f'<text x="{(slot + 0.5) * width:.1f}" y="{HEIGHT + 14}" '
            f'text-anchor="{anchor}">{escape(labels[slot])}</text>'
        )
    said = escape(f"{title}, at most {amount(largest)}: {labels[sums.index(max(sums))]}")
    return (
        f"<figure><figcaption>{escape(title)}, at most {amount(largest)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 20}" role="img" aria-label="{said}">'
        f"{''.join(drawn)}</svg></figure>"
    )


def moment(time_ms: int | None) -> str:
    """Return `2026-11-20 12:00:00`, "" for None, or the number for a time outside the calendar."""
    if time_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def span(milliseconds: int) -> str:
    """Return `15 ms`, `3.2 s`, `5.0 min`, `2.5 h`, `9.1 days`."""
    for scale, sign in ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if milliseconds >= scale:
            return f"{milliseconds / scale:.1f} {sign}"
    return f"{milliseconds} ms"
