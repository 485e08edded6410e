"""Decoding of untrusted files: a failure counts against the file, unless this machine caused it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protocol.identifiers import ZERO_DIGEST, Digest, digest
from protocol.verdicts import ReasonCode
from rollouts.checks import CheckResult
from rollouts.files.limits import ReadLimits
from rollouts.files.packed_format import pack
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import table_of, write_rollouts
from rollouts.sandbox import Job, JobEnding, JobKind, JobOutcome, Sandboxes, SandboxUnavailable
from rollouts.sandbox.inside.parquet import FILE
from validator.examination.interface import HashedFile, NotJudged
from validator.examination.reading import LimitedReader

LEASE = ReadLimits(file_bytes=1 << 20, rows=64, decoded_bytes=1 << 20, tokens=256)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.parquet"


def submitted(path: Path) -> Digest:
    """Returns the hash of the file on disk."""
    return digest(hashlib.sha256(path.read_bytes()).digest()) if path.exists() else ZERO_DIGEST


def refused(reader: LimitedReader, path: Path, lease: ReadLimits = LEASE) -> ReasonCode:
    """Reads a file that must fail the check; returns the reason code."""
    found = reader.read(path, sha256=submitted(path), lease=lease)
    assert isinstance(found, CheckResult), found
    return found.findings[0].reason


def test_an_honest_file_is_read_unchanged(reader: LimitedReader, honest: RolloutFile, path: Path) -> None:
    write_rollouts(path, honest)
    found = reader.read(path, sha256=submitted(path), lease=LEASE)
    assert isinstance(found, tuple)
    file, result = found
    assert file.header == honest.header
    assert pack(file) == pack(honest)
    assert result.figures["rows"] == len(honest.samples)


def changed(file: RolloutFile, name: str) -> pa.Table:
    """Returns a table that violates the format in one way."""
    table = table_of(file)
    column = table.schema.get_field_index("reward")
    match name:
        case "a column too many":
            return table.append_column("note", pa.array(["x"] * table.num_rows))
        case "another type":
            return table.set_column(column, "reward", table.column("reward").cast(pa.float32()))
        case "infinity":
            values = pa.array([np.inf] * table.num_rows, pa.float64())
            return table.set_column(column, table.schema.field("reward"), values)
        case "another version":
            return table.replace_schema_metadata({b"muster-rollouts": b"3"})
    return pa.concat_tables([table] * 20)  # too many rows


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a column too many", ReasonCode.FORMAT_SCHEMA),
        ("another type", ReasonCode.FORMAT_SCHEMA),
        ("another version", ReasonCode.FORMAT_SCHEMA),
        ("infinity", ReasonCode.FORMAT_NOT_FINITE),
        ("too many rows", ReasonCode.FORMAT_TOO_LARGE),
    ],
)
def test_tables_that_are_no_rollout_file_are_forged(
    name: str, reason: ReasonCode, reader: LimitedReader, honest: RolloutFile, path: Path
) -> None:
    write_table(changed(honest, name), path)
    assert refused(reader, path) is reason


def write_table(table: pa.Table, path: Path) -> None:
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.add_key_value_metadata(table.schema.metadata)
        writer.write_table(table)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(1000) + b"PAR1", b"no such thing" * 99])
def test_arbitrary_bytes_are_forged(content: bytes, reader: LimitedReader, path: Path) -> None:
    path.write_bytes(content)
    assert refused(reader, path) is ReasonCode.FORMAT_UNREADABLE


def test_invalid_utf8_text_is_forged(reader: LimitedReader, honest: RolloutFile, path: Path) -> None:
    table = table_of(honest)
    spoilt = pa.array([b"\xff\xfe"] * table.num_rows, pa.binary()).cast(pa.string(), safe=False)
    index = table.schema.get_field_index("environment")
    table = table.set_column(index, pa.field("environment", pa.string(), nullable=False), spoilt)
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.add_key_value_metadata(table.schema.metadata)
        writer.write_table(table)
    assert refused(reader, path) in {ReasonCode.FORMAT_SCHEMA, ReasonCode.FORMAT_UNREADABLE}


def test_truncated_files_are_forged(reader: LimitedReader, honest: RolloutFile, path: Path) -> None:
    write_rollouts(path, honest)
    path.write_bytes(path.read_bytes()[:-40])
    assert refused(reader, path) is ReasonCode.FORMAT_UNREADABLE


def test_files_larger_than_any_honest_one_are_not_decoded(reader: LimitedReader, path: Path) -> None:
    path.write_bytes(bytes(LEASE.file_bytes + 1))
    assert refused(reader, path) is ReasonCode.FORMAT_TOO_LARGE


def test_a_decompression_bomb_ends_only_its_decoder(
    reader: LimitedReader, honest: RolloutFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated values take no space in the file, nor in the size that it declares; decoded they take 256 MiB."""
    monkeypatch.setattr("rollouts.sandbox.decoder._LIBRARIES", 384 << 20)
    table = table_of(honest).slice(0, 1)
    at = table.schema.get_field_index("output_tokens")
    zeros = pa.array(np.zeros(16 << 20, np.int32))
    long = pa.ListArray.from_arrays(pa.array([0, len(zeros)], pa.int32()), zeros, type=table.schema.field(at).type)
    bomb = table.set_column(at, table.schema.field(at), long)
    with pq.ParquetWriter(path, bomb.schema, compression="zstd", store_schema=False) as writer:
        writer.add_key_value_metadata(bomb.schema.metadata)
        for _ in range(4):
            writer.write_table(bomb)
    assert path.stat().st_size < LEASE.file_bytes
    assert refused(reader, path) is ReasonCode.FORMAT_TOO_LARGE
    write_rollouts(path, honest)
    assert isinstance(reader.read(path, sha256=submitted(path), lease=LEASE), tuple)


