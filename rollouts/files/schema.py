"""Schema of rollout files: Parquet with zstd, one file per submission, one row per sample.

The reader accepts untrusted files. It rejects every file with another schema; where possible it decides from the footer
alone, before it decodes the columns. It can't bound the memory and time that Parquet's decoder uses on a hostile file.
So the caller must run the reader with limits on memory and time, as the validator does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import address, digest
from protocol.runtime.files import atomic_file
from protocol.wire.served import SignedServedList
from rollouts.engines.interface import FinishReason
from rollouts.errors import BadRolloutFile, TooLargeHere
from rollouts.files.limits import ReadLimits
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.files.served_metadata import MOST_SERVED_BYTES, SERVED_KEY, decode_served, encode_served
from rollouts.precision import Arithmetic
from rollouts.turns import Turn, turns_fault

SCHEMA_VERSION = "2"
"""Version of files whose seeds use the tag `muster-rollout-v2`; the columns are those of version 1."""
FORMER_VERSIONS = ("1",)
OLD_VERSION = "old-version"
"""Code of `BadRolloutFile` for files of an older version. Such files are refused with an explanation, but are no sign
of forgery."""
VERSION_KEY = b"muster-rollouts"
"""Key of the schema version in the file's metadata."""

_WORD = pa.dictionary(pa.int8(), pa.string())
"""Type of columns with few distinct values; each value is stored once."""

