"""JSON-RPC errors, with the codes and messages that Ethereum clients match on."""

from __future__ import annotations

INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = -32000
LIMIT_EXCEEDED = -32005
PARSE_ERROR = -32700
EXECUTION_REVERTED = 3
"""go-ethereum's code for a reverted call; the error's `data` is the revert data."""


class RpcError(Exception):
    """A JSON-RPC error response.

    Args:
        message: Error message; Ethereum clients match on it.
        code: JSON-RPC error code.
        data: Revert data, 0x-prefixed.
    """

    def __init__(self, message: str, *, code: int = SERVER_ERROR, data: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.data = data

    def body(self) -> dict[str, object]:
        """Returns the `error` member of the response."""
        error: dict[str, object] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


def invalid(what: str) -> RpcError:
    """Returns the error for an invalid parameter."""
    return RpcError(f"invalid params: {what}", code=INVALID_PARAMS)