def test_a_file_within_its_lease_but_above_this_machines_limits_is_not_judged(
    sandboxes: Sandboxes, honest: RolloutFile, path: Path
) -> None:
    write_rollouts(path, honest)
    size = path.stat().st_size
    for most, said in (
        (ReadLimits(file_bytes=100), (f"{size} bytes", "file_most_bytes (now 100)")),
        (ReadLimits(rows=3), (f"{len(honest.samples)} rows", "file_most_rows (now 3)")),
        (ReadLimits(tokens=3), ("values in one row", "file_most_tokens (now 3)")),
        (ReadLimits(decoded_bytes=100), ("decoded columns have", "file_decoded_bytes (now 100)")),
    ):
        found = LimitedReader(sandboxes, most=most).read(path, sha256=submitted(path), lease=LEASE)
        assert isinstance(found, NotJudged)
        assert (found.code, found.retryable) == ("too-large-here", False)
        for words in said:
            assert words in f"{found.why}; {found.hint}"


@pytest.mark.parametrize(
    ("smaller", "beyond"),
    [
        (ReadLimits(file_bytes=100), LEASE.file_bytes + 1),
        (ReadLimits(tokens=3), "too many rows"),
        (ReadLimits(decoded_bytes=LEASE.decoded_bytes - 1), "too many rows"),
        (ReadLimits(rows=4), "too long"),
        (ReadLimits(rows=3), "too many rows"),
        (ReadLimits(decoded_bytes=100), "too many rows"),
        (ReadLimits(decoded_bytes=100), "too many bytes"),
        (ReadLimits(rows=3), "too many bytes"),
    ],
)
def test_a_file_above_its_leases_limits_is_forged_despite_smaller_local_limits(
    smaller: ReadLimits, beyond: int | str, sandboxes: Sandboxes, honest: RolloutFile, path: Path
) -> None:
    lease = LEASE
    if isinstance(beyond, int):
        path.write_bytes(bytes(beyond))
    elif beyond == "too many rows":
        write_table(changed(honest, beyond), path)
    elif beyond == "too many bytes":
        lease = replace(LEASE, decoded_bytes=200)
        write_rollouts(path, honest)
    else:
        lease = replace(LEASE, tokens=1)
        write_rollouts(path, replace(honest, samples=honest.samples[:1]))
    reader = LimitedReader(sandboxes, most=smaller)
    assert refused(reader, path, lease) is ReasonCode.FORMAT_TOO_LARGE


def test_a_file_not_kept_is_judged_by_its_hash_and_size(sandboxes: Sandboxes) -> None:
    sha256, reader = digest(b"\1" * 32), LimitedReader(sandboxes, most=ReadLimits(file_bytes=100))
    forged = reader.read(HashedFile(sha256=sha256, size=LEASE.file_bytes + 1), sha256=sha256, lease=LEASE)
    assert isinstance(forged, CheckResult)
    assert forged.findings[0].reason is ReasonCode.FORMAT_TOO_LARGE
    within = reader.read(HashedFile(sha256=sha256, size=LEASE.file_bytes), sha256=sha256, lease=LEASE)
    assert isinstance(within, NotJudged)
    assert within.code == "too-large-here"
    other = reader.read(HashedFile(sha256=sha256, size=LEASE.file_bytes + 1), sha256=ZERO_DIGEST, lease=LEASE)
    assert isinstance(other, NotJudged)
    assert other.code == "file-changed"


def test_a_disk_error_is_not_blamed_on_the_node(reader: LimitedReader, path: Path) -> None:
    found = reader.read(path, sha256=submitted(path), lease=LEASE)
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == ("disk-trouble", True)


def test_bytes_that_changed_after_the_fetch_are_not_blamed_on_the_node(
    reader: LimitedReader, honest: RolloutFile, path: Path
) -> None:
    write_rollouts(path, honest)
    before, content = submitted(path), path.read_bytes()
    for now in (content[:-1], b"", bytes(LEASE.file_bytes + 1)):  # truncated, emptied, or replaced by a larger file
        path.write_bytes(now)
        found = reader.read(path, sha256=before, lease=LEASE)
        assert isinstance(found, NotJudged)
        assert (found.code, found.retryable) == ("file-changed", True)


