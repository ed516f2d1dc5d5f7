"""Entry point of the `logstore` command.

Exit codes: 0 success; 1 the answer is "no" (damage found, records lost) or the command failed (log in use,
disk failure); 2 invalid command line. Errors are one line on stderr.

`--help` must be quick, so verbs import their modules when they run. The remaining cost is the import of typer
(docs/decisions/002-command-line.md).
"""

from __future__ import annotations

import copy
import errno
import functools
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn, get_type_hints

if not __debug__:
    # Invariants are asserts: without them a bug could continue to write.
    sys.exit("logstore: refuses to run under python -O, which removes checks that protect data; omit -O")

try:
    try:
        import typer
    except ModuleNotFoundError:
        sys.exit(
            "logstore: the command line needs packages that are not installed: pip install 'pylogstore[cli]'"
        )
    from logstore.cli import (
        acls,
        administration,
        adopt,
        append,
        cat,
        certs,
        cluster,
        compare_replicas,
        compat,
        completion,
        cursors,
        demo,
        diff,
        dump,
        durability,
        elect,
        groups,
        health,
        lost,
        merge_state_changes,
        producers,
        queue,
        quotas,
        reassign,
        recover,
        salvage,
        scrub,
        security,
        serve,
        snapshot,
        story,
        timeline,
        tokens,
        top,
        topics,
        transactions,
        users,
        verify,
        why,
    )
except KeyboardInterrupt:
    sys.exit(130)  # as later: no trace

from logstore.arguments import EMPTY_PATH, names_path
from logstore.cli.terminal import end_with_readers, print_error, told
from logstore.version import VERSION

DONE, NO, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130

# Of click's errors, typer hands on this family alone; its base class has moved between versions.
_USAGE_ERROR: Any = typer.BadParameter.__bases__[0]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,  # rich is imported on a terminal that shows progress, not for a help page
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A durable, replicated log in Apache Kafka's format.",
)
for verb in (
    demo.demo,
    dump.dump,
    verify.verify,
    recover.recover,
    scrub.scrub,
    salvage.salvage,
    snapshot.snapshot,
    snapshot.restore,
    adopt.adopt,
    append.append,
    cat.cat,
    lost.lost,
    durability.durability,
    cursors.cursors,
    health.health,
    why.why,
    elect.elect_preferred,
    elect.elect_unclean,
    administration.offsets,
    administration.delete_records,
    producers.producers,
    diff.diff,
    compat.compat,
    story.story,
    timeline.timeline,
    compare_replicas.compare_replicas,
    merge_state_changes.merge_state_changes,
    serve.serve,
    serve.metadata_store,
    certs.certs,
    completion.completion,
    top.top,
):
    # `serve` says which option a path needs.
    app.command(context_settings={"allow_extra_args": True} if verb is serve.serve else None)(verb)
app.add_typer(queue.app, name="queue")
app.add_typer(topics.app, name="topics")
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.add_typer(administration.brokers, name="brokers")
app.add_typer(administration.configs, name="configs")
app.add_typer(users.app, name="users")
app.add_typer(acls.app, name="acls")
app.add_typer(tokens.app, name="tokens")
app.add_typer(quotas.app, name="quotas")
app.add_typer(security.app, name="security")
app.add_typer(reassign.app, name="reassign")
app.add_typer(cluster.app, name="cluster")


# Everything that follows these verbs, including `--help`, belongs to the job.
_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=_ANYTHING)
def pipeline(context: typer.Context) -> int:
    """Export, replay, compact, verify or repair logs with Spark; see `logstore pipeline --help`."""
    from logstore.spark.jobs.command import main

    return main(context.args, "logstore pipeline")


@app.command(context_settings=_ANYTHING)
def simulate(context: typer.Context) -> int:
    """Run simulated clusters under seeds and report violations; see `logstore simulate --help`."""
    from logstore.testing.__main__ import main

    return main(context.args, "logstore simulate")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"logstore {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    pass


