"""The mkdocs hook: add the generated reference pages, the drawings of stories and the root pages to the site.

Root pages (README.md, ARCHITECTURE.md, …) live at the top of the repository. Their links and the page names that
they put into code font are rewritten to links that work inside the site.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))  # mkdocs loads this file by its path

from mkdocs.exceptions import PluginError  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402

from docs.site import reference, settings  # noqa: E402
from logstore.cli.timeline_drawing import draw  # noqa: E402
from logstore.testing.runner import run  # noqa: E402
from logstore.testing.stories.catalogue import STORIES  # noqa: E402
from logstore.testing.stories.telling import drawn, play  # noqa: E402
from logstore.testing.traced import Reader  # noqa: E402

ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "TRACK_RECORD.md": "track-record.md",
}


def makers() -> dict[str, Callable[[], str]]:
    """Return how each file of the site is made that is not under docs/: pages in Markdown, drawings in SVG."""
    made: dict[str, Callable[[], str]] = {
        target: partial(root_page, source) for source, target in ROOT_PAGES.items()
    }
    made["reference/settings.md"] = settings.page
    made["reference/cli.md"] = reference.cli_page
    made["reference/errors.md"] = reference.errors_page
    made["reference/replication-behaviours.md"] = reference.replication_rows_page
    made["reference/failure-schedules.md"] = reference.schedules_page
    for room in reference.ROOMS:
        made[f"reference/api/{room}.md"] = partial(reference.api_page, room)
    for name in STORIES:
        made[f"drawings/story-{name}.svg"] = partial(story_drawing, name)
    made["drawings/timeline.svg"] = timeline_drawing
    return made


def root_page(source: str) -> str:
    return in_site((ROOT / source).read_text())


def story_drawing(name: str) -> str:
    """Draw a story with its rule off and on."""
    return drawn([play(STORIES[name], is_on=is_on) for is_on in (False, True)])


def timeline_drawing() -> str:
    trace: list[str] = []
    run(7, 900, trace=trace.append)
    events = list(Reader().read(trace))
    return draw("Seed 7, 900 events", events, lambda event: f"{event.time_ms} ms")


def in_site(text: str) -> str:
    """Return a root page with its links rewritten for the site."""

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        if target in ROOT_PAGES:
            return f"[{label}]({ROOT_PAGES[target]}{anchor})"
        if target.startswith("docs/") and target.endswith((".md", ".svg")):
            return f"[{label}]({target.removeprefix('docs/')}{anchor})"
        return label  # a file that the site does not have

    text = re.sub(r"\[([^\]]*)\]\(((?!https?:)[^)#\s]+)(#[^)]*)?\)", link, text)
    return re.sub(r"(?<!\[)`docs/([\w/-]+\.md)`", r"[\1](\1)", text)


def on_config(config: Any) -> Any:
    """Add every decision to the navigation. Called by mkdocs first."""
    decisions = sorted(path.name for path in (ROOT / "docs/decisions").glob("*.md"))
    project = next(entry["Project"] for entry in config.nav if "Project" in entry)
    project.append({"Decisions": [f"decisions/{name}" for name in decisions]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and drawings. Called by mkdocs before it builds the navigation."""
    if missing := reference.undocumented():
        raise PluginError(f"public names without a docstring: {', '.join(missing)}")
    for name, make in makers().items():
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links from a page under docs/ to a root page into links inside the site."""
    up = "../" * page.file.src_uri.count("/")

    def link(match: re.Match[str]) -> str:
        return f"]({up}{ROOT_PAGES[match[1]]}{match[2] or ''})"

    names = "|".join(re.escape(name) for name in ROOT_PAGES)
    return re.sub(rf"\]\((?:\.\./)+({names})(#[^)]*)?\)", link, markdown)
