"""The parts of a devnet that serves a model to OpenAI clients (`--serve`): gateway, verifier, and the published model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from cli.devnet.directory import DevnetDirectory
from cli.devnet.economy import make_keys
from cli.devnet.options import RunModel, Verification
from cli.devnet.settings import POOL, RUN, ServicePlaces
from protocol.identifiers import Address
from rollouts.models.facts import read_model

MOST_NEW_TOKENS = 256
"""Most new tokens of an answer; less if the model's context is short."""
GROUPS_PER_SLOT = 64
"""Most answers of a slot."""
GROUPS = 1 << 20
"""Answers for which slots are leased; enough for any devnet."""
SLOT_TIME = timedelta(seconds=5)
"""Time after a slot's first answer at which it ends, so that a user sees verdicts and payment soon."""

_KEY = "gateway"
_FIRST_ANSWER = timedelta(minutes=5)
_POLL = timedelta(milliseconds=500)
_PROMPT = "rev:muster="


def gateway_address(directory: DevnetDirectory) -> Address:
    """Returns the address of the gateway's key; makes the key if it does not exist."""
    return make_keys(directory, [_KEY])[_KEY].address


def serving_model(model: RunModel, gateway: Address) -> RunModel:
    """Returns the model with a recipe for serving: prompts come from the gateway's clients."""
    context = read_model(model.folder).context
    most = min(MOST_NEW_TOKENS, context // 2)
    recipe = serving_recipe(gateway, max_new_tokens=most, max_prompt_tokens=context - most)
    return replace(model, recipe=json.dumps(recipe))


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
