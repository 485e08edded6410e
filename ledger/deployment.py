"""Deploys the contracts, and reads, writes and checks deployment files.

The contracts hold each other's addresses as immutables, so that nobody can later replace a contract, such as the
contract that may slash stake. The addresses are computed before the first deployment, from the deployer's address and
nonces.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import rlp
from eth_abi.abi import encode
from eth_abi.exceptions import DecodingError
from eth_typing import HexStr
from eth_utils.crypto import keccak
from web3 import AsyncWeb3

from ledger.artifacts import Artifact, Contract, artifact
from ledger.errors import TransactionReverted
from ledger.rpc.abi_decoding import decode
from ledger.transactions.pending import TransactionCall
from ledger.transactions.sender import TransactionSender
from protocol.errors import InvalidInput, NotFound, Unavailable
from protocol.identifiers import Address, address
from protocol.identity.typed_data import NAME, VERSION, SigningDomain, separator_of
from protocol.runtime.files import write_atomically

_DEADLINE = timedelta(seconds=120)
_MOST_BYTES = 64 * 1024
_HINT = "`muster ledger deploy` writes it; a pool's owner can send you a copy"
MOST_UNBONDING = timedelta(days=90)
"""Longest unbonding period that a deployment may have. It has to outlast the periods in which work can be disputed,
which take days; `muster ledger deploy` sets 14 days. A longer one serves only to keep stake from its owner."""
_UNBONDING = "unbondingPeriod"
_REFERENCES = {
    "token": Contract.MUSTER,
    "registry": Contract.COMPUTE_REGISTRY,
    "stakeManager": Contract.STAKE_MANAGER,
    "domains": Contract.DOMAIN_REGISTRY,
    "pools": Contract.COMPUTE_POOLS,
    "workLedger": Contract.WORK_LEDGER,
}
"""Contracts to which others refer, by the name of the immutable variable that holds the address."""
_DOMAIN_SELECTOR = keccak(text="eip712Domain()")[:4]
_DOMAIN_TYPES = ["bytes1", "string", "string", "uint256", "address", "bytes32", "uint256[]"]


class DeploymentDiffers(Unavailable):
    """The code at the deployment's addresses is missing or of another version."""

    code = "deployment-differs"
    retryable = False
    default_hint = "check that the RPC URL and the deployment file belong to the same chain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Addresses of one set of contracts on one chain."""

    chain_id: int
    block: int
    """The first block that can contain events of the contracts."""
    contracts: Mapping[Contract, Address]
    version: str = VERSION
    """Version of the contracts, and of the EIP-712 domain of all signatures."""

    def __getitem__(self, name: Contract) -> Address:
        return self.contracts[name]

    def save(self, path: Path) -> None:
        """Writes the deployment as JSON, atomically."""
        write_atomically(path, json.dumps(asdict(self), indent=2) + "\n", mode=0o644)

    @classmethod
    def load(cls, path: Path) -> Deployment:
        """Reads a deployment file.

        Raises:
            NotFound: There is no such file.
            InvalidInput: The file is not a deployment, or is for another contract version.
        """
        try:
            with path.open("rb") as file:
                content = json.loads(file.read(_MOST_BYTES))
        except FileNotFoundError as error:
            raise NotFound(f"there is no deployment file {path}", hint=_HINT) from error
        except ValueError as error:
            raise InvalidInput(f"{path} is not a deployment: {error}", hint=_HINT) from error
        return cls.parse(content, origin=str(path))

    @classmethod
    def parse(cls, content: Any, *, origin: str) -> Deployment:  # noqa: ANN401 - JSON of a file or an answer
        """Reads the content of a deployment file.

        Args:
            content: The parsed JSON.
            origin: The file or service that the content comes from, for errors.

        Raises:
            InvalidInput: The content is not a deployment, or is for another contract version.
        """
        try:
            version = str(content.get("version", "1"))
            if version != VERSION:
                raise InvalidInput(
                    f"{origin} has contract version {version[:20]}; this release uses version {VERSION}",
                    hint="ask the pool's owner for the current deployment file, or use the release that wrote this one",
                    code="other-contract-version",
                )
            return cls(
                chain_id=int(content["chain_id"]),
                block=int(content["block"]),
                contracts={name: address(content["contracts"][name]) for name in Contract},
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{origin} is not a deployment: {error}", hint=_HINT) from error
        except KeyError as error:
            raise InvalidInput(f"{origin} is not a deployment: {error} is missing", hint=_HINT) from error


def created_address(deployer: Address, nonce: int) -> Address:
    """Returns the address of the contract that `deployer` creates with `nonce` (yellow paper, section 7)."""
    encoded: bytes = rlp.encode([bytes.fromhex(deployer[2:]), nonce])
    return address("0x" + keccak(encoded)[-20:].hex())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentPlan:
    """What `deploy` sends: the creation of each contract, at an address that follows from the sender's nonces."""

    contracts: Mapping[Contract, Address]
    creations: Mapping[Contract, TransactionCall]
    """Calls with their gas limits."""

    @property
    def gas(self) -> int:
        """Maximum gas of all creations."""
        return sum(call.gas or 0 for call in self.creations.values())


async def plan_deployment(
    web3: AsyncWeb3[Any], sender: TransactionSender, *, governor: Address, unbonding_period: timedelta
) -> DeploymentPlan:
    """Simulates the creation of all contracts on the newest block; sends nothing.

    The arguments are those of `deploy`.

    Raises:
        TransactionReverted: A constructor refuses its arguments.
    """
    first = await web3.eth.get_transaction_count(sender.address, "pending")
    places = {name: created_address(sender.address, first + i) for i, name in enumerate(Contract)}
    arguments: dict[str, object] = {
        "governor": governor,
        f"{_UNBONDING}_": int(unbonding_period.total_seconds()),
        **{f"{variable}_": places[name] for variable, name in _REFERENCES.items()},
    }
    codes = [_creation(artifact(name), arguments) for name in Contract]
    costs = await asyncio.gather(*(sender.estimate(TransactionCall(to=None, data=code)) for code in codes))
    creations = [TransactionCall(to=None, data=code, gas=gas) for code, gas in zip(codes, costs, strict=True)]
    return DeploymentPlan(contracts=places, creations=dict(zip(Contract, creations, strict=True)))


async def deploy(
    web3: AsyncWeb3[Any], sender: TransactionSender, *, governor: Address, unbonding_period: timedelta
) -> Deployment:
    """Deploys all contracts.

    Args:
        web3: The connection.
        sender: Sends and pays for the transactions; the sender must send nothing else meanwhile.
        governor: The account that may mint MUST and create domains.
        unbonding_period: Time for which stake stays slashable after its owner began to unbond it.

    Raises:
        DeploymentDiffers: Another transaction of the sender's key shifted the nonces, so that an address is wrong.
        TransactionReverted: A constructor refuses its arguments.
    """
    block = await web3.eth.block_number + 1
    plan = await plan_deployment(web3, sender, governor=governor, unbonding_period=unbonding_period)
    # With a gas limit, `send` assigns nonces in the order of the calls, and all of them may share a block.
    calls = plan.creations.values()
    receipts = await asyncio.gather(*(sender.send(creation, deadline=_DEADLINE) for creation in calls))
    for name, receipt in zip(plan.creations, receipts, strict=True):
        if receipt.created != plan.contracts[name]:
            raise DeploymentDiffers(
                f"{name} was deployed at {receipt.created} instead of {plan.contracts[name]}",
                hint="deploy again with a key that nothing else uses",
            )
    return Deployment(chain_id=await web3.eth.chain_id, block=block, contracts=dict(plan.contracts))


async def check_deployment(web3: AsyncWeb3[Any], deployment: Deployment) -> None:
    """Checks that there is code at every address, and that the contracts have this release's version.

    Raises:
        DeploymentDiffers: An address has no code, or the contracts are of another version.
    """
    for name, place in deployment.contracts.items():
        if not await web3.eth.get_code(place):
            raise DeploymentDiffers(f"there is no {name} at {place} on chain {deployment.chain_id}")
    found = await _version_at(web3, deployment[Contract.WORK_LEDGER])
    if found != VERSION:
        raise DeploymentDiffers(
            f"the contracts on chain {deployment.chain_id} have version {found}; this release uses {VERSION}",
            hint="use the release that deployed them, or deploy the contracts of this release: `muster ledger deploy`",
        )


async def check_code(web3: AsyncWeb3[Any], deployment: Deployment) -> None:
    """Checks that the code at every address is the code that this release compiles and deploys.

    Each value that a constructor writes into the code (an immutable) must be the one that `deploy` gives it. So a
    contract can't refer to a contract outside the deployment, or to the wrong one inside it. The check reads the code
    and not the storage: a foreign constructor could have written balances or owners there before it returned this code.

    Raises:
        DeploymentDiffers: The code of a contract differs, or the unbonding period is too long.
    """
    for name, place in deployment.contracts.items():
        compiled = artifact(name)
        template = compiled.bytecode[-compiled.deployed_size :]  # creation code ends with the code that it deploys
        code = bytearray(await web3.eth.get_code(place))
        wrong = [] if len(code) == len(template) else ["its length"]
        for variable, offsets in compiled.immutables.items():
            values = {int.from_bytes(code[offset : offset + 32], "big") for offset in offsets}
            for offset in offsets:
                code[offset : offset + 32] = bytes(32)
            if variable == _UNBONDING:
                _check_unbonding(values, place)
            elif values != {_expected(variable, deployment, name)}:
                wrong.append(variable)
        if wrong or bytes(code) != template:
            raise DeploymentDiffers(
                f"the code of {name} at {place} on chain {deployment.chain_id} is not that of this release"
                + (f": {', '.join(wrong)} differs" if wrong else ""),
                hint="ask the pool's owner which release deployed the contracts; other code can do anything with stake",
                code="unknown-code",
            )


def _check_unbonding(values: set[int], place: Address) -> None:
    """Checks the unbonding period in the code of StakeManager, in seconds; every place must have the same."""
    most = int(MOST_UNBONDING.total_seconds())
    if len(values) != 1 or max(values) > most:
        raise DeploymentDiffers(
            f"StakeManager at {place} returns stake only after {max(values):,} s; at most {most:,} s "
            f"({MOST_UNBONDING.days} days) are accepted",
            hint="choose a pool of another ledger: stake can be locked there for ever",
            code="unbonding-too-long",
        )


def _expected(variable: str, deployment: Deployment, contract: Contract) -> int:
    """Returns the value that `deploy` gives an immutable variable of a contract."""
    if (referred := _REFERENCES.get(variable)) is not None:
        return int(deployment[referred], 16)
    # The others are those of OpenZeppelin's `EIP712`. The token's domain is that of `ERC20Permit`, which has version 1.
    domain = SigningDomain(deployment.chain_id, deployment[contract])
    version = "1" if contract is Contract.MUSTER else VERSION
    words = {
        "_cachedChainId": domain.chain_id.to_bytes(32, "big"),
        "_cachedThis": bytes.fromhex(domain.contract[2:]),
        "_cachedDomainSeparator": separator_of(domain, version=version),
        "_hashedName": keccak(text=NAME),
        "_hashedVersion": keccak(text=version),
        "_name": _short_string(NAME),
        "_version": _short_string(version),
    }
    return int.from_bytes(words[variable], "big")


def _short_string(text: str) -> bytes:
    """Returns the 32 bytes in which OpenZeppelin's `ShortStrings` stores a text: up to 31 bytes, zeros, the length."""
    encoded = text.encode()
    return encoded.ljust(31, b"\0") + bytes([len(encoded)])


async def _version_at(web3: AsyncWeb3[Any], place: Address) -> str:
    """Returns the version of a contract's EIP-712 domain (EIP-5267); `unknown` if it has none."""
    try:
        answer = await web3.eth.call({"to": place, "data": HexStr("0x" + _DOMAIN_SELECTOR.hex())})
        return str(decode(_DOMAIN_TYPES, bytes(answer))[2])[:20]
    except (TransactionReverted, DecodingError):
        return "unknown"


def _creation(compiled: Artifact, arguments: Mapping[str, object]) -> bytes:
    """Returns the creation code, followed by the encoded `arguments` of the constructor."""
    inputs = [item for entry in compiled.abi if entry["type"] == "constructor" for item in entry["inputs"]]
    return compiled.bytecode + encode([item["type"] for item in inputs], [arguments[item["name"]] for item in inputs])
