"""The page of settings is printed from the classes, so it cannot say anything else than they do."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from logstore.cli.configuration import page
from logstore.config import LogConfig, kafka_name
from logstore.log.manager_config import PARTS, LogManagerConfig, broker_names, settings_of

PAGE = Path(__file__).parent.parent.parent / "docs" / "configuration.md"


def test_the_page_is_what_the_command_prints() -> None:
    """After a change of a setting: `python -m logstore.cli.configuration > docs/configuration.md`."""
    assert PAGE.read_text() == page()


def test_every_name_is_on_the_page() -> None:
    names = [kafka_name(each.name) for each in fields(LogConfig)]
    for config in (LogManagerConfig, *PARTS.values()):
        names += [name for each in settings_of(config) for name in broker_names(each)]
    text = page()
    assert all(f"`{name}`" in text for name in names)
    assert len(names) > 80


def test_every_row_has_every_cell() -> None:
    """A bar or an empty cell in a text would break its table in silence."""
    width = 0
    for line in page().splitlines():
        if line.startswith("|---"):
            width = line.count("|")
        elif line.startswith("| ") and width:
            assert line.count("|") == width
            assert "|  |" not in line
        elif not line:
            width = 0
