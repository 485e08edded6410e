"""A contract in 100 bytes for tests of the chain itself, assembled here so that no compiler is needed.

The first byte of the call says what to do with the rest: 1 emits an event (32-byte topic, then data), 2 stores
(32-byte slot, 32-byte value), 3 reverts with the rest as data, 4 returns what is stored at a 32-byte slot,
5 uses up all gas, 6 returns the block's time.
"""

from __future__ import annotations

_OPCODES = {
    "STOP": 0x00, "EQ": 0x14, "SUB": 0x03, "SHR": 0x1C, "CALLDATALOAD": 0x35, "CALLDATASIZE": 0x36,
    "CALLDATACOPY": 0x37, "CODECOPY": 0x39, "TIMESTAMP": 0x42, "MSTORE": 0x52, "SLOAD": 0x54, "SSTORE": 0x55,
    "JUMP": 0x56, "JUMPI": 0x57, "JUMPDEST": 0x5B, "DUP1": 0x80, "LOG1": 0xA1, "RETURN": 0xF3, "REVERT": 0xFD,
}  # fmt: skip

_PROGRAM = """
    0 CALLDATALOAD 248 SHR
    DUP1 1 EQ @emit JUMPI
    DUP1 2 EQ @store JUMPI
    DUP1 3 EQ @revert JUMPI
    DUP1 4 EQ @load JUMPI
    DUP1 5 EQ @burn JUMPI
    DUP1 6 EQ @time JUMPI
    STOP
    :emit 33 CALLDATASIZE SUB 33 0 CALLDATACOPY 1 CALLDATALOAD 33 CALLDATASIZE SUB 0 LOG1 STOP
    :store 33 CALLDATALOAD 1 CALLDATALOAD SSTORE STOP
    :revert 1 CALLDATASIZE SUB 1 0 CALLDATACOPY 1 CALLDATASIZE SUB 0 REVERT
    :load 1 CALLDATALOAD SLOAD 0 MSTORE 32 0 RETURN
    :burn @burn JUMP
    :time TIMESTAMP 0 MSTORE 32 0 RETURN
"""


def assemble(program: str) -> bytes:
    """Turns words into bytecode: numbers are pushed as one byte, `@x` pushes where `:x` stands."""
    words = program.split()
    places: dict[str, int] = {}
    position = 0
    for word in words:
        if word.startswith(":"):
            places[word[1:]] = position
        position += 1 if word.startswith(":") or word in _OPCODES else 2
    code = bytearray()
    for word in words:
        if word.startswith(":"):
            code.append(_OPCODES["JUMPDEST"])
        elif word in _OPCODES:
            code.append(_OPCODES[word])
        else:
            code += bytes([0x60, places[word[1:]] if word.startswith("@") else int(word)])
    return bytes(code)


RUNTIME = assemble(_PROGRAM)
CREATION = assemble(f"{len(RUNTIME)} DUP1 11 0 CODECOPY 0 RETURN") + RUNTIME


def emit(topic: int, data: bytes = b"") -> bytes:
    """Call data that emits an event."""
    return b"\x01" + topic.to_bytes(32, "big") + data


def store(slot: int, value: int) -> bytes:
    """Call data that stores a word."""
    return b"\x02" + slot.to_bytes(32, "big") + value.to_bytes(32, "big")


def revert(data: bytes) -> bytes:
    """Call data that reverts with `data`."""
    return b"\x03" + data


def load(slot: int) -> bytes:
    """Call data that returns a stored word."""
    return b"\x04" + slot.to_bytes(32, "big")


BURN = b"\x05"
TIME = b"\x06"
