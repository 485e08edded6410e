"""Attacks that submit files which are not valid rollout files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.toolkit import AttackToolkit
from protocol.wire.slots import SlotGrant
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import SCHEMA, SCHEMA_VERSION, VERSION_KEY, write_rollouts, write_table

_MILLION = 1_000_000
_METADATA = {VERSION_KEY: SCHEMA_VERSION.encode()}


class Encoded(Trick):
    """Makes an honest file, then encodes it differently.

    Args:
        change: Returns the changed table.
    """

    def __init__(self, change: Callable[[pa.Table], pa.Table]) -> None:
        self._change = change

    def write(self, path: Path, file: RolloutFile) -> None:
        """Writes the changed table."""
        write_rollouts(path, file)
        table = self._change(pq.read_table(path, partitioning=None))
        with path.open("wb") as sink:
            write_table(table.replace_schema_metadata(_METADATA), sink)


class NotFinite(Trick):
    """Writes NaN into a log-probability, or into another column.

    Args:
        column: Name of the changed column.
        value: Number to write.
    """

    def __init__(self, column: str = "logprobs", value: float = float("nan")) -> None:
        self._column = column
        self._value = value

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns an honest file with one changed number in its first row."""
        file = toolkit.file(grant)
        first = file.samples[0]
        if self._column == "logprobs":
            logprobs = first.logprobs.copy()
            logprobs[-1] = self._value
            first = replace(first, logprobs=logprobs)
        elif self._column == "task_reward":
            first = replace(first, task_reward=self._value)
        elif self._column == "length_penalty":
            first = replace(first, length_penalty=self._value)
        else:
            first = replace(first, reward=self._value)
        return RolloutFile(file.header, (first, *file.samples[1:]))


class NotParquet(Trick):
    """Submits random bytes of the right size."""

    def write(self, path: Path, file: RolloutFile) -> None:
        """Writes random bytes between the magic numbers of Parquet."""
        size = write_rollouts(path, file)
        path.write_bytes(b"PAR1" + os.urandom(max(0, size - 8)) + b"PAR1")


class ManyRows(Trick):
    """Submits millions of empty rows.

    Args:
        rows: Number of rows, in millions.
    """

    def __init__(self, rows: int = 10) -> None:
        self._rows = rows

    def write(self, path: Path, file: RolloutFile) -> None:
        """Writes the honest file's first row without tokens and proofs, a million times per row group."""
        none = np.zeros(0, np.int32)
        first = replace(
            file.samples[0], prompt_tokens=none, output_tokens=none, logprobs=none.astype(np.float32), proofs=b""
        )
        write_rollouts(path, RolloutFile(file.header, (first,)))
        words = [field.name for field in SCHEMA if pa.types.is_dictionary(field.type)]
        million = pq.read_table(path, partitioning=None, read_dictionary=words).take(
            pa.array(np.zeros(_MILLION, np.int8))
        )
        with (
            path.open("wb") as sink,
            pq.ParquetWriter(sink, million.schema, compression="zstd", store_schema=False) as writer,
        ):
            writer.add_key_value_metadata(_METADATA)
            for _ in range(self._rows):
                writer.write_table(million)


class Bomb(Trick):
    """Submits a small file that becomes half a gigabyte when it is decoded.

    A repeated token compresses to almost nothing, and the footer states the small encoded size.

    Args:
        values: Number of tokens in the prompt of the only row.
    """

    def __init__(self, values: int = 1 << 27) -> None:
        self._values = values

    def write(self, path: Path, file: RolloutFile) -> None:
        """Writes one row with a prompt that repeats one token."""
        write_rollouts(path, file)
        table = pq.read_table(path, partitioning=None).slice(0, 1)
        kind = SCHEMA.field("prompt_tokens").type
        ends = pa.array(np.array([0, self._values], np.int32))
        tokens = pa.ListArray.from_arrays(ends, pa.array(np.zeros(self._values, np.int32)), type=kind)
        table = _with(table, "prompt_tokens", tokens)
        with path.open("wb") as sink:
            write_table(table.replace_schema_metadata(_METADATA), sink)


def extra_column(table: pa.Table) -> pa.Table:
    """Adds a column called `__proto__`, which may harm readers that load every column."""
    return table.append_column(pa.field("__proto__", pa.string(), nullable=False), pa.array(["x"] * len(table)))


def wrong_types(table: pa.Table) -> pa.Table:
    """Writes rewards as text, which some readers convert to numbers."""
    return _with(table, "reward", table.column("reward").cast(pa.string()))


def null_proofs(table: pa.Table) -> pa.Table:
    """Writes nulls in place of proofs."""
    place = table.schema.get_field_index("proofs")
    return table.set_column(place, pa.field("proofs", pa.binary()), pa.nulls(len(table), pa.binary()))


def _with(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, pa.field(name, column.type, nullable=False), column)