@functools.cache
def _command_line(verb: str) -> Any:
    """Return what parses a command line that begins with `verb`: all verbs if there is none of that name.

    Typer looks at the signature of each verb that it is given. All of them take longer than most verbs run.
    """
    narrow = copy.copy(app)
    narrow.registered_commands = [each for each in app.registered_commands if _name(each.callback) == verb]
    narrow.registered_groups = [each for each in app.registered_groups if each.name == verb]
    is_known = narrow.registered_commands or narrow.registered_groups
    command = typer.main.get_command(narrow if is_known else app)
    _refuse_empty_paths(command)
    _refuse_repetition(command)
    return command


def _refuse_repetition(command: Any) -> None:
    """Refuse an option that takes one value and is given twice: the last one would replace the others."""
    for verb in getattr(command, "commands", {}).values():
        _refuse_repetition(verb)
    command.make_parser = functools.partial(_strict_parser, command.make_parser)


def _strict_parser(make_parser: Callable[[Any], Any], context: Any) -> Any:
    parser = make_parser(context)
    for each in {*parser._long_opt.values(), *parser._short_opt.values()}:
        if each.action == "store":
            each.process = functools.partial(_store_once, each, each.process)
    parser.parse_args = functools.partial(_parsed, context, parser.parse_args)
    return parser


def _parsed(context: Any, parse: Callable[..., Any], args: Any) -> Any:
    try:
        return parse(args=args)
    except _USAGE_ERROR as error:
        error.ctx = getattr(error, "ctx", None) or context  # its help is the one to look at
        raise


def _store_once(option: Any, process: Callable[[Any, Any], None], value: Any, state: Any) -> None:
    if option.dest in state.opts:
        raise typer.BadParameter(f"{option.obj.opts[0]} is given twice; give it once")
    process(value, state)


def _refuse_empty_paths(command: Any) -> None:
    """Check each path of a verb before `pathlib` makes the current directory of an empty one."""
    for verb in getattr(command, "commands", {}).values():
        _refuse_empty_paths(verb)
    hints = get_type_hints(command.callback) if command.callback else {}
    for each in command.params:
        if "Path" in str(hints.get(each.name)) or names_path(each.metavar):
            each.process_value = functools.partial(_path, each, each.process_value)


def _path(parameter: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    if value == "" or (isinstance(value, list | tuple) and "" in value):
        raise typer.BadParameter(EMPTY_PATH, context, parameter)
    return process(context, value)


def _name(callback: Any) -> str:
    return str(typer.main.get_command_name(callback.__name__))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        given = list(arguments) or ["--help"]
        outcome = _command_line(given[0])(given, prog_name="logstore", standalone_mode=False)
        with told("the command has ended, but not all of its output is there"):
            return outcome if isinstance(outcome, int) else DONE
    except _USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # `logstore topics`: the message is a page
            print(error.format_message(), file=sys.stderr)
            return BAD_USAGE
        context = getattr(error, "ctx", None)
        verb = "logstore" if context is None else context.command_path
        # Typer's choices are checked by pydantic, whose name for the exception says nothing to a user.
        print_error(f"{error.format_message().replace('Value error, ', '')} (see {verb} --help)")
        return BAD_USAGE
    except (typer.Abort, KeyboardInterrupt):
        print_error("interrupted")
        return INTERRUPTED
    except ModuleNotFoundError as error:
        from logstore.disk.extras import how_to_install

        if (advice := how_to_install(error)) is None:
            raise
        print_error(advice)
        return NO
    except Exception as error:
        from logstore.cli.cluster_state import with_attempt
        from logstore.disk.errors import EngineError
        from logstore.errors import InvalidConfig
        from logstore.queue.errors import NotAQueue

        if not isinstance(error, EngineError | OSError):
            raise
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        print_error(f"{with_attempt(error)}{'; free some space, then run it again' if is_full else ''}")
        return BAD_USAGE if isinstance(error, InvalidConfig | NotAQueue) else NO


def main() -> NoReturn:
    """Run the process; it ends quietly when the reader of its output has exited, like any filter."""
    completion.prepare()
    if sys.stderr is None:  # the shell closed it (`2>&-`)
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    for stream in (sys.stdout, sys.stderr):
        # The terminal's encoding may lack characters of a record or a file name.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    end_with_readers()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
