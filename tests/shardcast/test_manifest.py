"""A manifest accepts only extensions that the publisher signed, in order and consistent."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.checkpoints import VersionFile, version_digest
from protocol.errors import MusterError
from shardcast.errors import BadManifest
from shardcast.manifest.manifest import BlockSpan, Manifest
from shardcast.manifest.records import (
    BLOCK,
    MOST_EXTENSION_BYTES,
    DeltaBase,
    Extension,
    FileEntry,
    Opening,
    canonical_json,
    sign_extension,
)
from tests.kit.manifests import PUBLISHER, RUN, STRANGER, author, empty, end_of, lines_of, shard_of

DATA = {"model.safetensors": random.Random(1).randbytes(3 * BLOCK + 17), "config.json": b"{}", "empty.txt": b""}


def read_all(lines: list[bytes], manifest: Manifest | None = None) -> Manifest:
    manifest = empty() if manifest is None else manifest
    for line in lines:
        manifest.read(line)
    return manifest


def test_a_reader_gets_the_files_and_blocks_from_the_manifests_lines() -> None:
    manifest = read_all(lines_of(DATA))
    files = [VersionFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in DATA.items()]
    assert manifest.content() == files
    assert manifest.digest == version_digest(files)
    assert manifest.size == sum(map(len, DATA.values()))
    assert list(manifest.spans()) == [BlockSpan(0, 0, 4), BlockSpan(1, 0, 1)]
    assert [manifest.files[0].size_of(block) for block in range(4)] == [BLOCK, BLOCK, BLOCK, 17]


def test_only_the_last_extension_seals_a_manifest() -> None:
    lines = lines_of(DATA)
    for length in range(len(lines)):
        assert not read_all(lines[:length]).sealed
    assert read_all(lines).sealed


def test_reading_an_extension_returns_the_blocks_that_it_announces() -> None:
    manifest = empty()
    spans = [span for line in lines_of(DATA) for span in manifest.read(line)]
    assert spans == [BlockSpan(0, 0, 2), BlockSpan(0, 2, 2), BlockSpan(1, 0, 1)]


def test_only_the_publisher_can_extend_a_manifest() -> None:
    lines = lines_of(DATA, writer=author(publisher=STRANGER))
    with pytest.raises(BadManifest, match="not by the publisher") as caught:
        empty().read(lines[0])
    assert caught.value.code == "wrong-signer"


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([1], "does not follow"),
        ([0, 2], "does not follow"),
        ([0, 0], "does not follow"),
        ([0, 1, 1], "does not follow"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], "sealed"),
    ],
)
def test_extensions_cannot_be_omitted_repeated_or_inserted(order: list[int], words: str) -> None:
    writer = author()
    lines = lines_of(DATA, writer=writer)
    assert len(lines) == 8
    after = Extension(
        run=RUN,
        version=1,
        attempt=1,
        sequence=8,
        previous=writer.manifest.head,
        files=(FileEntry(path="more"),),
    )
    lines.append(sign_extension(after, PUBLISHER))
    manifest = read_all([lines[at] for at in order[:-1]])
    head = manifest.head
    with pytest.raises(BadManifest, match=words):
        manifest.read(lines[order[-1]])
    assert manifest.head == head


def test_extensions_of_other_versions_attempts_or_runs_are_refused() -> None:
    for version, attempt in ((2, 1), (1, 2)):
        with pytest.raises(BadManifest) as caught:
            empty().read(lines_of(DATA, writer=author(version, attempt))[0])
        assert caught.value.code == "wrong-version"
    other = Manifest(run=version_digest([VersionFile("x", 0, "0" * 64)]), key=empty().key, signer=PUBLISHER.address)
    with pytest.raises(BadManifest) as caught:
        other.read(lines_of(DATA)[0])
    assert caught.value.code == "wrong-run"


Change = Callable[[dict[str, Any]], None]


def _path(path: str) -> Change:
    return lambda extension: extension["files"][0].update(path=path)


def _set(**fields: object) -> Change:
    return lambda extension: extension.update(fields)


def _shard(**fields: object) -> Change:
    return lambda extension: extension["shards"][0].update(fields)


def _end(**fields: object) -> Change:
    return lambda extension: extension["ended"][0].update(fields)


BASE = {"version": 1, "attempt": 1, "digest": "0x" + "ab" * 32}
TWICE = [{"path": "a", "kind": "full", "expected": None}] * 2
FOLDER = [{"path": path, "kind": "full", "expected": None} for path in ("a/b", "a")]
UNDER = [{"path": path, "kind": "full", "expected": None} for path in ("a", "a/b/c")]
DELTA = [{"path": "a", "kind": "delta", "expected": None}]


@pytest.mark.parametrize(
    ("line", "change"),
    [
        *[
            (0, _path(path))
            for path in ("../up", "/etc/passwd", "a/../b", ".hidden", "a//b", "a\\b", "", "a\0b", "x" * 256)
        ],
        (0, _set(files=TWICE)),
        (0, _set(files=FOLDER)),
        (0, _set(files=UNDER)),
        (0, _set(files=DELTA)),
        (0, _set(opening=None)),
        (0, _set(opening={"base": BASE})),
        (0, _set(digest="0x" + "00" * 32)),
        (0, _set(surprise=1)),
        (0, _set(version=-1)),
        (0, _set(version=1.5)),
        (0, _set(version=True)),
        (0, _set(attempt=0)),
        (0, _set(scheme="muster-manifest-v2")),
        (0, _set(previous="0x" + "11" * 32)),
        (1, _shard(offset=BLOCK)),
        (1, _shard(offset=1)),
        (1, _shard(file=9)),
        (1, _shard(size=0)),
        (1, _shard(size=BLOCK)),
        (1, _shard(size=2 * BLOCK + 1)),
        (1, _shard(size=1 << 60)),
        (1, _shard(blocks="")),
        (1, _shard(blocks="g" * 128)),
        (1, _shard(blocks="A" * 128)),
        (1, _set(opening={"base": None})),
        (3, _end(size=3 * BLOCK)),
        (3, _end(file=8)),
        (3, _end(sha256="0" * 63)),
        (3, _end(whole={"size": 1, "sha256": "0" * 64})),
        (7, _set(digest="0x" + "00" * 32)),
        (5, _set(digest="0x" + "00" * 32)),
    ],
)
def test_an_inconsistent_extension_is_refused_even_from_the_publisher(line: int, change: Change) -> None:
    lines = lines_of(DATA)
    manifest = read_all(lines[:line])
    before = (manifest.head, manifest.length, manifest.size, [bytes(file.hashes) for file in manifest.files])
    fields = json.loads(lines[line])["extension"]
    change(fields)
    signed = _sign_whatever(fields)
    with pytest.raises(BadManifest):
        manifest.read(signed)
    assert before == (manifest.head, manifest.length, manifest.size, [bytes(file.hashes) for file in manifest.files])
    for original in lines[line:]:
        manifest.read(original)
    assert manifest.sealed


def _sign_whatever(fields: dict[str, Any]) -> bytes:
    """Returns a manifest line with any fields, and the publisher's valid signature."""
    body = canonical_json(fields)
    hashed = "0x" + hashlib.sha256(body).hexdigest()
    named = [fields[name] for name in ("run", "version", "attempt", "sequence", "previous")]
    message = "\n".join(["muster-manifest-v1", *map(str, named), hashed]).encode()
    signature = "0x" + PUBLISHER.sign_message(message).hex()
    return canonical_json({"extension": fields, "signature": signature}) + b"\n"


