"""Keys are never shown; keystores need the right password; broken ones are reported."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_defunct
from eth_utils.address import to_checksum_address
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Conflict, InvalidInput, MusterError, NotFound, Unauthenticated
from protocol.identity.keys import Key
from protocol.identity.keystores import find_key, read_keystore, write_keystore
from protocol.identity.secp256k1 import personal_hash, recover
from protocol.keccak import checksummed
from protocol.runtime.logs import configure_logs

SECRET = bytes(range(1, 33))
KEY = Key(SECRET)
FAST = 2  # smallest work factor of scrypt: these tests are not about its cost


@given(st.binary(min_size=20, max_size=20))
def test_checksums_are_those_of_eth_utils(raw: bytes) -> None:
    assert checksummed(f"0x{raw.hex()}") == checksummed(f"0x{raw.hex().upper()}") == to_checksum_address(raw)


@pytest.fixture
def keystore(tmp_path: Path) -> Path:
    path = tmp_path / "node.json"
    write_keystore(path, KEY, "right", scrypt_n=FAST)
    return path


def test_address_and_signatures_match_those_of_another_library() -> None:
    theirs = Account.from_key(SECRET)
    assert KEY.address == theirs.address == KEY.account().address
    assert KEY.sign_message(b"hello") == bytes(theirs.sign_message(encode_defunct(b"hello")).signature)


@given(st.binary(max_size=200))
def test_the_signer_is_recovered_from_the_signature(message: bytes) -> None:
    assert recover(personal_hash(message), KEY.sign_message(message)) == KEY.address


def test_a_keys_repr_shows_its_address_and_not_its_secret() -> None:
    shown = f"{KEY!r} {KEY} {[KEY]}"
    assert KEY.address in shown
    assert SECRET.hex() not in shown


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_key_cannot_be_copied(attempt: Any) -> None:
    with pytest.raises(TypeError, match="can't be pickled"):
        attempt(KEY)


@pytest.mark.parametrize("secret", [b"", b"\x00" * 32, b"\xff" * 32, b"\x01" * 31, b"\x01" * 33])
def test_invalid_key_bytes_are_refused(secret: bytes) -> None:
    with pytest.raises(InvalidInput):
        Key(secret)


@pytest.mark.parametrize("text", ["", "0x", "zz" * 32, "ab" * 31, "0x" + "ab" * 33])
def test_invalid_key_text_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Key.from_hex(text)
    assert not text.strip("0x") or text not in str(caught.value)


def test_generated_keys_differ() -> None:
    assert Key.generate() != Key.generate()


def test_a_keystore_opens_with_its_password(keystore: Path) -> None:
    assert read_keystore(keystore, "right") == KEY


def test_a_keystore_is_readable_by_its_owner_only_and_contains_no_plain_secret(keystore: Path) -> None:
    assert stat.S_IMODE(keystore.stat().st_mode) == 0o600
    assert SECRET.hex() not in keystore.read_text()
    assert [path.name for path in keystore.parent.iterdir()] == [keystore.name]


def test_another_library_can_open_our_keystore(keystore: Path) -> None:
    assert bytes(Account.decrypt(keystore.read_text(), "right")) == SECRET


def test_a_keystore_of_another_library_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(Account.encrypt(SECRET, "pass", kdf="pbkdf2", iterations=2)))
    assert read_keystore(path, "pass") == KEY


@pytest.mark.parametrize("password", ["", "wrong", "Right", "right "])
def test_a_wrong_password_is_reported_as_wrong(keystore: Path, password: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        read_keystore(keystore, password)
    assert caught.value.code == "wrong-password"


def test_an_existing_file_is_never_overwritten(keystore: Path) -> None:
    before = keystore.read_bytes()
    with pytest.raises(Conflict):
        write_keystore(keystore, Key.generate(), "other", scrypt_n=FAST)
    assert keystore.read_bytes() == before
    assert len(list(keystore.parent.iterdir())) == 1


def test_an_empty_password_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        write_keystore(tmp_path / "k.json", KEY, "", scrypt_n=FAST)
    assert not list(tmp_path.iterdir())


def changed(**crypto: Any) -> Any:
    def change(content: dict[str, Any]) -> str:
        content["crypto"] = {**content["crypto"], **crypto}
        return json.dumps(content)

    return change


BROKEN: dict[str, Any] = {
    "empty": lambda _: "",
    "not JSON": lambda _: "{'crypto'",
    "a list": lambda _: "[]",
    "deeply nested": lambda _: "[" * 50_000,
    "of version 4": lambda content: json.dumps(content | {"version": 4}),
    "without crypto": lambda content: json.dumps({"version": 3, "address": content["address"]}),
    "cut short": lambda content: json.dumps(content)[:200],
    "too long": lambda content: json.dumps(content) + " " * 70_000,
    "asking for 4 TiB": changed(kdfparams={"n": 2**32, "r": 8, "p": 1, "dklen": 32, "salt": "00"}),
    "asking for 8 GiB": changed(kdfparams={"n": 2**23, "r": 8, "p": 1, "dklen": 32, "salt": "00"}),
    "with text for numbers": changed(kdfparams={"n": "many", "r": 8, "p": 1, "dklen": 32, "salt": "00"}),
    "with an unknown kdf": changed(kdf="rot13"),
    "without a mac": changed(mac=None),
    "with a salt that is no hex": changed(kdfparams={"n": 2, "r": 8, "p": 1, "dklen": 32, "salt": "zz"}),
    "of another address": lambda content: json.dumps(content | {"address": "11" * 20}),
    "with an address that is none": lambda content: json.dumps(content | {"address": "me"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_keystore_is_refused_without_its_secret_in_the_error(keystore: Path, name: str) -> None:
    keystore.write_text(BROKEN[name](json.loads(keystore.read_text())))
    with pytest.raises(InvalidInput) as caught:
        read_keystore(keystore, "right")
    assert SECRET.hex() not in str(caught.value)


def test_a_missing_keystore_is_reported_with_the_command_that_creates_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        read_keystore(tmp_path / "none.json", "x")
    assert "muster keys new" in caught.value.hint


def test_a_directory_is_refused_as_a_keystore(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        read_keystore(tmp_path, "x")


def test_a_keystore_readable_by_others_causes_a_warning(keystore: Path) -> None:
    log = io.StringIO()
    configure_logs(stream=log)
    keystore.chmod(0o644)
    assert read_keystore(keystore, "right") == KEY
    assert "keystore-readable-by-others" in log.getvalue()


def test_a_systemd_credential_causes_no_warning(keystore: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    configure_logs(stream=log)
    keystore.chmod(0o440)  # systemd's access control list for the unit's user appears as this mode
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(keystore.parent))
    assert read_keystore(keystore, "right") == KEY
    assert "keystore-readable-by-others" not in log.getvalue()


def test_the_environment_has_priority_over_the_keystore(keystore: Path) -> None:
    other = Key.generate()
    environment = {"MUSTER_NODE_KEY": "0x" + other.reveal().hex(), "MUSTER_NODE_PASSWORD": "right"}
    assert find_key("node", keystore=keystore, environment=environment) == other
    assert find_key("node", keystore=keystore, environment={"MUSTER_NODE_PASSWORD": "right"}) == KEY


def test_a_password_file_unlocks_the_keystore(keystore: Path, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("right\nsecond line\n")
    assert find_key("node", keystore=keystore, password_file=file, environment={}) == KEY


@pytest.mark.parametrize(
    ("environment", "with_keystore", "code"),
    [
        ({}, False, "no-key"),
        ({"MUSTER_NODE_KEY": "abc"}, True, "bad-key"),
        ({"MUSTER_NODE_PASSWORD": "wrong"}, True, "wrong-password"),
        ({}, True, "no-password"),
    ],
)
def test_a_missing_key_is_reported_with_the_setting_to_use(
    keystore: Path,
    environment: dict[str, str],
    with_keystore: bool,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        with pytest.raises(MusterError) as caught:
            find_key("node", keystore=keystore if with_keystore else None, environment=environment)
    assert caught.value.code == code
    assert caught.value.hint


def test_a_missing_password_file_is_reported_by_name(keystore: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="gone"):
        find_key("node", keystore=keystore, password_file=tmp_path / "gone", environment={})
    with pytest.raises(NotFound) as missing:
        find_key("node", keystore=tmp_path / "fresh.json", password_file=tmp_path / "gone", environment={})
    assert missing.value.hint == "create it: muster keys new fresh"
    assert missing.value.detail.count("fresh.json") == 1
