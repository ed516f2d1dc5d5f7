"""`logstore demo`: real lines, replicas in one process, leaders that lose power, every record accounted
for.

The last output is the verdict: how many records were acknowledged, how many of them the leader's files
hold, how many are lost or duplicated, and whether all replicas are identical. Exit code 1 if any is lost,
duplicated, foreign or different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import Json
from logstore.cli.terminal import print_json

if TYPE_CHECKING:
    from rich.table import Table

    from logstore.cli.drill import Account, Drill

DEFAULT_RECORDS = 100_000
_REDRAW_SECONDS = 0.1


def demo(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="Send the lines of these files; default: Python's library sources."
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of records; default: every line, at least 100,000."),
    ] = None,
    replicas: Annotated[int, typer.Option(metavar="N", min=1, max=9, help="Number of replicas.")] = 3,
    kill: Annotated[int, typer.Option(metavar="N", min=0, help="Number of power cuts.")] = 5,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Keep the files in this empty directory.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the power cuts.")] = 0,
    as_json: Json = False,
) -> int:
    """Send real lines through replicas, cut the leader's power repeatedly, and account for every record.

    If there are fewer than N lines, they are sent again from the first one.
    """
    import time

    from logstore.cli.drill import PARTITION, Drill, Plan, settle
    from logstore.disk.files import OsDisk

    lines = input_lines(files or [], records or (0 if files else DEFAULT_RECORDS))
    record_count = records or max(len(lines), DEFAULT_RECORDS)
    disk = OsDisk()
    began = time.monotonic()
    with ExitStack() as stack:
        home = stack.enter_context(_empty_directory(directory))
        watch, report = stack.enter_context(_display(record_count))
        report(f"{record_count:,} records, {replicas} replicas, {kill} kills, seed {seed}")
        plan = Plan(
            lines=lines,
            record_count=record_count,
            replicas=replicas,
            kills=kill,
            seed=seed,
            directory=home,
            now_ms=time.time_ns() // 1_000_000,
            watch=watch,
            report=report,
        )
        drill = Drill(plan, disk)
        leader = drill.run()
        report(f"{drill.producer.acked:>9,} acked: stopped, now reading the files")
        directories = [f"{plan.log_dir_of(node)}/{PARTITION.directory_name}" for node in range(replicas)]
        account = settle(disk, directories, leader, lines=lines, acked=drill.producer.acked)
        verdict = _verdict(drill, account, time.monotonic() - began)
    if as_json:
        print_json(verdict)
    else:
        _print_verdict(verdict, is_settled=account.is_settled)
    return 0 if account.is_settled else 1


def input_lines(files: list[Path], wanted: int) -> list[bytes]:
    """Return the lines of `files`, or of the standard library's sources, without line ends.

    Reads no more than `wanted` (0: all). Raises `typer.BadParameter` if a file cannot be read or there is
    no line.
    """
    lines: list[bytes] = []
    for path in files or _library_sources():
        try:
            content = path.read_bytes()
        except OSError as error:
            raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from error
        if content:
            lines += content.removesuffix(b"\n").split(b"\n")
        if 0 < wanted <= len(lines):
            del lines[wanted:]
            break
    if not lines:
        raise typer.BadParameter("the input has no lines")
    return lines


def _library_sources() -> Iterator[Path]:
    import sysconfig

    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if "site-packages" not in path.parts:
            yield path


@contextmanager
def _empty_directory(directory: Path | None) -> Iterator[str]:
    if directory is None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="logstore-demo-") as temporary:
            yield temporary
        return
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise typer.BadParameter(f"{directory} is not empty; give a new directory")
    yield str(directory)


# --- what people see --------------------------------------------------------------------------


@contextmanager
def _display(record_count: int) -> Iterator[tuple[Callable[[Drill], None], Callable[[str], None]]]:
    """Show progress: a live table on a terminal, lines on stderr otherwise."""
    import sys
    import time

    if not sys.stderr.isatty():
        yield lambda drill: None, lambda text: print(text, file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        drawn = 0.0

        def watch(drill: Drill) -> None:
            nonlocal drawn
            if (now := time.monotonic()) - drawn >= _REDRAW_SECONDS:
                drawn = now
                live.update(_table(drill, record_count), refresh=True)

        yield watch, lambda text: console.print(text, highlight=False, markup=False)


def _table(drill: Drill, record_count: int) -> Table:
    from rich.table import Table

    tally, acked = drill.tally, drill.producer.acked
    title = f"{acked:,} of {record_count:,} acknowledged, {tally.kills} kills"
    table = Table(title=title, title_justify="left")
    for name in ("node", "role", "epoch", "in sync", "high watermark", "log end"):
        table.add_column(name, justify="right" if name in ("high watermark", "log end") else "left")
    for row in drill.view():
        if row.role == "down":
            table.add_row(str(row.node_id), "down", style="red")
            continue
        table.add_row(
            str(row.node_id),
            row.role,
            str(row.leader_epoch),
            "yes" if row.in_isr else "no",
            f"{row.high_watermark:,}",
            f"{row.log_end_offset:,}",
            style="bold" if row.role == "leader" else "",
        )
    return table


def _verdict(drill: Drill, account: Account, seconds: float) -> dict[str, object]:
    return {
        "acked": drill.producer.acked,
        **asdict(account),
        "identical": account.divergent_offset < 0,
        **asdict(drill.tally),
        "resends": drill.producer.retries,
        "replicas": drill.plan.replicas,
        "seed": drill.plan.seed,
        "seconds": round(seconds, 3),
    }


def _print_verdict(verdict: dict[str, object], *, is_settled: bool) -> None:
    for name, value in verdict.items():
        print(f"{name:>20}  {f'{value:,}' if isinstance(value, int) and value is not True else value}")
    if is_settled:
        print("each acknowledged record is in the leader's files once; all replicas are identical")
    else:
        print("FAILED: records are lost, duplicated or unexpected, or replicas differ")
