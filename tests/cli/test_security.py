"""`logstore users` and `logstore security check`."""

from __future__ import annotations

import getpass
import io
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.broker import BlockingClient, client_security
from logstore.broker.secured import secured_broker
from logstore.cli import cluster_state
from logstore.cli.operating import security_of, store_security_of
from logstore.errors import InvalidConfig
from logstore.replication.metastore.errors import MetadataStoreFailed
from tests.cli.conftest import Outcome
from tests.metadata_server import served

Command = Callable[..., Outcome]


def test_users_of_a_stopped_broker(command: Command, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hush\nignored\n")
    store = ("--metadata", f"embedded:{tmp_path / 'store'}")
    for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256"):
        done = command("users", "set", "ann", *store, "--password-file", password, "--mechanism", mechanism)
        assert (done.code, done.out) == (0, "")
    assert command("users", "list", *store).out == "ann  SCRAM-SHA-256 (4096), SCRAM-SHA-512 (4096)\n"
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    listed = command("users", "list", *store, "--json").out
    assert '"SCRAM-SHA-512": 4096' in listed
    gone = command("users", "delete", "ann", *store, "--json")
    assert json.loads(gone.out) == {"user": "ann", "mechanism": "SCRAM-SHA-512", "is_deleted": True}
    gone = command("users", "delete", "ann", *store)
    assert (gone.code, gone.err) == (1, "logstore: user ann has no credential for SCRAM-SHA-512\n")
    assert command("users", "list", *store).out == "ann  SCRAM-SHA-256 (4096)\n"
    assert b"hush" not in b"".join(
        each.read_bytes() for each in (tmp_path / "store").rglob("*") if each.is_file()
    )


def test_users_of_running_brokers(command: Command, tmp_path: Path) -> None:
    """The same answers as over the store, by Kafka's requests; the new user can log in."""
    password = tmp_path / "password"
    password.write_text("hush\nignored\n")
    with secured_broker(tmp_path, {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512"}) as secured:
        config = tmp_path / "admin.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in secured.properties().items()))
        to = ("--bootstrap", secured.bootstrap, "--command-config", config)
        for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256"):
            done = command("users", "set", "ann", *to, "--password-file", password, "--mechanism", mechanism)
            assert (done.code, done.out, done.err) == (0, "", "")
        assert json.loads(command("users", "list", *to, "--json").out) == {
            "user": "ann",
            "iterations": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096},
        }
        login = secured.properties() | {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": 'ScramLoginModule required username="ann" password="hush";',
        }
        with BlockingClient(secured.bootstrap, security=client_security(login)) as ann:
            assert ann.topics() == {}
        gone = command("users", "delete", "ann", *to, "--json")
        assert json.loads(gone.out) == {"user": "ann", "mechanism": "SCRAM-SHA-512", "is_deleted": True}
        gone = command("users", "delete", "ann", *to)
        assert (gone.code, gone.err) == (1, "logstore: user ann has no credential for SCRAM-SHA-512\n")
        assert command("users", "list", *to).out == "ann  SCRAM-SHA-256 (4096)\n"
        admin = secured.properties()["sasl.jaas.config"]
        config.write_text(config.read_text().replace(admin, secured.properties("alice")["sasl.jaas.config"]))
        secured.broker.create_topic("orders")
        for verb in (["list"], ["describe"], ["list", "--json"]):
            shown = command("topics", *verb, *to)
            assert (shown.code, shown.out) == (0, ""), "alice may see no topic, and is told what is left out"
            assert "not shown: CLUSTER_AUTHORIZATION_FAILED: the reassignments: the user lacks" in shown.err
        one = command("topics", "describe", "orders", *to)
        assert (one.code, one.err.count("deletions are not shown")) == (1, 1), one
        assert command("reassign", "list", *to).code == 1
        wrong = command("users", "set", "ann", *to, "--password-file", password, "--mechanism", "PLAIN")
        assert wrong.code in (1, 2)
        assert "PLAIN" in wrong.err
    assert command("users", "list").code == 2


def test_rights_on_a_topic_are_enough_to_change_it(command: Command, tmp_path: Path) -> None:
    """As for Kafka's tools: a right on the cluster, to see what moves, is not needed."""
    with secured_broker(tmp_path, {}) as secured:
        secured.broker.create_topic("orders")
        to = {}
        for user in ("admin", "alice"):
            config = tmp_path / f"{user}.properties"
            config.write_text("".join(f"{name}={it}\n" for name, it in secured.properties(user).items()))
            to[user] = ("--bootstrap", secured.bootstrap, "--command-config", config)
        for right in ("alter", "alter-configs", "delete"):
            rule = ("--principal", "User:alice", "--operation", right, "--topic", "orders")
            assert command("acls", "add", *rule, *to["admin"]).code == 0
        for words in (
            ("topics", "alter", "orders", "--partitions", 2),
            ("topics", "alter", "orders", "--config", "retention.ms=9000000"),
            ("configs", "alter", "--topic", "orders", "--delete-config", "retention.ms"),
            ("topics", "delete", "orders", "--wait", 10),
        ):
            done = command(*words, *to["alice"])
            assert (done.code, "not shown" in done.err) == (0, False), (words, done)
        moved = command("brokers", "move-log", "orders-0", "--broker", 1, "--to", "/b", *to["alice"])
        assert (moved.code, "31): the user lacks Alter on the cluster" in moved.err) == (1, True), moved


def test_a_password_is_asked_for_beside_the_output(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is no line of JSON."""

    def typed(prompt: str) -> str:  # typer hands on the whole prompt, or has printed it
        sys.stderr.write(prompt)
        return "hush"

    monkeypatch.setattr(getpass, "getpass", typed)
    done = command("users", "set", "ann", "--metadata", f"embedded:{tmp_path / 'store'}", "--json")
    assert json.loads(done.out)["user"] == "ann"
    assert done.err.startswith("Password:")


def test_a_password_without_a_terminal(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from stdin, without Python's warnings about that; if none is there, the option is named."""

    def from_stdin(_: str) -> str:
        warnings.warn("Can not control echo on the terminal.", getpass.GetPassWarning, stacklevel=2)
        if line := sys.stdin.readline():
            return line.rstrip("\n")
        raise EOFError

    monkeypatch.setattr(getpass, "getpass", from_stdin)
    words = ("users", "set", "ann", "--metadata", f"embedded:{tmp_path / 'store'}")
    monkeypatch.setattr(sys, "stdin", io.StringIO("hush\nhush\n"))
    done = command(*words)
    assert (done.code, "GetPassWarning" in done.err) == (0, False), done
    refused = command(*words)
    assert (refused.code, "no password on stdin: give --password-file" in refused.err) == (2, True), refused


def test_a_store_that_does_not_answer_is_told_once(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by each attempt of ZooKeeper's client library."""
    client = logging.getLogger("kazoo")
    monkeypatch.setattr(client, "handlers", [])
    command("users", "list", "--metadata", f"embedded:{tmp_path}")
    assert client.handlers


@pytest.mark.parametrize("verb", [("topics", "list"), ("why", "cluster")])
def test_a_store_that_is_not_reached_is_reported_with_the_reason(
    verb: tuple[str, ...], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a certificate that one of both does not trust, or a refused login."""
    monkeypatch.setattr(cluster_state, "OPENING_S", 0.1)
    silent = command(*verb, "--metadata", "zookeeper://127.0.0.1:1")
    said = silent.out + silent.err
    assert silent.code == 1
    assert "answered within 0.1 s. The last attempt to connect: Connection refused" in said, said
    logging.getLogger("logstore.replication.metastore.zookeeper_session").error("ZooKeeper refused the login")
    refused = cluster_state.with_attempt(MetadataStoreFailed("no"))
    assert refused == "no. ZooKeeper refused the login"
    assert cluster_state.with_attempt(OSError("no")) == "no"


def test_what_users_refuses(command: Command, tmp_path: Path) -> None:
    store = ("--metadata", f"embedded:{tmp_path / 'store'}")
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for words, complaint in (
        (("users", "set", "ann", *store, "--password-file", empty), "password is empty"),
        (("users", "set", "", *store, "--password-file", empty), "name is empty"),
        (("users", "list", "--metadata", "embedded"), "embedded:DIR"),
    ):
        refused = command(*words)
        assert (refused.code, complaint in refused.err) == (2, True), refused
    password = tmp_path / "password"
    password.write_text("x")
    few = command("users", "set", "ann", *store, "--password-file", password, "--iterations", "1")
    assert (few.code, "expected 4096 to 16384" in few.err) == (2, True)


def test_a_sound_broker_passes_the_check(command: Command, tmp_path: Path) -> None:
    home = tmp_path / "tls"
    command("certs", home)
    config = tmp_path / "server.properties"
    jaas = (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="hush";'
    )
    config.write_text(
        "listeners=SASL_SSL://localhost:9093\n"
        "sasl.enabled.mechanisms=SCRAM-SHA-512\n"
        "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512\n"
        f"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={jaas}\n"
        f"ssl.keystore.location={home / 'broker.pem'}\n"
        "authorizer.class.name=kafka.security.authorizer.AclAuthorizer\n"
        "super.users=User:admin\n"
    )
    config.chmod(0o600)
    done = command("security", "check", "--config", config)
    assert (done.code, "PROBLEM" in done.out) == (0, False), done.out
    assert "listener SASL_SSL  protocol SASL_SSL" in done.out
    assert "what has no rule is closed to all but super users; super users: User:admin" in done.out
    (home / "broker.pem").chmod(0o644)
    config.chmod(0o640)
    done = command("security", "check", "--config", config, "--json")
    assert done.code == 1
    assert f"chmod 600 {home / 'broker.pem'}" in done.out
    assert f"chmod 600 {config}" in done.out
    assert "hush" not in done.out


def test_problems_are_listed(command: Command, tmp_path: Path) -> None:
    home = tmp_path / "tls"
    command("certs", home, "--days", 3)
    plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="hush";'
    config = tmp_path / "server.properties"
    config.write_text(
        "listeners=PLAINTEXT://:9092,SSL://localhost:9093,SASL_PLAINTEXT://localhost:9094\n"
        "advertised.listeners=PLAINTEXT://one.example:9092,SSL://localhost:9093\n"
        "sasl.enabled.mechanisms=PLAIN\n"
        f"listener.name.sasl_plaintext.plain.sasl.jaas.config={plain}\n"
        f"ssl.keystore.location={home / 'broker.pem'}\n"
    )
    config.chmod(0o600)
    password = tmp_path / "password"
    password.write_text("x")
    store = ("--metadata", f"embedded:{tmp_path / 'store'}")
    command("users", "set", "bob", *store, "--password-file", password)
    done = command("security", "check", "--config", config, *store)
    assert done.code == 1
    problems = [line for line in done.out.splitlines() if line.startswith("PROBLEM")]
    assert len(problems) == 3, problems
    for complaint in ("--insecure", "without encryption", "ends in 2 days"):
        assert any(complaint in each for each in problems)
    assert "user bob  mechanisms SCRAM-SHA-512" in done.out
    assert "plain_users ann" in done.out
    (home / "broker.pem").write_text("nothing")
    assert "has 0 private keys" in command("security", "check", "--config", config).out
    config.write_text("port=9092\nhost.name=0.0.0.0\n")
    assert "--insecure" in command("security", "check", "--config", config).out


def test_tls_alone_lets_everyone_in(command: Command, tmp_path: Path) -> None:
    """Without a client's certificate, a login or an authorizer, whoever connects has full access."""
    command("certs", tmp_path / "tls")
    config = tmp_path / "server.properties"

    def problems(*lines: str, host: str = "0.0.0.0") -> list[str]:
        own = (f"listeners=SSL://{host}:9093", f"ssl.keystore.location={tmp_path / 'tls' / 'broker.pem'}")
        config.write_text("\n".join((*own, "advertised.listeners=SSL://localhost:9093", *lines)))
        config.chmod(0o600)
        done = command("security", "check", "--config", config)
        found = [line for line in done.out.splitlines() if line.startswith("PROBLEM")]
        assert done.code == bool(found)
        return found

    (open_to_all,) = problems()
    assert "listener SSL on 0.0.0.0:9093 gives everyone on the network full access" in open_to_all
    assert problems(host="127.0.0.1") == []
    assert (
        problems("ssl.client.auth=required", f"ssl.truststore.location={tmp_path / 'tls' / 'ca.pem'}") == []
    )
    acls = "authorizer.class.name=kafka.security.authorizer.AclAuthorizer"
    assert problems(acls, "super.users=User:ANONYMOUS") == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("num.partitions=abc", "num.partitions"),
        ("num.partitons=1", "num.partitons"),
        ("node.id=x", "node.id: 'x' is not a number"),
    ],
)
def test_wrong_settings_are_problems(command: Command, tmp_path: Path, line: str, said: str) -> None:
    """No broker would start with them (docs/deploying.md)."""
    config = tmp_path / "server.properties"
    config.write_text(f"listeners=PLAINTEXT://127.0.0.1:9092\n{line}\n")
    done = command("security", "check", "--config", config)
    assert done.code == 1
    assert [said in each for each in done.out.splitlines() if each.startswith("PROBLEM")] == [True]


def test_a_store_that_others_may_read_is_a_problem(command: Command, tmp_path: Path) -> None:
    """It has what passwords can be tried against."""
    config, password = tmp_path / "server.properties", tmp_path / "password"
    config.write_text("listeners=PLAINTEXT://127.0.0.1:9092\n")
    password.write_text("hush")
    store = ("--metadata", f"embedded:{tmp_path / 'store'}")
    command("users", "set", "ann", *store, "--password-file", password)
    assert command("security", "check", "--config", config, *store).code == 0
    (tmp_path / "store").chmod(0o755)
    done = command("security", "check", "--config", config, *store)
    assert (done.code, f"chmod 700 {tmp_path / 'store'}" in done.out) == (1, True)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("ssl.principal.mapping.rules=RULE:x",), "has a malformed rule"),
        (("max.connections.per.ip.overrides=nohost.invalid:5",), "nohost.invalid has no address"),
        (("audit.log.path=/nonexistent/audit",), "audit.log.path: /nonexistent/audit is no file"),
        (("audit.log.path=/tmp",), "audit.log.path: /tmp is no file"),
        (
            (
                "sasl.enabled.mechanisms=OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url=file:///nonexistent/keys",
                "sasl.oauthbearer.expected.audience=kafka",
                "sasl.oauthbearer.expected.issuer=https://id.example",
                "listener.security.protocol.map=ONE:SASL_SSL",
                "sasl.mechanism.inter.broker.protocol=OAUTHBEARER",
                "listener.name.one.sasl.oauthbearer.token.endpoint.url=file:///nonexistent/token",
            ),
            "sasl.oauthbearer.jwks.endpoint.url",
        ),
    ],
    ids=["rules", "overrides", "audit", "audit of a directory", "keys"],
)
def test_with_what_no_broker_starts_is_a_problem(
    command: Command, tmp_path: Path, lines: tuple[str, ...], said: str
) -> None:
    command("certs", tmp_path / "tls")
    config = tmp_path / "server.properties"
    name = "ONE" if len(lines) > 1 else "SSL"
    own = (f"listeners={name}://127.0.0.1:9093", f"ssl.keystore.location={tmp_path / 'tls' / 'broker.pem'}")
    config.write_text("\n".join((*own, *lines)))
    config.chmod(0o600)
    done = command("security", "check", "--config", config)
    problems = [each for each in done.out.splitlines() if each.startswith("PROBLEM")]
    assert done.code == 1
    assert len(problems) == 1, problems
    assert "no broker starts with this file" in problems[0]
    assert said in problems[0]