SCHEMA = pa.schema(
    [
        pa.field("run", _WORD, nullable=False),
        pa.field("step", pa.uint64(), nullable=False),
        pa.field("index", pa.uint32(), nullable=False),
        pa.field("node", _WORD, nullable=False),
        pa.field("checkpoint", _WORD, nullable=False),
        pa.field("environment", _WORD, nullable=False),
        pa.field("environment_version", _WORD, nullable=False),
        pa.field("engine", _WORD, nullable=False),
        pa.field("dtype", _WORD, nullable=False),
        pa.field("group", pa.uint32(), nullable=False),
        pa.field("sample", pa.uint32(), nullable=False),
        pa.field("prompt_index", pa.uint64(), nullable=False),
        pa.field("prompt_tokens", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("output_tokens", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("logprobs", pa.list_(pa.field("element", pa.float32(), nullable=False)), nullable=False),
        pa.field("finish", _WORD, nullable=False),
        pa.field("task_reward", pa.float64(), nullable=False),
        pa.field("length_penalty", pa.float64(), nullable=False),
        pa.field("reward", pa.float64(), nullable=False),
        pa.field("target_length", pa.int32(), nullable=True),
        pa.field("proofs", pa.binary(), nullable=False),
    ],
    metadata={VERSION_KEY: SCHEMA_VERSION.encode()},
)

DIALOGUE_VERSION = "3"
"""Version of files whose samples are dialogues; it has the columns of version 2 and `turns`."""
_TURNS = pa.list_(
    pa.field(
        "element",
        pa.struct(
            [
                pa.field("drawn", pa.int32(), nullable=False),
                pa.field("given", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
            ]
        ),
        nullable=False,
    )
)
DIALOGUE_SCHEMA = SCHEMA.append(pa.field("turns", _TURNS, nullable=False)).with_metadata(
    {VERSION_KEY: DIALOGUE_VERSION.encode()}
)

_OWN = tuple(field.name for field in fields(Sample) if field.name in SCHEMA.names)
_SHARED = tuple(name for name in SCHEMA.names if name not in _OWN)


def write_rollouts(path: Path, file: RolloutFile) -> int:
    """Writes a file atomically and returns its size in bytes.

    Raises:
        InvalidInput: There are no samples, numbers of log-probabilities and tokens differ, or the list of served
            requests is too large.
    """
    table = table_of(file)
    with atomic_file(path) as sink:
        write_table(table, sink)
        return sink.tell()


def read_rollouts(path: Path, *, limits: ReadLimits | None = None) -> RolloutFile:
    """Reads an untrusted file.

    Raises:
        BadRolloutFile: The file is not valid Parquet, exceeds a limit, or has other columns or types, nulls,
            non-finite numbers, unknown names, or rows of different slots.
        OSError: This machine can't read the file, which says nothing about its author.
        MemoryError: Memory ran out. The file's author is at fault only if the caller provided as much memory as the
            limits allow.
    """
    return _read(path, path.stat().st_size, limits or ReadLimits())


def read_rollout_bytes(
    content: bytes, *, limits: ReadLimits | None = None, here: ReadLimits | None = None
) -> RolloutFile:
    """Reads an untrusted file from memory.

    Args:
        content: The file.
        limits: Limits for every file.
        here: Smaller limits of this machine; None if it has none.

    Raises:
        BadRolloutFile: As for `read_rollouts`.
        TooLargeHere: The file exceeds `here`. The part that was already read is within `limits`; the rest was not
            checked.
        MemoryError: As for `read_rollouts`.
    """
    buffer = pa.py_buffer(content)
    return _read(pa.BufferReader(buffer), buffer.size, limits or ReadLimits(), here)


def _read(source: Path | pa.BufferReader, size: int, limits: ReadLimits, here: ReadLimits | None = None) -> RolloutFile:
    if size > limits.file_bytes:
        raise BadRolloutFile(f"{size} bytes, more than {limits.file_bytes}", code="file-too-large")
    try:
        with pq.ParquetFile(
            source, thrift_string_size_limit=MOST_SERVED_BYTES, thrift_container_size_limit=1 << 20
        ) as parquet:
            _check_footer(parquet, limits)
            list_of_served = (parquet.metadata.metadata or {}).get(SERVED_KEY)
            if here is not None:
                _check_room(parquet, here)
            table = parquet.read(use_threads=False)
        table.validate(full=True)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the operating system raised the error, not the decoder
        raise BadRolloutFile(f"it can't be read as Parquet: {_first_line(error)}", code="not-parquet") from error
    served = None if list_of_served is None else decode_served(list_of_served)
    file = _file(table, limits, served)
    longest = max(map(_longest, file.samples))
    if here is not None and longest > here.tokens:
        raise TooLargeHere(f"{longest} values in one row; this machine reads at most {here.tokens}", code="too-long")
    return file


def _longest(sample: Sample) -> int:
    """Returns the length of a row's longest list, which `ReadLimits.tokens` limits."""
    given = (len(turn.given) for turn in sample.turns)
    return max(len(sample.prompt_tokens), len(sample.output_tokens), len(sample.turns), *given, 0)


def write_table(table: pa.Table, sink: IO[bytes]) -> None:
    """Writes a table in this format; the metadata has the schema version, but not Arrow's own schema."""
    options = {"compression": "zstd", "store_schema": False, "write_statistics": False}
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.add_key_value_metadata(table.schema.metadata or {})
        writer.write_table(table)


def table_of(file: RolloutFile) -> pa.Table:
    """Returns the file as a table of `SCHEMA`.

    Raises:
        InvalidInput: There are no samples, numbers of log-probabilities and tokens differ, or the list of served
            requests is too large.
    """
    if not file.samples:
        raise InvalidInput("a rollout file needs at least one sample")
    for sample in file.samples:
        if len(sample.logprobs) != len(sample.output_tokens):
            raise InvalidInput(
                f"sample {sample.sample} has {len(sample.output_tokens)} tokens and {len(sample.logprobs)} logprobs"
            )
    if file.is_dialogue and not all(sample.turns for sample in file.samples):
        raise InvalidInput("some samples of the file are dialogues, and others are single answers")
    count, shared = len(file.samples), _shared_of(file.header)
    columns: list[pa.Array] = []
    schema = DIALOGUE_SCHEMA if file.is_dialogue else SCHEMA
    for field in schema:
        if field.name in shared:
            values = [shared[field.name]] * count
        else:
            values = [getattr(sample, field.name) for sample in file.samples]
        columns.append(_column(field, values))
    table = pa.Table.from_arrays(columns, schema=schema)
    if file.served is None:
        return table
    return table.replace_schema_metadata({**schema.metadata, SERVED_KEY: encode_served(file.served)})


def _shared_of(header: SlotHeader) -> dict[str, Any]:
    """Returns the values of the shared columns.

    The column `engine` has the engine's name or, for a numerics class, the whole name of the class.
    """
    values = {field.name: getattr(header, field.name) for field in fields(header)}
    arithmetic = values.pop("arithmetic")
    return values | {
        "engine": str(arithmetic) if arithmetic.is_class else arithmetic.engine.value,
        "dtype": arithmetic.dtype.value,
    }


def _arithmetic(engine: str, dtype: str) -> Arithmetic:
    """Returns the arithmetic that the columns `engine` and `dtype` name."""
    arithmetic = Arithmetic.parse(engine if "/" in engine else f"{engine}/{dtype}")
    if arithmetic.dtype.value != dtype or ("/" in engine) != arithmetic.is_class:
        raise ValueError(f"the column dtype has {dtype!r}, but the column engine has {engine!r}")
    return arithmetic


def _column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    if field.type == _WORD:
        return pa.array([str(value) for value in values], pa.string()).dictionary_encode().cast(_WORD)
    if field.type == _TURNS:
        return _turns_column(values)
    if pa.types.is_list(field.type):
        flat = np.concatenate([np.asarray(value) for value in values])
        return _lists(field.type, pa.array(flat, field.type.value_type), [len(value) for value in values])
    return pa.array(values, field.type)


def _lists(kind: pa.ListType, flat: pa.Array, lengths: Sequence[int]) -> pa.Array:
    ends = np.cumsum([0, *lengths], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), flat, type=kind)


def _turns_column(rows: Sequence[Sequence[Turn]]) -> pa.Array:
    turns = [turn for row in rows for turn in row]
    struct = _TURNS.value_type
    tokens = np.concatenate([turn.given for turn in turns]) if turns else np.zeros(0, np.int32)
    given = _lists(struct.field("given").type, pa.array(tokens, pa.int32()), [len(turn.given) for turn in turns])
    drawn = pa.array([turn.drawn for turn in turns], pa.int32())
    return _lists(_TURNS, pa.StructArray.from_arrays([drawn, given], fields=list(struct)), [len(row) for row in rows])


def _stored(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(pa.string()) if field.type == _WORD else field for field in schema])


_STORED = {
    SCHEMA_VERSION.encode(): _stored(SCHEMA),
    DIALOGUE_VERSION.encode(): _stored(DIALOGUE_SCHEMA),
}
"""The column types in a file of each version. Parquet schemas have no dictionaries, so columns of type `_WORD` are
stored as strings.
"""


def _check_footer(parquet: pq.ParquetFile, limits: ReadLimits) -> None:
    footer = parquet.metadata
    version = (footer.metadata or {}).get(VERSION_KEY, b"")
    if version in {each.encode() for each in FORMER_VERSIONS}:
        raise BadRolloutFile(
            f"the file has schema version {version.decode()}, but this pool's slots have seeds of version "
            f"{SCHEMA_VERSION}: upgrade the task's image",
            code=OLD_VERSION,
        )
    if version not in _STORED:
        raise BadRolloutFile(
            f"schema version {version[:20]!r}; this release reads {SCHEMA_VERSION} and {DIALOGUE_VERSION}",
            code="schema-version",
        )
    if not parquet.schema_arrow.equals(_STORED[version], check_metadata=False):
        raise BadRolloutFile(_difference(parquet.schema_arrow, _STORED[version]), code="wrong-columns")
    if not 0 < footer.num_rows <= limits.rows:
        raise BadRolloutFile(f"{footer.num_rows} rows; 1 to {limits.rows} are allowed", code="too-many-rows")
    stated = _stated_bytes(parquet)
    if not 0 <= stated <= limits.decoded_bytes:
        raise BadRolloutFile(
            f"the decoded columns have {stated} bytes, more than {limits.decoded_bytes}", code="file-too-large"
        )


def _check_room(parquet: pq.ParquetFile, here: ReadLimits) -> None:
    rows, stated = parquet.metadata.num_rows, _stated_bytes(parquet)
    if rows > here.rows:
        raise TooLargeHere(f"{rows} rows; this machine reads at most {here.rows}", code="too-many-rows")
    if stated > here.decoded_bytes:
        raise TooLargeHere(
            f"the decoded columns have {stated} bytes; this machine reads at most {here.decoded_bytes}",
            code="file-too-large",
        )


def _stated_bytes(parquet: pq.ParquetFile) -> int:
    footer = parquet.metadata
    return sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))


