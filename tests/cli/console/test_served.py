"""`logstore serve --console`, as a process; and where it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.cli.conftest import Outcome
from tests.deploy.serving import served


def test_a_broker_serves_its_console_beside_its_metrics(tmp_path: Path) -> None:
    with served(tmp_path, "--console") as broker:
        address = broker["console"]
        assert address == f"http://{broker['http']}/"
        with urlopen(address, timeout=30) as page:
            assert b"<title>logstore console</title>" in page.read()
            assert page.headers["Content-Security-Policy"].startswith("default-src 'self'")
        with urlopen(f"{address}api", timeout=30) as answer:
            assert json.load(answer)["broker"] == 1
        with urlopen(f"{address}api/overview", timeout=30) as answer:
            assert [each["state"] for each in json.load(answer)["brokers"]] == ["up"]
        with urlopen(f"{address}livez", timeout=30) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("option", ["--console", "--console-admin", "--console-messages"])
def test_a_console_for_the_whole_network_must_be_accepted(
    command: Callable[..., Outcome], tmp_path: Path, option: str
) -> None:
    log_dirs = ("--node-id", 1, "--listen", "127.0.0.1:0", "--log-dirs", tmp_path / "data")
    done = command("serve", *log_dirs, "--http", "0.0.0.0:0", option)
    assert done.code == 2
    assert "sends metrics and health without encryption" in done.err
    assert not (tmp_path / "data").exists()
