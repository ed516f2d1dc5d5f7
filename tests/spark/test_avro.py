"""Avro values: columns of a schema, rows or reasons, and schemas from a registry that may be away."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from logstore.spark.avro import AvroDecoder, ddl_of
from logstore.spark.errors import InvalidOption
from logstore.spark.schema_registry import PAUSES_S, Registry, RegistryUnavailable, UnknownSchema

fastavro = pytest.importorskip("fastavro", reason="needs the extra `avro`")

PERSON: dict[str, Any] = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"], "default": None},
    ],
}
EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "n", "type": "long"},
        {"name": "x", "type": "double"},
        {"name": "raw", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "array", "items": ["string", "null"]}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "at_home", "type": PERSON},
        {"name": "guest", "type": ["null", "Person"]},
    ],
}
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ROW: dict[str, Any] = {
    "flag": True, "n": 2**40, "x": 0.5, "raw": b"ab", "kind": "B", "day": date(2026, 11, 20),
    "at": NOON, "local": NOON.replace(tzinfo=None, microsecond=7),
    "cost": Decimal("123.45"), "uid": "d2719b4f-4c52-4c0b-9f4f-0f2f4ed0c7f1", "tags": ["a", None],
    "counts": {"a": 1}, "at_home": {"id": 1, "name": None}, "guest": {"id": 2, "name": "bob"},
}  # fmt: skip


def datum(schema: Any, row: Any) -> bytes:
    content = io.BytesIO()
    fastavro.schemaless_writer(content, schema, row)
    return content.getvalue()


def named(number: int, schema: Any, row: Any) -> bytes:
    """In Confluent's wire format."""
    return b"\0" + number.to_bytes(4, "big") + datum(schema, row)


