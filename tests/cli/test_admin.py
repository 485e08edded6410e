"""`muster admin backup`, `restore` and `check`: formats, refusals, kills, full disks and bad files."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis as sync_redis

import cli.admin.encryption
import cli.admin.targets
from cli.admin.archive import ABOUT, PARTS, About, ArchiveReader, ArchiveWriter, BadBackup, ServiceAbout, ServiceName
from cli.admin.encryption import CHUNK, DecryptingSource, EncryptingSink
from cli.admin.records import RedisPlace, copied, decoded, encoded
from cli.admin.verify import verify
from ledger.artifacts import Contract
from ledger.deployment import Deployment
from orchestrator.domain.keys import SCHEMA, pool_keys
from protocol.identity.keys import Key
from protocol.redis.connection import connect_redis
from protocol.redis.schema import RESTORING, RestoreUnfinished, ensure_schema
from protocol.redis.snapshot import RECORDS_AT_ONCE, Record
from protocol.runtime.files import NewerFormat
from tests.kit.devnet import Said, run_muster

POOL = 7
KEYS = pool_keys(POOL)
LEDGER = Key.generate().address
CONTENTS = [b"file" * 30_000, b"file" * 60_000]
OBJECTS = [
    f"{'audits/' * audit}{Key.generate().address}/{sha[:2]}/{sha}"
    for audit, sha in enumerate(hashlib.sha256(each).hexdigest() for each in CONTENTS)
]
SEALING = b"c2VhbGluZyBrZXkgb2YgdGhlIHRlc3QsIDMyIGJ5dGVzLg==\n"


@dataclass(frozen=True)
class Place:
    """A machine with an orchestrator: its settings, its folders and its Redis."""

    folder: Path
    url: str
    redis: Any
    listening: list[Any] = field(default_factory=list)

    def settings(self, *, pool: int = POOL, ledger: str = LEDGER, chain: int = 1337, more: str = "") -> Path:
        contracts = dict.fromkeys(Contract, ledger)
        Deployment(chain_id=chain, block=1, contracts=contracts).save(self.folder / "deployment.json")  # type: ignore[arg-type]
        path = self.folder / "muster.toml"
        path.write_text(
            f'[orchestrator]\npublic_url = "https://pool.example"\npool_id = {pool}\ndeployment = "deployment.json"\n'
            f'redis_url = "{self.url}"\nsecrets_key_file = "sealing.key"\nstorage_directory = "objects"\n{more}'
        )
        return path

    def muster(self, *words: object) -> Said:
        return run_muster("--config", str(self.folder / "muster.toml"), "admin", *map(str, words))

    def values(self) -> dict[bytes, Any]:
        """Returns every key with its value and whether it expires."""
        return {
            name: (self.redis.dump(name)[:-8], self.redis.pttl(name) > 0) for name in self.redis.keys(KEYS.prefix + "*")
        }

    def files(self) -> dict[str, bytes]:
        found = [self.folder / "sealing.key", *sorted((self.folder / "objects").rglob("*"))]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found if path.is_file()}

    def lose(self) -> None:
        self.redis.flushall()
        self.redis.set("muster:{pool-8}:a", "of another pool")
        (self.folder / "sealing.key").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "objects", ignore_errors=True)

    def listen(self) -> None:
        """Listens as a gateway does that has no leader lease."""
        subscription = self.redis.pubsub()
        subscription.subscribe(KEYS.of("doorbell"))
        subscription.get_message(timeout=5)
        self.listening.append(subscription)

    def backup(self, *words: object, name: str = "b.tar") -> Path:
        said = self.muster("backup", self.folder / name, *words)
        assert said.code == 0, said.err
        return self.folder / name


@pytest.fixture(autouse=True)
def _quick_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.admin.encryption, "_COST", 1 << 4)


@pytest.fixture
def place(tmp_path: Path, redis_url: str) -> Iterator[Place]:
    with sync_redis.from_url(redis_url) as redis:
        found = Place(tmp_path, redis_url, redis)
        found.settings()
        (tmp_path / "sealing.key").write_bytes(SEALING)
        for name, content in zip(OBJECTS, CONTENTS, strict=True):
            path = tmp_path / "objects" / "objects" / str(POOL) / name
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
        (path.parent / "no object").write_bytes(b"")
        (path.parent / (path.parent.name + "00" * 31)).symlink_to("/etc/passwd")
        (tmp_path / "objects" / "url.secret").write_bytes(b"u" * 32)
        redis.set(KEYS.of("schema-version"), SCHEMA)
        redis.set(KEYS.of("nonce", "1"), 1, px=3_600_000)
        redis.hset(KEYS.of("task", "1"), mapping={"state": "running", "secret": b"\xff\x00 sealed"})
        redis.zadd(KEYS.of("assignments"), {f"{each:05d}": 0 for each in range(3000)})
        redis.xadd(KEYS.of("events"), {"kind": "task.created"})
        for each in range(RECORDS_AT_ONCE * 3):
            redis.set(KEYS.of("node", str(each)), "x" * 1000)
        redis.set(KEYS.of("lease", "trainer"), "of a trainer", px=3_600_000)
        redis.set("muster:{pool-8}:a", "of another pool")
        yield found


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_backup_restores_everything_and_contains_secrets_only_encrypted(place: Place, encrypted: bool) -> None:
    passphrase = place.folder / "passphrase"
    passphrase.write_text("correct horse\n")
    secret = ("--passphrase-file", passphrase) if encrypted else ()
    before, files = place.values(), place.files()
    del before[KEYS.of("lease", "trainer").encode()]  # of a running process
    files = {name: content for name, content in files.items() if "no object" not in name and "00" not in name[-2:]}
    (place.folder / "kept").mkdir()
    said = place.muster("backup", place.folder / "kept", "--json", *secret)
    assert said.code == 0, said.err
    told = json.loads(said.out)
    file = Path(told["file"])
    assert file.parent == place.folder / "kept"
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    assert file.stat().st_mode & 0o777 == 0o600
    assert told["left_out"] == ["gateway", "validator", "trainer"]
    assert {each["name"]: each["files"] for each in told["parts"]} == {
        "orchestrator-redis": 1,
        "orchestrator-secrets": 2,
        "orchestrator-objects": 2,
    }
    assert (SEALING in file.read_bytes()) is not encrypted
    if not encrypted:
        with tarfile.open(file) as archive:  # other programs can read it, too
            assert archive.getnames()[:2] == [ABOUT, "orchestrator-redis/00000001"]
    checked = place.muster("check", file, "--json", *secret)
    assert (checked.code, json.loads(checked.out)["parts"]) == (0, told["parts"])
    assert "exists already" in place.muster("backup", file, *secret).err

    place.lose()
    done = place.muster("restore", file, *secret)
    assert done.code == 0, done.err
    assert place.values() == before
    assert place.files() == files
    assert place.redis.get("muster:{pool-8}:a") == b"of another pool"
    for each in (said, checked, done):
        assert not any(word in each.out + each.err for word in ("correct horse", "sealed", place.url))

    assert "add --replace" in place.muster("restore", file, *secret).err
    place.redis.set(KEYS.of("newer"), 1)
    assert place.muster("restore", file, "--replace", *secret).code == 0
    assert place.values() == before


def test_services_that_share_a_redis_are_restored_together_or_alone(place: Place) -> None:
    common = f'pool_id = {POOL}\ndeployment = "deployment.json"\nredis_url = "{place.url}"\n'
    place.settings(
        more=f'[gateway]\npublic_url = "https://gateway.example"\nrun = "main"\n{common}'
        f'[validator]\norchestrator = "https://pool.example"\n{common}[trainer]\nsteps = 3\n'
    )
    names = {each: f"muster:{{{each}-{POOL}}}:a" for each in ("pool", "gateway", "validator")}
    for each, name in names.items():
        place.redis.set(name, each)
    file = place.backup()
    place.lose()
    assert place.muster("restore", file, "--service", "gateway").code == 0
    assert [place.redis.exists(name) for name in names.values()] == [0, 1, 0]
    assert place.muster("restore", file).code == 1  # the gateway has data
    assert place.muster("restore", file, "--replace").code == 0
    assert [place.redis.get(name) for name in names.values()] == [b"pool", b"gateway", b"validator"]
    assert not place.redis.keys(f"*{RESTORING}")


def test_a_copy_under_writes_has_every_key_of_one_moment(place: Place) -> None:
    """Scripts change three keys together; the number of keys that changed meanwhile needs several rounds."""
    script = place.redis.register_script(
        "local a = redis.call('INCR', KEYS[1] .. 'a') redis.call('SET', KEYS[1] .. 'b' .. (a % 1000), a) "
        "redis.call('SET', KEYS[1] .. 'c', a) redis.call('DEL', KEYS[1] .. 'b' .. ((a + 500) % 1000))"
    )
    script(keys=[KEYS.prefix])
    stop, started = threading.Event(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            script(keys=[KEYS.prefix])
            started.set()

    async def copy() -> list[bytes]:
        return [each async for each in copied(RedisPlace(place.url, KEYS, SCHEMA))]

    writing = threading.Thread(target=write)
    writing.start()
    try:
        started.wait()
        found = {record.key: record.value for data in asyncio.run(copy()) for record in decoded(data)}
    finally:
        stop.set()
        writing.join()
    place.lose()
    for name, value in found.items():
        if value:
            place.redis.restore(KEYS.prefix.encode() + name, 0, value, replace=True)
    last = int(place.redis.get(KEYS.of("a")))
    numbers = sorted(int(place.redis.get(name)) for name in place.redis.keys(KEYS.prefix + "b*"))
    assert int(place.redis.get(KEYS.of("c"))) == last
    assert numbers == list(range(max(1, last - 499), last + 1))
    assert place.redis.zcard(KEYS.of("assignments")) == 3000


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (lambda place: place.settings(pool=8), (), "the backup is of pool 7 of the ledger"),
        (lambda place: place.settings(chain=1), (), "this configuration is of pool 7"),
        (lambda place: place.settings(ledger=Key.generate().address), (), "of the same pool"),
        (
            lambda place: place.settings(more='storage_bucket = "b"\n'),
            (),
            "`storage_bucket` of the orchestrator was None",
        ),
        (lambda _: None, ("--service", "gateway"), "gateway"),
        (
            lambda place: place.redis.set(KEYS.of("lease", "scheduler"), 1),
            ("--replace",),
            "the orchestrator is running",
        ),
        (lambda place: place.listen(), ("--replace",), "the orchestrator is running"),
        (lambda place: place.redis.set(KEYS.of("a"), 1), (), "has data in this Redis"),
        (lambda place: (place.folder / "sealing.key").write_bytes(b"another"), (), "sealing.key exists"),
        (lambda place: (place.folder / "b.tar").unlink(), (), "can't be read: No such file"),
        (lambda place: (place.folder / "b.tar").write_bytes(b"x" * 2000), (), "this is no backup"),
        (lambda _: None, ("--passphrase-file", "deployment.json"), "is not encrypted"),
    ],
    ids=[
        "pool",
        "chain",
        "ledger",
        "bucket",
        "service",
        "running",
        "listening",
        "keys",
        "key file",
        "missing",
        "text",
        "passphrase",
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(
    place: Place, monkeypatch: pytest.MonkeyPatch, change: Callable[[Place], object], words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(place.folder)
    file = place.backup()
    place.lose()
    change(place)
    before, files = place.values(), place.files() if (place.folder / "sealing.key").exists() else None
    refused = place.muster("restore", file, *words)
    assert refused.code == 1
    assert said in refused.err
    assert place.values() == before
    assert files is None or place.files() == files
    assert not (place.folder / "objects" / "objects").exists()


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({"schema_version": SCHEMA + 1, "redis_version": "7.0.1"}, f"schema version {SCHEMA + 1}"),
        ({"schema_version": SCHEMA, "redis_version": "99.1.0"}, "which can't read it"),
    ],
)
def test_data_of_a_newer_release_or_redis_are_refused(place: Place, of: dict[str, Any], said: str) -> None:
    (place.folder / "b.tar").write_bytes(
        archive_of(described=about(services=(ServiceAbout(name=ServiceName.ORCHESTRATOR, **of),)))
    )
    before = place.values()
    assert said in place.muster("restore", place.folder / "b.tar", "--replace").err
    assert place.values() == before


def test_values_that_redis_cannot_read_are_refused_before_data_are_replaced(place: Place) -> None:
    file = place.folder / "unreadable.tar"
    file.write_bytes(GOOD)
    before, files = place.values(), place.files()
    refused = place.muster("restore", file, "--replace")
    assert (refused.code, "Redis can't read a value of the backup" in refused.err) == (1, True), refused.err
    assert (place.values(), place.files()) == (before, files)


def test_damaged_objects_are_replaced_and_links_are_not_followed(place: Place) -> None:
    file = place.backup()
    damaged = place.folder / "objects" / "objects" / str(POOL) / OBJECTS[0]
    damaged.write_bytes(damaged.read_bytes()[::-1])
    assert place.muster("restore", file, "--replace").code == 0
    assert damaged.read_bytes() == CONTENTS[0]
    shutil.rmtree(damaged.parent)
    (place.folder / "outside").mkdir()
    damaged.parent.symlink_to(place.folder / "outside")
    refused = place.muster("restore", file, "--replace")
    assert (refused.code, f"{damaged.parent} is a link" in refused.err) == (1, True), refused.err
    assert not list((place.folder / "outside").iterdir())


def test_an_empty_redis_is_not_backed_up(place: Place) -> None:
    place.redis.flushdb()
    refused = place.muster("backup", place.folder / "b.tar")
    assert (refused.code, "Redis has no data of the orchestrator" in refused.err) == (1, True), refused.err
    assert not (place.folder / "b.tar").exists()


# Kills and full disks


def forked(work: Callable[[], object]) -> int:
    """Runs work in a fork of this process; returns its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = int(work() is None)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(kind: type, method: str, number: int) -> None:
    """Makes this process kill itself at a call of a method."""
    real, calls = getattr(kind, method), iter(range(10**9))

    def counted(*arguments: Any, **more: Any) -> Any:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)

    setattr(kind, method, counted)


