"""Calls of view functions as bytes, and their answers as values.

Services ask the ledger several times for each piece of work, and web3 takes 2 ms of CPU for each question, most of it
to find out anew which function is meant; here that is known once for all.
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
        """What is sent, as 0x and hex digits; bytes may be given as such digits too.

        Raises:
            EncodingError: A value does not fit its type.
            ValueError: There are more or fewer values than the function takes.
        """
        values = [_raw(kind, value) for kind, value in zip(self.inputs, arguments, strict=True)]
        return "0x" + (self.selector + encode(self.inputs, values)).hex()

    def answer(self, output: str) -> Any:  # noqa: ANN401 - as the ABI says
        """What came back: one output as it is, several as a tuple.

        Raises:
            ChainUnavailable: It is no answer of such a function.
        """
        try:
            values = decode(self.outputs, bytes.fromhex(output[2:]))
        except (DecodingError, ValueError) as error:
            raise ChainUnavailable(
                f"the chain's node gave no answer of {self.name}: {output[:80]}",
                hint="is it in step with the chain, and is the deployment the right one?",
            ) from error
        return values[0] if len(values) == 1 else values


def views_of(artifact: Artifact) -> dict[str, ViewCall]:
    """The view functions of a contract, by name; none of them is overloaded in ours."""
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