def _difference(schema: pa.Schema, stored: pa.Schema) -> str:
    missing = [name for name in stored.names if name not in schema.names]
    extra = [name[:40] for name in schema.names if name not in stored.names][:5]
    if missing or extra:
        return f"columns missing: {missing}; unknown columns: {extra}"
    wrong = [
        f"{name} is {schema.field(name).type}{'' if schema.field(name).nullable else ' not null'}"
        for name in stored.names
        if len(schema.get_all_field_indices(name)) == 1 and not schema.field(name).equals(stored.field(name))
    ]
    return f"columns of the wrong type or order: {wrong[:5] or schema.names[:30]}"


def _as_it_is(value: Any) -> Any:  # noqa: ANN401 - values have the column's type
    return value


_HEADER_FORMS: Mapping[str, Callable[[Any], Any]] = {
    "run": digest,
    "checkpoint": digest,
    "node": address,
}


def _file(table: pa.Table, limits: ReadLimits, served: SignedServedList | None) -> RolloutFile:
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    for name, column in columns.items():
        _check_values(name, column, limits)
    turns = columns.pop("turns", None)
    shared = {name: _the_one(name, columns[name]) for name in _SHARED}
    own = {name: _values(columns[name]) for name in _OWN}
    if turns is not None:
        own["turns"] = _turns(turns)
    try:
        arithmetic = _arithmetic(shared.pop("engine"), shared.pop("dtype"))
        texts = {name: _HEADER_FORMS.get(name, _as_it_is)(value) for name, value in shared.items()}
        header = SlotHeader(**texts, arithmetic=arithmetic)
        own["finish"] = [FinishReason(value) for value in own["finish"]]
    except (MusterError, ValueError) as error:
        raise BadRolloutFile(_first_line(error), code="bad-value") from error
    rows = zip(*own.values(), strict=True)
    samples = tuple(Sample(**dict(zip(own, row, strict=True))) for row in rows)
    for sample in samples:
        if len(sample.logprobs) != len(sample.output_tokens):
            raise BadRolloutFile(f"sample {sample.sample}: tokens and logprobs differ in number", code="bad-value")
        if fault := turns_fault(sample.turns, drawn=len(sample.output_tokens)):
            raise BadRolloutFile(f"sample {sample.sample}: {fault}", code="bad-value")
    return RolloutFile(header, samples, served)


