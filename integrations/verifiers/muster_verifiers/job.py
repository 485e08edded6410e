"""Job of the sandbox: calls the tools of a dialogue again, and scores it.

A job gets a task and the dialogue so far, and calls every tool again in order, so that tools find the state of their
earlier calls. It ends with the reply to the last message, or with the score:

    run({"row": {…}, "messages": […], "score": false}, …)  ← {"replies": ["…", null], "over": false}
    run({"row": {…}, "messages": […], "score": true}, …)   ← {"rewards": {"lcs": 0.5}, "metrics": {}, …}
    run({}, …)                                             ← {"tools": [{"name": …, "description": …}]}

A message is `{"text": "…", "finished": true, "tokens": 7, "calls": [{"name", "arguments", "run", "reply"}]}`; `text` is
the part before the calls, or null; `run` says whether the call reaches a tool, and `reply` is the text that the model
has read. A reply of null means that the arguments don't fit the tool.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import ModelCall, TraceTask, VersionInfo
from verifiers.v1.types import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from verifiers.v1.types import Tool as WireTool
from verifiers.v1.utils.decorators import invoke

from muster_verifiers import loop
from muster_verifiers.taskset import LoadedTaskset, TaskTool, load
from rollouts.adapters.job import LONGEST_REPLY, answer, error_reply, figure

_MOST_FIGURES = 32
_NOT_TEXT = "error: the tool's result is not text"


@dataclass(frozen=True, slots=True)
class _Prepared:
    taskset: LoadedTaskset
    tools: Mapping[str, TaskTool]


def prepare(payload: dict[str, Any]) -> object:
    """Loads a taskset, and runs the set-up of its tool servers.

    Raises:
        Exception: The taskset is not reproducible, or its code raises an exception.
    """
    found = load(payload["taskset"], payload["config"], payload["task_config"])
    for toolset in [*found.shared, *found.own]:
        loop.run(toolset.setup())
    return _Prepared(found, found.tools())


def run(payload: dict[str, Any], prepared: _Prepared) -> int:
    """Does one job; writes one JSON object to descriptor 3."""
    return answer(lambda: loop.run(_replayed(payload, prepared)) if payload else _described(prepared))


def _described(prepared: _Prepared) -> dict[str, object]:
    tools = [
        {"name": name, "description": each.tool.description, "parameters": each.tool.parameters}
        for name, each in prepared.tools.items()
    ]
    return {"tools": tools}


async def _replayed(payload: Mapping[str, Any], prepared: _Prepared) -> dict[str, object]:
    replay = _Replay(payload["row"], prepared)
    await replay.begin()
    replies: list[str | None] = []
    for message in payload["messages"]:
        replies = await replay.add(message)
    return await replay.score() if payload["score"] else {"replies": replies, "over": await replay.is_over()}


@dataclass
class _Replay:
    """A dialogue that is played again."""

    row: Mapping[str, Any]
    prepared: _Prepared
    pending: list[Message] = field(default_factory=list)
    """Messages that the model has not read; verifiers adds them to the trace with the model's next message."""

    def __post_init__(self) -> None:
        loaded = self.prepared.taskset
        self.task = loaded.task(loaded.task.data_type().model_validate(dict(self.row)), loaded.task_config)
        self.trace: vf.Trace[Any, Any, Any] = vf.Trace(
            id="0" * 32,
            verifiers=VersionInfo(version="0.4.0"),
            task=TraceTask(type=loaded.task.__name__, data=self.task.data, key=self.task.key, hash=self.task.hash),
            state=loaded.state(),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
            tools=[
                WireTool(name=name, description=each.tool.description, parameters=each.tool.parameters)
                for name, each in self.prepared.tools.items()
            ],
        )
        data = self.task.data
        if data.system_prompt is not None:
            self.pending.append(SystemMessage(content=data.system_prompt))
        prompt = [UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or [])
        self.pending += prompt
        self._calls = 0
        for toolset in [*loaded.shared, *loaded.own]:
            if isinstance(self.trace.state, toolset._state_cls):
                toolset._inert_state = self.trace.state

    async def begin(self) -> None:
        """Runs the set-up of the task's own tool servers."""
        for toolset in self.prepared.taskset.own:
            await toolset.setup_task(self.task.data)

    async def add(self, message: Mapping[str, Any]) -> list[str | None]:
        """Adds a message of the model, and calls its tools; returns the replies."""
        calls: list[dict[str, Any]] = message["calls"]
        wire = [
            ToolCall(
                id=f"call_{self._calls + number}",
                name=call["name"],
                arguments="" if call["arguments"] is None else json.dumps(call["arguments"]),
            )
            for number, call in enumerate(calls)
        ]
        self._calls += len(calls)
        for each in self.pending:
            self._node(each)
        self.pending = []
        self._node(AssistantMessage(content=message["text"], tool_calls=wire or None), sampled=True)
        self.trace.calls.append(
            ModelCall(
                node=len(self.trace.nodes) - 1,
                finish_reason="length" if not message["finished"] else "tool_calls" if calls else "stop",
                usage=Usage(prompt_tokens=0, completion_tokens=message["tokens"]),
            )
        )
        replies: list[str | None] = []
        if message["finished"]:
            for call, its in zip(calls, wire, strict=True):
                found = await self._call(call["name"], call["arguments"]) if call["run"] else call["reply"]
                replies.append(found)
                shown = call["reply"] if call["reply"] is not None else found
                self.pending.append(ToolMessage(tool_call_id=its.id, content=shown or "", name=its.name))
        return replies

    async def is_over(self) -> bool:
        """Returns whether a stop of the task ends the dialogue before the model's next message."""
        for stop in self.task.hooks("stop"):
            try:
                found = invoke(stop, {vf.Trace: self.trace})
                over = (await found) if inspect.isawaitable(found) else found
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - verifiers ends a rollout whose stop raises
                over = True
            if over:
                self.trace.stop(stop.__name__)
                return True
        return False

    async def score(self) -> dict[str, object]:
        """Returns rewards times weights, metrics, and the sum of the rewards."""
        last = self.trace.calls[-1] if self.trace.calls else None
        if self.pending and last is not None and last.finish_reason == "tool_calls" and not await self.is_over():
            self.trace.stop("max_turns")
        self.trace.stop("agent_completed")
        self.trace.ok = True
        failed = 0.0
        try:
            await self.task.score(self.trace)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - verifiers gives no reward if a reward raises
            failed = 1.0
        rewards = {name: figure(each.value) for name, each in self.trace.rewards.items() if each is not None}
        metrics = {name: figure(each) for name, each in self.trace.metrics.items() if each is not None}
        total = 0.0 if failed else figure(math.fsum(rewards.values()))
        return {"rewards": _some(rewards), "metrics": _some(metrics), "total": total, "failed": failed}

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Returns a tool's result as text, as an MCP server and the harness `null` make it."""
        tool = self.prepared.tools[name].tool
        try:
            checked = tool.fn_metadata.validate_arguments(dict(arguments))
        except ValidationError:
            return None
        try:
            result = tool.fn(**checked)
            if inspect.isawaitable(result):
                result = await result
            content: Sequence[Any] = getattr(tool.fn_metadata.convert_result(result), "content", ())
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - an MCP server replies with the exception
            return error_reply(error)
        if any(part.type != "text" for part in content):
            return _NOT_TEXT
        return "\n".join(part.text for part in content)[:LONGEST_REPLY] if content else "[]"

    def _node(self, message: Message, *, sampled: bool = False) -> None:
        parent = len(self.trace.nodes) - 1 if self.trace.nodes else None
        tools = list(self.trace.tools) if parent is None else []
        self.trace.nodes.append(MessageNode(parent=parent, message=message, sampled=sampled, tools=tools))


def _some(figures: Mapping[str, float]) -> dict[str, float]:
    return {name[:64]: figures[name] for name in sorted(figures)[:_MOST_FIGURES]}
