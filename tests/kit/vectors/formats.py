"""Cases of seeds, sampling, proofs, audits, manifests and deltas."""

from __future__ import annotations

import hashlib
import json
import struct

import blake3

from ledger.client.audits import commitment_of
from protocol.checkpoints import VersionFile, version_digest
from protocol.identifiers import ZERO_DIGEST, Digest, address, digest, run_id
from protocol.identity.keys import Key
from shardcast.manifest.records import (
    Extension,
    FileEnd,
    FileEntry,
    Opening,
    Shard,
    canonical_json,
    sign_extension,
)
from tests.kit.vectors.checks import check_proof
from tests.kit.vectors.sample_values import (
    CHAIN,
    LEASE,
    OTHER,
    RUN,
    SEED,
    SERVICE,
    VERSION,
    Cases,
    Json,
    bytes_of,
    hex_of,
)


def seed_cases() -> Cases:
    good = {
        "chain_id": CHAIN,
        "pool_id": 5,
        "run_id": run_id("vectors"),
        "step": 7,
        "node": address("0x" + "a1" * 20),
        "index": 3,
        "digest": digest(b"\xb2" * 32),
        "beacon": digest(b"\xc3" * 32),
        "salt": digest(b"\xe5" * 32),
    }
    return [good], {
        "step of 65 bits": good | {"step": 2**64},
        "index of 33 bits": good | {"index": 2**32},
        "negative chain id": good | {"chain_id": -1},
    }


def prompt_cases() -> Cases:
    good = {"seed": hex_of(SEED), "eligible": 5, "groups": 12}
    return [good, good | {"eligible": 100_000}], {
        "no eligible prompts": good | {"eligible": 0},
        "seed of 31 bytes": good | {"seed": hex_of(SEED[1:])},
    }


def target_cases() -> Cases:
    good = {"seed": hex_of(SEED), "targets": [1, 3, 5, 7], "groups": 8}
    return [good], {"no targets": good | {"targets": []}, "no groups": good | {"groups": 0}}


def noise_cases() -> Cases:
    places = [(0, 0, 0), (0, 0, 1), (0, 0, 4), (0, 1, 0), (1, 0, 0), (4095, 1023, 151_935)]
    accepted = [
        {"seed": hex_of(SEED), "sample": sample, "position": position, "token": token}
        for sample, position, token in places
    ]
    return accepted, {
        "seed of 31 bytes": accepted[0] | {"seed": hex_of(SEED[1:])},
        "sample of 33 bits": accepted[0] | {"sample": 2**32},
    }


def draw_cases() -> Cases:
    good = {
        "seed": hex_of(SEED),
        "sample": 0,
        "position": 0,
        "logits": [0.0, 0.5, 1.0, -1.0, 2.0, 0.25, -0.5, 1.5],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
    }
    accepted = [good | {"position": position} for position in range(4)]
    accepted += [good | {"top_k": 1}, good | {"top_k": 3, "position": 2}, good | {"top_p": 0.5, "temperature": 2.0}]
    return accepted, {
        "temperature 0": good | {"temperature": 0.0},
        "top-p that keeps no token": good | {"top_p": 0.0},
    }


def proof_cases() -> Cases:
    states = [[float((17 * row + 29 * column) % 61 - 30) / 8 for column in range(8)] for row in range(33)]
    proof = bytes_of(check_proof({"states": states})["proof"])
    other = [[value + 1.0 for value in row] for row in states]
    return [{"states": states}], {
        "other states": {"states": other, "proof": hex_of(proof)},
        "length": {"states": states, "proof": hex_of(proof[:-1])},
        "modulus": {"states": states, "proof": hex_of(b"\xff\xff" + proof[2:])},
        "coefficient": {"states": states, "proof": hex_of(proof[:2] + b"\xff\xff" + proof[4:])},
        "padding": {"states": states, "proof": hex_of(proof[:-1] + b"\x01")},
        "missing": {"states": states, "proof": hex_of(proof[:258])},
        "surplus": {"states": states, "proof": hex_of(proof + proof[:258])},
    }


def audit_cases() -> Cases:
    secret = b"\x5a" * 32
    commitment = commitment_of(pool_id=7, validator=OTHER.address, epoch=4, secret=secret)
    good = {
        "pool_id": 7,
        "validator": OTHER.address,
        "epoch": 4,
        "secret": hex_of(secret),
        "commitment": commitment,
        "work_key": LEASE.key.hash,
        "block_hash": digest(b"\xd4" * 32),
        "share_bps": 700,
        "rows": 100,
    }
    return [good, good | {"share_bps": 10_000, "rows": 3}], {
        "another secret than the committed one": good | {"secret": hex_of(b"\x5b" * 32)},
        "another epoch": good | {"epoch": 5},
        "no share": good | {"share_bps": 0},
    }


