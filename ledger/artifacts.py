"""The committed artifacts of the contracts: ABI, bytecode, compiler version and source hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from protocol.errors import Unavailable


class Contract(StrEnum):
    """The contracts of the ledger, in the order in which they are deployed.

    The order is part of the protocol. The address of a contract follows from the deployer's nonce, so each contract can
    get the addresses of contracts that are deployed after it.
    """

    MUSTER = "MusterToken"
    COMPUTE_REGISTRY = "ComputeRegistry"
    STAKE_MANAGER = "StakeManager"
    DOMAIN_REGISTRY = "DomainRegistry"
    COMPUTE_POOLS = "ComputePools"
    CHECKPOINTS = "Checkpoints"
    WORK_LEDGER = "WorkLedger"
    AUDIT_SECRETS = "AuditSecrets"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled contract.

    Attributes:
        contract: The contract.
        abi: Its JSON ABI.
        bytecode: Creation code, without the constructor's arguments.
        deployed_size: Bytes of code on the chain; EIP-170 allows 24,576.
        immutables: Places of the values that the constructor writes into the deployed code: for each immutable variable
            the offsets of its 32-byte words, in bytes.
        compiler: Full version of the compiler.
        openzeppelin: Version of the OpenZeppelin contracts with which the contract was compiled.
        source_hash: `source_hash()` of all Solidity files at the time of compilation.
    """

    contract: Contract
    abi: tuple[Mapping[str, Any], ...]
    bytecode: bytes
    deployed_size: int
    immutables: Mapping[str, tuple[int, ...]]
    compiler: str
    openzeppelin: str
    source_hash: str


CONTRACTS: Final = files("ledger") / "contracts"
ARTIFACTS: Final = files("ledger") / "artifacts"


@cache
def artifact(contract: Contract) -> Artifact:
    """Returns the committed artifact of a contract.

    Raises:
        Unavailable: The artifact is missing or damaged.
    """
    try:
        raw = json.loads((ARTIFACTS / f"{contract.value}.json").read_text(encoding="utf-8"))
        return Artifact(
            contract=contract,
            abi=tuple(raw["abi"]),
            bytecode=bytes.fromhex(raw["bytecode"].removeprefix("0x")),
            deployed_size=raw["deployedSize"],
            immutables={name: tuple(places) for name, places in raw["immutables"].items()},
            compiler=raw["compiler"],
            openzeppelin=raw["openzeppelin"],
            source_hash=raw["sourceHash"],
        )
    except (OSError, KeyError, ValueError) as error:
        raise Unavailable(
            f"the artifact of {contract.value} can't be read: {error}",
            hint="install the package again, or compile with `python -m ledger.build`",
            code="artifact-unreadable",
            retryable=False,
        ) from error


def sources() -> dict[str, str]:
    """Returns our Solidity files: text by path below `ledger/contracts`, sorted by path."""
    root = Path(str(CONTRACTS))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.sol"))}


def source_hash(texts: Mapping[str, str]) -> str:
    """Returns the SHA-256, in hex, over sorted lines `path sha256`, one line per Solidity file."""
    lines = [f"{path} {hashlib.sha256(text.encode()).hexdigest()}\n" for path, text in sorted(texts.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