@pytest.mark.parametrize(
    ("lease", "seconds"), [(LEASE, 2), (ReadLimits(decoded_bytes=1 << 30, rows=64), 60), (ReadLimits(rows=1 << 18), 50)]
)
def test_larger_files_get_more_processor_time(lease: ReadLimits, seconds: int, path: Path) -> None:
    path.write_bytes(b"x")
    asked: list[Job] = []

    class Noting:
        def run(self, kind: JobKind, job: Job) -> JobOutcome:
            asked.append(job)
            return CRASH

    LimitedReader(Noting(), most=ReadLimits()).read(path, sha256=submitted(path), lease=lease)  # type: ignore[arg-type]  # as below
    assert {job.limits.cpu >= timedelta(seconds=seconds) for job in asked} == {True}
    assert all(job.limits.wall >= 10 * job.limits.cpu for job in asked)


def ended(ending: JobEnding, *, code: int = 0, waited: bool = False, answer: bytes = b"") -> JobOutcome:
    cpu = timedelta(seconds=1.9)
    return JobOutcome(ending=ending, exit_code=code, output=b"", errors=b"", answer=answer, cpu=cpu, waited=waited)


class Scripted:
    """A decoder with scripted outcomes."""

    def __init__(self, *outcomes: JobOutcome) -> None:
        self._outcomes = list(outcomes)

    def run(self, kind: JobKind, job: Job) -> JobOutcome:
        assert kind is JobKind.FILES
        if not self._outcomes:
            raise SandboxUnavailable("a sandbox has ended")
        return self._outcomes.pop(0)


_TOO_LONG = b'L{"code": "too-long", "detail": "x"}'
CRASH, BIG = ended(JobEnding.KILLED), ended(JobEnding.OUT_OF_MEMORY, code=77)
SLOW, LATE = ended(JobEnding.OUT_OF_TIME), ended(JobEnding.OUT_OF_TIME, waited=True)
ENDINGS: dict[str, tuple[tuple[JobOutcome, ...], ReasonCode | str]] = {
    "two crashes": ((CRASH, CRASH), ReasonCode.FORMAT_UNREADABLE),
    "a failure of the decoder's own": ((ended(JobEnding.EXITED, code=1),), "decoder-failed"),
    "too much memory, twice": ((BIG, BIG), ReasonCode.FORMAT_TOO_LARGE),
    "too much processor time, twice": ((SLOW, SLOW), ReasonCode.FORMAT_TOO_LARGE),
    "too long an answer, twice": ((ended(JobEnding.TOO_MUCH_OUTPUT),) * 2, ReasonCode.FORMAT_TOO_LARGE),
    "an answer of no form": ((ended(JobEnding.EXITED, answer=b"?"),), ReasonCode.FORMAT_UNREADABLE),
    "a refusal of no form": ((ended(JobEnding.EXITED, answer=b"R[1, 2"),), ReasonCode.FORMAT_UNREADABLE),
    "a limit that is none of ours": ((ended(JobEnding.EXITED, answer=_TOO_LONG),), ReasonCode.FORMAT_UNREADABLE),
    "a file of no form": ((ended(JobEnding.EXITED, answer=FILE + b"\0" * 99),), ReasonCode.FORMAT_SCHEMA),
    "two different ends": ((CRASH, BIG), "decoders-disagree"),
    "ended by the system": ((ended(JobEnding.OUT_OF_MEMORY),), "out-of-memory"),
    "waiting for a processor": ((LATE,), "took-too-long"),
    "no sandbox": ((), "no-sandbox"),
    "no second sandbox": ((CRASH,), "no-sandbox"),
}


@pytest.mark.parametrize(("outcomes", "said"), ENDINGS.values(), ids=ENDINGS)
def test_a_decoder_crash_accuses_no_node_unless_it_repeats(
    outcomes: tuple[JobOutcome, ...], said: ReasonCode | str, path: Path
) -> None:
    path.write_bytes(b"x")
    found = LimitedReader(Scripted(*outcomes), most=ReadLimits()).read(path, sha256=submitted(path), lease=LEASE)  # type: ignore[arg-type]  # the one method that is used
    if isinstance(said, ReasonCode):
        assert isinstance(found, CheckResult)
        assert found.findings[0].reason is said
    else:
        assert isinstance(found, NotJudged)
        assert (found.code, found.retryable) == (said, said != "decoder-failed")


def test_a_decoder_crash_that_does_not_repeat_has_no_effect(honest: RolloutFile, path: Path) -> None:
    path.write_bytes(b"x")
    sandboxes = Scripted(CRASH, ended(JobEnding.EXITED, answer=FILE + pack(honest)))
    found = LimitedReader(sandboxes, most=ReadLimits()).read(path, sha256=submitted(path), lease=LEASE)  # type: ignore[arg-type]  # as above
    assert isinstance(found, tuple)
