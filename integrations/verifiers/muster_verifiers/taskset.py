"""Loads a taskset's classes, and refuses those whose results other machines could not compute again.

Everything here runs where verifiers is installed: in the sandbox, and in `muster-verifiers export`.
"""

from __future__ import annotations

import dis
import importlib
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import verifiers.v1 as vf
from mcp.server.mcpserver.tools.base import Tool
from verifiers.v1.runtimes import SubprocessConfig
from verifiers.v1.state import state_cls
from verifiers.v1.utils import loaders
from verifiers.v1.utils.decorators import discover_decorated

from rollouts.adapters.job import NotReproducibleError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OF_THE_RUN = ("setup", "finalize", "stage_verifier", "runtime_env", "score", "defer_scoring")
"""Methods of tasks that verifiers calls with a runtime, and that a taskset must not override."""
_NETWORK = frozenset(
    {
        *("aiohttp", "anthropic", "boto3", "datasets", "ftplib", "grpc", "http.client", "httpcore", "httpx", "httpx2"),
        *("huggingface_hub", "openai", "requests", "smtplib", "socket", "ssl", "subprocess", "urllib.request"),
        *("urllib3", "websockets"),
    }
)
"""Modules by which code reaches other machines or starts programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTool:
    """A tool of a taskset.

    Args:
        name: Name for the model: the server's name, `_`, and the method's name.
        tool: Description, argument schema and function.
    """

    name: str
    tool: Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTaskset:
    """A taskset that is reproducible.

    Args:
        task: Its class of tasks.
        task_config: Configuration of the tasks.
        state: Class of the state that tools and rewards share.
        shared: Tool servers that serve all tasks.
        own: Tool servers of one task, whose `setup_task` is called.
    """

    task: type[vf.Task]
    task_config: Any
    state: type[vf.State]
    shared: list[vf.Toolset]
    own: list[vf.Toolset]

    def tools(self) -> dict[str, TaskTool]:
        """Returns the tools by name.

        Raises:
            NotReproducibleError: Two tools have the same name.
        """
        found: dict[str, TaskTool] = {}
        for toolset in [*self.shared, *self.own]:
            for method in discover_decorated(toolset, "tool"):
                own_name = getattr(method, "tool_name", None) or method.__name__
                name = f"{toolset.server_name}_{own_name}" if toolset.server_name else own_name
                if not _NAME.fullmatch(name):
                    raise NotReproducibleError(
                        f"the tool's name {name[:80]!r} has other characters than letters, digits, _ and -"
                    )
                if name in found:
                    raise NotReproducibleError(f"two tools have the name {name}")
                description = inspect.cleandoc(method.__doc__ or "")
                found[name] = TaskTool(name=name, tool=Tool.from_function(method, name=name, description=description))
        return found


def load(name: str, config: Mapping[str, Any], task_config: Mapping[str, Any] | None) -> LoadedTaskset:
    """Loads a taskset.

    Args:
        name: Its module.
        config: Its configuration.
        task_config: Configuration of its tasks; None for the one in `config`.

    Raises:
        NotReproducibleError: The taskset is not reproducible.
    """
    importlib.import_module(name)  # names a missing import; verifiers would say that the taskset is missing
    taskset = loaders.taskset_class(name)
    chosen = loaders.taskset_config_type(name).model_validate({**config, "id": name})
    task = taskset.task_type()
    own_config = chosen.task if task_config is None else task.config_type().model_validate(dict(task_config))
    _check_module(name)
    _check_task(task, own_config)
    loaded = LoadedTaskset(
        task=task,
        task_config=own_config,
        state=state_cls(task),
        shared=taskset.toolsets(chosen),
        own=task.toolsets(own_config),
    )
    for toolset in [*loaded.shared, *loaded.own]:
        _check_toolset(toolset, loaded.state)
    loaded.tools()
    return loaded


def _check_module(name: str) -> None:
    environment = loaders.environment_class(name)
    if environment is not vf.SingleAgentEnv:
        raise NotReproducibleError(f"it has a run loop of its own, the environment class {environment.__name__}")
    if loaders.default_harness_id(name) == name:
        raise NotReproducibleError("it has a harness of its own")


def _check_task(task: type[vf.Task], config: Any) -> None:  # noqa: ANN401 - a taskset's own class
    if task.NEEDS_CONTAINER:
        raise NotReproducibleError(f"{task.__name__} needs a container")
    for name in _OF_THE_RUN:
        if getattr(task, name) is not getattr(vf.Task, name):
            raise NotReproducibleError(f"{task.__name__} overrides {name}, which may use a container or the network")
    if config.judges:
        raise NotReproducibleError("its rewards come from a judge, a model that other machines can't ask again")
    plugged = {**config.stops, **config.metrics, **config.rewards}
    if outside := sorted(name for name, choice in plugged.items() if choice.fn):
        raise NotReproducibleError(f"its configuration plugs in functions from elsewhere: {', '.join(outside)}")
    _check_hooks(task(task.data_type().model_construct(), config))


def _check_hooks(task: vf.Task) -> None:
    """Refuses rewards, metrics and stops that need more than the trace."""
    if found := discover_decorated(task, "intercept"):
        raise NotReproducibleError(f"it changes messages between model and tools: {_names(found)}")
    rewards, metrics, stops = (task.hooks(kind) for kind in ("reward", "metric", "stop"))
    if not rewards:
        raise NotReproducibleError(f"{type(task).__name__} has no rewards")
    for function in [*rewards, *metrics]:
        _check_scorer(function)
    for function in stops:
        if any(word in str(inspect.signature(function)) for word in ("Request", "Response")):
            raise NotReproducibleError(
                f"the stop {function.__name__} reads requests or responses; only the trace is rebuilt"
            )
    for function in [*rewards, *metrics, *stops]:
        _check_code(function)


def _check_scorer(function: Callable[..., Any]) -> None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is inspect.Parameter.empty and parameter.name not in {"task", "trace"}:
            what = "a runtime" if parameter.name == "runtime" else parameter.name
            raise NotReproducibleError(f"the reward or metric {function.__name__} needs {what}")
    if not inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise NotReproducibleError(f"the reward or metric {function.__name__} is not async, which verifiers requires")


def _check_toolset(toolset: vf.Toolset, state: type[vf.State]) -> None:
    name, config = type(toolset).__name__, toolset.config
    if getattr(config, "url", None):
        raise NotReproducibleError(f"the tools of {name} are on another machine: {config.url}")
    if getattr(config, "colocated", False):
        raise NotReproducibleError(f"{name} shares the model's container (colocated)")
    if not isinstance(config.runtime, SubprocessConfig):
        raise NotReproducibleError(f"{name} needs the runtime {config.runtime.type}")
    if type(toolset).register is not vf.Toolset.register:
        raise NotReproducibleError(f"{name} overrides register")
    its_state = state_cls(type(toolset))
    if its_state is not vf.State and its_state is not state:
        raise NotReproducibleError(f"{name} has the state {its_state.__name__}, but the tasks have {state.__name__}")
    for method in discover_decorated(toolset, "tool"):
        tool = Tool.from_function(method)
        if tool.context_kwarg is not None or tool.resolved_params:
            raise NotReproducibleError(f"the tool {method.__name__} needs a connection to its client")
        _check_code(method)
    for method in (toolset.setup, toolset.setup_task):
        _check_code(method)


def _check_code(function: Callable[..., Any]) -> None:
    """Refuses a function that uses the network, another program or a judge.

    The check finds what names show. The sandbox has no network all the same, so that a hidden use fails everywhere.
    """
    for name, found in _uses(inspect.unwrap(function), set()):
        module = found.__name__ if isinstance(found, types.ModuleType) else getattr(found, "__module__", None) or ""
        if module in _NETWORK or module.partition(".")[0] in _NETWORK:
            raise NotReproducibleError(f"{function.__name__} uses {name}, which reaches other machines or programs")
        if name == "Judge" or (isinstance(found, type) and issubclass(found, vf.Judge)):
            raise NotReproducibleError(f"{function.__name__} asks a judge, a model that other machines can't ask again")


def _uses(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any callable of a taskset
    """Yields the global names and imports of a function and of the functions of the same package that it calls."""
    code = getattr(function, "__code__", None)
    if code is None or id(code) in seen:
        return
    seen.add(id(code))
    names = function.__globals__
    package = str(names.get("__name__", "")).partition(".")[0]
    for each in _codes(code):
        for instruction in dis.get_instructions(each):
            name = str(instruction.argval)
            if instruction.opname == "IMPORT_NAME":
                yield name, types.ModuleType(name)
            elif instruction.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and name in names:
                found = names[name]
                yield name, found
                if str(getattr(found, "__module__", "")).partition(".")[0] == package:
                    yield from _uses(found, seen)
            elif instruction.opname in {"LOAD_ATTR", "LOAD_METHOD"} and name == "Judge":
                yield name, None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(functions: list[Callable[..., Any]]) -> str:
    return ", ".join(function.__name__ for function in functions)


def make(name: str, config: Mapping[str, Any]) -> vf.Taskset:
    """Returns a taskset that can load its tasks."""
    return loaders.load_taskset(loaders.taskset_config_type(name).model_validate({**config, "id": name}))