def test_a_killed_backup_leaves_no_file_of_its_name_and_can_be_repeated(place: Place) -> None:
    def work() -> object:
        killed_at(ArchiveWriter, "add", 3)
        return place.backup()

    assert forked(work) == -signal.SIGKILL
    assert not (place.folder / "b.tar").exists()
    assert (place.folder / ".b.tar.part").stat().st_mode & 0o777 == 0o600
    place.backup()
    assert not (place.folder / ".b.tar.part").exists()
    assert place.muster("check", place.folder / "b.tar").code == 0


@pytest.mark.parametrize("number", [0, 1, 3])
def test_services_do_not_start_after_a_killed_restore_which_can_be_repeated(place: Place, number: int) -> None:
    before, file = place.values(), place.backup()
    del before[KEYS.of("lease", "trainer").encode()]
    place.lose()
    place.redis.set(KEYS.of("of-before"), 1)

    def work() -> object:
        killed_at(cli.admin.targets._OrchestratorTarget, "write", number)
        return place.muster("restore", file, "--replace")

    async def start() -> None:
        redis = connect_redis(place.url)
        try:
            await ensure_schema(redis, KEYS, service="the orchestrator", version=SCHEMA)
        finally:
            await redis.aclose()

    assert forked(work) == -signal.SIGKILL
    assert place.redis.exists(KEYS.of(RESTORING))
    with pytest.raises(RestoreUnfinished, match="not restored completely"):
        asyncio.run(start())
    again = place.muster("restore", file)
    assert again.code == 0, again.err
    assert place.values() == before
    asyncio.run(start())


