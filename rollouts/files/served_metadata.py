"""The gateway's signed list of requests, as rollout files of served slots contain it."""

from __future__ import annotations

from pydantic import ValidationError

from protocol.errors import InvalidInput
from protocol.wire.served import MOST_LIST_BYTES, SignedServedList
from rollouts.errors import BadRolloutFile

SERVED_KEY = b"muster-served"
"""Key of the list in the file's metadata."""
MOST_SERVED_BYTES = 2 * MOST_LIST_BYTES + 4096
"""Maximum size of the list in a file: its content as a JSON string, in which each character may need an escape."""


def encode_served(served: SignedServedList) -> bytes:
    """Returns a list as the file's metadata contains it.

    Raises:
        InvalidInput: The list is too large for a file.
    """
    content = served.model_dump_json().encode()
    if len(content) > MOST_SERVED_BYTES:
        raise InvalidInput(f"the list of served requests has {len(content)} bytes; the limit is {MOST_SERVED_BYTES}")
    return content


def decode_served(content: bytes) -> SignedServedList:
    """Parses the metadata of an untrusted file; checks neither the signature nor the list itself.

    Raises:
        BadRolloutFile: The content is no signed list, or too large.
    """
    if len(content) > MOST_SERVED_BYTES:
        raise BadRolloutFile(
            f"the list of served requests has {len(content)} bytes; the limit is {MOST_SERVED_BYTES}",
            code="file-too-large",
        )
    try:
        return SignedServedList.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise BadRolloutFile(
            f"the list of served requests is malformed: {path[:100]}: {first['msg'][:100]}", code="bad-value"
        ) from None
