"""The systemd unit and the container file: what they name is there, and their commands start a broker."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.deploy.serving import COMMAND, DEPLOY, ROOT

UNIT = DEPLOY / "systemd" / "logstore.service"
CONTAINER = DEPLOY / "Containerfile"
PROGRAM = "/opt/logstore/bin/logstore"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser


def instructions() -> list[tuple[str, str]]:
    """The instructions of the container file, in order: name, the rest."""
    text = re.sub(r"^#.*\n", "", CONTAINER.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


@pytest.mark.interop
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    systemd = shutil.which("systemd-analyze")
    assert systemd, "systemd-analyze is missing: apt-get install -y systemd"
    program = tmp_path / "logstore"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(PROGRAM, str(program)))
    done = subprocess.run(
        [systemd, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_starts_a_broker_and_sigterm_ends_it(tmp_path: Path) -> None:
    """With the options as they are written; only addresses and places are of this test."""
    program, *options = shlex.split(unit()["Service"]["ExecStart"])
    assert program == PROGRAM
    assert unit()["Service"]["KillMode"] == "mixed", "SIGTERM goes to the broker alone"
    given = dict(instructions())
    assert json.loads(given["ENTRYPOINT"]) == ["logstore"]
    assert json.loads(given["CMD"])[:-1] == options[:-1], "the same, but for the address of --http"
    assert given["STOPSIGNAL"] == "SIGTERM"
    settings = tmp_path / "server.properties"
    settings.write_text(f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'data'}\n")
    assert options[options.index("--config") + 1] == "/etc/logstore/server.properties"
    options[options.index("--config") + 1] = str(settings)
    options[options.index("--http") + 1] = "127.0.0.1:0"
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (tmp_path / "log").read_text()
            assert json.loads(line)["node_id"] == 1
        finally:
            process.terminate()
    assert process.returncode == 0


def test_what_cannot_start_is_not_started_again(tmp_path: Path) -> None:
    """The unit prevents a restart after exit code 2; this is one."""
    settings = tmp_path / "server.properties"
    settings.write_text("node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs=data\nno.such.setting=1\n")
    done = subprocess.run([*COMMAND, "serve", "--config", str(settings)], capture_output=True, check=False)
    assert str(done.returncode) == unit()["Service"]["RestartPreventExitStatus"]


def test_the_container_file_names_what_there_is() -> None:
    names = [name for name, _ in instructions()]
    assert names.count("FROM") == 2
    assert names.index("USER") > names.index("RUN"), "the broker is not root"
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            assert all((ROOT / each).exists() for each in sources), rest
    extras = re.findall(r"'\.\[(.*?)\]'", CONTAINER.read_text())[0].split(",")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) <= set(known)
    python = re.search(r"python:3\.(\d+)", CONTAINER.read_text())
    assert python is not None
    assert int(python[1]) >= 11
    links = [path for path in (ROOT / "logstore").iterdir() if path.is_symlink()]
    copied = {rest.split()[0] for name, rest in instructions() if name == "COPY"}
    assert {path.resolve().name for path in links} <= copied, "the package links to these"
