"""Command `muster-verifiers`: writes the tasks of an installed taskset to a file.

The command runs on the pool owner's machine and calls the taskset's own `load`, which may use the network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_verifiers.tasks_file import MOST_CONFIG, Header, opening_of
from protocol.errors import InvalidInput, MusterError
from rollouts.environments.code_digest import code_digest
from rollouts.environments.errors import BadOptions


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; prints the options that name the file, as JSON."""
    parser = argparse.ArgumentParser(prog="muster-verifiers", description="Tasksets of verifiers as environments.")
    commands = parser.add_subparsers(dest="command", required=True)
    export = commands.add_parser("export", help="write the tasks of a taskset to a file")
    export.add_argument("taskset", help="the taskset's module, such as glossary")
    export.add_argument("file", type=Path, help="the file to write, such as glossary.jsonl")
    export.add_argument("--items", type=int, default=10_000, help="maximum number of tasks (default 10000)")
    export.add_argument("--config", default="{}", help="the taskset's configuration as a JSON object")
    chosen = parser.parse_args(arguments)
    try:
        try:
            config = json.loads(chosen.config)
        except ValueError as error:
            raise InvalidInput(f"--config is not JSON: {error}", hint="write an object: --config '{…}'") from error
        written = export_taskset(chosen.taskset, chosen.file, config=config, items=chosen.items)
    except MusterError as error:
        sys.stderr.write(f"error: {error.detail}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        sys.exit(1)
    sys.stdout.write(json.dumps(written) + "\n")


def export_taskset(taskset: str, file: Path, *, config: dict[str, Any], items: int) -> dict[str, str]:
    """Writes the tasks of a taskset to a file; returns the options `path` and `sha256` of the environment.

    Raises:
        BadOptions: The taskset is not reproducible, or its configuration is invalid.
        BadDataset: A task is not reproducible.
        InvalidInput: A number or file is invalid.
    """
    if items < 1:
        raise InvalidInput(f"can't write {items} tasks", hint="give --items of at least 1")
    tasks, loaded_config, task_config = _tasks(taskset, config, items)
    header = Header(taskset=taskset, code=code_digest(taskset), config=loaded_config, task_config=task_config)
    lines = [header.model_dump_json()]
    if len(lines[0]) > MOST_CONFIG:
        raise BadOptions(f"the configuration has more than {MOST_CONFIG} characters", hint="shorten its lists")
    for index, row in enumerate(tasks):
        opening_of(row, where=f"task {index}")
        lines.append(json.dumps(row, sort_keys=True))
    content = "".join(f"{line}\n" for line in lines).encode()
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(file)
    except OSError as error:
        raise InvalidInput(f"can't write {file}: {error.strerror}", hint="choose another place") from error
    return {"path": str(file), "sha256": hashlib.sha256(content).hexdigest()}


def _tasks(taskset: str, config: dict[str, Any], items: int) -> tuple[list[dict[str, Any]], Any, Any]:
    """Returns the tasks' data, and the configurations of taskset and tasks."""
    code_digest(taskset)  # an error in words if the module is missing
    try:
        from muster_verifiers import taskset as loading  # noqa: PLC0415 - verifiers takes seconds to import
    except ImportError as error:
        raise BadOptions(
            f"verifiers can't be imported: {error}",
            hint="install it as in docs/verifiers.md: pip install ./integrations/verifiers",
        ) from error
    try:
        loading.load(taskset, config, None)
        made = loading.make(taskset, config)
        found = list(made.take(items))
        kind, configs = made.task_type(), [task.config.model_dump(mode="json") for task in found]
        for each in configs[:1]:  # a taskset may give its tasks another configuration than its own
            loading.load(taskset, config, each)
        rows = [task.data.model_dump(mode="json", exclude_none=True) for task in found]
    except Exception as error:  # a taskset may raise anything
        raise BadOptions(
            f"the taskset {taskset} can't be used: {type(error).__name__}: {str(error)[:300]}",
            hint="docs/verifiers.md lists what is refused, and why",
        ) from error
    if not found or any(type(task) is not kind for task in found) or any(each != configs[0] for each in configs):
        raise BadOptions(
            f"the taskset {taskset} has no tasks, or tasks of several classes or configurations",
            hint="choose a taskset whose tasks differ in their data only",
        )
    return rows, made.config.model_dump(mode="json"), configs[0]


if __name__ == "__main__":
    main()
