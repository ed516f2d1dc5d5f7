"""Draw the figures of the site as SVG files; a test compares the committed files with this script's output.

python -m docs.site.drawings
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent.parent / "drawings"
_STYLE = (
    "rect{fill:#eef2ff;stroke:#3f51b5;rx:6}.plain{fill:#fafafa;stroke:#9e9e9e}"
    "text{font:14px sans-serif;fill:#1a237e;text-anchor:middle}.small{font-size:12px;fill:#424242}"
    "path{stroke:#424242;stroke-width:1.5;fill:none;marker-end:url(#tip)}"
)
_TIP = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><polygon points="0,0 8,4 0,8" fill="#424242"/></marker>'


class Drawing:
    """A figure of boxes, arrows and notes."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._parts = [f"<title>{escape(title)}</title>"]

    def box(self, x: int, y: int, width: int, title: str, *lines: str, plain: bool = False) -> None:
        """Draw a box of 24 pixels per line, with its title first."""
        height = 16 + 22 * (1 + len(lines))
        kind = ' class="plain"' if plain else ""
        self._parts.append(f'<rect{kind} x="{x}" y="{y}" width="{width}" height="{height}"/>')
        self.note(x + width // 2, y + 24, title, large=True)
        for number, line in enumerate(lines, 1):
            self.note(x + width // 2, y + 24 + 22 * number, line)

    def note(self, x: int, y: int, text: str, *, large: bool = False) -> None:
        """Draw centred text."""
        kind = "" if large else ' class="small"'
        self._parts.append(f'<text{kind} x="{x}" y="{y}">{escape(text)}</text>')

    def arrow(self, *points: tuple[int, int]) -> None:
        """Draw an arrow through the points."""
        self._parts.append(f'<path d="M{" L".join(f"{x},{y}" for x, y in points)}"/>')

    def svg(self) -> str:
        """Return the file's content."""
        width, height = self._size
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        white = f'<rect x="0" y="0" width="{width}" height="{height}" style="fill:#fff;stroke:none;rx:0"/>'
        parts = [head, f"<style>{_STYLE}</style><defs>{_TIP}</defs>", white, *self._parts, "</svg>"]
        return "\n".join(parts) + "\n"


def packages() -> Drawing:
    """The packages and the direction of their imports."""
    drawing = Drawing(720, 400, "Packages and the direction of imports")
    drawing.box(40, 20, 640, "cli", "the logstore command")
    drawing.box(40, 110, 310, "spark", "PySpark data source and jobs")
    drawing.box(370, 110, 310, "testing", "simulated clusters, crash lab")
    drawing.box(40, 200, 310, "broker", "Kafka's protocol, event loop")
    drawing.box(370, 200, 310, "replication", "leaders, followers, controller")
    drawing.box(40, 290, 310, "log, segment, format", "one partition's log; also compact, columnar")
    drawing.box(370, 290, 150, "checkpoint", "small files")
    drawing.box(540, 290, 140, "disk", "system calls")
    drawing.arrow((195, 80), (195, 108))
    drawing.arrow((525, 80), (525, 108))
    drawing.arrow((195, 170), (195, 198))
    drawing.arrow((525, 170), (525, 198))
    drawing.arrow((350, 230), (368, 230))
    drawing.arrow((440, 260), (260, 288))
    drawing.arrow((350, 320), (368, 320))
    drawing.arrow((520, 320), (538, 320))
    drawing.note(360, 385, "An arrow means: imports. No import goes the other way.")
    return drawing


def append() -> Drawing:
    """The path of a produce request."""
    drawing = Drawing(720, 330, "The path of a produce request")
    steps = (
        ("broker", "decode the request", "one append per partition"),
        ("replication", "leader? epoch?", "min.insync.replicas?"),
        ("log", "prepare, place, write", "offsets, epoch, roll"),
        ("segment", "write the batch", "index entry"),
        ("disk", "pwrite", "fsync if asked"),
    )
    for number, (title, *lines) in enumerate(steps):
        x = 10 + 142 * number
        drawing.box(x, 60, 126, title, *lines)
        if number:
            drawing.arrow((x - 15, 100), (x - 2, 100))
    drawing.note(
        360, 35, "acks=all: the response waits until the high watermark passes the batch", large=True
    )
    drawing.box(152, 220, 126, "delayed", "waiting responses", plain=True)
    drawing.arrow((215, 142), (215, 218))
    drawing.arrow((152, 250), (73, 250), (73, 144))
    drawing.note(500, 250, "the response is sent when every in-sync replica has the batch")
    return drawing


def replication() -> Drawing:
    """How the high watermark moves."""
    drawing = Drawing(720, 340, "A follower's fetch and the high watermark")
    drawing.box(30, 60, 240, "leader, epoch 4", "offsets 0 to 7, LEO 8", "high watermark 6")
    drawing.box(450, 20, 240, "follower A, in sync", "offsets 0 to 7, LEO 8")
    drawing.box(450, 130, 240, "follower B, in sync", "offsets 0 to 5, LEO 6")
    drawing.box(450, 240, 240, "follower C, out of sync", "offsets 0 to 2, LEO 3", plain=True)
    drawing.arrow((450, 50), (272, 90))
    drawing.note(365, 55, "fetch from 8")
    drawing.arrow((450, 160), (272, 110))
    drawing.note(365, 152, "fetch from 6")
    drawing.arrow((450, 270), (272, 130))
    drawing.note(350, 232, "fetch from 3")
    drawing.note(150, 200, "A fetch offset acknowledges")
    drawing.note(150, 220, "everything below it.")
    drawing.note(150, 250, "High watermark = smallest LEO")
    drawing.note(150, 270, "of the in-sync replicas = 6.")
    drawing.note(150, 300, "Consumers read below it.")
    return drawing


DRAWINGS = {"packages.svg": packages, "append.svg": append, "replication.svg": replication}


def main() -> None:
    """Write all drawings."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / name).write_text(draw().svg())


if __name__ == "__main__":
    main()
