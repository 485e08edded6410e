"""`muster rollouts`: what a person sees of a file, honest or not, and how the command ends."""

from __future__ import annotations

import re
import resource
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from cli import rollout_report
from protocol.errors import InvalidInput
from protocol.keys import Key
from protocol.leases import Lease
from protocol.typed_data import SigningDomain
from protocol.wire.leases import SignedLease
from protocol.wire.slots import SlotGrant
from rollouts.checks import CheckedVersion
from rollouts.samples import RolloutFile
from rollouts.schema import SCHEMA, ReadLimits, table_of, write_rollouts
from tests.e2e.conftest import run_muster
from tests.rollouts.made import BEACON, INDEX, NODE, RUN, STEP, as_version, facts_of, make, with_row
from tests.rollouts.tiny import tiny_folder

torch.set_num_threads(1)


@dataclass(frozen=True)
class Made:
    version: CheckedVersion
    file: RolloutFile
    path: Path
    folder: Path

    def changed(self, row: int, **changes: object) -> str:
        """The path of the same file with one sample changed."""
        path = self.folder / "changed.parquet"
        sample = replace(self.file.samples[row], **changes)  # type: ignore[arg-type]  # fields of a sample
        write_rollouts(path, with_row(self.file, row, sample))
        return str(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("rollouts")
    version = as_version(tiny_folder(folder / "model", kind="llama"))
    file = make(version, facts=facts_of(version))
    write_rollouts(folder / "honest.parquet", file)
    return Made(version, file, folder / "honest.parquet", folder)


def verify(made: Made, path: str = "") -> tuple[str, ...]:
    return "rollouts", "verify", path or str(made.path), "--model", str(made.version.folder)


def grant(made: Made, *, step: int = STEP) -> SlotGrant:
    key = Key.generate()
    lease = Lease(
        pool_id=1,
        run=RUN,
        step=step,
        index=INDEX,
        node=NODE,
        version=5,
        digest=made.version.digest,
        groups=3,
        max_units=10_000,
        expiry=2**33,
    )
    domain = SigningDomain(1, key.address)
    signed = SignedLease.of(lease, domain=domain, signature=lease.sign(key, domain))
    return SlotGrant(lease=signed, beacon=BEACON, beacon_block=9)


def test_an_honest_file_is_clean(made: Made) -> None:
    said = run_muster(*verify(made), "--beacon", BEACON)
    assert said.code == 0, said.err
    assert "nothing is wrong with it" in said.out
    assert "failed" not in said.out
    assert "no lease was given" in said.err


def test_a_grant_says_what_the_slot_was(made: Made) -> None:
    path = made.folder / "grant.json"
    arguments = (*verify(made), "--lease", str(path), "--json")
    path.write_text(grant(made).model_dump_json())
    said = run_muster(*arguments)
    assert (said.code, said.json()["rejected"]) == (0, False)
    assert [one["state"] for one in said.json()["checks"]] == ["passed"] * 9
    path.write_text(grant(made, step=STEP + 1).model_dump_json())
    said = run_muster(*arguments)
    failed = {one["check"]: one["findings"][0]["what"] for one in said.json()["checks"] if one["state"] == "failed"}
    assert said.code == 1
    assert failed["identity"] == f"step is {STEP}, and had to be {STEP + 1}"


def test_without_the_beacon_it_says_what_was_not_checked(made: Made) -> None:
    said = run_muster(*verify(made))
    assert said.code == 0
    assert "not sampling" in said.out
    assert "the beacon is not known" in said.err


def test_what_is_wrong_is_named_with_row_group_and_token(made: Made) -> None:
    tokens = made.file.samples[6].output_tokens.copy()
    tokens[2] = 10 if tokens[2] != 10 else 11
    said = run_muster(
        *verify(made, made.changed(6, output_tokens=tokens)),
        "--beacon",
        BEACON,
    )
    assert said.code == 1
    assert "sampling: row 6, sample 6, group 1, token 2: token 2 is 1" in said.out
    assert "rejected" in said.out
    assert re.search(r"identity +passed", said.out)


def test_tokens_that_the_model_does_not_have_are_not_computed(made: Made) -> None:
    tokens = made.file.samples[6].output_tokens.copy()
    tokens[2] = 1 << 20
    said = run_muster(*verify(made, made.changed(6, output_tokens=tokens)), "--json")
    states = {one["check"]: one["state"] for one in said.json()["checks"]}
    assert said.code == 1
    assert (states["bounds"], states["reward"], states["computation"]) == ("failed", "unknown", "unknown")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--beacon", "0x12"], 2, "not a 32-byte digest"),
        (["--device", "nowhere"], 2, "no device"),
        (["--lease", "HERE"], 2, "is not what this command reads"),
        (["--dtype", "int8"], 2, "int8"),
    ],
)
def test_wrong_usage_ends_with_two(made: Made, arguments: list[str], code: int, said: str) -> None:
    (made.folder / "wrong.json").write_text("{}")
    given = [one.replace("HERE", str(made.folder / "wrong.json")) for one in arguments]
    ended = run_muster(*verify(made), *given)
    assert (ended.code, said in ended.err) == (code, True), ended.err