@pytest.mark.parametrize("line", ["super.users=admin", "advertised.listeners=x", "listeners=SSL"])
def test_settings_without_a_meaning_are_problems(command: Command, tmp_path: Path, line: str) -> None:
    config = tmp_path / "server.properties"
    acls = "authorizer.class.name=kafka.security.authorizer.AclAuthorizer"
    config.write_text(f"listeners=PLAINTEXT://127.0.0.1:9092\n{acls}\n{line}\n")
    done = command("security", "check", "--config", config)
    assert done.code == 1
    assert done.out.startswith("PROBLEM  no broker starts with this file: ")


def test_a_broker_without_settings_listens_at_kafkas_port(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("")
    done = command("security", "check", "--config", config)
    assert (done.code, done.out) == (0, "listener PLAINTEXT  protocol PLAINTEXT  bind 127.0.0.1:9092\n")


def test_a_store_that_is_only_read_is_not_created(command: Command, tmp_path: Path) -> None:
    """A mistake in its name would look like a cluster without users."""
    store, config = tmp_path / "typo", tmp_path / "server.properties"
    config.write_text("listeners=PLAINTEXT://127.0.0.1:9092\n")
    for words in (["users", "list"], ["users", "delete", "ann"], ["security", "check", "--config", config]):
        done = command(*words, "--metadata", f"embedded:{store}")
        assert (done.code, done.err) == (1, f"logstore: no metadata store in {store}\n")
    assert not store.exists()


def test_problems_of_logins_by_tokens(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    lines = {
        "node.id": "1",
        "listeners": "INTERNAL://127.0.0.1:9092,CLIENTS://127.0.0.1:9093",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": "http://id.example/keys",
        "sasl.oauthbearer.expected.issuer": "https://id.example",
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    done = command("security", "check", "--config", config)
    assert done.code == 1
    problems = [line for line in done.out.splitlines() if line.startswith("PROBLEM")]
    assert len(problems) == 3, problems
    for complaint in ("tokens without encryption", "use https", "tokens without an audience"):
        assert any(complaint in each for each in problems)
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    lines |= {
        "inter.broker.listener.name": "CLIENTS",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "http://id.example/token",
        "listener.name.clients.oauthbearer.sasl.jaas.config": (
            f'{module} required clientId="a" clientSecret="b";'
        ),
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    found = command("security", "check", "--config", config).out
    assert "brokers send their clientSecret without encryption (listener CLIENTS): use https" in found
    token = tmp_path / "token"
    token.write_text("a.b.c")
    token.chmod(0o644)
    del lines["listener.name.clients.oauthbearer.sasl.jaas.config"]
    lines["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    assert f"chmod 600 {token}" in command("security", "check", "--config", config).out


def test_an_open_store_is_a_problem(command: Command, tmp_path: Path) -> None:
    """Beyond this host: without TLS, and without a certificate or a login of the brokers."""
    home = tmp_path / "tls"
    command("certs", home, "--client", "broker1")
    config = tmp_path / "server.properties"

    def problems(*lines: str) -> list[str]:
        config.write_text("\n".join(("port=9092", *lines)))
        config.chmod(0o600)
        out = command("security", "check", "--config", config).out
        return [line.partition(": ")[2] for line in out.splitlines() if line.startswith("PROBLEM")]

    assert problems("zookeeper.connect=localhost:2181,127.0.0.1:2182,[::1]:2183/chroot") == []
    plain = problems("zookeeper.connect=localhost:2181,zk.example:2181/chroot")
    assert plain == [
        "set zookeeper.ssl.client.enable=true",
        "set zookeeper.ssl.keystore.location, and have it require certificates",
    ]
    tls = (
        "zookeeper.connect=zk.example:2281",
        "zookeeper.ssl.client.enable=true",
        f"zookeeper.ssl.truststore.location={home / 'ca.pem'}",
    )
    assert problems(*tls) == plain[1:]
    key = home / "broker1.pem"
    assert problems(*tls, f"zookeeper.ssl.keystore.location={key}", "zookeeper.set.acl=true") == []
    key.chmod(0o640)
    assert problems(*tls, f"zookeeper.ssl.keystore.location={key}") == [f"chmod 600 {key}"]
    key.unlink()
    assert len(problems(*tls, f"zookeeper.ssl.keystore.location={key}")) == 1


def test_verbs_reach_a_store_over_tls(command: Command, tmp_path: Path) -> None:
    """The verbs of the store take a broker's properties; without them they do not get in."""
    home = tmp_path / "tls"
    command("certs", home, "--client", "admin")
    own = {
        "ssl.keystore.location": str(home / "broker.pem"),
        "ssl.truststore.location": str(home / "ca.pem"),
        "ssl.client.auth": "required",
        "super.users": "User:CN=admin",
    }
    config = tmp_path / "admin.properties"
    config.write_text(
        "zookeeper.ssl.client.enable=true\n"
        f"zookeeper.ssl.keystore.location={home / 'admin.pem'}\n"
        f"zookeeper.ssl.truststore.location={home / 'ca.pem'}\n"
    )
    password = tmp_path / "password"
    password.write_text("x")
    with served(settings=own) as port:
        store = ("--metadata", f"zookeeper://localhost:{port}", "--command-config", config)
        assert command("users", "set", "ann", *store, "--password-file", password).code == 0
        assert command("users", "list", *store).out == "ann  SCRAM-SHA-512 (4096)\n"
        assert command("topics", "list", *store).code == 0
        assert "names no live controller" in command("brokers", "drain", 1, *store).err


def test_one_file_has_the_way_to_brokers_and_to_the_store(tmp_path: Path) -> None:
    """`brokers drain --metadata` takes both."""
    config = tmp_path / "admin.properties"
    config.write_text("zookeeper.ssl.client.enable=true\nsecurity.protocol=SSL\n")
    way = security_of(config)
    assert way is not None
    assert way.context is not None
    assert store_security_of(config).tls is not None


def test_a_file_of_kafkas_tools_may_say_more(tmp_path: Path) -> None:
    """Kafka's admin client takes these as well; a setting of the security with a typo is still refused."""
    config = tmp_path / "admin.properties"
    config.write_text(
        "security.protocol=SSL\nclient.id=ops\nrequest.timeout.ms=60000\nbootstrap.servers=b1:9093\n"
    )
    way = security_of(config)
    assert way is not None
    assert way.context is not None
    config.write_text("security.protocl=SSL\n")
    with pytest.raises(InvalidConfig, match=r"security\.protocl is not a setting"):
        security_of(config)


def test_an_open_http_port_is_a_problem(command: Command, tmp_path: Path) -> None:
    home = tmp_path / "tls"
    command("certs", home)
    config = tmp_path / "server.properties"
    lines = ["port=9092", "http.listener=http://0.0.0.0:9644"]

    def problems(*options: str) -> list[str]:
        config.write_text("\n".join(lines))
        config.chmod(0o600)
        out = command("security", "check", "--config", config, *options).out
        return [line for line in out.splitlines() if line.startswith("PROBLEM")]

    assert len(problems()) == 2
    assert problems("--http", "127.0.0.1:9644") == []
    assert "'ftp://here:1' is not a valid address" in problems("--http", "ftp://here:1")[0]
    lines[-1] = "http.listener=https://0.0.0.0:9644"
    assert "needs a key and a certificate" in problems()[0]
    lines.append(f"http.ssl.keystore.location={home / 'broker.pem'}")
    assert "open to everyone" in problems()[0]
    lines += ["http.basic.user=me", "http.basic.password=hush"]
    assert problems() == []
