"""Problem files: both formats, the digest that pins them, and errors for malformed ones."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue

from rollouts.environments import datasets, load_environment
from rollouts.environments.errors import BadDataset, BadOptions, NoSuchPrompt, UnknownEnvironmentVersion
from tests.rollouts.environments.conftest import WriteRows, row

ROWS = [
    row({"ground_truth": "1"}, prompt="one?", problem_id="a"),
    row({"test_cases": []}, task_type="verifiable_code"),
    row('{"ground_truth": "2"}', prompt="two?", problem_id="b"),
    row("{'ground_truth': '3'}", prompt="three?", problem_id="c"),
    row({"ground_truth": ""}, prompt="no answer"),
    row({}, prompt="nothing to check"),
]


def as_text(info: object) -> str:
    """Converts a value to the text of a string column."""
    return info if isinstance(info, str) else json.dumps(info)


def test_rows_of_the_right_type_with_an_answer_become_prompts_in_file_order(write_rows: WriteRows) -> None:
    environment = load_environment("math", options=write_rows(ROWS))
    assert environment.size() == 3
    prompts = [environment.prompt(index) for index in range(3)]
    assert [prompt.text for prompt in prompts] == ["one?", "two?", "three?"]
    assert [prompt.data for prompt in prompts] == [
        {"problem_id": "a", "answer": "1"},
        {"problem_id": "b", "answer": "2"},
        {"problem_id": "c", "answer": "3"},
    ]
    with pytest.raises(NoSuchPrompt, match="from 0 to 2"):
        environment.prompt(3)


def test_a_prompt_that_no_tokenizer_can_encode_is_left_out(write_rows: WriteRows) -> None:
    halved = row({"ground_truth": "0"}, prompt="half a character: \ud800")
    environment = load_environment("math", options=write_rows([halved, *ROWS]))
    assert environment.size() == 3
    assert environment.prompt(0).text == "one?"


def test_parquet_and_json_lines_give_the_same_prompts(write_rows: WriteRows, tmp_path: Path) -> None:
    texts = [{**each, "verification_info": as_text(each["verification_info"])} for each in ROWS]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(texts), path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    of_parquet = load_environment("math", options={"path": str(path), "sha256": sha256})
    of_lines = load_environment("math", options=write_rows(texts))
    assert of_parquet.size() == of_lines.size() == 3
    assert [of_parquet.prompt(index) for index in range(3)] == [of_lines.prompt(index) for index in range(3)]


def test_the_version_depends_on_the_files_content_and_not_its_path(write_rows: WriteRows, tmp_path: Path) -> None:
    options = write_rows(ROWS)
    one = load_environment("math", options=options)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (moved / "rows.jsonl").write_bytes(Path(str(options["path"])).read_bytes())
    other = load_environment("math", version=one.version, options={**options, "path": str(moved / "rows.jsonl")})
    assert other.version == one.version
    with pytest.raises(UnknownEnvironmentVersion):
        load_environment("math", version=one.version, options=write_rows(ROWS[:1]))


def test_a_relative_path_starts_in_the_data_set_directory(
    write_rows: WriteRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = write_rows(ROWS)
    path = Path(str(options["path"]))
    monkeypatch.setenv("MUSTER_DATASETS", str(path.parent))
    assert load_environment("math", options={**options, "path": path.name}).size() == 3


def test_other_row_types_are_read_if_the_options_name_them(write_rows: WriteRows) -> None:
    options = write_rows([row({"ground_truth": "1"}, task_type="my_math"), *ROWS])
    assert load_environment("math", options={**options, "task_types": ["my_math"]}).size() == 1


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no problem that can be used"),
        ([row({"ground_truth": "1"}, task_type="other")], "no problem that can be used"),
        ([{"prompt": "?"}], "row 0: problem_id: Field required"),
        ([row({"ground_truth": "1"}, prompt=5)], "row 0: prompt: Input should be a valid string"),  # type: ignore[arg-type]
        ([*ROWS, "text"], "row 6"),
        ([row("no JSON {")], "row 0"),
        ([row("[1]")], "verification_info is not an object"),
        ([row("__import__('os').system('true')")], "row 0"),
    ],
)
def test_a_malformed_data_set_is_reported_with_its_row(rows: list[object], words: str, write_rows: WriteRows) -> None:
    with pytest.raises(BadDataset, match=words):
        load_environment("math", options=write_rows(rows))


def _named(path: Path) -> dict[str, JsonValue]:
    return {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_a_table_with_a_missing_column_is_reported_with_the_column(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"problem_id": ["a"], "prompt": ["?"], "task_type": ["verifiable_math"]}), path)
    with pytest.raises(BadDataset, match=r"rows.parquet has no column verification_info$"):
        load_environment("math", options=_named(path))


@pytest.mark.parametrize(("compress", "words"), [(gzip.compress, "by gzip"), (bz2.compress, "by bzip2")])
def test_a_compressed_file_is_reported_as_compressed(
    compress: Callable[[bytes], bytes], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(compress(json.dumps(ROWS[0]).encode()))
    with pytest.raises(BadDataset, match=words):
        load_environment("math", options=_named(path))


def test_an_endless_row_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "LONGEST_ROW", 1000)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + "x" * 2000)
    with pytest.raises(BadDataset, match=r"rows.jsonl: row 1 has more than 1000 bytes"):
        load_environment("math", options=_named(path))


def test_a_file_with_another_digest_than_the_options_is_refused(write_rows: WriteRows, tmp_path: Path) -> None:
    options = write_rows(ROWS)
    with pytest.raises(BadDataset, match="the options name ffff") as raised:
        load_environment("math", options={**options, "sha256": "f" * 64})
    assert "fetch the file whose digest the options name" in raised.value.hint
    with pytest.raises(BadDataset, match="there is no data set"):
        load_environment("math", options={**options, "path": str(tmp_path / "absent")})
    with pytest.raises(BadDataset, match="there is no data set"):
        load_environment("math", options={**options, "path": "/dev/zero"})
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 no")
    with pytest.raises(BadDataset, match="not a Parquet file"):
        load_environment("math", options={"path": str(broken), "sha256": hashlib.sha256(b"PAR1 no").hexdigest()})


@pytest.mark.parametrize(
    "options", [{}, {"path": "x"}, {"path": "x", "sha256": "abc"}, {"path": "x", "sha256": "0" * 64, "split": "train"}]
)
def test_options_without_a_file_are_refused(options: dict[str, JsonValue]) -> None:
    with pytest.raises(BadOptions):
        load_environment("math", options=options)


@pytest.mark.parametrize("given", ["abc", "0" * 63, "0" * 65, "F" * 64, "0" * 64 + "\n"])
def test_a_malformed_digest_is_refused_with_the_form_that_it_needs(given: str) -> None:
    with pytest.raises(BadOptions) as refused:
        load_environment("math", options={"path": "x", "sha256": given})
    assert refused.value.detail.startswith(
        f"environment math: sha256: {given!r} is no SHA-256, which has 64 hexadecimal"
    )