def test_columns() -> None:
    assert ddl_of(json.dumps(PERSON)) == "`id` INT NOT NULL, `name` STRING"
    assert ddl_of(json.dumps(EVERYTHING)) == (
        "`flag` BOOLEAN NOT NULL, `n` BIGINT NOT NULL, `x` DOUBLE NOT NULL, `raw` BINARY NOT NULL, "
        "`kind` STRING NOT NULL, `day` DATE NOT NULL, `at` TIMESTAMP, `local` TIMESTAMP_NTZ NOT NULL, "
        "`cost` DECIMAL(5,2) NOT NULL, `uid` STRING NOT NULL, `tags` ARRAY<STRING> NOT NULL, "
        "`counts` MAP<STRING, INT> NOT NULL, `at_home` STRUCT<`id`: INT NOT NULL, `name`: STRING> NOT NULL, "
        "`guest` STRUCT<`id`: INT NOT NULL, `name`: STRING>"
    )


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "not an Avro schema"),
        ('"int"', "must be a record"),
        ('{"type": "record", "name": "R", "fields": []}', "has no fields"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "nope"}]}', "not an Avro schema"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]}', "a is null"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            "a is a union of 2 types",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}',
            "a is R",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "bytes", '
            '"logicalType": "decimal", "precision": 39}}]}',
            "39 digits",
        ),
    ],
)
def test_a_schema_that_a_table_cannot_have(schema: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        ddl_of(schema)


def test_what_was_written_comes_back() -> None:
    decode = AvroDecoder(json.dumps(EVERYTHING))
    assert decode(datum(EVERYTHING, ROW)) == (ROW, None)
    assert decode(None) == (None, "its value is null")


def test_every_cut_of_a_value_is_refused_with_a_reason() -> None:
    """So is a value with more behind it. A refusal names the cause."""
    decode = AvroDecoder(json.dumps(EVERYTHING))
    whole = datum(EVERYTHING, ROW)
    for length in range(len(whole)):
        row, reason = decode(whole[:length])
        assert row is None
        assert reason is not None
    assert decode(whole + b"??") == (None, "2 bytes follow its last field")
    assert "cannot be decoded: EOFError" in str(decode(b"\x01")[1])
    person = AvroDecoder(json.dumps(PERSON))
    assert "UnicodeDecodeError" in str(person(b"\x02\x02\x02\xff")[1])


def test_a_value_out_of_its_type_is_refused() -> None:
    """Spark would take it for null."""
    person = AvroDecoder(json.dumps(PERSON))
    large = {"type": "record", "name": "Person", "fields": [{"name": "id", "type": "long"}]}
    assert person(datum(large, {"id": 2**31}) + b"\0")[1] == "id is 2147483648, not INT"
    cost = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    bill = {"type": "record", "name": "Bill", "fields": [{"name": "cost", "type": cost}]}
    longer = {
        "type": "record",
        "name": "Bill",
        "fields": [{"name": "cost", "type": {**cost, "precision": 9}}],
    }
    refused = AvroDecoder(json.dumps(bill))(datum(longer, {"cost": Decimal("1234.56")}))
    assert refused == (None, "cost is Decimal('1234.6'), not DECIMAL(5,2)"), "as the library rounds it"


# --- registries ---------------------------------------------------------------------------------------------

OLDER = {
    "type": "record",
    "name": "Person",
    "fields": [{"name": "id", "type": "int"}, {"name": "age", "type": "int"}],
}


def test_schemas_of_writers_are_resolved(tmp_path: Path) -> None:
    """A field that the reader lacks is dropped, and one that the writer lacked takes its default."""
    (tmp_path / "7.avsc").write_text(json.dumps(OLDER))
    (tmp_path / "8.avsc").write_text(json.dumps(PERSON))
    (tmp_path / "9.avsc").write_text('{"type": "record", "name": "Other", "fields": []}')
    (tmp_path / "10.avsc").write_text("?")
    decode = AvroDecoder(json.dumps(PERSON), Registry.at(str(tmp_path)))
    assert decode(named(7, OLDER, {"id": 1, "age": 40})) == ({"id": 1, "name": None}, None)
    assert decode(named(8, PERSON, {"id": 2, "name": "bob"})) == ({"id": 2, "name": "bob"}, None)
    assert "SchemaResolutionError" in str(decode(b"\0\0\0\0\x09")[1])
    assert "schema 10 is not an Avro schema" in str(decode(b"\0\0\0\0\x0a")[1])
    assert decode(b"\0\0\0\0\x0b")[1] == f"schema 11 is not in {tmp_path}"
    for value in (b"", b"\0\0\0", b"{}      ", datum(PERSON, {"id": 2, "name": "bob"})):
        assert decode(value)[1] == "it does not begin with 0x00 and the id of a schema"


class Served:
    """A registry on this host. `answers` by path: a status and a body."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, str]] = []


@contextmanager
def served() -> Iterator[Served]:
    registry = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked.append((self.path, self.headers.get("Authorization", "")))
            answers = registry.answers.get(self.path, [(404, {"error_code": 40403})])
            status, body = answers.pop(0) if len(answers) > 1 else answers[0]
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def registry() -> Iterator[Served]:
    with served() as registry:
        yield registry


def answer(schema: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"schema": json.dumps(schema), **more}


def test_a_registry_is_asked_once_a_schema(registry: Served) -> None:
    registry.answers["/api/schemas/ids/7"] = [(200, answer(PERSON))]
    decode = AvroDecoder(
        json.dumps(PERSON), Registry.at(registry.url.replace("//", "//ann:s%40t@") + "/api/")
    )
    for _ in range(3):
        assert decode(named(7, PERSON, {"id": 2, "name": "bob"}))[0] == {"id": 2, "name": "bob"}
        assert decode(named(8, PERSON, {"id": 2, "name": "bob"}))[1] == "schema 8 is not in the registry"
    login = "Basic YW5uOnNAdA=="
    assert registry.asked == [("/api/schemas/ids/7", login), ("/api/schemas/ids/8", login)]
    assert "s@t" not in repr(decode)


def test_a_registry_that_is_away_is_asked_again(registry: Served) -> None:
    pauses: list[float] = []
    place = Registry.at(registry.url)
    registry.answers["/schemas/ids/1"] = [(503, {}), (500, {}), (200, answer(PERSON))]
    assert json.loads(place.schema(1, pauses.append)) == PERSON
    assert pauses == [*PAUSES_S[:2]]
    registry.answers["/schemas/ids/2"] = [(503, {})]
    with pytest.raises(RegistryUnavailable, match="answers 503 for schema 2: check its address"):
        place.schema(2, pauses.append)
    assert pauses == [*PAUSES_S[:2], *PAUSES_S]
    registry.answers["/schemas/ids/3"] = [(401, {})]
    with pytest.raises(RegistryUnavailable, match="refuses our login"):
        place.schema(3, pauses.append)
    registry.answers["/schemas/ids/4"] = [(404, "no such page")]
    with pytest.raises(RegistryUnavailable, match="answers 404"):
        place.schema(4, pauses.append)
    registry.answers["/schemas/ids/5"] = [(200, ["?"])]
    with pytest.raises(RegistryUnavailable, match="is not a schema registry"):
        place.schema(5, pauses.append)
    assert len(pauses) == 5
    with pytest.raises(RegistryUnavailable, match="gives no schema"):
        Registry.at("http://127.0.0.1:1").schema(1, lambda _: None)


def test_schemas_that_are_not_plain_avro_are_reasons(registry: Served) -> None:
    place = Registry.at(registry.url)
    registry.answers["/schemas/ids/1"] = [(200, answer({}, schemaType="PROTOBUF"))]
    registry.answers["/schemas/ids/2"] = [(200, answer({}, references=[{"name": "x"}]))]
    with pytest.raises(UnknownSchema, match="schema 1 is PROTOBUF"):
        place.schema(1)
    with pytest.raises(UnknownSchema, match="schema 2 refers to other schemas"):
        place.schema(2)


@pytest.mark.parametrize(
    ("place", "login", "said"),
    [
        ("ftp://host", None, "a registry is http"),
        ("http://", None, "a registry is http"),
        ("http://host:x", None, "invalid"),
        ("http://a:b@host", "c:d", "given twice"),
        ("/tmp", "c:d", "takes no login"),
    ],
)
def test_places_that_are_no_registry(place: str, login: str | None, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        Registry.at(place, login)


def test_a_schema_that_is_no_text_is_refused() -> None:
    """`json.dumps` was forgotten: "unhashable type: 'dict'"."""
    from logstore.spark import avro_decoder

    with pytest.raises(InvalidOption, match=r"pass json\.dumps\(schema\), not {'type'"):
        avro_decoder({"type": "record"})  # type: ignore[arg-type]
