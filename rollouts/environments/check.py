"""Checks whether an environment keeps its contract, before a run depends on it (`muster env check`).

Two processes make and score the same items. They differ in hash seed, clock, time zone, locale, and in the order and
number of items that they made before. Nodes and validators differ in the same ways, so any difference between the two
results would have honest work rejected. The scored answers are a few fixed texts, the prompt's own text and the
demonstration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from pydantic import JsonValue

from rollouts.environments.errors import EnvironmentFault

MANY = 0.9
"""A fixed answer that is correct for this share of the prompts makes the environment useless for training."""
_UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """Scope and limits of a check.

    Args:
        items: Number of prompts, from the first one.
        item_timeout: Longest time for making one item and scoring all its answers.
        memory_bytes: Address space of each of the two processes.
    """

    items: int = 200
    item_timeout: timedelta = timedelta(seconds=30)
    memory_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedProperty:
    """A property of the environment; `fault` is empty if the environment has it."""

    name: str
    fault: str = ""


@dataclass(slots=True, kw_only=True)
class CheckReport:
    """Result of a check.

    Args:
        version: Full version of the environment.
        size: Number of prompts; None for an infinite environment.
        items: Number of prompts that were checked.
        properties: The checked properties.
        figures: Share of correct demonstrations and of distinct prompts, and seconds of the slowest item.
    """

    version: str
    size: int | None
    items: int
    properties: list[CheckedProperty]
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Returns whether the environment has all properties."""
        return not any(each.fault for each in self.properties)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conditions:
    """Conditions that differ between the two processes."""

    hash_seed: str
    time_zone: str
    locale: str
    clock_days: int
    reverse: bool
    extra: int
    """Number of other items that the process makes before the checked ones."""


_CONDITIONS = (
    _Conditions(hash_seed="0", time_zone="UTC0", locale="C.UTF-8", clock_days=0, reverse=False, extra=0),
    _Conditions(hash_seed="4242", time_zone="XYZ-5:30", locale="C", clock_days=400, reverse=True, extra=7),
)


def check_environment(
    name: str,
    *,
    version: str | None = None,
    options: Mapping[str, JsonValue] | None = None,
    settings: CheckSettings | None = None,
) -> CheckReport:
    """Checks an environment in two processes, one after the other.

    Raises:
        EnvironmentFault: The environment raised, returned an invalid value, took too long or too much memory.
        MusterError: The environment can't be loaded on this machine.
    """
    settings = settings or CheckSettings()
    request = {"name": name, "version": version, "options": dict(options or {}), "memory_bytes": settings.memory_bytes}
    first, second = (_observe(request, conditions, settings) for conditions in _CONDITIONS)
    items = [first.items[index] for index in sorted(first.items)]
    if not items:
        raise EnvironmentFault(f"environment {name} {first.version} has no prompts")
    return CheckReport(
        version=first.version,
        size=first.size,
        items=len(items),
        properties=[
            CheckedProperty(name="reproducible", fault=_difference(first, second)),
            CheckedProperty(name="refuses indices outside", fault=first.bounds),
            CheckedProperty(name="no fixed answer is correct", fault=_fixed_answer(items)),
        ],
        figures=_figures(items),
    )


@dataclass(slots=True)
class _Observed:
    version: str
    size: int | None
    bounds: str
    items: dict[int, dict[str, Any]] = field(default_factory=dict)


def _observe(request: Mapping[str, Any], conditions: _Conditions, settings: CheckSettings) -> _Observed:
    """Runs one process and collects its items."""
    indices = list(range(settings.items))
    if conditions.reverse:
        indices = [*range(settings.items, settings.items + conditions.extra), *reversed(indices)]
    request = {**request, "indices": indices, "clock_days": conditions.clock_days}
    observed: _Observed | None = None
    for line in _answers(request, conditions, settings):
        if "fault" in line:
            raise EnvironmentFault(line["fault"], **({"hint": line["hint"]} if line["hint"] else {}))
        if observed is None:
            observed = _Observed(line["version"], line["size"], line["bounds"])
        elif line["index"] < settings.items:
            observed.items[line["index"]] = line
    if observed is None:
        raise EnvironmentFault(f"environment {request['name']} ended the process that loaded it")
    return observed


