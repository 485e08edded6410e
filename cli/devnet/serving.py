"""The parts of a devnet that serves a model to OpenAI clients (`--serve`): recipe, gateway, verifier and tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx

from cli.devnet.base import make_base
from cli.devnet.directory import DevnetDirectory
from cli.devnet.economy import make_keys
from cli.devnet.options import RunModel, RunOptions, Verification
from cli.devnet.services import environment, python, responds
from cli.devnet.settings import POOL, RUN, ServicePlaces, write_trainer_settings
from cli.devnet.supervisor import ProcessFailed, ProcessSpec, Supervisor
from ledger.amounts import UNIT
from protocol.runtime.clock import SystemClock
from protocol.runtime.files import write_atomically
from trainer.presets import devnet_base

MOST_NEW_TOKENS = 256
"""Limit of new tokens of an answer; half of the model's context if that is less."""
UNITS_PER_SLOT = 1 << 16
"""Maximum number of tokens of a slot. A slot is leased for as many answers as have these tokens at most, because
clients wait while a slot ends and the next one is leased."""
STAKE = 900 * UNIT
"""Stake of each provider: enough for two slots, for whose tokens the ledger locks the penalty."""
GROUPS = 1 << 20
"""Number of answers for which slots are leased; enough for any devnet."""
SLOT_TIME = timedelta(seconds=10)
"""Time after a slot's first answer at which it ends. It is short, so that a user sees verdicts and payment soon."""

_KEY = "gateway"
_FIRST_ANSWER = timedelta(minutes=5)
_POLL = timedelta(milliseconds=500)


def serving_run(directory: DevnetDirectory, run: RunOptions) -> RunOptions:
    """Returns the options of the run with a recipe whose prompts come from clients of the devnet's gateway."""
    from rollouts.models.facts import read_model  # noqa: PLC0415 - loads torch, as the next import
    from rollouts.recipe import serving_recipe  # noqa: PLC0415

    model = run.model or RunModel(folder=devnet_base())
    gateway = make_keys(directory, [_KEY])[_KEY].address
    context = read_model(model.folder).context
    most = min(MOST_NEW_TOKENS, context // 2)
    recipe = serving_recipe(gateway, max_new_tokens=most, max_prompt_tokens=context - most)
    return replace(
        run,
        model=replace(model, recipe=recipe.model_dump_json()),
        scale=replace(run.scale, groups=GROUPS, groups_per_slot=UNITS_PER_SLOT // most),
    )


def gateway_table(directory: DevnetDirectory, places: ServicePlaces, verify: Verification) -> Mapping[str, object]:
    """Returns the gateway's settings."""
    return {
        "port": places.gateway_port,
        "public_url": places.gateway,
        "pool_id": POOL,
        "run": RUN,
        "redis_url_file": places.redis_url_file,
        "chain_url": places.rpc,
        "deployment": directory.deployment,
        "keystore": directory.keys / f"{_KEY}.json",
        "password_file": directory.password,
        "verify": verify.value,
        "slot_time_s": SLOT_TIME.total_seconds(),
        "margin_s": 15.0,
    }


def publish_spec(directory: DevnetDirectory, places: ServicePlaces, run: RunOptions) -> ProcessSpec:
    """Returns the spec of the process that publishes the model as the run's version 0."""
    settings = write_trainer_settings(directory, places, run)
    command = python("cli", "trainer", "publish", _base(directory, run), "--config", settings)
    return ProcessSpec(name="publisher", command=command, environment=environment())


def gateway_spec(directory: DevnetDirectory, places: ServicePlaces) -> ProcessSpec:
    """Returns the spec of the process `muster gateway run`."""
    command = python("cli", "gateway", "run", "--config", directory.configuration)
    return ProcessSpec(
        name="gateway", command=command, environment=environment(), gate=responds(places.gateway_port, "readyz")
    )


def verifier_spec(directory: DevnetDirectory, places: ServicePlaces, run: RunOptions) -> ProcessSpec:
    """Returns the spec of the process `muster gateway verifier`."""
    command = python(
        *("cli", "gateway", "verifier", "--gateway", places.gateway),
        *("--token-file", directory.verifier_token, "--model", _base(directory, run)),
    )
    return ProcessSpec(name="verifier", command=command, environment={**environment(), "OMP_NUM_THREADS": "1"})


async def make_tokens(directory: DevnetDirectory, supervisor: Supervisor) -> None:
    """Makes the tokens of a client and of the verifier, if a former start of the devnet has not made them."""
    roles = {"client": directory.client_token, "verifier": directory.verifier_token}
    for role, path in roles.items():
        if not path.exists():
            quota = ("--per-minute", "100000", "--concurrent", "1024")
            command = python(
                *("cli", "gateway", "token", "create", role, "--role", role, "--file", path, *quota),
                *("--config", directory.configuration),
            )
            await supervisor.complete(ProcessSpec(name=f"{role}-token", command=command, environment=environment()))
    token = directory.client_token.read_text().strip()
    options = f'header = "Authorization: Bearer {token}"\nheader = "Content-Type: application/json"\n'
    write_atomically(directory.curl_options, options, mode=0o600)


async def await_answer(directory: DevnetDirectory, places: ServicePlaces, *, on_event: Callable[[str], None]) -> None:
    """Returns when a worker has answered a request through the gateway.

    Raises:
        ProcessFailed: No request was answered in time; the message has the gateway's last error.
    """
    clock = SystemClock()
    deadline = clock.monotonic() + _FIRST_ANSWER.total_seconds()
    token = directory.client_token.read_text().strip()
    body = {"model": RUN, "prompt": "1", "max_tokens": 1}
    async with httpx.AsyncClient(
        base_url=places.gateway, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=90
    ) as client:
        while True:
            try:
                answer = await client.post("/v1/completions", json=body)
                why = answer.text[:300]
            except httpx.HTTPError as error:
                answer, why = None, str(error)
            if answer is not None and answer.is_success:
                break
            if clock.monotonic() > deadline:
                raise ProcessFailed(
                    f"the gateway answered no request: {why}",
                    hint=f"logs are in {directory.path / 'logs'}; `muster pool logs` shows the output of tasks",
                )
            await asyncio.sleep(_POLL.total_seconds())
    for line in _examples(directory, places):
        on_event(line)


def _examples(directory: DevnetDirectory, places: ServicePlaces) -> list[str]:
    body = json.dumps({"model": RUN, "prompt": "rev:muster=", "max_tokens": 16})
    return [
        f"the gateway answers: {places.gateway}/v1, model {RUN}, token in {directory.client_token}",
        f"curl -K {directory.curl_options} {places.gateway}/v1/completions -d '{body}'",
    ]


def _base(directory: DevnetDirectory, run: RunOptions) -> Path:
    return make_base(directory, run.model or RunModel(folder=devnet_base()))
