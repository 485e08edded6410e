"""Compares an answer with the request that the client sent."""

from __future__ import annotations

import json

from protocol.openai.bodies import parse_body
from protocol.wire.answers import AnswerRecord
from protocol.wire.served import RequestKind
from rollouts.engines.request_encoding import ModelFolder, encode, room
from rollouts.serving.record import recorded_sampling


def request_differences(
    content: bytes, record: AnswerRecord, version: ModelFolder, *, most_new_tokens: int | None = None
) -> list[str]:
    """Returns the differences between an answer and the request that the client sent.

    Args:
        content: The request's body.
        record: The answer's field `muster`.
        version: The answer's version.
        most_new_tokens: Maximum number of new tokens if the request names none, besides the room in the model's
            context; None for an answer without such a limit.

    Raises:
        InvalidRequest: The service would have refused the request.
    """
    try:
        given = json.loads(content)
    except (ValueError, RecursionError):
        given = None  # `parse` describes the error
    keys = given if isinstance(given, dict) else {}
    kind = RequestKind.COMPLETION
    if "messages" in keys or "token_ids" in keys:
        kind = RequestKind.CHAT if "messages" in keys else RequestKind.GENERATE
    body = parse_body(kind, content)
    prompts = encode(body, version)
    each = body.sampling.n or 1
    new_tokens = body.new_tokens
    if new_tokens is None:
        new_tokens = min(room(prompts, version), most_new_tokens or version.model.context)
    wanted = body.sampling.parameters(new_tokens)
    found = []
    if prompts != record.prompts:
        found.append("the prompts are not those of the request")
    if [one.prompt for one in record.samples] != [place for place in range(len(prompts)) for _ in range(each)]:
        found.append(f"the answer has {len(record.samples)} choices, but the request asks for {len(prompts) * each}")
    if recorded_sampling(wanted) != record.sampling:
        found.append("the sampling parameters are not those of the request")
    if body.sampling.seed is not None and body.sampling.seed_bytes() != record.seed_bytes:
        found.append("the seed is not that of the request")
    return found
