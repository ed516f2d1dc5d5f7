"""Values of records as columns: JSON and CSV by Spark's functions, Avro by `logstore.spark.avro`.

Each value becomes a row, or gets the reason why it is none. So a job can put it aside.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logstore.disk.host_files import input_text
from logstore.spark.avro import AvroDecoder, avro_decoder
from logstore.spark.jobs.job import BadUsage, absolute, named_values
from logstore.spark.jobs.json_schema import ddl_of
from logstore.spark.schema_registry import Registry

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CORRUPT: Final = "_corrupt_record"


def add_values(rows: Any) -> None:
    """Declare the arguments that `values_of` reads, in a group of a parser."""
    rows.add_argument(
        "--value-format", choices=("json", "csv", "avro"), default="json",
        help="the form of values, if there is a schema (default: %(default)s)",
    )  # fmt: skip
    rows.add_argument(
        "--schema", metavar="DDL", help="columns of JSON or CSV values, as 'id INT NOT NULL, name STRING'"
    )
    rows.add_argument("--json-schema", metavar="FILE", help="the same as a JSON Schema of an object")
    rows.add_argument("--avro-schema", metavar="FILE", help="columns of Avro values: an Avro record as JSON")
    rows.add_argument(
        "--registry", metavar="URL|DIR",
        help="Avro values begin with 0x00 and the id of their schema, which is in this schema registry, "
        "or in a directory as ID.avsc",
    )  # fmt: skip
    rows.add_argument(
        "--registry-login", metavar="FILE", help="a file with USER:PASSWORD for the registry's URL"
    )
    rows.add_argument(
        "--value-option", metavar="NAME=VALUE", action="append", default=[],
        help="an option of Spark's JSON or CSV reader, such as sep=; (repeatable)",
    )  # fmt: skip


def values_of(options: Namespace) -> Values | None:
    """Return how values become columns; None without a schema. Raises `BadUsage` and `InvalidOption`."""
    is_avro = options.value_format == "avro"
    given = [name for name in ("schema", "json_schema", "avro_schema") if getattr(options, name) is not None]
    if len(given) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in given[:2])
        raise BadUsage(f"{first} and {second} exclude each other")
    if is_avro != (given == ["avro_schema"]):
        raise BadUsage("--value-format avro and --avro-schema FILE need each other")
    if options.value_format == "csv" and given != ["schema"]:
        raise BadUsage("--value-format csv needs --schema")
    if options.registry is not None and not is_avro:
        raise BadUsage("--registry is for --value-format avro")
    if options.registry_login is not None and options.registry is None:
        raise BadUsage("--registry-login needs --registry URL")
    more = named_values("--value-option", options.value_option)
    if more and (is_avro or not given):
        raise BadUsage("--value-option is for JSON and CSV values with a schema")
    if not given:
        return None
    if is_avro:
        decoder = AvroDecoder(_text(options.avro_schema), _registry(options))
        return Values("avro", decoder.columns, {}, decoder)
    schema = options.schema
    if options.json_schema is not None:
        schema = ddl_of(_text(options.json_schema))
    return Values(options.value_format, schema, more)


def _registry(options: Namespace) -> Registry | None:
    place = options.registry
    if place is None:
        return None
    login = None
    if options.registry_login is not None:
        login = _text(options.registry_login).strip()
        if ":" not in login:
            raise BadUsage(f"{options.registry_login} is not USER:PASSWORD")
    if "://" not in place:
        place = absolute(place)
        if not Path(place).is_dir():
            raise BadUsage(f"--registry {place} is neither a directory nor a URL")
    return Registry.at(place, login)


@dataclass(frozen=True, slots=True)
class Values:
    """The form of values, their columns as Spark's DDL, options of Spark's parser, and Avro's decoder."""

    form: str
    schema: str
    options: Mapping[str, str] = field(default_factory=dict)
    decoder: AvroDecoder | None = None

    def parsed(self, records: DataFrame) -> tuple[DataFrame, dict[str, Column], Column]:
        """Return the records with what was parsed, the columns of the schema, and the reason of a refusal.

        The reason is null for a row that fits.
        """
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        kinds: Any = StructType.fromDDL(self.schema)
        value = f.col("_value")
        if self.decoder is not None:
            made = records.withColumn("_parsed", avro_decoder(self.decoder)(value))
            row, reason = f.col("_parsed")["row"], f.col("_parsed")["reason"]
            return made, {each.name: row[each.name] for each in kinds.fields}, reason
        text = value.cast("string")
        more = {**self.options, "columnNameOfCorruptRecord": _CORRUPT}
        whole = f"{self.schema}, {_CORRUPT} STRING"
        parse = f.from_json if self.form == "json" else f.from_csv
        made = records.withColumn("_row", parse(text, whole, more))
        row = f.col("_row")
        reason = f.when(value.isNull(), f.lit("its value is null"))
        reason = reason.when(row.isNull() | row[_CORRUPT].isNotNull(), f.lit("it cannot be parsed"))
        for each in kinds.fields:
            if not each.nullable:
                reason = reason.when(row[each.name].isNull(), f.lit(f"{each.name} is null or missing"))
        return made, {each.name: row[each.name] for each in kinds.fields}, reason


def _text(path: str) -> str:
    """Return the text of an input file. Raises `BadUsage` and `OSError`."""
    try:
        return input_text(Path(path))
    except ValueError as error:
        raise BadUsage(str(error)) from None
