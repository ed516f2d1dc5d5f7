"""`logstore users …`: the users of a cluster and their SCRAM credentials.

    --bootstrap HOST:PORT   Kafka's admin requests, to running brokers
    --metadata URL          the store, to create the first user before the first broker starts

`embedded:DIR` is the store of a single broker, which must be stopped meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from logstore.cli.operating import CommandOrStoreConfig, Json, store_security_of, text_of
from logstore.cli.operator import Bootstrap, asked_at, check_one_way
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.broker.identity import AskStore
    from logstore.broker.security.secret import Secret
    from logstore.broker.security.store import StoreSecurity
    from logstore.broker.wire.types import AlterUserScramCredentialsRequest

T = TypeVar("T")

app = typer.Typer(help="The users of a cluster and their SCRAM credentials.", no_args_is_help=True)

Metadata = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        metavar="URL",
        help="The metadata store: zookeeper://host:port[,host:port][/chroot], or embedded:DIR of a stopped "
        "broker.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="USER")]
Mechanism = Annotated[
    str, typer.Option("--mechanism", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512.")
]
_DEFAULT = "SCRAM-SHA-512"


@app.command("set")
def set_password(
    user: Name,
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", metavar="FILE", help="Its first line; default: ask for it."),
    ] = None,
    mechanism: Mechanism = _DEFAULT,
    iterations: Annotated[
        int,
        typer.Option("--iterations", help="SCRAM iterations, 4096 to 16384; more slow down guessing."),
    ] = 4096,
    command_config: CommandOrStoreConfig = None,
    as_json: Json = False,
) -> int:
    """Set a user's password. It takes effect at the next login."""
    from logstore.broker.security.secret import Secret

    check_one_way(metadata, bootstrap)
    _check_name(user)
    if password_file is not None:
        password = Secret(text_of(password_file, "--password-file").partition("\n")[0])
    else:
        password = Secret(_asked_password())
    if not password:
        raise typer.BadParameter("--password-file: the password is empty")
    if metadata is not None:
        give_password(metadata, user, password, mechanism, iterations, command_config)
    else:
        _ask_to_set(str(bootstrap), command_config, user, password, mechanism, iterations)
    if as_json:
        print_json({"user": user, "mechanism": mechanism, "iterations": iterations})
    return 0


def _check_name(user: str) -> None:
    if not user:
        raise typer.BadParameter("the user's name is empty")


def _asked_password() -> str:
    import warnings
    from getpass import GetPassWarning

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GetPassWarning)  # without a terminal it is read from stdin
            return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise typer.BadParameter("no password on stdin: give --password-file") from None


@app.command("list")
def list_users(
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    as_json: Json = False,
) -> int:
    """List users with their mechanisms and, in parentheses, the iterations."""
    check_one_way(metadata, bootstrap)
    if metadata is not None:
        from logstore.broker.security.users import all_users

        stored = with_store(metadata, all_users, store_security_of(command_config))
        users = {
            user: {mechanism: each.iterations for mechanism, each in found.items()}
            for user, found in stored.items()
        }
    else:
        users = _described(str(bootstrap), command_config)
    for user, iterations in users.items():
        if as_json:
            print_json({"user": user, "iterations": iterations})
        else:
            print(f"{user}  {', '.join(f'{name} ({count})' for name, count in iterations.items())}")
    return 0


@app.command()
def delete(
    user: Name,
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    mechanism: Mechanism = _DEFAULT,
    command_config: CommandOrStoreConfig = None,
    as_json: Json = False,
) -> int:
    """Delete a user's credential. Open connections stay open."""
    check_one_way(metadata, bootstrap)
    _check_name(user)
    if metadata is not None:
        existed = _delete_in_store(metadata, command_config, user, mechanism)
    else:
        existed = _ask_to_delete(str(bootstrap), command_config, user, mechanism)
    if not existed:
        print_error(f"user {user} has no credential for {mechanism}")
    elif as_json:
        print_json({"user": user, "mechanism": mechanism, "is_deleted": True})
    return int(not existed)


# --- in the store -------------------------------------------------------------------------------


def _delete_in_store(metadata: str, command_config: Path | None, user: str, mechanism: str) -> bool:
    """Delete a credential; return whether there was one."""
    from logstore.broker.config_nodes import change_entity
    from logstore.broker.security.users import changed, entity_path

    existed = []

    def without(now: Any) -> dict[str, str]:
        existed.append(mechanism in now)
        return changed(now, {mechanism: None})

    with_store(
        metadata,
        lambda ask: change_entity(ask, entity_path(user), without),
        store_security_of(command_config),
    )
    return existed[0]


