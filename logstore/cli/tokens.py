"""`logstore tokens …`: delegation tokens: create, renew, expire and describe them, by Kafka's admin requests.

A token lets others log in as its owner, by its id and its HMAC, until it expires. Brokers make tokens for
clients that have logged in themselves only; the page docs/security.md says who may do what.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.cli.operating import CommandConfig, Json, text_of
from logstore.cli.operator import RequiredBootstrap, asked_at
from logstore.cli.terminal import print_json

if TYPE_CHECKING:
    from logstore.cli.brokers import Brokers

app = typer.Typer(help="The delegation tokens of a cluster.", no_args_is_help=True)

TokenId = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="One that you may describe; else --hmac-file.")
]
HmacFile = Annotated[
    Path | None, typer.Option("--hmac-file", metavar="FILE", help="Its first line is the token's HMAC.")
]
WithHmac = Annotated[bool, typer.Option("--show-hmac", help="Also the HMAC, which is a password.")]


@app.command()
def create(
    bootstrap: RequiredBootstrap,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="User:NAME", help="Default: the user of the login.")
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option("--renewer", metavar="User:NAME", help="May renew and expire it, too; repeatable."),
    ] = None,
    max_lifetime_ms: Annotated[
        int, typer.Option("--max-lifetime-ms", help="It cannot be renewed beyond; -1: the brokers' setting.")
    ] = -1,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Create a token, and print it with its HMAC, which is its password."""
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    _check_ms("--max-lifetime-ms", max_lifetime_ms, 1)
    kind, name = _principal(owner) if owner is not None else (None, None)
    renewers = [*dict.fromkeys(renewer or ())]
    creatable = [
        t.CreateDelegationTokenRequestCreatableRenewers(principal_type=each, principal_name=who)
        for each, who in map(_principal, renewers)
    ]
    request = t.CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=creatable,
        max_lifetime_ms=max_lifetime_ms,
    )
    with asked_at(bootstrap, command_config) as brokers:
        made = brokers.any(request)
    check(made.error_code, "the token")
    facts = {
        "id": made.token_id,
        "owner": f"{made.principal_type}:{made.principal_name}",
        "requester": f"{made.token_requester_principal_type}:{made.token_requester_principal_name}",
        "renewers": renewers,
        "issued_ms": made.issue_timestamp_ms,
        "expires_ms": made.expiry_timestamp_ms,
        "ends_ms": made.max_timestamp_ms,
        "hmac": _text(made.hmac),
    }
    _show(facts, as_json=as_json)
    return 0


@app.command()
def renew(
    bootstrap: RequiredBootstrap,
    token_id: TokenId = None,
    hmac_file: HmacFile = None,
    period_ms: Annotated[
        int, typer.Option("--period-ms", help="Expires this long from now; -1: the brokers' setting.")
    ] = -1,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Renew a token. Its owner and its renewers may do so."""
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    _check_ms("--period-ms", period_ms, 1)
    with asked_at(bootstrap, command_config) as brokers:
        password = _password(brokers, token_id, hmac_file)
        answer = brokers.any(t.RenewDelegationTokenRequest(hmac=password, renew_period_ms=period_ms))
    check(answer.error_code, "the token")
    _show_end(answer.expiry_timestamp_ms, as_json=as_json)
    return 0


@app.command()
def expire(
    bootstrap: RequiredBootstrap,
    token_id: TokenId = None,
    hmac_file: HmacFile = None,
    period_ms: Annotated[
        int, typer.Option("--period-ms", help="Expires this long from now; -1: it is removed at once.")
    ] = -1,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Expire a token. Its open sessions last until their promised end."""
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    _check_ms("--period-ms", period_ms, 0)
    with asked_at(bootstrap, command_config) as brokers:
        password = _password(brokers, token_id, hmac_file)
        answer = brokers.any(t.ExpireDelegationTokenRequest(hmac=password, expiry_time_period_ms=period_ms))
    check(answer.error_code, "the token")
    _show_end(answer.expiry_timestamp_ms, as_json=as_json)
    return 0


@app.command()
def describe(
    bootstrap: RequiredBootstrap,
    owner: Annotated[
        list[str] | None,
        typer.Option(
            "--owner", metavar="User:NAME", help="Only tokens that it owns or may renew; repeatable."
        ),
    ] = None,
    show_hmac: WithHmac = False,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """List tokens that you may describe: your own, and those permitted to you."""
    with asked_at(bootstrap, command_config) as brokers:
        found = _described(brokers, owner)
    for each in found:
        renewers = [f"{one.principal_type}:{one.principal_name}" for one in each.renewers]
        facts = {
            "id": each.token_id,
            "owner": f"{each.principal_type}:{each.principal_name}",
            "requester": f"{each.token_requester_principal_type}:{each.token_requester_principal_name}",
            "renewers": renewers,
            "issued_ms": each.issue_timestamp,
            "expires_ms": each.expiry_timestamp,
            "ends_ms": each.max_timestamp,
        }
        _show(facts | ({"hmac": _text(each.hmac)} if show_hmac else {}), as_json=as_json)
    return 0


def _described(brokers: Brokers, owners: list[str] | None) -> list[Any]:
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    named = [
        t.DescribeDelegationTokenRequestDescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
        for kind, name in map(_principal, owners or ())
    ]
    answer = brokers.any(t.DescribeDelegationTokenRequest(owners=named or None))
    check(answer.error_code, "the tokens")
    return sorted(answer.tokens, key=lambda each: (each.issue_timestamp, each.token_id))


def _password(brokers: Brokers, token_id: str | None, hmac_file: Path | None) -> bytes:
    """Return the HMAC of a token: from the file, or as the brokers describe it."""
    if (token_id is None) == (hmac_file is None):
        raise typer.BadParameter("name a token by its ID, or by --hmac-file")
    if hmac_file is not None:
        line = text_of(hmac_file, "--hmac-file").partition("\n")[0].strip()
        try:
            return base64.b64decode(line, validate=True)
        except (binascii.Error, ValueError):
            raise typer.BadParameter(f"--hmac-file: {hmac_file} has no HMAC in base64") from None
    for each in _described(brokers, None):
        if each.token_id == token_id:
            return bytes(each.hmac)
    from logstore.broker.errors import RequestRefused
    from logstore.disk.errors import ErrorCode

    error = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    raise RequestRefused(error, f"there is no token {token_id}, or you may not describe it")


def _check_ms(option: str, given: int, least: int) -> None:
    """Refuse a time that brokers replace by their default: a token would outlive the time asked for."""
    if given != -1 and given < least:
        raise typer.BadParameter(f"{option} is {given}; expected {least} or more, or -1 for the default")


def _principal(text: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise typer.BadParameter(f"{text!r} is not a principal; expected User:NAME")
    return kind, name


def _text(hmac: bytes) -> str:
    return base64.b64encode(hmac).decode()


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _show_end(expires_ms: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"expires_ms": expires_ms})
    else:
        print(f"expires {_time(expires_ms)}")


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    renewers = f", renewers {', '.join(facts['renewers'])}" if facts["renewers"] else ""
    print(
        f"{facts['id']}  {facts['owner']}{renewers}, expires {_time(facts['expires_ms'])}, "
        f"renewable until {_time(facts['ends_ms'])}"
    )
    if "hmac" in facts:
        print(f"  hmac {facts['hmac']}")
