"""Job of the sandbox: makes an OpenEnv environment, and repeats the steps of a dialogue.

    run({"config": {…}, "seed": 3, "messages": ["2", "0"]}, …)
        ← {"text": "{…}", "done": false, "rewards": [-0.05, -0.05], "bad": 0}

`text` is the reply to the last message, or the first observation.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rollouts.adapters.job import LONGEST_REPLY, NotReproducibleError, answer, error_reply, figure

_HIDDEN = ("done", "reward", "metadata")
"""Fields of observations that are shown only if the options name them."""
BAD_ACTION = "error: the message is not an action of this environment"
_SERVERS = ("gradio_theme", "gradio_ui", "http_server", "mcp_environment", "web_interface")


class _StandIn(types.ModuleType):
    """Stands in for a module of OpenEnv's server, whose names are classes without content.

    OpenEnv imports its web servers with its interface, and they need packages that no environment class uses. The
    stand-ins are always used, so that every machine imports the same.
    """

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (), {})
        setattr(self, name, found)
        return found


for _name in _SERVERS:
    sys.modules[f"openenv.core.env_server.{_name}"] = _StandIn(_name)

from openenv.core.env_server.interfaces import Environment  # noqa: E402 - needs the stand-ins


@dataclass(frozen=True, slots=True)
class _Prepared:
    environment: type[Any]
    action: type[Any]
    field: str
    show: Sequence[str]


def prepare(payload: dict[str, Any]) -> object:
    """Loads the classes, and makes the first environment.

    Raises:
        Exception: The environment is not reproducible, or its code raises an exception.
    """
    environment, action = _found(payload["environment"]), _found(payload["action"])
    if Environment not in getattr(environment, "__mro__", ()):
        raise NotReproducibleError(f"{payload['environment']} is not a class with OpenEnv's interface Environment")
    for name in ("reset_async", "step_async"):
        if getattr(environment, name) is not getattr(Environment, name):
            raise NotReproducibleError(f"{environment.__name__} overrides {name}, so it is no in-process environment")
    if payload["seeds"] > 1 and not _takes(environment.reset, "seed"):
        raise NotReproducibleError(f"{environment.__name__}.reset takes no seed, so the option seeds must be 1")
    if payload["field"] and payload["field"] not in action.model_fields:
        raise NotReproducibleError(f"{action.__name__} has no field {payload['field']}")
    prepared = _Prepared(environment, action, payload["field"], payload["show"])
    for config in payload["configs"]:
        _played({"config": config, "seed": 0, "messages": []}, prepared)
    return prepared


def run(payload: dict[str, Any], prepared: _Prepared) -> int:
    """Does one job; writes one JSON object to descriptor 3."""
    return answer(lambda: _played(payload, prepared))


def _played(payload: Mapping[str, Any], prepared: _Prepared) -> dict[str, object]:
    environment = prepared.environment(**payload["config"])
    first = environment.reset(**({"seed": payload["seed"]} if _takes(environment.reset, "seed") else {}))
    text, rewards, bad, done = _text(first, prepared.show), [], 0, bool(first.done)
    for message in payload["messages"]:
        if done:
            break
        action = _action(message, prepared)
        if action is None:
            text = BAD_ACTION
            bad += 1
            continue
        try:
            observation = environment.step(action)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a server replies with the exception, and the dialogue goes on
            text = error_reply(error)
            bad += 1
            continue
        rewards.append(figure(float(observation.reward or 0.0)))
        text = _text(observation, prepared.show)
        done = bool(observation.done)
    return {"text": text[:LONGEST_REPLY], "rewards": rewards, "bad": bad, "done": done}


def _action(message: str, prepared: _Prepared) -> object | None:
    """Returns the action that a message describes; None if it describes none."""
    try:
        content = {prepared.field: message.strip()} if prepared.field else json.loads(message)
        return None if not isinstance(content, dict) else prepared.action.model_validate(content)
    except (ValidationError, ValueError, RecursionError):
        return None


def _text(observation: Any, show: Sequence[str]) -> str:  # noqa: ANN401 - an environment's own class
    fields = observation.model_dump(mode="json")
    names = show or [name for name in fields if name not in _HIDDEN]
    shown = {name: fields[name] for name in names}
    only = next(iter(shown.values())) if len(shown) == 1 else None
    return only if isinstance(only, str) else json.dumps(shown, ensure_ascii=False)


def _takes(function: Any, name: str) -> bool:  # noqa: ANN401 - any method
    parameters = inspect.signature(function).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _found(path: str) -> Any:  # noqa: ANN401 - an environment's own class
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
