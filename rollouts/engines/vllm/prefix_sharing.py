"""Limits the sharing of keys and values between requests, so that a prefill gets all states that it needs.

vLLM's prefix cache finds a block of keys and values by a hash of all tokens up to the block's end, and skips the tokens
of the blocks that it finds. A prefill needs the state of each token that produced a token of an answer. If answers
begin alike, the cache would skip such tokens too. So blocks from a request's first needed token on get random hashes,
which no other request has.
"""

from __future__ import annotations

from typing import Any

from protocol.runtime.randomness import token_bytes

SHARED = "shared"
"""Name of the extra sampling argument with the number of tokens that a request may share; without it, all of them."""
_HASH_BYTES = 32


def limit_sharing(core: Any) -> None:  # noqa: ANN401 - vLLM is not installed where types are checked
    """Limits the prefix cache of a vLLM engine core to the first `SHARED` tokens of each request."""
    hashes_of = core.request_block_hasher
    if hashes_of is None:  # prefix caching is off
        return
    block = core.vllm_config.cache_config.block_size

    def limited(request: Any) -> list[bytes]:  # noqa: ANN401
        """Returns the hashes of the blocks that became full since the last call."""
        hashes: list[bytes] = hashes_of(request)
        first = len(request.block_hashes)
        limit = (request.sampling_params.extra_args or {}).get(SHARED)
        if limit is None:
            return hashes
        return [one if first + at < limit // block else token_bytes(_HASH_BYTES) for at, one in enumerate(hashes)]

    core.request_block_hasher = limited
