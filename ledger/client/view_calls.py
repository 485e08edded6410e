"""Encodes calls of view functions and decodes their results.

Services read the ledger several times per work item. web3 takes 2 ms of CPU per call, mostly to look the function up
in the ABI; this module does the look-up once per contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from eth_abi.abi import encode
from eth_abi.exceptions import DecodingError
from eth_typing import ABIFunction
from eth_utils.abi import collapse_if_tuple, function_abi_to_4byte_selector

from ledger.artifacts import Artifact
from ledger.errors import ChainUnavailable
from ledger.rpc.abi_decoding import decode


@dataclass(frozen=True, slots=True)
class ViewCall:
    """One view function of a contract."""

    name: str
    selector: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def call_data(self, arguments: Sequence[object]) -> str:
        """Returns the encoded call, 0x-prefixed hex. Bytes arguments may be given as 0x-prefixed hex too.

        Raises:
            EncodingError: An argument does not fit its type.
            ValueError: The number of arguments is wrong.
        """
        values = [_raw(kind, value) for kind, value in zip(self.inputs, arguments, strict=True)]
        return "0x" + (self.selector + encode(self.inputs, values)).hex()

    def answer(self, output: str) -> Any:  # noqa: ANN401 - as the ABI says
        """Decodes a result: a single output as it is, several as a tuple.

        Raises:
            ChainUnavailable: The bytes do not fit the outputs of this view function.
        """
        try:
            values = decode(self.outputs, bytes.fromhex(output[2:]))
        except (DecodingError, ValueError) as error:
            raise ChainUnavailable(
                f"the chain's node gave an answer that is no result of {self.name}: {output[:80]}",
                hint="check that the node is synchronised and that the deployment file belongs to this chain",
            ) from error
        return values[0] if len(values) == 1 else values


def views_of(artifact: Artifact) -> dict[str, ViewCall]:
    """Returns a contract's view functions by name; none of our contracts overloads a view function."""
    return {
        function["name"]: ViewCall(
            function["name"],
            function_abi_to_4byte_selector(cast("ABIFunction", function)),
            tuple(collapse_if_tuple(each) for each in function["inputs"]),
            tuple(collapse_if_tuple(each) for each in function["outputs"]),
        )
        for function in artifact.abi
        if function["type"] == "function" and function["stateMutability"] in {"view", "pure"}
    }


def _raw(kind: str, value: object) -> object:
    return bytes.fromhex(value.removeprefix("0x")) if kind.startswith("bytes") and isinstance(value, str) else value
