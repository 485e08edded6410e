"""File with the tasks of a taskset: JSON lines, of which the first describes the taskset.

    {"format": "muster-verifiers-1", "taskset": "glossary", "code": "3f…", "config": {…}, "task_config": {…}}
    {"idx": 0, "prompt": "Use the `facts_lookup` tool …", "answer": "the first computer programmer"}

Nodes and validators read tasks from this file and never call `Taskset.load`, so they need no network and no data set,
and an infinite taskset has a size. The file's SHA-256 in the recipe fixes tasks, configuration and code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from protocol.errors import plain_message
from rollouts.environments.code_digest import code_digest
from rollouts.environments.datasets import FileOptions, JsonRows, check_file
from rollouts.environments.dialogue import GivenMessage, Role
from rollouts.environments.errors import BadDataset, BadOptions
from rollouts.environments.indices import check_index
from rollouts.environments.validation import has_encoding

MOST_CONFIG = 16 * 1024
"""Maximum characters of the first line; a sandbox's server gets it in one packet."""
_WRITE = "write the file again: muster-verifiers export"
_CONTAINER = ("image", "workdir", "agent_user", "skills", "artifacts")
"""Fields of tasks that need a container."""


class Header(BaseModel):
    """First line of the file.

    Args:
        taskset: Top-level module of the taskset.
        code: Digest of the taskset's files: see `rollouts.environments.code_digest`.
        config: Configuration of the taskset.
        task_config: Configuration of its tasks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["muster-verifiers-1"] = "muster-verifiers-1"
    taskset: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    config: dict[str, JsonValue]
    task_config: dict[str, JsonValue]


class TasksFile:
    """The tasks of a file.

    Raises:
        BadDataset: The file is missing, has another digest, or has malformed rows.
        BadOptions: The taskset is not installed, or its code differs from the file's.
    """

    def __init__(self, options: FileOptions) -> None:
        check_file(options.file, options.sha256)
        self._rows = JsonRows(options.file)
        count = 0
        for number, content in enumerate(self._rows):
            if number == 0:
                self.header = _header(options.file, content)
            else:
                opening_of(_row(options.file, number, content), where=f"{options.file}: row {number}")
            count += 1
        if count < 2:
            raise BadDataset(f"{options.file} has no tasks", hint=_WRITE)
        self._path, self.size = options.file, count - 1
        found = code_digest(self.header.taskset)
        if found != self.header.code:
            raise BadOptions(
                f"the taskset {self.header.taskset} has the code digest {found} here, but {options.file} was written "
                f"with {self.header.code}",
                hint=f"install the release of {self.header.taskset} with which the file was written, or write the file "
                "and the recipe again",
            )

    def row(self, index: int) -> dict[str, JsonValue]:
        """Returns a task's data.

        Raises:
            NoSuchPrompt: The index is outside the file.
        """
        number = check_index(index, size=self.size) + 1
        return _row(self._path, number, self._rows.row(number))


def opening_of(row: Mapping[str, JsonValue], *, where: str) -> list[GivenMessage]:
    """Returns the messages with which a task's dialogue begins.

    Raises:
        BadDataset: The task has no prompt, or needs images, earlier messages of the model, or a container.
    """
    if needed := [name for name in _CONTAINER if row.get(name)]:
        raise BadDataset(
            f"{where}: the task needs a container: it has {', '.join(needed)}",
            hint="choose a taskset whose tasks are texts and tools",
        )
    messages: list[GivenMessage] = []
    system, prompt = row.get("system_prompt"), row.get("prompt")
    if system is not None:
        messages.append(GivenMessage(role=Role.SYSTEM, text=_text(system, where)))
    if isinstance(prompt, str):
        messages.append(GivenMessage(role=Role.USER, text=_text(prompt, where)))
    elif isinstance(prompt, list):
        for message in prompt:
            if not isinstance(message, dict) or message.get("role") not in {"system", "user"}:
                raise BadDataset(
                    f"{where}: the prompt has messages other than system and user messages",
                    hint="choose tasks that begin with the user's message",
                )
            messages.append(GivenMessage(role=Role(str(message["role"])), text=_text(message.get("content"), where)))
    if not any(message.role is Role.USER for message in messages):
        raise BadDataset(
            f"{where}: the task has no prompt, because its environment opens the dialogue",
            hint="choose a taskset without an environment class of its own",
        )
    return messages


def _text(content: JsonValue, where: str) -> str:
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "\n".join(str(part) for part in parts) if len(parts) == len(content) else None
    if not isinstance(content, str) or not has_encoding(content):
        raise BadDataset(f"{where}: a message is not text", hint="images are not supported")
    return content


def _header(path: Path, content: object) -> Header:
    try:
        if isinstance(content, bytes) and len(content) <= MOST_CONFIG:
            return Header.model_validate_json(content)
        why = f"it has more than {MOST_CONFIG} bytes"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = ": ".join([*(str(part) for part in first["loc"][:1]), plain_message(first["msg"])])
    raise BadDataset(f"{path}: the first line does not describe a taskset: {why}", hint=_WRITE)


def _row(path: Path, number: int, content: object) -> dict[str, JsonValue]:
    try:
        row: Any = json.loads(content) if isinstance(content, bytes) else None
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise BadDataset(f"{path}: row {number} is not a JSON object", hint=_WRITE)
    return row
