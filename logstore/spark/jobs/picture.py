"""A profile as a page to look at: HTML with drawings in it, nothing loaded from anywhere, no script.

Pure: the facts of `profile` (profiling.py) in, text out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from logstore.spark.jobs.progress import amount

WIDTH: Final = 720
HEIGHT: Final = 120
MOST_BARS: Final = 120

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --bar: #3b6ea8; --line: #8884; }}
@media (prefers-color-scheme: dark) {{ :root {{ --bar: #7fb0e8; }} }}
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }}
h2 {{ border-top: 1px solid var(--line); padding-top: 1rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .15rem .5rem; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
figure {{ margin: 1rem 0; }}
svg {{ display: block; width: 100%; max-width: {width}px; height: auto; }}
rect {{ fill: var(--bar); }}
text {{ fill: currentColor; font-size: 11px; }}
</style>
<h1>{title}</h1>
{topics}
</html>
"""

_COLUMNS: Final = (
    "partition", "offsets", "records", "bytes", "keys", "null keys", "gaps", "late", "most late", "first",
    "last", "longest silence",
)  # fmt: skip


def page(facts: Mapping[str, Any]) -> str:
    """The whole page."""
    topics = "\n".join(map(_topic, facts["topics"])) or "<p>No topic.</p>"
    return _PAGE.format(title="Profile of " + escape(facts["source"]), topics=topics, width=WIDTH)


def _topic(topic: Mapping[str, Any]) -> str:
    partitions = topic["partitions"]
    days: dict[str, int] = {}
    lateness: dict[str, int] = {}
    for each in partitions:
        for day, count in each["days"].items():
            days[day] = days.get(day, 0) + count
        for name, count in each["times"]["lateness"].items():
            lateness[name] = lateness.get(name, 0) + count
    names = [str(each["partition"]) for each in partitions]
    skew = topic["skew"]
    parts = [
        f"<h2>{escape(topic['topic'])}</h2>",
        f"<p>{amount(topic['records'])} records, {amount(topic['bytes'])}B of keys and values, about "
        f"{amount(topic['distinct_keys'])} different keys. The largest partition has "
        f"{skew['records']:.2f} times the records and {skew['bytes']:.2f} times the bytes of the average "
        "one.</p>",
        bars("Records by partition", names, [each["records"] for each in partitions]),
        bars("Bytes by partition", names, [each["bytes"] for each in partitions]),
        bars("Records by day (UTC)", list(dict(sorted(days.items()))), [days[day] for day in sorted(days)]),
    ]
    if sum(lateness.values()):
        parts.append(bars("Late records by lateness", list(lateness), list(lateness.values())))
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "\n".join(map(_row, partitions))
    parts.append(f"<table><tr>{head}</tr>\n{rows}</table>")
    return "\n".join(parts)


def _row(each: Mapping[str, Any]) -> str:
    times = each["times"]
    cells = (
        str(each["partition"]),
        f"{each['start_offset']} … {each['end_offset']}",
        amount(each["records"]),
        f"{amount(each['bytes'])}B",
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
    """A bar chart; neighbours are put together where there are too many to be seen."""
    if not names:
        return ""
    step = -(-len(names) // MOST_BARS)
    groups = [range(first, min(first + step, len(names))) for first in range(0, len(names), step)]
    labels = [
        names[group[0]] if len(group) == 1 else f"{names[group[0]]} … {names[group[-1]]}" for group in groups
    ]
    sums = [sum(values[slot] for slot in group) for group in groups]
    largest = max(sums) or 1
    width = WIDTH / len(sums)
    drawn = []
    for slot, (label, value) in enumerate(zip(labels, sums, strict=True)):
        height = HEIGHT * value / largest
        drawn.append(
            f'<rect x="{slot * width:.1f}" y="{HEIGHT - height:.1f}" width="{max(width - 1, 0.5):.1f}" '
            f'height="{height:.1f}"><title>{escape(label)}: {amount(value)}</title></rect>'
        )
    shown = {0, len(labels) - 1} if len(labels) > 12 else range(len(labels))
    for slot in sorted(shown):
        drawn.append(
            f'<text x="{(slot + 0.5) * width:.1f}" y="{HEIGHT + 14}" '
            f'text-anchor="{_anchor(slot, len(labels))}">{escape(labels[slot])}</text>'
        )
    return (
        f"<figure><figcaption>{escape(title)}, at most {amount(largest)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 20}" role="img" aria-label="{escape(title)}">'
        f"{''.join(drawn)}</svg></figure>"
    )


def _anchor(slot: int, count: int) -> str:
    """Labels at the edges stay inside."""
    if count <= 12:
        return "middle"
    return "end" if slot else "start"


def moment(time_ms: int | None) -> str:
    """`2026-11-20 12:00:00`; nothing for none, the number for what no calendar has."""
    if time_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def span(milliseconds: int) -> str:
    """`15 ms`, `3.2 s`, `5.0 min`, `2.5 h`, `9.1 days`."""
    for scale, sign in ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if milliseconds >= scale:
            return f"{milliseconds / scale:.1f} {sign}"
    return f"{milliseconds} ms"
