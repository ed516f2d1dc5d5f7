"""The extras of the distribution that install optional packages."""

from __future__ import annotations

from importlib import import_module
from typing import Final

EXTRAS: Final = {
    **dict.fromkeys(("typer", "rich"), "cli"),
    **dict.fromkeys(("lz4", "cramjam", "backports"), "codecs"),
    **dict.fromkeys(("cryptography", "joserfc"), "security"),
    **dict.fromkeys(("pyspark", "py4j"), "spark"),
    **dict.fromkeys(("pyarrow", "numba"), "arrow"),
    "kazoo": "zookeeper",
    "prometheus_client": "broker",
    "msgpack": "msgpack",
    "fastavro": "avro",
    "fsspec": "tier",
    "delta": "delta",
}
"""The extra by the top-level name of a package that it installs."""


def how_to_install(error: ModuleNotFoundError) -> str | None:
    """Say which extra installs the missing package; None if no extra does."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return f"{package} is not installed: pip install 'pylogstore[{EXTRAS[package]}]'"


def require(package: str) -> None:
    """Import an optional package. Raises `ModuleNotFoundError`, which says which extra installs it."""
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(how_to_install(error) or str(error), name=error.name) from error
