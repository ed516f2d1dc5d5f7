"""The container file, built with Debian's buildah, and a broker of the image: `make image`. Needs root.

The base image comes from a registry of images where there is one. Here it is made of Debian's packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logstore.broker.blocking import BlockingClient
from logstore.broker.limits import Address
from tests.deploy.serving import DEPLOY, ROOT
from tests.zookeeper import free_port

BUILD = ROOT / "build" / "image"
BASE, IMAGE = "localhost/python", "localhost/logstore"
PACKAGES = "python3,python3-venv,ca-certificates"
CERTIFICATES = "/etc/ssl/certs"


def buildah(*arguments: str) -> str:
    """Run buildah with a storage of its own, and return what it prints."""
    assert shutil.which("buildah"), "buildah is missing: run `.ci/parts image`"
    storage = ["--root", str(BUILD / "root"), "--runroot", str(BUILD / "run"), "--storage-driver", "vfs"]
    done = subprocess.run(
        ["buildah", *storage, *arguments], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image() -> Iterator[tuple[dict[str, Any], Path]]:
    """The configuration of the built image, and a container's file system."""
    assert os.geteuid() == 0, "chroot and mount need root"
    if not buildah("images", "--quiet", "--filter", f"reference={BASE}"):
        system = BUILD / "debian"
        shutil.rmtree(system, ignore_errors=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "stable", system], check=True
        )
        (BUILD / "Base").write_text("FROM scratch\nADD debian /\n")
        buildah("bud", "--file", str(BUILD / "Base"), "--tag", BASE, str(BUILD))
        shutil.rmtree(system)
    buildah(
        *("bud", "--format", "docker", "--isolation", "chroot", "--network", "host"),
        # pip finds the certificates of this machine where Debian has them.
        *("--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro", "--build-arg", f"PYTHON={BASE}"),
        *("--file", str(DEPLOY / "Containerfile"), "--tag", IMAGE, "."),
    )
    container = buildah("from", IMAGE)
    try:
        config = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
        yield config, Path(buildah("mount", container))
    finally:
        buildah("rm", container)


@contextmanager
def broker(config: dict[str, Any], root: Path) -> Iterator[dict[str, Any]]:
    """Run the image's command as its user in its file system; end it with its signal, which it obeys."""
    command = config["Entrypoint"] + config["Cmd"][:-1] + ["127.0.0.1:0"]
    user, folder = config["User"], config["WorkingDir"]
    # `exec` keeps the process id: signals reach the broker itself.
    inside = f"chroot --userspec={user} {root} sh -c 'cd {folder}; exec \"$@\"' -"
    script = f'mount -t proc proc {root}/proc && exec {inside} "$@"'
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "-", *command],
        stdout=subprocess.PIPE,
        env=dict(each.split("=", 1) for each in config["Env"]),
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "the broker did not start; its messages are above"
            yield json.loads(line)
        finally:
            process.terminate()
    assert config["StopSignal"] == "SIGTERM"
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(1200)
def test_the_image_is_built_and_its_broker_keeps_records(image: tuple[dict[str, Any], Path]) -> None:
    config, root = image
    assert config["User"] == "logstore"
    assert list(config["Volumes"]) == ["/var/lib/logstore"]
    settings = root / "etc" / "logstore" / "server.properties"
    settings.parent.mkdir()
    port = free_port()
    settings.write_text(
        f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs=/var/lib/logstore/data\n"
    )
    address = [Address("127.0.0.1", port)]
    with broker(config, root) as started:
        probe = [
            each.replace("127.0.0.1:9644", started["http"]) for each in config["Healthcheck"]["Test"][1:]
        ]
        chroot = ["chroot", f"--userspec={config['User']}", str(root), "/opt/logstore/bin/python"]
        subprocess.run([*chroot, *probe[1:]], check=True)
        with BlockingClient(address) as client:
            client.create_topic("orders")
            client.append("orders", b"placed", key=b"order-17")
    data = root / "var" / "lib" / "logstore" / "data"
    assert data.stat().st_uid == 10001, "the broker is not root"
    assert (data / "orders-0" / "00000000000000000000.log").stat().st_size > 0
    with broker(config, root), BlockingClient(address) as client:
        assert [record.value for record in client.read("orders", offset=0)] == [b"placed"]
