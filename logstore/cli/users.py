"""`logstore users …`: the users of a cluster and their SCRAM credentials.

The verbs read and write the metadata store, as Kafka's tools did, so the first user exists before the first
broker starts. `embedded:DIR` is the store of a single broker, which must be stopped meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from logstore.cli.operating import CommandConfig, Json, Metadata, store_security_of
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.broker.identity import AskStore
    from logstore.broker.security.secret import Secret
    from logstore.broker.security.store import StoreSecurity

T = TypeVar("T")

app = typer.Typer(help="The users of a cluster and their SCRAM credentials.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="USER")]
Mechanism = Annotated[
    str, typer.Option("--mechanism", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512.")
]
_DEFAULT = "SCRAM-SHA-512"


@app.command("set")
def set_password(
    metadata: Metadata,
    user: Name,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", metavar="FILE", help="Its first line; default: ask for it."),
    ] = None,
    mechanism: Mechanism = _DEFAULT,
    iterations: Annotated[
        int, typer.Option("--iterations", min=1, help="SCRAM iterations; more slow down guessing.")
    ] = 4096,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Set a user's password. It takes effect at the next login."""
    from logstore.broker.security.secret import Secret

    if not user:
        raise typer.BadParameter("the user's name is empty")
    if password_file is not None:
        password = Secret(password_file.read_text().partition("\n")[0])
    else:
        password = Secret(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    if not password:
        raise typer.BadParameter("--password-file: the password is empty")
    give_password(metadata, user, password, mechanism, iterations, command_config)
    if as_json:
        print_json({"user": user, "mechanism": mechanism, "iterations": iterations})
    return 0


@app.command("list")
def list_users(metadata: Metadata, command_config: CommandConfig = None, as_json: Json = False) -> int:
    """List users with their mechanisms and iterations."""
    from logstore.broker.security.users import all_users

    for user, found in with_store(metadata, all_users, store_security_of(command_config)).items():
        iterations = {mechanism: each.iterations for mechanism, each in found.items()}
        if as_json:
            print_json({"user": user, "iterations": iterations})
        else:
            print(f"{user}  {', '.join(iterations)}")
    return 0


@app.command()
def delete(
    metadata: Metadata,
    user: Name,
    mechanism: Mechanism = _DEFAULT,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Delete a user's credential. Open connections stay open."""
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
    if not existed[0]:
        print_error(f"user {user} has no credential for {mechanism}")
    elif as_json:
        print_json({"user": user, "mechanism": mechanism, "is_deleted": True})
    return int(not existed[0])


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
    )


def with_store(
    metadata: str, work: Callable[[AskStore], Coroutine[Any, Any, T]], security: StoreSecurity
) -> T:
    """Run `work` with the store of that name. `security` says how to reach it."""
    import asyncio

    from logstore.broker.metadata.opening import store_named
    from logstore.broker.store_session import StoreSession
    from logstore.disk.files import OsDisk

    async def run() -> T:
        with store_named(metadata, first_log_dir=None, disk=OsDisk(), security=security) as opened:
            async with StoreSession(opened.client) as session:
                return await work(session.ask)

    if metadata == "embedded":
        raise typer.BadParameter("--metadata: name the directory, embedded:DIR")
    return asyncio.run(run())