def manifest_cases() -> Cases:
    content = b'{"model_type": "tiny"}'
    sha256 = hashlib.sha256(content).hexdigest()
    sealed = version_digest([VersionFile("config.json", len(content), sha256)])
    block = blake3.blake3(content).hexdigest()
    first = Extension(
        run=RUN,
        version=2,
        attempt=1,
        sequence=0,
        previous=ZERO_DIGEST,
        opening=Opening(),
        files=(FileEntry(path="config.json", expected=len(content)),),
        shards=(Shard(file=0, offset=0, size=len(content), blocks=block),),
    )

    head = first.digest_of_bytes()

    def last(previous: Digest = head, digest: Digest = sealed, sequence: int = 1) -> Extension:
        return Extension(
            run=RUN,
            version=2,
            attempt=1,
            sequence=sequence,
            previous=previous,
            ended=(FileEnd(file=0, size=len(content), sha256=sha256),),
            digest=digest,
        )

    def line(extension: Extension, key: Key = OTHER) -> str:
        return sign_extension(extension, key).decode()

    def of(*lines: str) -> Json:
        return {"run": RUN, "version": 2, "attempt": 1, "publisher": OTHER.address, "lines": lines and list(lines)}

    spaced = json.dumps(json.loads(line(first)), sort_keys=True) + "\n"
    short = json.loads(line(first))
    del short["extension"]["ended"]
    return [of(line(first), line(last()))], {
        "no seal": of(line(first)),
        "signed by another key": of(line(first, SERVICE)),
        "spaces": of(spaced),
        "an empty field is missing": of(canonical_json(short).decode() + "\n"),
        "another previous hash": of(line(first), line(last(previous=ZERO_DIGEST))),
        "a number is skipped": of(line(first), line(last(sequence=2))),
        "another digest than that of the files": of(line(first), line(last(digest=VERSION))),
        "another run": of(line(first)) | {"run": run_id("another")},
        "another version": of(line(first)) | {"version": 3},
    }


def delta_cases() -> Cases:
    base = struct.pack("<8H", 10, 20, 30, 40, 50, 60, 70, 80)
    same = _segment(0, 2, 4, offset=0)
    sparse = _segment(1, 2, 8, offset=4, planes=1, changed=2, unpacked=bytes([1, 1]) + bytes([2, 1, 0, 0]))
    dense = _segment(2, 2, 4, offset=12, unpacked=bytes([4, 3, 0, 0]))
    literal = _segment(3, 1, 3, unpacked=b"end")

    def of(*segments: bytes, header: bytes = b"MUSTDLT1", sizes: tuple[int, int] = (16, 19), size: int = 19) -> Json:
        delta = header + struct.pack("<QQ", *sizes) + b"".join(segments)
        return {"base": hex_of(base), "delta": hex_of(delta), "target_size": size}

    whole = (same, sparse, dense, literal)
    reserved = same[:3] + b"\x01" + same[4:]
    outside = _segment(0, 2, 4, offset=14)
    far = _segment(1, 2, 8, offset=4, planes=1, changed=1, unpacked=bytes([4, 2, 0]))
    return [of(*whole), of(sizes=(16, 0), size=0)], {
        "unknown magic": of(*whole, header=b"MUSTDLT2"),
        "a base of another size": of(*whole, sizes=(15, 19)),
        "a target of another size": of(*whole, sizes=(16, 18)),
        "bytes after the target's end": of(*whole, b"\0"),
        "the delta ends early": of(*whole[:3]),
        "reserved byte": of(reserved, *whole[1:]),
        "bytes beyond the base": of(outside, *whole[1:]),
        "a change beyond the segment": of(same, far, *whole[2:]),
        "a payload that is too short": of(*whole[:3], _segment(3, 1, 3, unpacked=b"en")),
    }


def _segment(
    mode: int, word: int, length: int, *, offset: int = 0, planes: int = 0, changed: int = 0, unpacked: bytes = b""
) -> bytes:
    frame = b""
    if unpacked:  # RFC 8878: magic, single segment with a size of one byte, one raw block that is the last one
        frame = b"\x28\xb5\x2f\xfd\x20" + bytes([len(unpacked)]) + (len(unpacked) << 3 | 1).to_bytes(3, "little")
        frame += unpacked
    return struct.pack("<BBBBIIIQ", mode, word, planes, 0, length, changed, len(frame), offset) + frame
