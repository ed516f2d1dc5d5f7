"""`logstore quotas …`: list, set and delete the quotas of clients, by Kafka's admin requests.

A quota is for a user, a client id, or a client id of a user; without a name it is the default for all. Rates
of new connections are for IP addresses. The page docs/security.md says which one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.cli.operating import CommandConfig, Json
from logstore.cli.operator import RequiredBootstrap, asked_at
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.broker.security.quotas import Entity

app = typer.Typer(help="The quotas of clients.", no_args_is_help=True)

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user.")]
Client = Annotated[str | None, typer.Option("--client-id", metavar="NAME", help="A client id.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="All users without their own quota.")]
DefaultClient = Annotated[
    bool, typer.Option("--default-client-id", help="All client ids without their own quota.")
]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="An IP address.")]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="Each address without its own quota.")]
_EXACT, _DEFAULT = 0, 1
_UNITS: Final = {
    "producer_byte_rate": "bytes/s",
    "consumer_byte_rate": "bytes/s",
    "request_percentage": "%",
    "controller_mutation_rate": "partitions/s",
    "connection_creation_rate": "connections/s",
}


@app.command("list")
def list_quotas(
    bootstrap: RequiredBootstrap,
    user: User = None,
    client_id: Client = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClient = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """List quotas, all or those of a user and a client id, or of an address."""
    entity = _entity((user, default_user), (client_id, default_client_id), (ip, default_ip))
    for found, values in _read(bootstrap, command_config, entity, is_strict=False):
        if as_json:
            print_json({"entity": dict(found), "quotas": values})
        else:
            print(f"{_named(found)}: {_told(values)}")
    return 0


@app.command("set")
def set_quota(
    bootstrap: RequiredBootstrap,
    user: User = None,
    client_id: Client = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClient = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    producer_byte_rate: Annotated[
        int | None, typer.Option("--producer-byte-rate", min=0, metavar="BYTES", help="Written per second.")
    ] = None,
    consumer_byte_rate: Annotated[
        int | None, typer.Option("--consumer-byte-rate", min=0, metavar="BYTES", help="Read per second.")
    ] = None,
    request_percentage: Annotated[
        float | None, typer.Option("--request-percentage", min=0, help="Share of the broker's thread.")
    ] = None,
    controller_mutation_rate: Annotated[
        float | None,
        typer.Option("--controller-mutation-rate", min=0, help="Partitions created and deleted per second."),
    ] = None,
    connection_creation_rate: Annotated[
        int | None,
        typer.Option(
            "--connection-creation-rate", min=0, metavar="CONNECTIONS", help="New ones of --ip per second."
        ),
    ] = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Set quotas of a user, a client id, or both, or of an address; others are kept.

    They take effect at the next request or connection.
    """
    given = {
        "producer_byte_rate": producer_byte_rate,
        "consumer_byte_rate": consumer_byte_rate,
        "request_percentage": request_percentage,
        "controller_mutation_rate": controller_mutation_rate,
        "connection_creation_rate": connection_creation_rate,
    }
    changes = {name: float(value) for name, value in given.items() if value is not None}
    if not changes:
        raise typer.BadParameter("give a quota, such as --producer-byte-rate BYTES")
    entity = _required(_entity((user, default_user), (client_id, default_client_id), (ip, default_ip)))
    _alter(bootstrap, command_config, entity, changes)
    if as_json:
        print_json({"entity": dict(entity), "quotas": changes})
    else:
        print(f"{_named(entity)}: {_told(changes)}")
    return 0


@app.command()
def delete(
    bootstrap: RequiredBootstrap,
    user: User = None,
    client_id: Client = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClient = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    quota: Annotated[
        list[str] | None,
        typer.Option(
            "--quota", metavar="NAME", help="Only this one, such as producer_byte_rate; repeatable."
        ),
    ] = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Delete the quotas of a user, a client id, or both, or of an address; exit 1 if there are none."""
    entity = _required(_entity((user, default_user), (client_id, default_client_id), (ip, default_ip)))
    found = dict(_read(bootstrap, command_config, entity, is_strict=True)).get(entity, {})
    wanted = quota or list(found)
    if missing := [each for each in wanted if each not in found] or ([] if found else ["quotas"]):
        print_error(f"{_named(entity)} has no {', '.join(missing)}")
        return 1
    _alter(bootstrap, command_config, entity, dict.fromkeys(wanted))
    deleted = {name: found[name] for name in wanted}
    if as_json:
        print_json({"entity": dict(entity), "deleted": deleted})
    else:
        print(f"{_named(entity)}: {_told(deleted)} deleted")
    return 0


def _entity(*given: tuple[str | None, bool]) -> Entity:
    """Return the entity of the names, or defaults, of a user, a client id and an address."""
    from logstore.broker.security.quotas import CLIENT, IP, USER

    if any(is_default and name is not None for name, is_default in given):
        raise typer.BadParameter("give a name or the default, not both")
    parts = zip((USER, CLIENT, IP), given, strict=True)
    return tuple(
        (kind, _one_spelling(name) if kind == IP and name is not None else name)
        for kind, (name, is_default) in parts
        if is_default or name is not None
    )


def _one_spelling(address: str) -> str:
    """Return an address as the brokers tell it; what is none is refused by them."""
    from logstore.broker.security.connection_rates import plain_address

    try:
        return plain_address(address)
    except ValueError:
        return address


def _required(entity: Entity) -> Entity:
    if not entity:
        raise typer.BadParameter(
            "say whose quota it is: --user, --default-user, --client-id, --default-client-id, --ip or "
            "--default-ip"
        )
    return entity


def _read(
    bootstrap: str, command_config: Any, entity: Entity, *, is_strict: bool
) -> list[tuple[Entity, dict[str, float]]]:
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    components = [
        t.DescribeClientQuotasRequestComponentData(
            entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name
        )
        for kind, name in entity
    ]
    request = t.DescribeClientQuotasRequest(components=components, strict=is_strict)
    with asked_at(bootstrap, command_config) as brokers:
        answer = brokers.any(request)
    check(answer.error_code, "the quotas", answer.error_message)
    return sorted(
        (
            (
                tuple((each.entity_type, each.entity_name) for each in entry.entity),
                {each.key: each.value for each in entry.values},
            )
            for entry in answer.entries
        ),
        key=repr,
    )


def _alter(bootstrap: str, command_config: Any, entity: Entity, changes: Mapping[str, float | None]) -> None:
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    entry = t.AlterClientQuotasRequestEntryData(
        entity=[
            t.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity
        ],
        ops=[
            t.AlterClientQuotasRequestOpData(key=name, value=value or 0.0, remove=value is None)
            for name, value in changes.items()
        ],
    )
    with asked_at(bootstrap, command_config) as brokers:
        (done,) = brokers.controller(t.AlterClientQuotasRequest(entries=[entry])).entries
    check(done.error_code, _named(entity), done.error_message)


def _named(entity: Entity) -> str:
    return ", ".join(f"{kind} {name}" if name is not None else f"every {kind}" for kind, name in entity)


def _told(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.12g} {_UNITS.get(name, '')}".rstrip() for name, value in values.items())