def _check_values(name: str, column: pa.Array, limits: ReadLimits) -> None:
    nullable = DIALOGUE_SCHEMA.field(name).nullable
    flat = column.flatten() if pa.types.is_list(column.type) else column
    if pa.types.is_struct(flat.type):
        for number, field in enumerate(flat.type):
            _check_values_of(f"{name}.{field.name}", flat.field(number), limits, nullable=False)
    _check_values_of(name, column, limits, nullable=nullable)


def _check_values_of(name: str, column: pa.Array, limits: ReadLimits, *, nullable: bool) -> None:
    flat = column.flatten() if pa.types.is_list(column.type) else column
    if (column.null_count and not nullable) or (flat is not column and flat.null_count):
        raise BadRolloutFile(f"the column {name} has a null", code="bad-value")
    if pa.types.is_list(column.type):
        longest = int(np.max(np.diff(column.offsets.to_numpy()), initial=0))
        if longest > limits.tokens:
            raise BadRolloutFile(f"{longest} values in one row of {name}; {limits.tokens} at most", code="too-long")
    if pa.types.is_floating(flat.type) and not np.all(np.isfinite(flat.to_numpy())):
        raise BadRolloutFile(f"a number in {name} is not finite", code="not-finite")


def _the_one(name: str, column: pa.Array) -> Any:  # noqa: ANN401 - values have the column's type
    values = column.unique()
    if len(values) != 1:
        raise BadRolloutFile(f"rows differ in {name}: all rows must belong to one slot", code="mixed-slots")
    return values[0].as_py()


def _values(column: pa.Array) -> Sequence[Any]:
    if not pa.types.is_list(column.type):
        return list(column.to_pylist())
    flat = column.flatten().to_numpy()
    offsets = column.offsets.to_numpy() - column.offsets[0].as_py()
    return [flat[start:end] for start, end in pairwise(offsets)]


def _turns(column: pa.Array) -> list[tuple[Turn, ...]]:
    """Returns the turns of each row.

    Raises:
        BadRolloutFile: A row has no turn. The other properties of turns are those of a version, so a check tests them.
    """
    flat = column.flatten()
    drawn, given = flat.field(0).to_pylist(), _values(flat.field(1))
    turns = [Turn(*pair) for pair in zip(drawn, given, strict=True)]
    offsets = column.offsets.to_numpy() - column.offsets[0].as_py()
    rows = [tuple(turns[start:end]) for start, end in pairwise(offsets)]
    if not all(rows):
        raise BadRolloutFile("a sample of a dialogue has no turn", code="bad-value")
    return rows


def _first_line(error: Exception) -> str:
    text = error.detail if isinstance(error, MusterError) else str(error)
    return (text.splitlines() or [type(error).__name__])[0][:200]
