"""Rollout files: written files are read back, and anything outside the format is refused."""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from protocol.identifiers import ZERO_DIGEST, address, digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.wire.served import RequestKind, ServedList, ServedRequest, SignedServedList, answer_digest
from rollouts.engines.interface import FinishReason
from rollouts.errors import BadRolloutFile
from rollouts.files.limits import ReadLimits
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.files.schema import SCHEMA, VERSION_KEY, read_rollouts, table_of, write_rollouts, write_table
from rollouts.files.served_metadata import MOST_SERVED_BYTES, SERVED_KEY
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.turns import Turn

HEADER = SlotHeader(
    run=digest(b"\1" * 32),
    step=7,
    index=3,
    node=address("0x" + "ab" * 20),
    checkpoint=digest(b"\2" * 32),
    environment="letters",
    environment_version="1",
    arithmetic=Arithmetic(engine=EngineName.TORCH, dtype=Dtype.FLOAT32),
)


def sample(number: int = 0, **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "group": number // 2,
        "sample": number,
        "prompt_index": 2**63 - 1,
        "prompt_tokens": np.array([1, 2, 3], np.int32),
        "output_tokens": np.array([4, 5], np.int32),
        "logprobs": np.array([-0.5, -1.25], np.float32),
        "finish": FinishReason.EOS,
        "task_reward": 1.0,
        "length_penalty": 0.25,
        "reward": 0.75,
        "target_length": None,
        "proofs": b"\0" * 258,
    }
    return Sample(**{**values, **changes})


