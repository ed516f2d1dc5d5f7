"""`logstore serve` with options and settings by which no broker can start: one line, exit code 2."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from logstore.broker import process
from logstore.broker.limits import Address
from logstore.broker.process import ServeOptions
from logstore.cli.main import run

pytestmark = pytest.mark.usefixtures("kept_signals")

COMPLAINTS = {
    "log.dirs=": "log.dirs is empty",
    "log.dirs=e,e": "log.dirs: e and e are the same directory",
    "log.dirs=f,f/g": "log.dirs: f/g lies in f",
    "process.roles=broker": "process.roles: KRaft is not supported",
    "broker.id=2": "node.id and broker.id differ",
    "http.basic.user=ann": "http.basic.user has no effect without --http",
}


def serve(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the error of a broker that cannot start."""
    assert run(["serve", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("setting", COMPLAINTS)
@pytest.mark.parametrize("console", [(), ("--console",)], ids=["plain", "console"])
def test_settings_that_cannot_be(
    setting: str,
    console: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if console and setting.startswith("http."):
        return
    Path("server.properties").write_text(
        f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dir=d\n{setting}\n"
    )
    line = serve(capsys, "--config", "server.properties", *console)
    assert COMPLAINTS[setting] in line
    assert [each.name for each in tmp_path.iterdir()] == ["server.properties"]


@pytest.mark.parametrize("command", ["serve", "metadata-store"])
def test_a_malformed_file(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "server.properties"
    settings.write_bytes(b"a=\\u00zz\n")
    assert run([command, "--config", str(settings), *(["d"] if command == "metadata-store" else [])]) == 2
    assert str(settings) in capsys.readouterr().err


OPTIONS = ("--node-id", "1", "--log-dirs", "d", "--listen")


def test_a_port_in_use_is_named_with_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = serve(capsys, *OPTIONS, address)
        assert line.endswith(f"cannot open the listener {address}: Address already in use")
        line = serve(capsys, *OPTIONS, "127.0.0.1:0", "--http", address)
        assert line.endswith(f"cannot open the HTTP port {address} (--http): Address already in use")


@pytest.mark.parametrize(
    ("option", "named"), [("--log-file", "--log-file"), ("--state-change-log", "state.change.log")]
)
def test_a_file_that_cannot_be_written_is_named_with_its_setting(
    option: str,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    line = serve(capsys, *OPTIONS, "127.0.0.1:0", option, "none/here.log")
    assert "none/here.log" in line
    assert line.endswith(f"({named}): No such file or directory")


def test_a_password_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "none")
    code = run(["users", "set", "ann", "--metadata", f"embedded:{tmp_path}/m", "--password-file", path])
    assert code == 2
    assert "--password-file: [Errno 2]" in capsys.readouterr().err


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServeOptions]:
    """The options of every broker that would run."""
    seen: list[ServeOptions] = []

    def ran(options: ServeOptions, **_: object) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(process, "run", ran)
    return seen


def test_a_log_dir_is_enough_for_a_cluster_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], started: list[ServeOptions]
) -> None:
    alone = ("--log-dirs", str(tmp_path))
    for arguments in ((), ("--metadata", f"embedded:{tmp_path}/store"), ("--node-id", "7")):
        assert run(["serve", *alone, *arguments]) == 0
    assert [each.node_id for each in started] == [1, 1, 7]
    assert {each.listen for each in started} == {Address("127.0.0.1", 9092)}
    assert "give --node-id" in serve(capsys, *alone, "--metadata", "zookeeper://127.0.0.1:2181")
    assert "give --log-dirs" in serve(capsys)


@pytest.mark.parametrize(("lines", "port"), [("http.listener=127.0.0.1:9644", 9644), ("", 0)])
def test_a_console_is_served_where_the_settings_say(
    tmp_path: Path, started: list[ServeOptions], lines: str, port: int
) -> None:
    """On any port only if there is none."""
    file = tmp_path / "server.properties"
    file.write_text(f"node.id=1\nport=9092\nlog.dirs={tmp_path}\n{lines}\n")
    assert run(["serve", "--config", str(file), "--console"]) == 0
    assert [each.http for each in started] == [Address("127.0.0.1", port)]


def test_a_path_without_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    line = serve(capsys, "server.properties", "--node-id", "1")
    assert "--config server.properties" in line
    assert "--log-dirs server.properties" in line
