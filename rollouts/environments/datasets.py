"""Prompts from a file in the format of GENESYS and INTELLECT-2: one row per problem, Parquet or JSON lines.

    {"problem_id": "…", "task_type": "verifiable_math", "prompt": "…", "verification_info": {…} or the same as a string}

Other columns are ignored. The options name the file by its SHA-256, so that a version of the environment has the same
problems on every machine; the path may differ between machines.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Protocol, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rollouts.environments.errors import BadDataset
from rollouts.environments.factory import Options
from rollouts.environments.indices import check_index
from rollouts.environments.validation import has_encoding

DIRECTORY_VARIABLE = "MUSTER_DATASETS"
"""Environment variable with the directory of relative paths; the default is the working directory."""

_WHERE = f"put the file there, or name its directory in {DIRECTORY_VARIABLE}"
_SHA256 = re.compile("[0-9a-f]{64}")
LONGEST_ROW = 64 * 1024 * 1024
_ROWS_AT_A_TIME = 256
_COLUMNS = ("problem_id", "task_type", "prompt", "verification_info")
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK": "zip"}
"""First bytes of compressed files."""


def _check_digest(sha256: str) -> str:
    if not _SHA256.fullmatch(sha256):
        raise ValueError(
            f"{sha256[:80]!r} is no SHA-256, which has 64 hexadecimal digits, in lower case; sha256sum prints it"
        )
    return sha256


FileDigest = Annotated[str, AfterValidator(_check_digest)]
"""SHA-256 of a file."""


class FileOptions(Options):
    """Selects a file by its path on this machine and its digest."""

    local: ClassVar[frozenset[str]] = frozenset({"path"})

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Path of the file on this machine."""
    sha256: FileDigest
    """Digest of the file."""

    @property
    def file(self) -> Path:
        """The file on this machine."""
        return dataset_file(self.path)

    def located(self) -> tuple[Self, tuple[Path, ...]]:
        """Returns the options with the file's absolute path, and the file."""
        file = absolute(self.file)
        return self.model_copy(update={"path": str(file)}), (file,)


def dataset_file(path: str) -> Path:
    """Returns the file on this machine that an option names."""
    return Path(os.environ.get(DIRECTORY_VARIABLE, "")) / path


def absolute(file: Path) -> Path:
    """Returns the absolute path of a file.

    If the file itself is a link, the link is not resolved: the suffix of the link's name determines the format, and the
    link's target may have no suffix.
    """
    return file.parent.resolve() / file.name


class DatasetOptions(FileOptions):
    """Selects a file and its rows."""

    task_types: tuple[str, ...] = ()
    """Task types to use; if empty, the task types of the environment's family."""


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    problem_id: str
    task_type: str
    prompt: str
    verification_info: dict[str, object] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetProblem:
    """One row of the file."""

    problem_id: str
    task_type: str
    prompt: str
    info: Mapping[str, object]
    """Data for checking the answer, depending on the task type."""


