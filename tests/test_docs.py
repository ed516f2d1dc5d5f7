"""The pages: their code runs, their links work, their references exist, and generated pages are complete."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from docs.site import hook, reference, settings
from logstore.broker.embedded import BrokerConfig
from logstore.broker.properties import WITHOUT_EFFECT
from logstore.broker.security.config import SSL_WITHOUT_EFFECT
from logstore.broker.settings import OTHER_NAMES
from logstore.config import LogConfig, kafka_name
from logstore.disk.errors import ErrorCode
from logstore.log.manager_config import PARTS, LogManagerConfig, broker_names, settings_of
from tests.page_runner import ABOUT_SPARK, Block, blocks_of, check
from tests.spark.spark_home import quick_environment

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if path.is_file())
by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# --- code blocks ------------------------------------------------------------------------------


def environment(home: Path) -> dict[str, str]:
    """What a reader's shell has, and nothing of this test run."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "JAVA_HOME") if name in os.environ}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}


def run_pages(pages: list[Path], tmp_path: Path, *options: str, **variables: str) -> str:
    """Run the blocks of each page in an empty folder; returns what they print."""
    folder = tmp_path / "empty"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests/page_runner.py"), *map(str, pages), *options],
        cwd=folder,
        env={**environment(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_run(block: Block) -> bool:
    return block.language in ("python", "sh")


WITH_CODE = [page for page in PAGES if any(map(is_run, blocks_of(page)))]
WITHOUT_SPARK = [
    page
    for page in WITH_CODE
    if page.name not in ABOUT_SPARK
    and any(is_run(block) and not block.needs_spark() for block in blocks_of(page))
]


@pytest.mark.parametrize("page", WITHOUT_SPARK, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_run(page: Path, tmp_path: Path) -> None:
    assert run_pages([page], tmp_path)


WITH_SPARK = [
    page
    for page in WITH_CODE
    if page.name in ABOUT_SPARK or any(block.needs_spark() for block in blocks_of(page))
]


def run_with_spark(pages: list[Path], tmp_path: Path) -> str:
    printed = run_pages(pages, tmp_path, "--spark", **quick_environment(tmp_path / "spark"))
    for page in pages:
        assert f"--- {page.name}:" in printed
    return printed


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_readmes_blocks_for_spark_run(tmp_path: Path) -> None:
    printed = run_with_spark([README], tmp_path)
    # Its groupBy.
    assert re.search(r"\| *ann *\| *2 *\|", printed)
    assert re.search(r"\| *bob *\| *1 *\|", printed)


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_pages_blocks_for_spark_run(tmp_path: Path) -> None:
    """All pages in one process, because a JVM takes many times longer to start than a block to run."""
    run_with_spark([page for page in WITH_SPARK if page != README], tmp_path)


@by_name
def test_every_block_is_run_or_parsed(page: Path) -> None:
    for block in blocks_of(page):
        check(block)


@by_name
def test_blocks_are_fenced(page: Path) -> None:
    """An indented block has no language, so nothing would check it."""
    outside = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"(?:^|\n)\n {4,}[^\s*-].*", outside) == []


# --- links and references ---------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading) for heading in headings)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in plain}


@by_name
def test_links_work(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target and not target.startswith("#"):
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve()
            assert path.exists() or str(path.relative_to(ROOT)) in generated(), target
            assert not anchor or str(path.relative_to(ROOT)) in generated() or anchor in anchors(path), target


def test_readme_has_no_relative_link() -> None:
    """The package index shows the README without the repository (decision 045)."""
    links = re.findall(r"\]\(([^)]+)\)", README.read_text())
    assert [each for each in links if not each.startswith(("https://", "#"))] == []


@cache
def generated() -> frozenset[str]:
    """The pages and drawings that the site has and the repository does not."""
    return frozenset(f"docs/{name}" for name in hook.makers())


@cache
def tracked() -> dict[str, str]:
    """Every tracked text file with its content."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = {}
    for name in names.splitlines():
        path = ROOT / name
        if (
            path.is_file()
            and not path.is_symlink()
            and path.suffix in (".md", ".py", ".toml", ".yml", ".svg", "")
        ):
            try:
                text = path.read_text()
                # Commands of the track record name files of an older commit.
                found[name] = (
                    re.sub(r"^`.*$", "", text, flags=re.MULTILINE) if name == "TRACK_RECORD.md" else text
                )
            except UnicodeDecodeError:
                continue
    return found


NOT_IN_THE_REPOSITORY = re.compile(
    r"\bDESIGN(?:\.md)?\b|\blog-format\b|\b(?:reliability|protocol|style)\.md\b"
    r"|\b(?:reliability|replication|protocol|spark|security) (?:§ ?)?[RS]?\d+(?:\.\d+)?\b"
)
SECTION = re.compile(r"§ ?\d*")
DECISION = re.compile(r"\bdecisions? (\d{3})\b")
FILE = re.compile(
    r"(?<![\w/.])((?:docs|tests|bench|examples|logstore|replication|checkpoint)/[\w./-]+\.(?:md|py|svg))\b"
)


def dangling(text: str) -> list[str]:
    """The references in a text that lead nowhere in the repository."""
    found = [match[0] for match in NOT_IN_THE_REPOSITORY.finditer(text)]
    found += [match[0] for match in SECTION.finditer(text)]
    numbers = {path.name[:3] for path in (ROOT / "docs/decisions").glob("*.md")}
    found += [match[0] for match in DECISION.finditer(text) if match[1] not in numbers]
    found += [
        match[1]
        for match in FILE.finditer(text)
        if not (ROOT / match[1]).exists() and match[1] not in generated()
    ]
    return found


def test_references_lead_somewhere() -> None:
    """A reader can follow every file, decision and section that is named."""
    skipped = {"tests/test_docs.py", "tests/test_kafka_rows.py"}  # these have bad references on purpose
    found = {name: dangling(text) for name, text in tracked().items() if name not in skipped}
    assert {name: bad for name, bad in found.items() if bad} == {}


@pytest.mark.parametrize(
    "text",
    [
        "see DESIGN.md",
        "reliability.md S3",
        "replication.md §4",
        "log-format 3.4",
        "decision 999",
        "docs/nowhere.md",
        "(§6.2)",
    ],
)
def test_dangling_references_are_noticed(text: str) -> None:
    assert dangling(text)


def test_existing_references_are_allowed() -> None:
    assert dangling("docs/durability.md, decision 001, `tests/test_docs.py`") == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z0-9-]+)[^`]*`", page.read_text()))
        assert named <= targets, page.name


def test_make_help_lists_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True)
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    listed = re.findall(r"^([a-z0-9-]+) {2,}\S", done.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(phony[1].split())


@pytest.mark.parametrize(("target", "code"), [("there.md", 0), ("nowhere.md", 1)])
def test_make_check_fails_for_a_broken_link(target: str, code: int, tmp_path: Path) -> None:
    """The command of `make check` on a site of one page: with --quiet, mkdocs counts no warnings."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "there.md").write_text(f"[a link]({target})\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: one page\n")
    done = subprocess.run(["make", "-n", "check"], cwd=ROOT, check=True, capture_output=True, text=True)
    (build,) = (line.split("-m mkdocs ")[1] for line in done.stdout.splitlines() if "-m mkdocs" in line)
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", *build.split(), "-f", str(tmp_path / "mkdocs.yml")],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        check=False,
    )
    assert built.returncode == code, built.stderr.decode()


# --- generated pages --------------------------------------------------------------------------


def test_every_public_name_has_a_docstring() -> None:
    assert reference.undocumented() == []


def test_a_missing_docstring_is_noticed() -> None:
    class Bare:
        def method(self) -> None: ...

    Bare.__module__ = "logstore.example"
    assert [name.rpartition(".")[2] for name in reference._undocumented_members(Bare)] == ["method"]


def test_every_error_has_advice() -> None:
    assert set(reference.ADVICE) == set(ErrorCode)


def test_every_error_class_has_a_docstring() -> None:
    assert [each.__name__ for each in reference._error_classes() if not each.__dict__.get("__doc__")] == []


def test_every_setting_is_in_the_reference() -> None:
    names = [kafka_name(each.name) for each in fields(LogConfig)]
    for config in (LogManagerConfig, *PARTS.values()):
        names += [name for each in settings_of(config) for name in broker_names(each)]
    names += [*OTHER_NAMES, *WITHOUT_EFFECT, *SSL_WITHOUT_EFFECT]
    text = settings.page()
    assert all(f"`{name}`" in text for name in names)
    assert len(names) > 190


@pytest.mark.parametrize("config", [*settings.PLAIN, BrokerConfig], ids=lambda config: config.__name__)
def test_every_field_has_a_description(config: type) -> None:
    skipped = {"controller", "node_id", "host", "port"} if config.__name__ == "NodeConfig" else set[str]()
    assert {each.name for each in fields(config)} - skipped - set(settings.field_docs(config)) == set()


def test_every_table_row_has_every_cell() -> None:
    """A bar or an empty cell would break a table."""
    width = 0
    for line in settings.page().splitlines():
        if line.startswith("|---"):
            width = line.count("|")
        elif line.startswith("| ") and width:
            assert line.count("|") == width, line
            assert "|  |" not in line, line
        elif not line:
            width = 0


def test_every_verb_is_in_the_reference() -> None:
    text = reference.cli_page()
    for verb in (
        "append",
        "cat",
        "cluster start",
        "dump",
        "pipeline export",
        "serve",
        "topics create",
        "verify",
    ):
        assert f" logstore {verb}\n" in text


def test_nothing_is_loaded_from_elsewhere() -> None:
    """The site works offline: the configuration names no font, script or style of another host."""
    text = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in text
    assert not re.search(r"extra_(?:javascript|css)|https?://", text)


def test_the_modules_of_the_site_are_documented() -> None:
    assert all(inspect.getdoc(each) for each in (hook, reference, settings))