def _answers(request: Mapping[str, Any], conditions: _Conditions, settings: CheckSettings) -> Iterator[dict[str, Any]]:
    """Yields the lines of a process; ends it if one does not come in time."""
    variables = os.environ | {
        "PYTHONHASHSEED": conditions.hash_seed,
        "TZ": conditions.time_zone,
        "LC_ALL": conditions.locale,
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
    }
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "rollouts.environments.check_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=variables,
        )
        assert process.stdin is not None  # noqa: S101 - requested above
        assert process.stdout is not None  # noqa: S101
        try:
            with suppress(BrokenPipeError):  # the process has ended; its exit code is reported below
                process.stdin.write(json.dumps(request).encode())
                process.stdin.close()
            lines: SimpleQueue[bytes] = SimpleQueue()
            threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
            expected = ["its size", *(f"prompt {index}" for index in request["indices"])]
            for what in [*expected, "its end"]:
                try:
                    line = lines.get(timeout=settings.item_timeout.total_seconds())
                except Empty:
                    raise EnvironmentFault(
                        f"environment {request['name']}: {what} and its scores took more than "
                        f"{settings.item_timeout.total_seconds():g} s"
                    ) from None
                if not line:
                    break
                yield json.loads(line)
            try:
                code = process.wait(timeout=10)
            except subprocess.TimeoutExpired:  # a thread of the environment still runs; it can't affect any item
                code = 0
            if code != 0:
                errors.seek(0, os.SEEK_END)
                errors.seek(max(0, errors.tell() - 2000))
                error_lines = errors.read().decode(errors="replace").strip().splitlines()
                raise EnvironmentFault(
                    f"environment {request['name']}: the process that made its items ended with {code}"
                    + (f": {error_lines[-1][:200]}" if error_lines else "")
                )
        finally:
            process.kill()
            process.wait()


def _read(source: IO[bytes], lines: SimpleQueue[bytes]) -> None:
    for line in source:
        lines.put(line)
    lines.put(b"")


def _difference(first: _Observed, second: _Observed) -> str:
    """Returns the first difference between two processes; empty if there is none."""
    if (first.version, first.size) != (second.version, second.size):
        return f"version or size differs: {first.version}, {first.size} and {second.version}, {second.size}"
    for index, item in sorted(first.items.items()):
        other = second.items.get(index)
        if other is None:
            return f"prompt {index} exists in one process only"
        for name, value in item["fields"].items():
            if _is_undecided(value) or _is_undecided(other["fields"].get(name)):
                continue  # a limit of time or memory ended the check, which no validator holds against a node
            if other["fields"].get(name) != value:
                return f"prompt {index}: {name} differs: {value!r:.120} and {other['fields'].get(name)!r:.120}"
    return ""


def _is_undecided(value: object) -> bool:
    return isinstance(value, dict) and bool(value.get(_UNDECIDED))


def _fixed_answer(items: Sequence[Mapping[str, Any]]) -> str:
    """Returns which answer, equal for all prompts, is correct for most of them; empty if there is none."""
    correct: Counter[str] = Counter()
    for item in items:
        for name, value in item["fields"].items():
            if name.startswith("score of ") and name != "score of the demonstration" and value["task"] == 1.0:
                correct[name.removeprefix("score of ")] += 1
    for name, count in correct.most_common(1):
        if count >= MANY * len(items):
            return f"{name} is a correct answer to {count} of {len(items)} prompts"
    return ""


def _figures(items: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    demonstrated = [
        item["fields"]["score of the demonstration"]["task"]
        for item in items
        if "score of the demonstration" in item["fields"]
    ]
    figures = {
        "distinct_prompts": len({item["fields"]["text"] for item in items}) / len(items),
        "slowest_prompt_s": max(item["seconds"]["prompt"] for item in items),
        "slowest_score_s": max(item["seconds"]["scores"] for item in items),
    }
    if demonstrated:
        figures["correct_demonstrations"] = sum(demonstrated) / len(demonstrated)
    return figures
