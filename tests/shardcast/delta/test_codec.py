"""A delta and its base produce exactly the new file; a malformed delta is refused."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardcast.delta import BadDelta, DeltaTooLarge, apply_delta, build_delta
from shardcast.delta.segments import HEADER, MAGIC, MOST_LENGTH, SEGMENT, Mode, Segment, unzigzag, zigzag

Tensors = dict[str, tuple[str, bytes]]
"""Tensors by name, each with its type as safetensors names it, and its bytes."""

SIZE_OF = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8, "U8": 1, "BOOL": 1, "F8_E4M3": 1}

IN_ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def safetensors(tensors: Tensors, *, metadata: str = "") -> bytes:
    header: dict[str, object] = {"__metadata__": {"step": metadata}} if metadata else {}
    at = 0
    for name, (dtype, data) in tensors.items():
        shape = [len(data) // SIZE_OF[dtype]]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, data in tensors.values())


def round_trip(folder: Path, base: bytes, target: bytes) -> int:
    """Builds and applies a delta; returns its size."""
    (folder / "base").write_bytes(base)
    (folder / "target").write_bytes(target)
    built = build_delta(base=folder / "base", target=folder / "target", delta=folder / "delta")
    assert built.size == (folder / "delta").stat().st_size
    assert built.sha256 == hashlib.sha256(target).hexdigest()
    (folder / "again").unlink(missing_ok=True)
    told = apply_delta(base=folder / "base", delta=folder / "delta", target=folder / "again", size=len(target))
    assert (folder / "again").read_bytes() == target
    assert told == hashlib.sha256(target).hexdigest()
    return built.size


def bf16(count: int, *, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    values = np.random.default_rng(seed).standard_normal(count, dtype=np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


tensors_of_a_step = st.dictionaries(
    st.sampled_from(["embed", "layers.0", "layers.1", "norm", "head"]),
    st.sampled_from(sorted(SIZE_OF)).flatmap(
        lambda dtype: st.tuples(
            st.just(dtype),
            st.binary(max_size=40)
            .map(lambda data: data * 3)
            .map(lambda d: d[: len(d) // SIZE_OF[dtype] * SIZE_OF[dtype]]),
        )
    ),
    max_size=5,
)


@given(before=tensors_of_a_step, after=tensors_of_a_step, step=st.text("0123456789", max_size=4))
@IN_ONE_FOLDER
def test_a_delta_reproduces_any_checkpoint_from_any_other(
    tmp_path: Path, before: Tensors, after: Tensors, step: str
) -> None:
    round_trip(tmp_path, safetensors(before), safetensors(after, metadata=step))


@given(
    tensors=tensors_of_a_step,
    share=st.sampled_from([0.0, 0.05, 0.4, 0.6, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
@IN_ONE_FOLDER
def test_a_delta_reproduces_a_checkpoint_with_any_share_of_changed_bytes(
    tmp_path: Path, tensors: Tensors, share: float, seed: int
) -> None:
    draw = np.random.default_rng(seed)

    def changed(data: bytes) -> bytes:
        noise = draw.integers(0, 256, len(data), dtype=np.uint8)
        return (
            np.frombuffer(data, np.uint8) ^ np.where(draw.random(len(data)) < share, noise, 0).astype(np.uint8)
        ).tobytes()

    after = {name: (dtype, changed(data)) for name, (dtype, data) in tensors.items()}
    round_trip(tmp_path, safetensors(tensors), safetensors(after))


@given(base=st.binary(max_size=200), target=st.binary(max_size=200))
@IN_ONE_FOLDER
def test_a_delta_reproduces_a_file_that_is_not_safetensors(tmp_path: Path, base: bytes, target: bytes) -> None:
    round_trip(tmp_path, base, target)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]))
def test_zigzag_is_reversible_for_every_word(numbers: list[int], kind: type[np.unsignedinteger]) -> None:
    words = np.array(numbers, dtype=np.uint64).astype(kind)
    assert (unzigzag(zigzag(words)) == words).all()


def test_zigzag_turns_small_changes_in_either_direction_into_small_numbers() -> None:
    assert zigzag(np.array([0, 1, 65535, 2, 65534], dtype=np.uint16)).tolist() == [0, 2, 1, 4, 3]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (MOST_LENGTH // 2, "exactly one segment"),
        (MOST_LENGTH // 2 + 1, "one segment and one word"),
        (3 * MOST_LENGTH // 2, "three segments"),
    ],
    ids=lambda each: str(each).replace(" ", "-"),
)
def test_a_delta_reproduces_tensors_near_the_segment_size(tmp_path: Path, words: int, what: str) -> None:
    before = bf16(words, seed=1)
    after = before.copy()
    after[[0, words // 3, words - 1]] += 1
    size = round_trip(
        tmp_path, safetensors({"w": ("BF16", before.tobytes())}), safetensors({"w": ("BF16", after.tobytes())})
    )
    assert size < 400


def test_an_unchanged_file_costs_only_its_headers(tmp_path: Path) -> None:
    data = safetensors({"w": ("BF16", bf16(1000, seed=1).tobytes())})
    segments = 2  # one for the header, one for the tensor
    assert round_trip(tmp_path, data, data) == HEADER.size + segments * SEGMENT.size


def test_changing_one_value_in_a_hundred_costs_less_than_one_percent_of_the_bytes(tmp_path: Path) -> None:
    before = bf16(2_000_000, seed=1)
    steps = np.random.default_rng(2).choice(
        np.array([0, 1, 65535], np.uint16), p=[0.99, 0.005, 0.005], size=len(before)
    )
    target = safetensors({"w": ("BF16", (before + steps).tobytes())})
    assert round_trip(tmp_path, safetensors({"w": ("BF16", before.tobytes())}), target) < 0.01 * len(target)


def test_a_tensor_is_compared_with_the_base_tensor_of_the_same_name_at_another_offset(tmp_path: Path) -> None:
    wide, narrow = bf16(50_000, seed=1).tobytes(), bf16(999, seed=2).tobytes()
    base = safetensors({"wide": ("BF16", wide), "narrow": ("BF16", narrow)})
    target = safetensors({"narrow": ("BF16", narrow), "wide": ("BF16", wide)}, metadata="moved")
    assert round_trip(tmp_path, base, target) < 1000


def test_changed_values_are_counted(tmp_path: Path) -> None:
    before = bf16(1000, seed=1)
    after = before.copy()
    after[:7] ^= 0x8000
    (tmp_path / "a").write_bytes(safetensors({"w": ("BF16", before.tobytes())}))
    (tmp_path / "b").write_bytes(safetensors({"w": ("BF16", after.tobytes())}))
    built = build_delta(base=tmp_path / "a", target=tmp_path / "b", delta=tmp_path / "d")
    assert built.changed == 7
    assert built.modes[Mode.SPARSE] == 1


def test_a_delta_over_its_limit_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bf16(10_000, seed=1).tobytes())
    (tmp_path / "b").write_bytes(bf16(10_000, seed=2).tobytes())
    with pytest.raises(DeltaTooLarge, match="more than 5000 bytes"):
        build_delta(base=tmp_path / "a", target=tmp_path / "b", delta=tmp_path / "d", limit=5000)
    assert not (tmp_path / "d").exists()


def test_an_existing_target_is_not_overwritten(tmp_path: Path) -> None:
    data = safetensors({"w": ("U8", b"abc")})
    round_trip(tmp_path, data, data)
    with pytest.raises(FileExistsError):
        apply_delta(base=tmp_path / "base", delta=tmp_path / "delta", target=tmp_path / "again", size=len(data))
    assert (tmp_path / "again").read_bytes() == data


def segment(
    mode: int = Mode.SPARSE,
    word: int = 2,
    planes: int = 1,
    zero: int = 0,
    length: int = 200,
    changed: int = 3,
    payload: bytes = b"",
    said: int | None = None,
    offset: int = 0,
) -> bytes:
    head = SEGMENT.pack(mode, word, planes, zero, length, changed, len(payload) if said is None else said, offset)
    return head + payload


def packed(data: bytes) -> bytes:
    return zstandard.compress(data)


CHANGES = packed(bytes([0, 0, 0]) + bytes([2, 2, 2, 0, 0, 0]))
GOOD = segment(payload=CHANGES)
BOMB = packed(bytes(64 * 1024 * 1024))

MALFORMED = {
    "nothing": (b"", "do not start"),
    "half a header": (MAGIC + b"12", "do not start"),
    "another format": (HEADER.pack(b"MUSTDLT2", 200, 200) + GOOD, "do not start"),
    "another base": (HEADER.pack(MAGIC, 201, 200) + GOOD, "for a base of 201 bytes"),
    "another target": (HEADER.pack(MAGIC, 200, 2**60) + GOOD, f"of {2**60} bytes, not of 200"),
    "no segments": (HEADER.pack(MAGIC, 200, 200), "middle of a segment"),
    "half a segment": (GOOD[:20], "middle of a segment"),
    "half a payload": (GOOD[:-1], "middle of a payload"),
    "more than the target": (GOOD + GOOD, "continues after"),
    "an unknown mode": (segment(mode=9, payload=CHANGES), "mode 9"),
    "words of three bytes": (segment(word=3, length=201, payload=CHANGES), "words of 3"),
    "a reserved byte that is not zero": (segment(zero=1, payload=CHANGES), "reserved byte 1"),
    "an empty segment": (segment(length=0, payload=CHANGES), "a segment of 0 bytes"),
    "beyond the target": (segment(length=202, payload=CHANGES), "of 202 bytes"),
    "half a word": (segment(length=199, payload=CHANGES), "of 199 bytes"),
    "beyond the base": (segment(offset=1, payload=CHANGES), "at 1 of a base of 200"),
    "far beyond the base": (segment(offset=2**64 - 1, payload=CHANGES), "of a base of 200"),
    "no changes": (segment(changed=0, payload=CHANGES), "0 changes"),
    "more changes than words": (segment(changed=101, payload=CHANGES), "101 changes"),
    "gaps of four bytes": (segment(planes=4, payload=CHANGES), "4 planes"),
    "changes in a segment without changes": (segment(mode=Mode.SAME, planes=0), "3 changes"),
    "no payload": (segment(), "payload of 0"),
    "a payload in a segment without a payload": (
        segment(mode=Mode.SAME, planes=0, changed=0, payload=b"x"),
        "payload of 1",
    ),
    "a payload of almost 4 GiB": (segment(said=2**32 - 1), f"payload of {2**32 - 1}"),
    "a literal segment with an offset in the base": (
        segment(mode=Mode.LITERAL, planes=0, changed=0, offset=4, payload=packed(bytes(200))),
        "at 4 of a base",
    ),
    "no zstd": (segment(payload=b"not zstd at all"), "zstd"),
    "zstd with a flipped bit": (segment(payload=bytes([CHANGES[0] ^ 1]) + CHANGES[1:]), "zstd"),
    "a zstd frame without its size": (
        segment(payload=zstandard.ZstdCompressor(write_content_size=False).compress(bytes(9))),
        "unpack to 9",
    ),
    "a zstd bomb": (segment(payload=BOMB), "unpack to 9"),
    "a zstd bomb after a valid frame": (segment(payload=CHANGES + BOMB), "zstd"),
    "a payload that is too short": (segment(payload=packed(bytes(8))), "unpack to 9"),
    "a change beyond the end": (
        segment(payload=packed(bytes([50, 50, 50]) + bytes([2, 2, 2, 0, 0, 0]))),
        "word 152 of 100",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_delta_is_refused_and_leaves_no_file(tmp_path: Path, case: str) -> None:
    data, words = MALFORMED[case]
    whole = data if data[:7] == MAGIC[:7] or not data else HEADER.pack(MAGIC, 200, 200) + data
    (tmp_path / "base").write_bytes(bytes(200))
    (tmp_path / "delta").write_bytes(whole)
    with pytest.raises(BadDelta, match=words):
        apply_delta(base=tmp_path / "base", delta=tmp_path / "delta", target=tmp_path / "new", size=200)
    assert not (tmp_path / "new").exists()


def test_the_segment_that_the_malformed_cases_alter_is_valid(tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(bytes(200))
    (tmp_path / "delta").write_bytes(HEADER.pack(MAGIC, 200, 200) + GOOD)
    apply_delta(base=tmp_path / "base", delta=tmp_path / "delta", target=tmp_path / "new", size=200)
    assert (tmp_path / "new").read_bytes() == b"\1\0" * 3 + bytes(194)


@given(data=st.data())
@IN_ONE_FOLDER
def test_a_corrupted_delta_gives_other_bytes_or_a_bad_delta_error(tmp_path: Path, data: st.DataObject) -> None:
    before = bf16(600, seed=1)
    after = before.copy()
    after[::17] += 1
    target = safetensors({"w": ("BF16", after.tobytes())}, metadata="1")
    round_trip(tmp_path, safetensors({"w": ("BF16", before.tobytes())}), target)
    mangled = bytearray((tmp_path / "delta").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        mangled[data.draw(st.integers(0, len(mangled) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "delta").write_bytes(mangled[: data.draw(st.integers(0, len(mangled)))])
    (tmp_path / "again").unlink()
    try:
        told = apply_delta(
            base=tmp_path / "base", delta=tmp_path / "delta", target=tmp_path / "again", size=len(target)
        )
    except BadDelta:
        (tmp_path / "again").write_bytes(b"")
    else:
        made = (tmp_path / "again").read_bytes()
        assert len(made) == len(target)
        assert told == hashlib.sha256(made).hexdigest()


@given(st.binary(min_size=SEGMENT.size, max_size=SEGMENT.size), st.integers(0, 2**40), st.integers(0, 2**40))
def test_any_24_bytes_are_refused_or_give_a_segment_of_bounded_size(data: bytes, base_size: int, room: int) -> None:
    try:
        read = Segment.unpack(data, base_size=base_size, room=room)
    except BadDelta:
        return
    assert read.unpacked <= 8 * MOST_LENGTH
    assert read.length <= min(MOST_LENGTH, room)
    assert read.pack() == data


MEASURED = """
import resource, sys
from pathlib import Path
from shardcast.delta import apply_delta, build_delta
folder = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
build_delta(base=folder / "a", target=folder / "b", delta=folder / "d")
apply_delta(base=folder / "a", delta=folder / "d", target=folder / "c", size=(folder / "b").stat().st_size)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_file_size(tmp_path: Path) -> None:
    words = bf16(1024 * 1024, seed=1)
    with (tmp_path / "a").open("wb") as a, (tmp_path / "b").open("wb") as b:
        for _ in range(24):
            a.write(words.tobytes())
            b.write((words + (words & 1)).tobytes())  # half of the values change, which needs the most memory
    ran = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(ran.stdout) * 1024 < 40 * 2**20, f"48 MiB of file, {int(ran.stdout) // 1024} MiB of memory"