class Dataset:
    """The usable rows of one file, in file order.

    Args:
        options: The file and its rows.
        task_types: The family's task types, used unless the options name others.
        usable: Returns whether the family can check a problem; other problems are skipped.

    Raises:
        BadDataset: The file is missing, has another digest or malformed rows, or has no usable row.
    """

    def __init__(
        self, options: DatasetOptions, *, task_types: tuple[str, ...], usable: Callable[[DatasetProblem], bool]
    ) -> None:
        path = options.file
        check_file(path, options.sha256)
        self._rows: _Rows = _ParquetRows(path) if path.suffix == ".parquet" else JsonRows(path)
        wanted = options.task_types or task_types
        self._chosen: list[int] = []
        for number, row in enumerate(self._rows):
            problem = self._problem(number, row)
            if problem.task_type in wanted and has_encoding(problem.prompt) and usable(problem):
                self._chosen.append(number)
        if not self._chosen:
            raise BadDataset(
                f"{path} has no problem that can be used", hint=f"rows need one of the task types {', '.join(wanted)}"
            )

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> DatasetProblem:
        number = self._chosen[check_index(index, size=len(self._chosen))]
        return self._problem(number, self._rows.row(number))

    def _problem(self, number: int, content: object) -> DatasetProblem:
        try:
            row = _Row.model_validate(json.loads(content) if isinstance(content, bytes) else content)
            info = row.verification_info if isinstance(row.verification_info, dict) else _info(row.verification_info)
        except (ValidationError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise BadDataset(
                f"{self._rows.path}: row {number}: {_reason(error)[:200]}",
                hint=f"every row has the columns {', '.join(_COLUMNS)}; in a file of JSON lines each row is one line",
            ) from error
        return DatasetProblem(problem_id=row.problem_id, task_type=row.task_type, prompt=row.prompt, info=info)


class _Rows(Protocol):
    """A file of rows; a row is an object, or the bytes of its JSON."""

    path: Path

    def __iter__(self) -> Iterator[object]: ...

    def row(self, number: int) -> object: ...


class JsonRows:
    """JSON lines; only the offset of each line is kept in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts = [0]

    def __iter__(self) -> Iterator[bytes]:
        self._starts = [0]
        with self.path.open("rb") as file:
            while line := file.readline(LONGEST_ROW + 1):
                if len(line) > LONGEST_ROW:
                    raise BadDataset(f"{self.path}: row {len(self._starts) - 1} has more than {LONGEST_ROW} bytes")
                self._starts.append(self._starts[-1] + len(line))
                yield line

    def row(self, number: int) -> bytes:
        """Returns the bytes of a line."""
        start, end = self._starts[number], self._starts[number + 1]
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)


class _ParquetRows:
    """The four columns of a Parquet file in Arrow memory."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa  # noqa: PLC0415 - slow to import, and only Parquet files need it
        import pyarrow.parquet as pq  # noqa: PLC0415

        self.path = path
        try:
            missing = set(_COLUMNS) - set(pq.read_schema(path).names)
            self._table = pq.read_table(path, columns=[name for name in _COLUMNS if name not in missing])
        except (pa.ArrowException, OSError) as error:
            raise BadDataset(f"{path} is not a Parquet file: {str(error)[:200]}") from error
        if missing:
            raise BadDataset(
                f"{path} has no column {', '.join(sorted(missing))}",
                hint=f"every row has the columns {', '.join(_COLUMNS)}",
            )

    def __iter__(self) -> Iterator[object]:
        for batch in self._table.to_batches(max_chunksize=_ROWS_AT_A_TIME):
            yield from batch.to_pylist()

    def row(self, number: int) -> object:
        return self._table.slice(number, 1).to_pylist()[0]


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return ": ".join([*(str(part) for part in first["loc"][:1]), first["msg"]])


def _info(text: str) -> dict[str, object]:
    """Parses JSON or a Python dictionary literal; published data sets contain both."""
    try:
        info = json.loads(text)
    except ValueError:
        info = ast.literal_eval(text)
    if not isinstance(info, dict):
        raise ValueError("verification_info is not an object")  # noqa: TRY004 - the caller handles ValueError
    return info


def check_file(path: Path, sha256: str) -> None:
    """Checks that a file exists, has this digest, and is not compressed.

    Raises:
        BadDataset: It is not so.
    """
    try:
        if not path.is_file():
            raise BadDataset(f"there is no data set {path}", hint=_WHERE)
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            start = file.read(8)
    except OSError as error:
        raise BadDataset(f"the data set {path} can't be read: {error.strerror}", hint=_WHERE) from error
    if found != sha256:
        raise BadDataset(
            f"{path} has the SHA-256 {found}, but the options name {sha256}",
            hint="fetch the file whose digest the options name; or, to use the problems of this file, name its digest "
            "in the options and write a new recipe: muster recipe init --force",
        )
    for magic, program in _PACKED.items():
        if start.startswith(magic):
            raise BadDataset(
                f"{path} is compressed by {program}", hint="unpack it, and name the SHA-256 of the unpacked file"
            )
