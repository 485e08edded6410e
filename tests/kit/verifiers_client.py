"""Asks a service for answers through verifiers' train client; run by the Python of `.tools/verifiers`.

Arguments: URL of the API, the model's name, the folder with its tokenizer, and a JSON list of requests, each with
`messages` and the sampling options `sampling`, of which `seed` is unique. The token is in `MUSTER_TOKEN`. Prints a JSON
list: what the client made of each answer, and the bodies of request and response, which the client does not keep.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".tools" / "verifiers" / "bin" / "python"


async def ask(url: str, model: str, folder: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sends all requests at once; returns answers and errors in their order."""
    from verifiers.v1 import SamplingConfig, TrainClientConfig, resolve_client  # noqa: PLC0415 - missing in the environment of the checks
    from verifiers.v1.dialects import ChatDialect  # noqa: PLC0415
    from verifiers.v1.errors import ProviderError  # noqa: PLC0415

    bodies: dict[int, tuple[str, str]] = {}

    async def keep(response: Any) -> None:
        if response.request.url.path == "/inference/v1/generate":
            sent = response.request.content
            bodies[json.loads(sent)["sampling_params"]["seed"]] = sent.decode(), (await response.aread()).decode()

    client: Any = resolve_client(
        TrainClientConfig(base_url=url, api_key_var="MUSTER_TOKEN", renderer_model_name=folder)
    )
    client.client._client.event_hooks["response"].append(keep)

    async def one(messages: list[dict[str, str]], sampling: dict[str, Any]) -> dict[str, Any]:
        body = {"model": model, "messages": messages}
        try:
            answer = await client.get_response(ChatDialect(), body, SamplingConfig(**sampling))
        except ProviderError as error:
            return {"error": str(error), "status": error.status_code}
        sent, received = bodies[sampling["seed"]]
        return {
            "content": answer.message.content,
            "finish": answer.finish_reason,
            "prompt": answer.tokens.prompt_ids,
            "tokens": answer.tokens.completion_ids,
            "logprobs": answer.tokens.completion_logprobs,
            "sent": sent,
            "received": received,
        }

    try:
        return list(await asyncio.gather(*(one(**request) for request in requests)))
    finally:
        await client.close()


if __name__ == "__main__":
    url, model, folder, requests = sys.argv[1:]
    json.dump(asyncio.run(ask(url, model, folder, json.loads(requests))), sys.stdout)
