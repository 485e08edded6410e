"""View functions: the bytes that web3 would send, and the values that it would decode."""

from __future__ import annotations

import pytest
from eth_abi.abi import encode
from eth_abi.exceptions import EncodingError
from web3 import Web3

from ledger.artifacts import Contract, artifact
from ledger.client.view_calls import ViewCall, views_of
from ledger.errors import ChainUnavailable

_SAMPLES: dict[str, object] = {
    "address": "0x" + "11" * 20,
    "bytes32": "0x" + "22" * 32,
    "bytes": b"\x01\x02",
    "bool": True,
    "string": "text",
}


@pytest.mark.parametrize("contract", list(Contract), ids=lambda each: each.name)
def test_view_calls_encode_like_web3(contract: Contract) -> None:
    theirs = Web3().eth.contract(abi=list(artifact(contract).abi))
    simple = [view for view in views_of(artifact(contract)).values() if not any("(" in each for each in view.inputs)]
    for view in simple:
        arguments = [[] if kind.endswith("[]") else _SAMPLES.get(kind, 3) for kind in view.inputs]
        assert view.call_data(arguments) == theirs.encode_abi(view.name, args=arguments)
    assert simple or contract is Contract.MUSTER


def test_a_single_output_is_returned_bare_and_several_as_a_tuple() -> None:
    one = ViewCall("one", b"\0\0\0\0", (), ("(uint256,address)",))
    two = ViewCall("two", b"\0\0\0\0", (), ("uint256", "bytes32[]"))
    answer = encode(["uint256", "address"], [7, "0x" + "11" * 20])
    assert one.answer("0x" + answer.hex()) == (7, "0x" + "11" * 20)
    assert two.answer("0x" + encode(["uint256", "bytes32[]"], [7, [b"\1" * 32]]).hex()) == (7, (b"\1" * 32,))


@pytest.mark.parametrize("output", ["0x", "0x00", "0xzz", "0x" + "ff" * 32 + "00"])
def test_an_undecodable_answer_is_a_chain_error(output: str) -> None:
    with pytest.raises(ChainUnavailable, match="gave an answer that is no result of one"):
        ViewCall("one", b"\0\0\0\0", (), ("uint256", "uint256")).answer(output)


def test_a_value_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(EncodingError):
        ViewCall("one", b"\0\0\0\0", ("uint8",), ()).call_data([256])


def test_a_string_that_is_not_utf8_is_decoded_with_replacement() -> None:
    view = ViewCall("one", b"\0\0\0\0", (), ("uint256", "string"))
    answer = encode(["uint256", "bytes"], [7, b"a\xff\xfe"])  # encoded as a string is
    assert view.answer("0x" + answer.hex()) == (7, "a\ufffd\ufffd")