def comparable(file: RolloutFile) -> list[Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [(turn.drawn, plain(turn.given)) for turn in value]
        return (value.dtype.name, value.tolist()) if isinstance(value, np.ndarray) else value

    rows = [{f.name: plain(getattr(row, f.name)) for f in dataclasses.fields(row)} for row in file.samples]
    return [file.header, rows, file.served]


samples = st.builds(
    lambda tokens, prompt, **rest: sample(
        output_tokens=np.array(tokens, np.int32),
        logprobs=np.linspace(-9, 0, len(tokens), dtype=np.float32),
        prompt_tokens=np.array(prompt, np.int32),
        **rest,
    ),
    tokens=st.lists(st.integers(0, 2**31 - 1), max_size=5),
    prompt=st.lists(st.integers(0, 2**31 - 1), max_size=5),
    number=st.integers(0, 2**32 - 1),
    finish=st.sampled_from(FinishReason),
    reward=st.floats(allow_nan=False, allow_infinity=False),
    target_length=st.none() | st.integers(0, 2**31 - 1),
    proofs=st.binary(max_size=600),
)


@given(rows=st.lists(samples, min_size=1, max_size=4))
def test_a_rollout_file_is_read_back_as_written(tmp_path_factory: pytest.TempPathFactory, rows: list[Sample]) -> None:
    path = tmp_path_factory.mktemp("file") / "a.parquet"
    file = RolloutFile(HEADER, tuple(rows))
    assert write_rollouts(path, file) == path.stat().st_size
    assert comparable(read_rollouts(path)) == comparable(file)


def dialogue(number: int = 0, *lengths: tuple[int, int]) -> Sample:
    """A sample with turns of these numbers of drawn and given tokens."""
    turns = tuple(Turn(drawn, np.arange(given, dtype=np.int32)) for drawn, given in lengths)
    drawn = sum(turn.drawn for turn in turns)
    tokens = np.arange(drawn, dtype=np.int32)
    return sample(number, output_tokens=tokens, logprobs=np.zeros(drawn, np.float32), turns=turns)


def test_dialogues_are_read_back_as_written_and_have_a_version_of_their_own(tmp_path: Path) -> None:
    rows = (dialogue(0, (2, 3), (1, 1), (4, 0)), dialogue(1, (5, 0)), dialogue(2, (1, 7), (1, 0)))
    file = RolloutFile(HEADER, rows)
    write_rollouts(tmp_path / "a", file)
    assert comparable(read_rollouts(tmp_path / "a")) == comparable(file)
    assert pq.read_metadata(tmp_path / "a").metadata[VERSION_KEY] == b"3"
    assert (file.units, [len(row.tokens_after_prompt) for row in rows]) == (14, [11, 5, 9])


def test_single_answers_are_written_as_before(tmp_path: Path) -> None:
    """Files of single answers have neither another version nor another column than before there were dialogues."""
    write_rollouts(tmp_path / "a", RolloutFile(HEADER, (sample(0),)))
    assert pq.read_metadata(tmp_path / "a").metadata == {VERSION_KEY: b"2"}
    assert "turns" not in pq.read_schema(tmp_path / "a").names


def test_a_file_has_dialogues_or_single_answers(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="single answers"):
        write_rollouts(tmp_path / "a", RolloutFile(HEADER, (dialogue(0, (2, 0)), sample(1))))


@pytest.mark.parametrize(
    ("version", "rows", "code"),
    [
        (b"2", (dialogue(0, (2, 0)),), "wrong-columns"),
        (b"3", (sample(0),), "wrong-columns"),
        (b"2.5", (sample(0),), "schema-version"),
    ],
)
def test_the_version_must_fit_the_columns(tmp_path: Path, version: bytes, rows: Any, code: str) -> None:
    table = table_of(RolloutFile(HEADER, rows)).replace_schema_metadata({VERSION_KEY: version})
    with (tmp_path / "a").open("wb") as sink:
        write_table(table, sink)
    with pytest.raises(BadRolloutFile) as refused:
        read_rollouts(tmp_path / "a")
    assert refused.value.code == code


def served_list(*bodies: str) -> SignedServedList:
    requests = tuple(
        ServedRequest(
            id=f"{number:032x}",
            kind=RequestKind.CHAT,
            body=body,
            seed=digest(b"\3" * 32),
            choices=1,
            answer=answer_digest([("text", [4, 5])]),
        )
        for number, body in enumerate(bodies)
    )
    domain = SigningDomain(chain_id=1, contract=HEADER.node)
    return SignedServedList.sign(
        ServedList(requests=requests), work_key=ZERO_DIGEST, key=Key(b"\1" * 32), domain=domain
    )


def test_a_served_slots_file_carries_the_signed_list(tmp_path: Path) -> None:
    hardest = '"\\\u00e9\u2028' * 60_000  # every level of JSON escapes these again
    file = RolloutFile(HEADER, (sample(),), served_list("{}", json.dumps(hardest)))
    write_rollouts(tmp_path / "a", file)
    found = read_rollouts(tmp_path / "a")
    assert comparable(found) == comparable(file)
    assert found.served is not None
    assert json.loads(found.served.parse().requests[1].body) == hardest


@pytest.mark.parametrize(
    ("metadata", "code"),
    [(b"", "bad-value"), (b'{"content": 1}', "bad-value"), (b"\xff" * (MOST_SERVED_BYTES + 1), "not-parquet")],
)
def test_malformed_lists_of_served_requests_are_refused(tmp_path: Path, metadata: bytes, code: str) -> None:
    table = table_of(RolloutFile(HEADER, (sample(),), served_list("{}")))
    with (tmp_path / "a").open("wb") as sink:
        write_table(table.replace_schema_metadata({**table.schema.metadata, SERVED_KEY: metadata}), sink)
    with pytest.raises(BadRolloutFile) as refused:
        read_rollouts(tmp_path / "a")
    assert refused.value.code == code


def test_work_units_are_the_generated_tokens() -> None:
    assert RolloutFile(HEADER, (sample(0), sample(1))).units == 4


def test_equal_rollouts_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_rollouts(tmp_path / name, RolloutFile(HEADER, (sample(0), sample(1))))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("rows", [(), (sample(logprobs=np.zeros(1, np.float32)),)])
def test_inconsistent_rollouts_are_not_written(tmp_path: Path, rows: tuple[Sample, ...]) -> None:
    with pytest.raises(InvalidInput):
        write_rollouts(tmp_path / "a", RolloutFile(HEADER, rows))
    assert not list(tmp_path.iterdir())


Change = Callable[[pa.Table], pa.Table]


def put(name: str, values: list[Any], kind: pa.DataType | None = None) -> Change:
    def change(table: pa.Table) -> pa.Table:
        at = table.column_names.index(name)
        field = SCHEMA.field(name) if kind is None else pa.field(name, kind, nullable=False)
        field = field if None not in values else field.with_nullable(True)
        return table.set_column(
            at,
            field,
            pa.array(values, pa.string()).cast(field.type)
            if pa.types.is_dictionary(field.type)
            else pa.array(values, field.type),
        )

    return change


HOSTILE: dict[str, tuple[str, Change]] = {
    "a former version": ("old-version", lambda t: t.replace_schema_metadata({b"muster-rollouts": b"1"})),
    "another version": ("schema-version", lambda t: t.replace_schema_metadata({b"muster-rollouts": b"4"})),
    "no version": ("schema-version", lambda t: t.replace_schema_metadata({})),
    "an extra column": ("wrong-columns", lambda t: t.append_column("note", pa.array(["x", "y"]))),
    "a column missing": ("wrong-columns", lambda t: t.drop_columns(["proofs"])),
    "a column twice": ("wrong-columns", lambda t: t.append_column(SCHEMA.field("reward"), t.column("reward"))),
    "columns in another order": ("wrong-columns", lambda t: t.select(list(reversed(t.column_names)))),
    "a wider type": ("wrong-columns", put("index", [3, 3], pa.uint64())),
    "text for a number": ("wrong-columns", put("reward", ["1", "1"], pa.string())),
    "a column that may be null": ("wrong-columns", put("reward", [None, 1.0])),
    "NaN as a reward": ("not-finite", put("reward", [float("nan"), 1.0])),
    "infinity as a penalty": ("not-finite", put("length_penalty", [float("inf"), 1.0])),
    "NaN among logprobs": ("not-finite", put("logprobs", [[float("nan"), 0.0], [0.0, 0.0]])),
    "too few logprobs": ("bad-value", put("logprobs", [[0.0], [0.0, 0.0]])),
    "an unknown finish": ("bad-value", put("finish", ["eos", "abort"])),
    "an unknown engine": ("bad-value", put("engine", ["abacus", "abacus"])),
    "two steps": ("mixed-slots", put("step", [7, 8])),
    "two nodes": ("mixed-slots", put("node", ["0x" + "ab" * 20, "0x" + "cd" * 20])),
    "no address": ("bad-value", put("node", ["me", "me"])),
    "no digest": ("bad-value", put("checkpoint", ["newest", "newest"])),
    "no rows": ("too-many-rows", lambda t: t.slice(0, 0)),
    "too many rows": ("too-many-rows", lambda t: pa.concat_tables([t] * 3)),
    "too many tokens": ("too-long", put("prompt_tokens", [[0] * 11, [1]])),
    "more bytes than the limit": ("file-too-large", put("proofs", [bytes(range(256)) * 400, b""])),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_violates_the_format_is_refused(tmp_path: Path, name: str) -> None:
    rule, change = HOSTILE[name]
    write_rollouts(tmp_path / "honest", RolloutFile(HEADER, (sample(0), sample(1))))
    table = change(pq.read_table(tmp_path / "honest").cast(SCHEMA).replace_schema_metadata(SCHEMA.metadata))
    with (tmp_path / "hostile").open("wb") as sink:
        write_table(table, sink)
    with pytest.raises(BadRolloutFile) as raised:
        read_rollouts(
            tmp_path / "hostile", limits=ReadLimits(rows=4, tokens=10, file_bytes=20_000, decoded_bytes=90_000)
        )
    assert raised.value.code == rule


@given(data=st.data())
def test_altered_bytes_are_read_or_refused_and_never_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("file")
    rows = data.draw(st.sampled_from([(sample(0), sample(1)), (dialogue(0, (2, 3), (1, 0)), dialogue(1, (1, 0)))]))
    write_rollouts(folder / "a", RolloutFile(HEADER, rows))
    content = bytearray((folder / "a").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    (folder / "b").write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(BadRolloutFile):
        read_rollouts(folder / "b")


FAULTS = [OSError(errno.EIO, "Input/output error"), pa.ArrowMemoryError("malloc of size 64 failed")]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_an_error_of_the_readers_machine_is_not_blamed_on_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    write_rollouts(tmp_path / "a", RolloutFile(HEADER, (sample(0),)))

    def fail(*args: object, **kwargs: object) -> None:
        raise fault

    monkeypatch.setattr(pq.ParquetFile, "read", fail)
    with pytest.raises(type(fault)):
        read_rollouts(tmp_path / "a")
