"""JSON-RPC errors, with the codes and words that Ethereum clients look for."""

from __future__ import annotations

INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = -32000
LIMIT_EXCEEDED = -32005
PARSE_ERROR = -32700
EXECUTION_REVERTED = 3
"""go-ethereum's code for a call that reverted; `data` is what the contract gave back."""


class RpcError(Exception):
    """An answer that is an error.

    Args:
        message: In the words that Ethereum clients look for.
        code: JSON-RPC's.
        data: 0x-prefixed bytes that a contract reverted with.
    """

    def __init__(self, message: str, *, code: int = SERVER_ERROR, data: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.data = data

    def body(self) -> dict[str, object]:
        """The `error` member of the answer."""
        error: dict[str, object] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


def invalid(what: str) -> RpcError:
    """A parameter can't be understood."""
    return RpcError(f"invalid params: {what}", code=INVALID_PARAMS)
