"""`logstore queue …`: look at a queue, while its owner uses it or not. Nothing is locked or changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.cli.operating import Json
from logstore.cli.terminal import Encoding, as_text, print_json, printable
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.queue.messages import Message

app = typer.Typer(help="Look at a queue of jobs.", no_args_is_help=True)

QueueDir = Annotated[
    Path, typer.Argument(metavar="DIR", help="A queue's directory.", exists=True, file_okay=False)
]
Shown = Annotated[Encoding, typer.Option("--encoding", help="How values and keys are shown.")]


@app.command()
def stats(directory: QueueDir, as_json: Json = False) -> int:
    """Count the messages of each topic: waiting, delayed, finished.

    Leased messages count as waiting. So does a message that was put with a delay, until a consumer has
    reached it. While the queue is open, that is seen from its next checkpoint on.
    """
    from logstore.disk.files import OsDisk
    from logstore.queue.looking import look_at

    found = look_at(OsDisk(), str(directory))
    for topic, figures in found.topics.items():
        facts = figures._asdict()
        del facts["leased"]  # known to the owner alone
        if as_json:
            print_json({"topic": topic, **facts})
        else:
            print(f"{topic}: " + ", ".join(f"{value} {name}" for name, value in facts.items()))
    if as_json:
        print_json({"dead_letters": found.dead_letters})
    else:
        print(counted(found.dead_letters, "dead letter"))
    return 0


@app.command()
def peek(
    directory: QueueDir,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="NAME", help="The topic (default: default).")
    ] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="At most this many.")] = 10,
    encoding: Shown = Encoding.UTF8,
    as_json: Json = False,
) -> int:
    """Show the first unfinished messages of a topic, leased or not."""
    from logstore.disk.files import OsDisk
    from logstore.queue import looking
    from logstore.queue.queue import DEFAULT_TOPIC

    disk, path = OsDisk(), str(directory)
    if topic is not None and topic not in (known := looking.topics(disk, path)):
        raise typer.BadParameter(f"--topic {topic}: {directory} has only {', '.join(known) or 'no topic'}")
    for message in looking.peek(disk, path, topic or DEFAULT_TOPIC, count):
        _print(message, encoding, {}, as_json=as_json)
    return 0


@app.command("dead-letters")
def dead_letters(directory: QueueDir, encoding: Shown = Encoding.UTF8, as_json: Json = False) -> int:
    """Show the dead letters, with the reasons."""
    from logstore.disk.files import OsDisk
    from logstore.queue import looking

    for message, reason, timestamp_ms in looking.dead_letters(OsDisk(), str(directory)):
        _print(message, encoding, {"reason": reason, "died_ms": timestamp_ms}, as_json=as_json)
    return 0


def _print(message: Message, encoding: Encoding, more: dict[str, Any], *, as_json: bool) -> None:
    value, key = as_text(message.value, encoding), as_text(message.key, encoding)
    if as_json:
        headers = [[name, as_text(content, encoding)] for name, content in message.headers]
        facts = {**message._asdict(), "value": value, "key": key, "headers": headers}
        print_json(facts | more)
    else:
        reason = f" ({printable(more['reason'])})" if more else ""
        print(
            f"{message.topic} {message.offset}, delivered {message.deliveries}×{reason}: {printable(value)}"
        )