def test_a_full_disk_is_reported_and_leaves_nothing_half_done(place: Place) -> None:
    files = place.files()

    def limited(*words: object) -> Callable[[], None]:
        def work() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
            said = place.muster(*words)
            assert said.code == 1
            assert "File too large" in said.err

        return work

    assert forked(limited("backup", place.folder / "b.tar")) == 1  # 1 is the exit status of work without a failure
    assert not [path for path in place.folder.iterdir() if "b.tar" in path.name]
    file = place.backup()
    place.lose()
    assert forked(limited("restore", file)) == 1
    assert place.redis.exists(KEYS.of(RESTORING))
    assert place.muster("restore", file).code == 0
    assert place.files().items() <= files.items()


# Bad files

ADDRESS = Key.generate().address
SHA = hashlib.sha256(b"x" * 700).hexdigest()


def about(**changes: Any) -> About:
    values: dict[str, Any] = {
        "format": 1,
        "pool_id": POOL,
        "chain_id": 1337,
        "ledger": LEDGER,
        "release": "0.1.0",
        "created": datetime(2026, 11, 28, tzinfo=UTC),
        "services": (ServiceAbout(name=ServiceName.ORCHESTRATOR, schema_version=2, redis_version="7.0.15"),),
    }
    return About(**values | changes)


