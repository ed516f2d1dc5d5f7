"""Pages about directories: each command that they show is run as it stands, on directories of those names."""

from __future__ import annotations

import re
import shutil
from glob import glob
from pathlib import Path

import pytest

from logstore.cli.main import run
from logstore.log.log import Log
from tests.cli.test_timeline import change
from tests.golden.kafka_directories import unpack
from tests.test_page_commands import command_words, commands_of_blocks

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("adopting.md", "dead-directories.md", "losses.md", "timeline.md")
NO = {"logstore diff backup/orders-0 data/orders-0 --json", "logstore compat data --with 0.1.0"}
"""Commands whose answer is no: these copies differ, and 0.1.0 did not know the metadata of KRaft."""


def lost(directory: Path) -> None:
    """A log with three losses; the last may be put back."""
    with Log.open(directory) as log:
        for cut in (5, 4, 3):
            log.append([b"%d" % number for number in range(9)])
            log.truncate_to(cut)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories that the pages name; absolute names lead below it."""
    root = tmp_path_factory.mktemp("tree")
    kraft = unpack("kraft-dir", root)
    for name in ("var/kafka", "mnt/old"):
        (root / name).parent.mkdir()
        (root / name).symlink_to(kraft)
    for node in ("DIR/node-1", "mnt/one/kafka-logs"):
        (root / node).mkdir(parents=True)
        (root / f"{node}.state-changes").write_text(change(100, "becomes leader") + "\n")
    lost(root / "data/orders-0")
    for copy in ("node-1", "node-2", "backup"):
        shutil.copytree(root / "data/orders-0", root / copy / "orders-0")
    with Log.open(root / "backup/orders-0") as log:
        log.append(b"not in the other copy")
    shutil.copytree(kraft / "__cluster_metadata-0", root / "data/__cluster_metadata-0")
    shutil.copytree(kraft / "__consumer_offsets-0", root / "data/__consumer_offsets-3")
    (root / "mypackage").mkdir()
    (root / "mypackage/codecs.py").write_text("def order(data):\n    return data.decode()\n")
    return root


@pytest.fixture
def here(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of it as the current folder."""
    shutil.copytree(tree, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def words_here(command: str) -> list[str]:
    """The arguments of `logstore`, absolute names made relative, patterns of names expanded as by a shell."""
    words = command_words(re.sub(r"(?<= )/(?=mnt|var)", "", command))
    return [found for word in words for found in (sorted(glob(word)) if "*" in word else [word])]


@pytest.mark.parametrize(
    "command",
    [
        command
        for page in PAGES
        for command in dict.fromkeys(commands_of_blocks(DOCS / page))
        if not command.startswith("logstore serve ")  # it does not end; the pages of operators run it
    ],
)
@pytest.mark.usefixtures("here")
def test_a_command_does_what_the_page_says(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words_here(command)) == (command in NO), capsys.readouterr().err