def give_password(
    metadata: str,
    user: str,
    password: Secret,
    mechanism: str = _DEFAULT,
    iterations: int = 4096,
    command_config: Path | None = None,
) -> None:
    """Write a user's credential to the store of that name."""
    import random

    from logstore.broker.config_nodes import change_entity
    from logstore.broker.security.users import changed, entity_path, new_credential

    new = new_credential(mechanism, password, random.SystemRandom(), iterations)
    with_store(
        metadata,
        lambda ask: change_entity(ask, entity_path(user), lambda now: changed(now, {mechanism: new})),
        store_security_of(command_config),
        may_create=True,
    )


def with_store(
    metadata: str,
    work: Callable[[AskStore], Coroutine[Any, Any, T]],
    security: StoreSecurity,
    *,
    may_create: bool = False,
) -> T:
    """Run `work` with the store of that name. `security` says how to reach it.

    Raises `LogGone` if an embedded one does not exist, unless it `may_create` it.
    """
    import asyncio

    from logstore.broker.metadata.opening import store_named
    from logstore.broker.store_session import StoreSession
    from logstore.cli.cluster_state import OPENING_S, quieten_kazoo
    from logstore.disk.files import OsDisk
    from logstore.errors import LogGone
    from logstore.replication.metastore.embedded import holds_store

    async def run() -> T:
        with store_named(metadata, first_log_dir=None, disk=OsDisk(), security=security) as opened:
            async with StoreSession(opened.client, opening_s=OPENING_S) as session:
                return await work(session.ask)

    quieten_kazoo()
    if metadata == "embedded":
        raise typer.BadParameter("--metadata: name the directory, embedded:DIR")
    kind, _, directory = metadata.partition(":")
    if kind == "embedded" and not may_create and not holds_store(OsDisk(), directory):
        raise LogGone(f"no metadata store in {directory}")
    return asyncio.run(run())


# --- by requests to brokers ---------------------------------------------------------------------


def _described(bootstrap: str, command_config: Path | None) -> dict[str, dict[str, int]]:
    """Return the iterations of each user, by mechanism."""
    from logstore.broker.handlers.users import MECHANISMS
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    with asked_at(bootstrap, command_config) as brokers:
        answer = brokers.any(t.DescribeUserScramCredentialsRequest(users=None))
    check(answer.error_code, "users", answer.error_message)
    return {
        each.user: {MECHANISMS[info.mechanism]: info.iterations for info in each.credential_infos}
        for each in answer.results
    }


def _ask_to_set(
    bootstrap: str,
    command_config: Path | None,
    user: str,
    password: Secret,
    mechanism: str,
    iterations: int,
) -> None:
    """Ask for a user's credential; the password itself is not sent."""
    import random

    from logstore.broker.security.scram import salted_password
    from logstore.broker.security.users import new_credential
    from logstore.broker.wire import types as t

    salt = new_credential(mechanism, password, random.SystemRandom(), iterations).salt
    wanted = t.AlterUserScramCredentialsRequestScramCredentialUpsertion(
        name=user,
        mechanism=_number(mechanism),
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(mechanism, password, salt, iterations),
    )
    _alter(bootstrap, command_config, t.AlterUserScramCredentialsRequest(deletions=[], upsertions=[wanted]))


def _ask_to_delete(bootstrap: str, command_config: Path | None, user: str, mechanism: str) -> bool:
    """Ask for the deletion of a credential; return whether there was one."""
    from logstore.broker.errors import RequestRefused
    from logstore.broker.wire import types as t
    from logstore.disk.errors import ErrorCode

    wanted = t.AlterUserScramCredentialsRequestScramCredentialDeletion(
        name=user, mechanism=_number(mechanism)
    )
    try:
        _alter(
            bootstrap, command_config, t.AlterUserScramCredentialsRequest(deletions=[wanted], upsertions=[])
        )
    except RequestRefused as error:
        if error.error is not ErrorCode.RESOURCE_NOT_FOUND:
            raise
        return False
    return True


def _alter(bootstrap: str, command_config: Path | None, request: AlterUserScramCredentialsRequest) -> None:
    from logstore.cli.brokers import check

    with asked_at(bootstrap, command_config) as brokers:
        (done,) = brokers.controller(request).results
    check(done.error_code, f"user {done.user}", done.error_message)


def _number(mechanism: str) -> int:
    """Return Kafka's number of a mechanism."""
    from logstore.broker.handlers.users import MECHANISMS

    numbers = {name: number for number, name in MECHANISMS.items()}
    if mechanism not in numbers:
        raise typer.BadParameter(f"--mechanism {mechanism}: it is one of {', '.join(numbers)}")
    return numbers[mechanism]