def test_a_folder_that_is_no_version_is_nobodys_fault(made: Made) -> None:
    ended = run_muster("rollouts", "verify", str(made.path), "--model", str(made.folder))
    assert (ended.code, "can't be read" in ended.err) == (2, True), ended.err


def test_what_is_no_file_of_rollouts_is_rejected(made: Made) -> None:
    path = made.folder / "cut.parquet"
    path.write_bytes(made.path.read_bytes()[:-20])
    said = run_muster(*verify(made, str(path)))
    assert (said.code, "format: it does not read as Parquet" in said.out) == (1, True)
    assert run_muster("rollouts", "show", str(path)).code == 1


def test_samples_are_shown_as_text_or_as_tokens(made: Made) -> None:
    shown = run_muster("rollouts", "show", str(made.path), "--model", str(made.version.folder), "--group", "1")
    first = made.file.samples[4]
    assert made.version.tokenizer.decode(first.prompt_tokens.tolist()) in shown.out
    assert shown.out.count("group 1, sample") == 4
    assert "group 0, sample" not in shown.out
    listed = run_muster("rollouts", "show", str(made.path), "--limit", "2", "--json").json()["samples"]
    assert [one["sample"] for one in listed] == [0, 1]
    assert listed[0]["answer"] == " ".join(map(str, made.file.samples[0].output_tokens))
    assert run_muster("rollouts", "show", str(made.path), "--group", "9").code == 1


@pytest.fixture
def bomb(made: Made, tmp_path: Path) -> Path:
    """A few kilobytes of one proof of 4 MiB, which two thousand rows have: eight gigabytes when they are unpacked."""
    sample = replace(made.file.samples[0], proofs=b"")
    rows = 2000
    table = table_of(replace(made.file, samples=tuple(replace(sample, sample=number) for number in range(rows))))
    at = table.schema.get_field_index("proofs")
    words = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([bytes(4 << 20)], pa.binary()))
    table = table.set_column(at, table.schema.field(at).with_type(words.type), words)
    path = tmp_path / "bomb.parquet"
    with pq.ParquetWriter(
        path, table.schema, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 30
    ) as writer:
        writer.add_key_value_metadata(SCHEMA.metadata)
        writer.write_table(table)
    assert path.stat().st_size < 100_000
    return path


def test_a_stranger_s_bomb_goes_off_in_a_sandbox(made: Made, bomb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_report, "_READ_LIMITS", ReadLimits(decoded_bytes=64 << 20))
    monkeypatch.setattr("rollouts.decoding._LIBRARIES", 512 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidInput, match="no file of rollouts: two decoders were tried"):
        rollout_report.show_samples(bomb, model=None, group=None, limit=1, as_json=False)
    verification = rollout_report.verify(
        bomb, model=made.version.folder, lease=None, beacon=None, units=None, calibration=None, dtype=None, device=None
    )
    assert [one.check for one in verification.failed] == ["format"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # in KiB


def test_what_is_more_than_the_slot_is_not_computed(made: Made) -> None:
    path = made.folder / "more.parquet"
    write_rollouts(path, replace(made.file, samples=(*made.file.samples, *made.file.samples[-2:])))
    said = run_muster(*verify(made, str(path)), "--beacon", BEACON)
    assert said.code == 1
    assert "sample 11 stands here again" in said.out
    assert "computation: the file has 14 samples, and its slot 12" in said.err
