"""A pool serves OpenAI clients: a worker with a smaller model is slashed, and no client gets its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest
from openai import OpenAI, OpenAIError

from rollouts.checks import CheckOutcome
from rollouts.verify.answers import Answer, verify_answer
from tests.kit.devnet import Devnet, start_devnet, stop_devnet, wait_until

PATIENCE = 240.0


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devnet]:
    """Runs a devnet with two honest workers and one that serves half of the model; a verifier sees every answer."""
    directory = tmp_path_factory.mktemp("devnet") / "net"
    process = start_devnet(directory, "--serve", "--workers", "2", "--runtime", "process")
    try:
        yield Devnet(process, directory)
    finally:
        assert stop_devnet(process) == 0


def client_of(network: Devnet) -> OpenAI:
    port = json.loads((network.directory / "ports.json").read_text())["gateway"]
    token = (network.directory / "client-token").read_text().strip()
    return OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=token, max_retries=5, timeout=120)


def test_a_pool_serves_clients_and_slashes_a_smaller_model(network: Devnet) -> None:
    muster, client = network.muster, client_of(network)
    keys = {name: muster("keys", "show", name, "--json").json()["address"] for name in ("cheater", "worker-1")}
    assert [model.id for model in client.models.list()] == ["devnet"]
    bodies: list[bytes] = []

    def slashed() -> bool:
        """Sends requests until the cheater has lost its membership, so that all nodes get some."""
        prompt = f"rev:{chr(97 + len(bodies) % 26)}bcd="
        with suppress(OpenAIError):  # a request may fail after its last attempt; a wrong answer must not arrive
            answer = client.completions.with_raw_response.create(model="devnet", prompt=prompt, max_tokens=12)
            bodies.append(answer.content)
        return not muster("node", "show", "cheater", "--json").json()["member"]

    wait_until(slashed, within=PATIENCE)
    assert len(bodies) > 3
    folder = network.directory / "policies" / "0"
    for body in bodies[:40]:
        found = verify_answer(Answer.parse(body), folder)
        assert {one.check for one in found.results if one.state is CheckOutcome.FAILED} == set()

    stream = client.completions.create(model="devnet", prompt="rev:abc=", max_tokens=12, stream=True, seed=7)
    whole = client.completions.create(model="devnet", prompt="rev:abc=", max_tokens=12, seed=7)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == whole.choices[0].text

    def honest_work_is_paid() -> bool:
        listed = muster("work", "list", "--json").json()
        return any(row["verdict"] == "accepted" for row in listed if row["node"] == keys["worker-1"])

    wait_until(honest_work_is_paid, within=PATIENCE)
    listed = muster("work", "list", "--json").json()
    assert "forged" in {row["verdict"] for row in listed if row["node"] == keys["cheater"]}
    assert "forged" not in {row["verdict"] for row in listed if row["node"] != keys["cheater"]}
    assert int(muster("stake", "status", "cheater-provider", "--json").json()["active"]) < 900 * 10**18
    assert int(muster("stake", "status", "worker-1-provider", "--json").json()["active"]) == 900 * 10**18
