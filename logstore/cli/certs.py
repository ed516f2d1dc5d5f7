"""`logstore certs DIR`: a certificate authority for development, with certificates for hosts and clients."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from logstore.broker.security.certificates import Signed

_RESERVED: Final = ("broker", "ca")
_LONGEST_NAME: Final = 64
"""A common name of X.509 is no longer."""
_MOST_DAYS: Final = 36_500
_HOST: Final = re.compile(r"[*A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


def certs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory for the files.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A broker's host name or IP address; repeatable."),
    ] = None,
    clients: Annotated[
        list[str] | None, typer.Option("--client", metavar="NAME", help="A client's name; repeatable.")
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=_MOST_DAYS, help="How long certificates are valid.")
    ] = 365,
) -> int:
    """Create a development CA (ca.pem, ca.key), broker.pem and a key store for each client.

    An existing CA in the directory is reused; certificates expire no later than it does. broker.pem is for
    all hosts, by default this one: localhost and 127.0.0.1. Existing certificates are replaced: brokers
    read them again while they run.
    """
    from logstore.broker.security.acls import is_address

    if directory.exists() and not directory.is_dir():
        raise typer.BadParameter(f"{directory} is not a directory")
    if bad := [each for each in clients or () if not each.replace("-", "").replace("_", "").isalnum()]:
        raise typer.BadParameter(f"--client: {bad[0]!r} is to be a file's name: letters, digits, - and _")
    for name in clients or ():
        if name.lower() in _RESERVED:
            raise typer.BadParameter(f"--client: {name}.pem is the name of another file; choose another name")
        if len(name) > _LONGEST_NAME:
            raise typer.BadParameter(f"--client: {name!r} is longer than {_LONGEST_NAME} characters")
    for host in hosts or ():
        if not is_address(host) and not _HOST.fullmatch(host):
            raise typer.BadParameter(f"--host {host!r} is neither an IP address nor the name of a host")
    wanted = {"broker": hosts or ["localhost", "127.0.0.1"], **{name: [] for name in clients or ()}}
    for path in make_certificates(directory, wanted, days=days):
        print(path)
    return 0


def make_certificates(
    directory: Path, hosts_of: Mapping[str, Sequence[str]], *, days: int = 365
) -> list[Path]:
    """Make a key store for each name, valid for its hosts; return their paths.

    They are signed by the authority of the directory, which is made if there is none, and expire no later
    than it does. Raises `InvalidConfig` if the authority is incomplete, damaged or has expired.
    """
    from logstore.broker.security.certificates import new_authority, signed_by
    from logstore.broker.security.tls import now

    directory.mkdir(parents=True, exist_ok=True)
    authority = _authority_of(directory)
    if authority is None:
        authority = new_authority(now(), days=days)
        write_secret(directory / "ca.key", authority.key_pem)
        write_secret(directory / "ca.pem", authority.certificate_pem)
    made = []
    for name, hosts in hosts_of.items():
        signed = signed_by(authority, name, hosts, now(), days=days)
        made.append(directory / f"{name}.pem")
        write_secret(made[-1], signed.key_pem + signed.certificate_pem)
    return made


def _authority_of(directory: Path) -> Signed | None:
    """Return the authority of a directory; None if there is none. Raises `InvalidConfig`."""
    from logstore.broker.security.certificates import read_authority
    from logstore.broker.security.tls import now
    from logstore.errors import InvalidConfig

    ca, key = directory / "ca.pem", directory / "ca.key"
    if not ca.exists() and not key.exists():
        return None
    for found, other in ((ca, key), (key, ca)):
        if not other.exists():
            raise InvalidConfig(
                f"{found} is there without {other.name}: a new authority would replace it. Put {other.name} "
                "beside it, or choose another directory"
            )
    try:
        authority = read_authority(ca.read_bytes(), key.read_bytes())
    except ValueError as error:
        raise InvalidConfig(f"{ca} and {key.name} are no authority: {error}") from None
    if authority.ends <= now():
        raise InvalidConfig(
            f"the authority {ca} ended on {authority.ends:%Y-%m-%d}: remove ca.pem and ca.key to create a "
            "new one, and give its ca.pem to all brokers and clients"
        )
    return authority


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, and put it in place as a whole."""
    import os

    partial = path.with_name(f"{path.name}.new")
    partial.unlink(missing_ok=True)
    with open(partial, "wb", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o600)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