def archive_of(*members: tuple[str, bytes], checked: bool = False, described: About | None = None) -> bytes:
    """Returns an archive; members that a writer refuses are written nevertheless."""
    sink = io.BytesIO()
    writer = ArchiveWriter(sink.write, described or about())
    for name, content in members:
        if checked:
            writer.add(name, content)
        else:
            writer._write(name, [content], len(content))
    writer.finish()
    return sink.getvalue()


def foreign(kind: bytes, name: str = "orchestrator-secrets/sealing.key", **more: Any) -> bytes:
    """Returns an archive whose second member is of another kind."""
    good = archive_of()
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in more.items():
        setattr(info, key, value)
    first = 512 + 512 * -(-int(good[124:135], 8) // 512)
    return good[:first] + info.tobuf(tarfile.GNU_FORMAT) + good[first:]


RECORDS = encoded([Record(b"a", 0, b"no value that Redis dumped"), Record(b"b", 5, b"")])
GOOD = archive_of(
    ("orchestrator-redis/00000001", RECORDS),
    ("orchestrator-secrets/sealing.key", SEALING),
    (f"orchestrator-objects/{ADDRESS}/{SHA[:2]}/{SHA}", b"x" * 700),
    checked=True,
)
BAD: dict[str, bytes] = {
    "empty": b"",
    "traversal": archive_of(("orchestrator-objects/../../etc/passwd", b"")),
    "absolute": archive_of(("/etc/passwd", b"")),
    "backslash": archive_of(("orchestrator-objects/a\\b", b"")),
    "hidden": archive_of(("orchestrator-secrets/.ssh", b"")),
    "other name": archive_of(("orchestrator-secrets/authorized_keys", b"")),
    "no object": archive_of((f"orchestrator-objects/{ADDRESS}/{SHA[2:4]}/{SHA}", b"x" * 700)),
    "other content": archive_of(
        ("orchestrator-redis/1", RECORDS), (f"orchestrator-objects/{ADDRESS}/{SHA[:2]}/{SHA}", b"y" * 700)
    ),
    "no Redis": archive_of(("orchestrator-secrets/sealing.key", SEALING)),
    "short value": archive_of(("orchestrator-redis/1", encoded([Record(b"a", 0, b"123456789")]))),
    "two versions": archive_of(
        ("orchestrator-redis/1", encoded([Record(b"a", 0, b"0123456789"), Record(b"b", 0, b"\xff" * 10)]))
    ),
    "of no service": archive_of(("trainer-state/journal.jsonl", b"")),
    "no state": archive_of(
        ("trainer-state/trainer.lock", b""),
        described=about(services=(ServiceAbout(name=ServiceName.TRAINER, run="main"),)),
    ),
    "long key": archive_of(("orchestrator-secrets/sealing.key", b"k" * 5000)),
    "duplicate": archive_of(*[("orchestrator-secrets/sealing.key", SEALING)] * 2),
    "part again": archive_of(
        ("orchestrator-secrets/sealing.key", b""),
        ("orchestrator-redis/1", b""),
        ("orchestrator-secrets/url.secret", b""),
    ),
    "symlink": foreign(tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard link": foreign(tarfile.LNKTYPE, linkname="backup.json"),
    "device": foreign(tarfile.CHRTYPE),
    "folder": foreign(tarfile.DIRTYPE),
    "long name": foreign(tarfile.GNUTYPE_LONGNAME, size=1 << 40),
    "extension": foreign(tarfile.XHDTYPE, size=1 << 40),
    "huge": foreign(tarfile.REGTYPE, size=1 << 50),
    "negative": foreign(tarfile.REGTYPE, size=-5),
    "records cut": archive_of(("orchestrator-redis/1", RECORDS[:-3])),
    "records of a lease": archive_of(("orchestrator-redis/1", encoded([Record(b"lease:scheduler", 0, b"1")]))),
    "goes on": GOOD + b"x",
    "checksums": GOOD.replace(b'"bytes": ', b'"bytes":9'),
    "part left out": GOOD.replace(b'orchestrator-objects"', b'orchestrator-other",\n'),
}


def test_a_bad_file_is_refused_before_anything_is_written(place: Place) -> None:
    place.lose()
    file = place.folder / "bad.tar"
    before = sorted(place.folder.rglob("*"))
    for data in BAD.values():
        file.write_bytes(data)
        with file.open("rb") as source, pytest.raises(BadBackup):
            verify(source, None)
    for name in ("traversal", "symlink", "duplicate", "checksums"):
        file.write_bytes(BAD[name])
        for words in (["check", file], ["restore", file, "--replace"]):
            said = place.muster(*words)
            assert (said.code, "bug" in said.err, "another copy" in said.err) == (1, False, True), said.err
    file.unlink()
    assert sorted(place.folder.rglob("*")) == before
    assert place.values() == {}


def test_every_changed_or_missing_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "b"
    sealed = io.BytesIO()
    sink = EncryptingSink(sealed.write, b"p")
    sink.write(GOOD + bytes(CHUNK))
    sink.finish()

    def found(data: bytes) -> bool:
        path.write_bytes(data)
        with path.open("rb") as file:
            try:
                verify(file, None)
            except (BadBackup, NewerFormat):
                return True
        return False

    assert not found(GOOD)
    first = 512 + 512 * -(-int(GOOD[124:135], 8) // 512)
    silent = [at for at in range(first, len(GOOD), 23) if not found(GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :])]
    assert silent == []
    assert all(found(GOOD[:at]) for at in range(0, len(GOOD), 97))
    content = sealed.getvalue()
    size = CHUNK + 16
    chunks = [content[at : at + size] for at in range(64, len(content), size)]
    for other in (
        chunks[:1],
        chunks[1:],
        chunks[::-1],
        [chunks[0], chunks[0], chunks[1]],
        [chunks[0][:-1] + b"x", chunks[1]],
    ):
        with pytest.raises(BadBackup):
            DecryptingSource(io.BytesIO(content[32:64] + b"".join(other)).read, b"p").read(len(content))
    with pytest.raises(BadBackup, match="passphrase is wrong"):
        DecryptingSource(io.BytesIO(content[32:]).read, b"q")
    with pytest.raises(NewerFormat):
        ArchiveReader(io.BytesIO(GOOD.replace(b'"format": 1', b'"format": 2')).read, length=1 << 20)
    assert PARTS.encode() in GOOD


def test_a_large_file_and_a_file_that_changes_its_size(tmp_path: Path) -> None:
    """The header of a file above 8 GiB, which needs no extension, and a file that grows while it is read."""
    sink = io.BytesIO()
    writer = ArchiveWriter(sink.write, about(services=(ServiceAbout(name=ServiceName.TRAINER, run="main"),)))
    with pytest.raises(Exception, match="changed its size"):
        writer._write("trainer-state/state.safetensors", iter([b"x"]), 20 << 30)
    data = sink.getvalue()
    member = next(ArchiveReader(io.BytesIO(data).read, length=1 << 40).members())
    assert (member.name, member.size) == ("trainer-state/state.safetensors", 20 << 30)
    with pytest.raises(BadBackup, match="claims"):
        next(ArchiveReader(io.BytesIO(data).read, length=len(data)).members())


def test_the_machine_is_checked_before_a_backup(place: Place) -> None:
    said = place.muster("check", "--to", place.folder, "--json")
    assert said.code == 0, said.err
    rows = {row["check"]: row for row in json.loads(said.out)}
    assert rows["redis"]["level"] == "warning"  # the suite's Redis keeps nothing
    assert "appendonly no" in rows["redis"]["found"]
    assert (rows["sealing key"]["level"], rows["room"]["level"]) == ("ok", "ok")
    assert rows["objects"]["bytes"] >= 120_000
    (place.folder / "sealing.key").unlink()
    said = place.muster("check", "--to", place.folder)
    assert (said.code, "can't be read" in said.out) == (1, True)
    assert "can't be read" in place.muster("backup", place.folder / "b.tar").err
    (place.folder / "muster.toml").write_text("")
    assert "no service with state is configured" in place.muster("check").err
