"""`python -m broker` before it runs; three of them run in `test_three_processes.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.__main__ import main

GOOD = {"--node-id": "1", "--listen": "127.0.0.1:0", "--log-dirs": "d", "--metadata": "zookeeper://127.0.0.1:1"}


def arguments(**changed: str) -> list[str]:
    named = {**GOOD, **{f"--{name.replace('_', '-')}": value for name, value in changed.items()}}
    return [part for pair in named.items() for part in pair]


@pytest.mark.parametrize(
    ("name", "value"),
    [("listen", "nowhere"), ("listen", ":1"), ("listen", "h:70000"), ("node_id", "one"), ("set", "name")],
)
def test_what_cannot_be_read_is_bad_usage(
    name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments(**{name: value}))
    assert caught.value.code == 2
    assert value in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"set": "no.such.setting=1"}, "no.such.setting"),
        ({"metadata": "etcd://somewhere"}, "etcd://somewhere"),
        ({"log_dirs": "/dev/null/logs"}, "/dev/null/logs"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    changed: dict[str, str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments(**changed)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert complaint in errors[-1]
    assert errors[-1].startswith("error: ")