def test_signing_the_documented_text_gives_a_valid_line() -> None:
    line = lines_of(DATA)[0]
    assert _sign_whatever(json.loads(line)["extension"]) == line


def test_a_file_cannot_grow_after_a_short_block() -> None:
    writer = author()
    writer.extend(files=[FileEntry(path="a")], shards=[shard_of(0, 0, b"short")])
    with pytest.raises(BadManifest):
        writer.extend(shards=[shard_of(0, BLOCK, b"more")])


def test_a_file_ends_at_its_expected_size() -> None:
    writer = author()
    writer.extend(files=[FileEntry(path="a", expected=6)])
    with pytest.raises(BadManifest, match="beyond"):
        writer.extend(shards=[shard_of(0, 0, b"seven..")])
    writer.extend(shards=[shard_of(0, 0, b"five.")])
    with pytest.raises(BadManifest, match="ends at"):
        writer.extend(ended=[end_of(0, b"five.")])


def test_a_version_can_be_based_only_on_an_older_one() -> None:
    extension = Extension(
        run=RUN,
        version=1,
        attempt=1,
        sequence=0,
        previous=empty().head,
        opening=Opening(base=DeltaBase.model_validate(BASE)),
    )
    with pytest.raises(BadManifest, match="not older"):
        empty().read(sign_extension(extension, PUBLISHER))


def test_an_oversized_line_is_not_parsed() -> None:
    with pytest.raises(BadManifest, match="at most"):
        empty().read(b"[" * (MOST_EXTENSION_BYTES + 1))


def test_a_line_has_one_canonical_form() -> None:
    fields = json.loads(lines_of(DATA)[0])
    for spelled in (json.dumps(fields, sort_keys=True), json.dumps(dict(reversed(fields.items())))):
        with pytest.raises(BadManifest, match="canonical"):
            empty().read(spelled.encode())


LINES = lines_of(DATA)


@given(st.integers(0, len(LINES) - 1), st.data())
def test_an_altered_line_is_refused(at: int, data: st.DataObject) -> None:
    line = LINES[at][:-1]
    where = data.draw(st.integers(0, len(line) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "delete"]))
    byte = data.draw(st.integers(0, 255))
    changed = {
        "flip": line[:where] + bytes((byte,)) + line[where + 1 :],
        "cut": line[:where],
        "insert": line[:where] + bytes((byte,)) + line[where:],
        "delete": line[:where] + line[where + 1 :],
    }[kind]
    manifest = read_all(LINES[:at])
    if changed.rstrip(b"\n") == line:
        return
    with pytest.raises(BadManifest):
        manifest.read(changed)
    manifest.read(LINES[at])


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_arbitrary_bytes_are_refused_with_a_clear_error(line: bytes) -> None:
    with pytest.raises(MusterError):
        empty().read(line)


def test_an_empty_extension_is_refused() -> None:
    writer = author()
    writer.extend()
    with pytest.raises(BadManifest, match="is empty"):
        writer.extend()
