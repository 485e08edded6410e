"""Checks whether an environment keeps its contract, before a run depends on it (`muster env check`).

Two processes make and score the same items (prompts with scored answers). The processes differ in hash seed, clock,
time zone, locale, and in the order and number of the items that they make. Nodes and validators differ in the same
ways. So an environment whose results differ between the two processes would cause honest work to be rejected.

An environment with several turns also plays scripted dialogues: see `check_scripts`.

The scored answers are a few fixed texts, the prompt's own text, the demonstration, the demonstration with a changed
letter, and the demonstration of the previous prompt. The last two answers are usually wrong but have the right form.
They test code of the scorer that neither right answers nor fixed texts reach.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from pydantic import JsonValue

from rollouts.environments.check_scripts import DEMONSTRATED, difference
from rollouts.environments.dialogue import GivenMessage, Role, Tool
from rollouts.environments.errors import EnvironmentFault
from rollouts.environments.interface import Rewards
from rollouts.environments.rewards import is_solved

START_TIMEOUT = timedelta(minutes=3)
"""Longest time for starting a process and making the environment, which may start a sandbox and prepare a dataset."""
PROBE_TIMEOUT = timedelta(seconds=60)
"""Longest time in which an environment may make a prompt when a recipe is written or a run starts."""
PROBE_SCORED = 4
"""Number of a probe's prompts for which answers are scored too; scoring may run code and take seconds."""
MANY = 0.9
"""If a fixed answer has at least this mean reward over all prompts, the environment is useless for training."""
_UNDECIDED = "undecided"
_START = "making the environment"
_UNLIMITED = 1 << 46
"""Address space in bytes that no process reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """Scope and limits of a check.

    Args:
        items: Number of prompts, from the first one.
        item_timeout: Longest time for making one item and scoring all its answers.
        hint: Advice to the user if the environment takes longer than `item_timeout`.
        memory_bytes: Address space of each of the two processes.
    """

    items: int = 200
    item_timeout: timedelta = timedelta(seconds=30)
    hint: str = "bound the time of every method for any text; if honest items need more, raise --item-timeout"
    memory_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedProperty:
    """A property of the environment; `fault` is empty if the environment has the property."""

    name: str
    fault: str = ""


@dataclass(slots=True, kw_only=True)
class CheckReport:
    """Result of a check.

    Args:
        version: Full version of the environment.
        size: Number of prompts; None for an infinite environment.
        rewards: The values that the family declares for its scores.
        items: Number of prompts that were checked.
        properties: The checked properties.
        figures: Share of correct demonstrations and of distinct prompts, and seconds of the slowest item; with `unit`
            rewards also the mean reward of the demonstrations.
    """

    version: str
    size: int | None
    rewards: Rewards
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
        EnvironmentFault: The environment raised an exception, returned an invalid value, or took too much time or
            memory.
        MusterError: The environment can't be loaded on this machine.
    """
    settings = settings or CheckSettings()
    request = {"name": name, "version": version, "options": dict(options or {}), "memory_bytes": settings.memory_bytes}
    first, second = (_observe(request, conditions, settings) for conditions in _CONDITIONS)
    items = [first.items[index] for index in sorted(first.items)]
    if not items:
        raise EnvironmentFault(
            f"environment {name} {first.version} has no prompts", hint="check its options; a run needs prompts"
        )
    return CheckReport(
        version=first.version,
        size=first.size,
        rewards=first.rewards,
        items=len(items),
        properties=[
            CheckedProperty(name="reproducible", fault=_difference(first, second)),
            CheckedProperty(name="refuses indices outside", fault=first.bounds),
            CheckedProperty(name="no fixed answer is correct", fault=_fixed_answer(items)),
            *_dialogue_properties(items),
        ],
        figures=_figures(items, first.rewards),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedPrompt:
    """A prompt that a probe made.

    Args:
        text: The prompt's text.
        demonstration: The environment's own right answer; None if the environment has none, or if the probe did not
            ask for it.
        opening: Messages before the model's first one; empty for an environment with single answers.
        tools: Tools of the dialogue.
        demonstration_turns: Messages of a demonstrated dialogue; None if the environment has none.
    """

    text: str
    demonstration: str | None
    opening: tuple[GivenMessage, ...] = ()
    tools: tuple[Tool, ...] = ()
    demonstration_turns: tuple[str, ...] | None = None


def probe_prompts(
    name: str, *, version: str | None, options: Mapping[str, JsonValue], indices: Sequence[int]
) -> dict[int, ProbedPrompt]:
    """Makes prompts in a separate process, and scores answers to the first prompts.

    A run starts many processes that use the environment. Before they start, the probe detects an environment that
    raises exceptions or hangs.

    Args:
        name: Name of the environment.
        version: Required version; None for the installed one.
        options: Options of the environment.
        indices: Indices of the prompts; those outside the environment are left out.

    Returns:
        The prompts, by index; only the first `PROBE_SCORED` of them have demonstrations.

    Raises:
        EnvironmentFault: The environment raised an exception, returned an invalid value, or took longer than
            `PROBE_TIMEOUT`.
        MusterError: The environment can't be loaded on this machine.
    """
    request = {
        "name": name,
        "version": version,
        "options": dict(options),
        "memory_bytes": _UNLIMITED,
        "scored": list(indices[:PROBE_SCORED]),
    }
    hint = "ask the author of the environment to bound the time of every method"
    settings = CheckSettings(items=len(indices), item_timeout=PROBE_TIMEOUT, hint=hint)
    observed = _collect(request, _CONDITIONS[0], settings, indices)
    made = {index: item["fields"] for index, item in observed.items.items()}
    return {index: _probed(fields) for index, fields in made.items()}


def _probed(fields: Mapping[str, Any]) -> ProbedPrompt:
    turns = fields.get("demonstrated messages")
    return ProbedPrompt(
        text=fields["text"],
        demonstration=fields.get("demonstration"),
        opening=tuple(GivenMessage(**{**one, "role": Role(one["role"])}) for one in fields.get("opening", ())),
        tools=tuple(Tool(**one) for one in fields.get("tools", ())),
        demonstration_turns=None if turns is None else tuple(turns),
    )


@dataclass(slots=True)
class _Observed:
    version: str
    size: int | None
    rewards: Rewards
    bounds: str
    items: dict[int, dict[str, Any]] = field(default_factory=dict)


def _observe(request: Mapping[str, Any], conditions: _Conditions, settings: CheckSettings) -> _Observed:
    """Runs one process and collects the items of a check."""
    indices = list(range(settings.items))
    if conditions.reverse:
        indices = [*range(settings.items, settings.items + conditions.extra), *reversed(indices)]
    observed = _collect(request, conditions, settings, indices)
    for extra in range(settings.items, settings.items + conditions.extra):
        observed.items.pop(extra, None)
    return observed


def _collect(
    request: Mapping[str, Any], conditions: _Conditions, settings: CheckSettings, indices: Sequence[int]
) -> _Observed:
    """Runs one process and collects the items of these indices."""
    request = {**request, "indices": list(indices), "clock_days": conditions.clock_days}
    observed: _Observed | None = None
    for line in _answers(request, conditions, settings):
        if "fault" in line:
            raise EnvironmentFault(line["fault"], **({"hint": line["hint"]} if line["hint"] else {}))
        if observed is None:
            observed = _Observed(line["version"], line["size"], Rewards(line["rewards"]), line["bounds"])
        else:
            observed.items[line["index"]] = line
    if observed is None:
        raise EnvironmentFault(
            f"environment {request['name']} ended the process that loaded it",
            hint="code that makes an environment may raise an exception, but must not exit",
        )
    return observed


def _answers(request: Mapping[str, Any], conditions: _Conditions, settings: CheckSettings) -> Iterator[dict[str, Any]]:
    """Yields the lines that a process writes; ends the process if a line does not come in time."""
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
            expected = [_START, *(f"prompt {index} and its scores" for index in request["indices"])]
            for what in [*expected, "its end"]:
                limit = START_TIMEOUT if what == _START else settings.item_timeout
                try:
                    line = lines.get(timeout=limit.total_seconds())
                except Empty:
                    raise EnvironmentFault(
                        f"environment {request['name']}: {what} took more than {limit.total_seconds():g} s",
                        hint=settings.hint,
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
                    + (f": {error_lines[-1][:200]}" if error_lines else ""),
                    hint="run code that may crash or exit in a sandbox; no method of an environment may exit",
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
            return f"prompt {index} exists in only one of two processes"
        for name, value in item["fields"].items():
            if _is_undecided(value) or _is_undecided(other["fields"].get(name)):
                continue  # a time or memory limit ended the check; validators excuse such rows
            if other["fields"].get(name) != value and _is_dialogue(value):
                return f"prompt {index}: {name} differs: {difference(value, other['fields'][name])}"
            if other["fields"].get(name) != value:
                return f"prompt {index}: {name} differs: {value!r:.120} and {other['fields'].get(name)!r:.120}"
    return ""


def _is_dialogue(value: object) -> bool:
    return isinstance(value, dict) and "replies" in value


def _dialogue_properties(items: Sequence[Mapping[str, Any]]) -> list[CheckedProperty]:
    if "opening" not in items[0]["fields"]:
        return []
    fault = next((item["unrepeatable"] for item in items if item["unrepeatable"]), "")
    return [CheckedProperty(name="dialogues are repeatable", fault=fault)]


def _is_undecided(value: object) -> bool:
    return isinstance(value, dict) and bool(value.get(_UNDECIDED))


def _fixed_answer(items: Sequence[Mapping[str, Any]]) -> str:
    """Describes the best fixed answer if its mean reward reaches `MANY`; else returns an empty text."""
    earned: dict[str, list[float]] = {}
    for item in items:
        for name, value in item["fields"].items():
            if name.startswith("score of ") and "demonstration" not in name:
                earned.setdefault(name.removeprefix("score of "), []).append(value["task"])
    name, tasks = max(earned.items(), key=lambda pair: math.fsum(pair[1]))
    if math.fsum(tasks) < MANY * len(items):
        return ""
    solved = sum(map(is_solved, tasks))
    if solved >= MANY * len(items):
        return f"{name} is a correct answer to {solved} of {len(items)} prompts"
    return f"{name} earns {math.fsum(tasks) / len(items):.0%} of the full reward, as a mean over {len(items)} prompts"


def _figures(items: Sequence[Mapping[str, Any]], rewards: Rewards) -> dict[str, float]:
    shown = [item["fields"].get(DEMONSTRATED, {}).get("score") for item in items]
    shown += [item["fields"].get("score of the demonstration") for item in items if "opening" not in item["fields"]]
    demonstrated = [score["task"] for score in shown if score is not None]
    figures = {
        "distinct_prompts": len({item["fields"]["text"] for item in items}) / len(items),
        "slowest_prompt_s": max(item["seconds"]["prompt"] for item in items),
        "slowest_score_s": max(item["seconds"]["scores"] for item in items),
    }
    if "opening" in items[0]["fields"]:
        figures["slowest_dialogues_s"] = max(item["seconds"]["dialogues"] for item in items)
    if demonstrated:
        figures["correct_demonstrations"] = sum(map(is_solved, demonstrated)) / len(demonstrated)
        if rewards is Rewards.UNIT:
            figures["demonstrations_reward"] = math.fsum(demonstrated) / len(demonstrated)
    return figures
