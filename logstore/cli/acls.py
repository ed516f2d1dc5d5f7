"""`logstore acls …`: list, add and remove access control lists, by Kafka's admin requests.

A rule names a resource, a principal like `User:alice`, an address, an operation, and whether it is allowed or
denied. A resource is a topic, a group, a transactional id, the cluster, a delegation token, or a user: the
owner of such tokens. `--prefixed` makes the name a prefix; `*` is every name. The rules of decision are on
the page docs/security.md.

A broker stores any host and any operation, as Kafka's do. `add` refuses those that no request can match: a
denial without an effect looks like a lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.cli.operating import CommandConfig, Json, value_of
from logstore.cli.operator import RequiredBootstrap, asked_at
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.broker.security.acls import Acl, AclFilter, Operation, Resource

app = typer.Typer(help="The access control lists of a cluster.", no_args_is_help=True)

Principal = Annotated[
    str | None, typer.Option("--principal", metavar="TYPE:NAME", help="Such as User:alice, or User:*.")
]
Host = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="An IP address, or *.")]
OperationName = Annotated[
    str | None,
    typer.Option("--operation", metavar="NAME", help="read, write, describe, alter, …, or all."),
]
Topic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="A topic.")]
Group = Annotated[str | None, typer.Option("--group", metavar="NAME", help="A consumer group.")]
TransactionalId = Annotated[
    str | None, typer.Option("--transactional-id", metavar="NAME", help="A transactional id.")
]
UserPrincipal = Annotated[
    str | None,
    typer.Option("--user-principal", metavar="TYPE:NAME", help="A user, as the owner of delegation tokens."),
]
DelegationToken = Annotated[
    str | None, typer.Option("--delegation-token", metavar="ID", help="A delegation token.")
]
OfTheCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The name is a prefix of names.")]
OnlyPrefixed = Annotated[bool, typer.Option("--prefixed", help="Only rules whose name is a prefix.")]
Denied = Annotated[bool, typer.Option("--deny", help="Deny instead of allow; a denial always wins.")]
_ANY: Final = 1


@app.command("list")
def list_acls(
    bootstrap: RequiredBootstrap,
    principal: Principal = None,
    operation: OperationName = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OfTheCluster = False,
    user_principal: UserPrincipal = None,
    delegation_token: DelegationToken = None,
    prefixed: OnlyPrefixed = False,
    host: Host = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """List the rules, all or those that match all options given. A prefix matches by its exact text."""
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    kind, name = _resource(topic, group, transactional_id, cluster, user_principal, delegation_token)
    wanted = _wanted(kind, name, prefixed, principal, host, operation)
    request = t.DescribeAclsRequest(**_filter(wanted))
    with asked_at(bootstrap, command_config) as brokers:
        answer = brokers.any(request)
    check(answer.error_code, "the access control lists", answer.error_message)
    for resource in answer.resources:
        for each in resource.acls:
            _show(_acl(resource, each), as_json=as_json)
    return 0


@app.command()
def add(
    bootstrap: RequiredBootstrap,
    principal: Principal = None,
    operation: OperationName = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OfTheCluster = False,
    user_principal: UserPrincipal = None,
    delegation_token: DelegationToken = None,
    prefixed: Prefixed = False,
    host: Host = None,
    deny: Denied = False,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Add a rule. It takes effect at the next request."""
    from logstore.broker.security.acls import (
        WILDCARD,
        Acl,
        Pattern,
        Permission,
        host_of,
        is_address,
        supported_operations,
    )
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    kind, name = _resource(topic, group, transactional_id, cluster, user_principal, delegation_token)
    wanted = _operation(operation)
    if kind is None or name is None or principal is None or wanted is None:
        raise typer.BadParameter("a rule needs --principal, --operation and a resource like --topic NAME")
    if not principal.startswith("User:"):
        known = principal.partition(":")[2] or principal
        raise typer.BadParameter(f"--principal {principal}: no request has it; did you mean User:{known}?")
    if wanted not in supported_operations(kind):
        possible = ", ".join(map(_word, supported_operations(kind)))
        raise typer.BadParameter(f"--operation {operation}: of a {_word(kind)} it is one of {possible}")
    _check_name(kind, name, prefixed)
    if host is not None and host != WILDCARD and not is_address(host):
        raise typer.BadParameter(f"--host {host}: it is one IP address, or * for all; ranges never match")
    permission = Permission.DENY if deny else Permission.ALLOW
    pattern = Pattern.PREFIXED if prefixed else Pattern.LITERAL
    acl = Acl(kind, pattern, name, principal, host_of(host or WILDCARD), wanted, permission)
    creation = t.CreateAclsRequestAclCreation(
        resource_type=acl.resource,
        resource_name=acl.name,
        resource_pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
    with asked_at(bootstrap, command_config) as brokers:
        (made,) = brokers.controller(t.CreateAclsRequest(creations=[creation])).results
    check(made.error_code, "the rule", made.error_message)
    _show(acl, as_json=as_json)
    return 0


@app.command()
def remove(
    bootstrap: RequiredBootstrap,
    principal: Principal = None,
    operation: OperationName = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OfTheCluster = False,
    user_principal: UserPrincipal = None,
    delegation_token: DelegationToken = None,
    prefixed: OnlyPrefixed = False,
    host: Host = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Remove the rules that match all options given, and show them; exit 1 if there is none."""
    from logstore.broker.security.acls import AclFilter, Pattern
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    kind, name = _resource(topic, group, transactional_id, cluster, user_principal, delegation_token)
    wanted = _wanted(kind, name, prefixed, principal, host, operation)
    if wanted._replace(pattern=Pattern.ANY) == AclFilter():
        raise typer.BadParameter("name what to remove: a resource, --principal, --host or --operation")
    request = t.DeleteAclsRequest(filters=[t.DeleteAclsRequestDeleteAclsFilter(**_filter(wanted))])
    with asked_at(bootstrap, command_config) as brokers:
        (done,) = brokers.controller(request).filter_results
    check(done.error_code, "the rules", done.error_message)
    for each in done.matching_acls:
        check(each.error_code, f"the rule of {each.principal}", each.error_message)
        _show(_acl(each, each), as_json=as_json)
    if not done.matching_acls:
        print_error("no rule matches")
    return int(not done.matching_acls)


def _check_name(kind: Resource, name: str, prefixed: bool) -> None:
    from logstore.broker.security.acls import WILDCARD, Resource
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.topic_partition import check_topic_name

    if name == WILDCARD:
        if prefixed:
            raise typer.BadParameter("'*' stands for every name only without --prefixed")
    elif kind is Resource.TOPIC and not (prefixed and name in (".", "..")):
        with value_of("--topic", InvalidTopic):
            check_topic_name(name)


def _resource(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    user: str | None,
    token: str | None,
) -> tuple[Resource | None, str | None]:
    from logstore.broker.security.acls import CLUSTER_NAME, Resource

    named = {
        Resource.TOPIC: topic,
        Resource.GROUP: group,
        Resource.TRANSACTIONAL_ID: transactional_id,
        Resource.CLUSTER: CLUSTER_NAME if cluster else None,
        Resource.USER: user,
        Resource.DELEGATION_TOKEN: token,
    }
    _check_type("--user-principal", user)
    given = [(kind, name) for kind, name in named.items() if name is not None]
    if len(given) > 1:
        raise typer.BadParameter(
            "give one of --topic, --group, --transactional-id, --cluster, --user-principal and "
            "--delegation-token"
        )
    return given[0] if given else (None, None)


def _check_type(option: str, principal: str | None) -> None:
    if principal is not None and ":" not in principal:
        raise typer.BadParameter(f"{option} {principal}: write TYPE:NAME, such as User:{principal}")


def _wanted(
    kind: Resource | None,
    name: str | None,
    prefixed: bool,
    principal: str | None,
    host: str | None,
    operation: str | None,
) -> AclFilter:
    from logstore.broker.security.acls import AclFilter, Pattern, host_of

    _check_type("--principal", principal)
    pattern = Pattern.PREFIXED if prefixed else Pattern.ANY
    address = host_of(host) if host is not None else None
    return AclFilter(kind, pattern, name, principal, address, _operation(operation))


def _operation(name: str | None) -> Operation | None:
    from logstore.broker.security.acls import Operation

    if name is None:
        return None
    try:
        return Operation[name.upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(_word(each) for each in Operation)
        raise typer.BadParameter(f"--operation {name}: it is one of {known}") from None


def _acl(resource: Any, rule: Any) -> Acl:
    """Return a rule of an answer, which names its resource in one struct and the rest in another."""
    from logstore.broker.security.acls import Acl, Operation, Pattern, Permission, Resource

    return Acl(
        Resource(resource.resource_type),
        Pattern(resource.pattern_type),
        resource.resource_name,
        rule.principal,
        rule.host,
        Operation(rule.operation),
        Permission(rule.permission_type),
    )


def _filter(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource or _ANY,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation or _ANY,
        "permission_type": wanted.permission or _ANY,
    }


def _show(acl: Acl, *, as_json: bool) -> None:
    facts = {
        "resource": _word(acl.resource),
        "name": acl.name,
        "pattern": _word(acl.pattern),
        "principal": acl.principal,
        "host": acl.host,
        "operation": _word(acl.operation),
        "permission": _word(acl.permission),
    }
    if as_json:
        print_json(facts)
    else:
        where = "" if acl.host == "*" else f" from {acl.host}"
        name = f"{acl.name}…" if facts["pattern"] == "prefixed" else acl.name
        what = f"{facts['operation']} {facts['resource']} {name}"
        print(f"{facts['permission']} {acl.principal}{where} to {what}")


def _word(value: Any) -> str:
    return str(value.name).lower().replace("_", "-")
