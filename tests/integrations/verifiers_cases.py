"""Example tasksets of verifiers, unmodified: checked, played, verified and read by a trainer.

Run by the Python of `.tools/verifiers`, through `test_verifiers.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from muster_verifiers import family, loop
from muster_verifiers.export import export_taskset
from muster_verifiers.tasks_file import Header

from protocol.verdicts import ReasonCode
from rollouts.environments import Prompt, load_environment
from rollouts.environments.check import CheckSettings, check_environment
from rollouts.environments.code_digest import code_digest
from rollouts.environments.dialogue import ModelMessage, Reply, ToolCall
from rollouts.environments.errors import BadDataset, BadOptions
from rollouts.environments.tools import BAD_ARGUMENTS, MOST_BYTES, UNKNOWN_TOOL
from rollouts.environments.validation import CheckedEnvironment
from rollouts.files.samples import RolloutFile
from rollouts.turns import Turn
from tests.kit.adapted_slot import EACH, GROUPS, memorised_version, played_file, read_by_trainer, verified

Options = dict[str, Any]


def exported(taskset: str, folder: Path, **config: Any) -> Options:
    return {**export_taskset(taskset, folder / f"{taskset}.jsonl", config=config, items=50)}


def written(taskset: str, folder: Path, rows: Sequence[dict[str, Any]]) -> Options:
    """Writes a tasks file by hand, as for a data set that the taskset would download."""
    header = Header(taskset=taskset, code=code_digest(taskset), config={}, task_config={})
    content = "".join(line + "\n" for line in [header.model_dump_json(), *map(json.dumps, rows)]).encode()
    path = folder / f"{taskset}.jsonl"
    path.write_bytes(content)
    return {"path": str(path), "sha256": hashlib.sha256(content).hexdigest()}


def row_of(prompt: Prompt) -> dict[str, Any]:
    row = prompt.data["row"]
    assert isinstance(row, dict)
    return row


def reversals(folder: Path) -> Options:
    texts = ["hello there", "a short text", "one more"]
    rows = [{"prompt": text, "system_prompt": "reverse the text", "answer": text[::-1]} for text in texts]
    return written("reverse_text", folder, rows)


@dataclass(frozen=True)
class Example:
    options: Callable[[Path], Options]
    script: Callable[[dict[str, Any]], list[str]]
    fault: str = ""
    """A fault of the rewards that `muster env check` finds."""


EXAMPLES = {
    "glossary": Example(
        lambda folder: exported("glossary", folder),
        lambda row: [f"facts_lookup({row['name'].lower()})", row["answer"].lower()],
    ),
    "scratchpad": Example(
        lambda folder: exported("scratchpad", folder),
        lambda row: [f"scratchpad_roundtrip({row['word']})", row["word"]],
        fault="the prompt's own text is a correct answer to 3 of 3 prompts",
    ),
    "reverse_text": Example(reversals, lambda row: [f"<reversed_text>{row['answer']}</reversed_text>"]),
}


def opened(options: Options) -> CheckedEnvironment:
    return load_environment("verifiers", options=options)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_checked_played_verified_and_read_by_a_trainer(name: str, tmp_path: Path) -> None:
    options, script = EXAMPLES[name].options(tmp_path), EXAMPLES[name].script
    version = memorised_version(tmp_path, "verifiers", options, lambda prompt: script(row_of(prompt)))
    report = check_environment("verifiers", options=options, settings=CheckSettings(items=3))
    faults = [each.fault for each in report.properties if each.fault]
    assert faults == ([EXAMPLES[name].fault] if EXAMPLES[name].fault else [])

    file = played_file(version)
    assert [sample.task_reward for sample in file.samples] == [1.0] * GROUPS * EACH
    turns = len(script(row_of(version.environment.prompt(0))))
    assert {len(sample.turns) for sample in file.samples} == {turns}
    honest = verified(file, version, tmp_path)
    assert honest.complete
    assert not honest.failed, honest.failed
    assert {"dialogue", "reward", "sampling", "logprobs"} <= {result.check for result in honest.results}

    if turns > 1:
        first = file.samples[0]
        given = first.turns[0].given.copy()
        given[0] ^= 1
        forged = replace(first, turns=(Turn(first.turns[0].drawn, given), *first.turns[1:]))
        bad = verified(RolloutFile(file.header, (forged, *file.samples[1:])), version, tmp_path)
        reasons = [finding.reason for result in bad.failed if result.check == "dialogue" for finding in result.findings]
        assert reasons == [ReasonCode.DIALOGUE_REPLY]
    assert read_by_trainer(file, version, tmp_path) == [1.0] * GROUPS * EACH


def said(text: str, *calls: tuple[str, dict[str, Any] | None], finished: bool = True) -> ModelMessage:
    return ModelMessage(text=text, calls=tuple(ToolCall(*call) for call in calls), finished=finished)


def texts(reply: Reply) -> list[str]:
    return [message.text for message in reply.messages]


STATEFUL = '''
import verifiers.v1 as vf
import asyncio, os, random, time, uuid

class Memory(vf.State):
    seen: list[str] = []

class Tools(vf.Toolset[vf.ToolsetConfig, Memory]):
    TOOL_PREFIX = None
    async def setup_task(self, task):
        self.secret = task.description
        self.count = 0
    @vf.tool
    async def remember(self, word: str, times: int = 1) -> str:
        """Remembers a word."""
        await asyncio.sleep(3600)
        self.count += 1
        self.state.seen = [*self.state.seen, word]
        return f"{self.secret}:{self.count}:{len(self.state.seen)}"
    @vf.tool
    def chance(self) -> str:
        """Returns what differs between machines elsewhere."""
        return f"{random.random()} {time.time()} {uuid.uuid4()} {os.urandom(4).hex()} {hash('x')}"
    @vf.tool
    def fails(self) -> str:
        raise ValueError(f"no such page {object()}")
    @vf.tool
    def flood(self) -> str:
        return "x" * 10_000_000
    @vf.tool
    def odd(self) -> dict:
        return {"a": [1, 2]}
    @vf.tool
    def spin(self) -> str:
        while True:
            pass
    @vf.tool
    def dies(self) -> str:
        os._exit(3)
    @vf.tool
    def opens(self) -> str:
        return open("/etc/passwd").read() + open("/tmp/x", "w").name

class Task(vf.Task[vf.TaskData, Memory]):
    @classmethod
    def toolsets(cls, config):
        return [Tools(vf.ToolsetConfig())]
    @vf.stop
    def enough(self, trace: vf.Trace) -> bool:
        return "stop" in trace.state.seen
    @vf.reward(weight=2.0)
    async def told(self, task, trace) -> float:
        return float(task.description in trace.last_reply) / 3
    @vf.reward
    async def raises(self, trace) -> float:
        return 1 / (len(trace.last_reply) - 1) if "z" in trace.last_reply else 0.0
    @vf.metric
    async def shape(self, trace) -> dict[str, float]:
        return {
            "turns": trace.num_turns, "tools": len(trace.tool_messages), "truncated": trace.is_truncated,
            "stopped": trace.stop_condition == "enough", "limit": trace.stop_condition == "max_turns",
            "nan": float("nan"), "drawn": trace.num_output_tokens,
        }

class Stateful(vf.Taskset[Task, vf.TasksetConfig]):
    INFINITE = True
    def load(self):
        i = 0
        while True:
            yield Task(vf.TaskData(prompt=[vf.SystemMessage(content="s"), vf.UserMessage(content=f"p{i}")],
                                   description=f"d{i}"))
            i += 1

__all__ = ["Stateful"]
'''


@pytest.fixture(scope="module")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("stateful")
    (home / "stateful.py").write_text(STATEFUL)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(home))
        yield opened(exported("stateful", home))


def test_tools_keep_their_state_within_a_dialogue_and_none_between_dialogues(stateful: CheckedEnvironment) -> None:
    assert stateful.size() == 50
    first, second = stateful.begin(stateful.prompt(1)), stateful.begin(stateful.prompt(2))
    assert [message.text for message in first.opening] == ["s", "p1"]
    assert texts(first.reply(said("", ("remember", {"word": "a"}), ("remember", {"word": "b"})))) == [
        "d1:1:1",
        "d1:2:2",
    ]
    assert texts(second.reply(said("", ("remember", {"word": "a"})))) == ["d2:1:1"]
    assert texts(first.reply(said("", ("remember", {"word": "c"})))) == ["d1:3:3"]
    assert first.reply(said("it is d1")).done
    score = first.score()
    assert score.task == pytest.approx(2 / 3, abs=1e-6)
    assert {name: score.parts[name] for name in ("calls", "undecided", "failed", "metric turns", "metric tools")} == {
        "calls": 3,
        "undecided": 0,
        "failed": 0,
        "metric turns": 3,
        "metric tools": 3,
    }
    assert score.parts["metric nan"] == 0


NESTED: list[Any] = []
for _ in range(500):
    NESTED = [NESTED]

CALLS: dict[str, tuple[tuple[str, dict[str, Any] | None], str]] = {
    "an unknown tool": (("nothing", {}), UNKNOWN_TOOL),
    "arguments that are nested too deeply": (("remember", {"word": NESTED}), BAD_ARGUMENTS),
    "arguments that are no object": (("remember", None), BAD_ARGUMENTS),
    "missing arguments": (("remember", {"times": 3}), BAD_ARGUMENTS),
    "a value of another type": (("remember", {"word": "a", "times": "many"}), BAD_ARGUMENTS),
    "a tool that raises": (("fails", {}), "error: ValueError: no such page <object object at 0x>"),
    "a result that is JSON": (("odd", {}), '{\n  "a": [\n    1,\n    2\n  ]\n}'),
    "a tool that opens a hidden file": (
        ("opens", {}),
        "error: FileNotFoundError: [Errno 2] No such file or directory: '/etc/passwd'",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_bad_calls_have_fixed_replies(case: str, stateful: CheckedEnvironment) -> None:
    call, expected = CALLS[case]
    episode = stateful.begin(stateful.prompt(0))
    assert texts(episode.reply(said("", call))) == [expected]


def test_chance_is_equal_everywhere_floods_are_cut_and_limits_blame_nobody(
    stateful: CheckedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "LIMITS", replace(family.LIMITS, cpu=timedelta(seconds=1)))
    once, again = (texts(stateful.begin(stateful.prompt(0)).reply(said("", ("chance", {}))))[0] for _ in range(2))
    assert once == again
    assert " 1767225600.0 " in once
    (flood,) = texts(stateful.begin(stateful.prompt(0)).reply(said("", ("flood", {}))))
    assert len(flood.encode()) <= MOST_BYTES
    for tool in ("spin", "dies"):
        episode = stateful.begin(stateful.prompt(0))
        assert episode.reply(said("", (tool, {}))).done
        assert episode.score().task == 0
        assert episode.score().parts["undecided"] == 1


def test_the_trace_names_how_the_dialogue_ended(stateful: CheckedEnvironment) -> None:
    stopped = stateful.begin(stateful.prompt(0))
    assert stopped.reply(said("", ("remember", {"word": "stop"}))).done
    assert stopped.score().parts["metric stopped"] == 1
    limited = stateful.begin(stateful.prompt(0))
    limited.reply(said("", ("remember", {"word": "a"})))
    assert limited.score().parts["metric limit"] == 1
    assert limited.score().parts["metric tools"] == 0  # the model has not read the result
    cut = stateful.begin(stateful.prompt(0))
    assert cut.reply(ModelMessage(text="d0 d0", finished=False, tokens=7)).done
    assert cut.score().parts["metric truncated"] == 1
    assert cut.score().parts["metric drawn"] == 7
    raising = stateful.begin(stateful.prompt(0))
    raising.reply(said("z"))
    assert raising.score().parts["failed"] == 1
    assert raising.score().task == 0


HEAD = "import verifiers.v1 as vf\nimport httpx\n"
TASKSET = """
class Set(vf.Taskset[Task, vf.TasksetConfig]):
    def load(self):
        return [Task(vf.TaskData(prompt="p"))]
__all__ = ["Set"]
"""
REWARD = "    @vf.reward\n    async def good(self, trace) -> float:\n        return 1.0\n"
REFUSED = {
    "a reward with a runtime": (
        "class Task(vf.Task[vf.TaskData]):\n    @vf.reward\n    async def ran(self, trace, runtime) -> float: ...\n",
        "the reward or metric ran needs a runtime",
    ),
    "a metric with a runtime": (
        f"class Task(vf.Task[vf.TaskData]):\n{REWARD}    @vf.metric\n    async def size(self, runtime) -> float: ...\n",
        "the reward or metric size needs a runtime",
    ),
    "setup": (
        f"class Task(vf.Task[vf.TaskData]):\n{REWARD}    async def setup(self, trace, runtime): ...\n",
        "Task overrides setup",
    ),
    "finalize": (
        f"class Task(vf.Task[vf.TaskData]):\n{REWARD}    async def finalize(self, trace, runtime): ...\n",
        "Task overrides finalize",
    ),
    "a container": (f"class Task(vf.Task[vf.TaskData]):\n    NEEDS_CONTAINER = True\n{REWARD}", "needs a container"),
    "an interceptor": (
        f"class Task(vf.Task[vf.TaskData]):\n{REWARD}    @vf.intercept\n    def edit(self, r: vf.Response): ...\n",
        "it changes messages between model and tools: edit",
    ),
    "a stop of responses": (
        (
            f"class Task(vf.Task[vf.TaskData]):\n{REWARD}    @vf.stop\n"
            "    def halt(self, response: vf.Response) -> bool: ...\n"
        ),
        "the stop halt reads requests or responses",
    ),
    "no reward": ("class Task(vf.Task[vf.TaskData]):\n    pass\n", "has no rewards"),
    "a judge in a reward": (
        (
            "class Task(vf.Task[vf.TaskData]):\n    @vf.reward\n    async def judged(self, trace) -> float:\n"
            "        return await vf.Judge(None).complete('')\n"
        ),
        "judged asks a judge",
    ),
    "a reward with the network": (
        (
            "def fetch():\n    return httpx.get('http://example.org')\n"
            "class Task(vf.Task[vf.TaskData]):\n    @vf.reward\n    async def online(self, trace) -> float:\n"
            "        return float(fetch().status_code)\n"
        ),
        "online uses httpx, which reaches other machines",
    ),
    "a tool with the network": (
        (
            "class Tools(vf.Toolset[vf.ToolsetConfig]):\n    @vf.tool\n    async def get(self, url: str) -> str:\n"
            "        import urllib.request\n        return str(urllib.request.urlopen(url))\n"
            f"class Task(vf.Task[vf.TaskData]):\n{REWARD}    @classmethod\n    def toolsets(cls, config):\n"
            "        return [Tools(vf.ToolsetConfig())]\n"
        ),
        "get uses urllib.request, which reaches other machines",
    ),
    "a tool with a bad name": (
        (
            "class Tools(vf.Toolset[vf.ToolsetConfig]):\n    TOOL_PREFIX = 'a.b'\n    @vf.tool\n"
            "    def get(self) -> str: ...\n"
            f"class Task(vf.Task[vf.TaskData]):\n{REWARD}    @classmethod\n    def toolsets(cls, config):\n"
            "        return [Tools(vf.ToolsetConfig())]\n"
        ),
        "the tool's name 'a.b_get' has other characters",
    ),
    "tools in a container": (
        (
            "class Tools(vf.Toolset[vf.ToolsetConfig]):\n    @vf.tool\n    def get(self) -> str: ...\n"
            f"class Task(vf.Task[vf.TaskData]):\n{REWARD}    @classmethod\n    def toolsets(cls, config):\n"
            "        return [Tools(vf.ToolsetConfig(runtime={'type': 'docker'}))]\n"
        ),
        "Tools needs the runtime docker",
    ),
    "a reward that is not async": (
        "class Task(vf.Task[vf.TaskData]):\n    @vf.reward\n    def plain(self, trace) -> float: ...\n",
        "the reward or metric plain is not async",
    ),
    "a judge in the configuration": (
        (
            "from verifiers.v1.judges import ReferenceJudgeConfig\n"
            "class Config(vf.TaskConfig):\n    judges: vf.Judges = [ReferenceJudgeConfig()]\n"
            f"class Task(vf.Task[vf.TaskData, vf.State, Config]):\n{REWARD}"
        ),
        "its rewards come from a judge",
    ),
}
REAL_REFUSALS = {
    "gsm8k": "GSM8KTask overrides setup",
    "interception": "it changes messages between model and tools",
    "echo_user_sim_v1": "it has a run loop of its own, the environment class EchoUserSimEnv",
    "alphabet_sort": "No module named 'datasets'",
}


@pytest.mark.parametrize("name", [*REFUSED, *REAL_REFUSALS])
def test_what_cant_be_reproduced_is_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in REAL_REFUSALS:
        module, expected = name, REAL_REFUSALS[name]
    else:
        module = "refused_" + "".join(letter for letter in name if letter.isalpha())
        source, expected = REFUSED[name]
        (tmp_path / f"{module}.py").write_text(HEAD + source + TASKSET)
        monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadOptions, match=expected) as refused:
        exported(module, tmp_path)
    assert "docs/verifiers.md" in (refused.value.hint or "")


def test_a_file_written_by_hand_for_a_taskset_that_cant_be_reproduced_is_refused(tmp_path: Path) -> None:
    """`muster-verifiers export` refuses it first, but nodes do not trust the owner's machine."""
    options = written("gsm8k", tmp_path, [{"prompt": "1+1", "answer": "2"}])
    refusal = "the taskset gsm8k can't be used: NotReproducibleError: GSM8KTask overrides setup"
    with pytest.raises(BadOptions, match=refusal):
        opened(options)


ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({"prompt": None}, "has no prompt, because its environment opens the dialogue"),
    "a container": ({"prompt": "p", "image": "ubuntu"}, "needs a container: it has image"),
    "an image": ({"prompt": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a message is not text"),
    "the model's message": ({"prompt": [{"role": "assistant", "content": "a"}]}, "other than system and user"),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_cant_be_reproduced_are_refused(name: str, tmp_path: Path) -> None:
    row, expected = ROWS[name]
    with pytest.raises(BadDataset, match=expected):
        opened(written("echo_v1", tmp_path, [{"prompt": "p", "answer": "a"}, row]))


def test_changed_tasks_changed_code_and_foreign_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "changing.py"
    module.write_text(HEAD + f"class Task(vf.Task[vf.TaskData]):\n{REWARD}" + TASKSET)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = exported("changing", tmp_path)
    file = Path(options["path"])
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"p"', b'"q"'))
    with pytest.raises(BadDataset, match="has the SHA-256"):
        opened(options)
    file.write_bytes(content)
    module.write_text(module.read_text() + "# changed\n")
    with pytest.raises(BadOptions, match="has the code digest"):
        opened(options)
    for wrong, expected in ((b"{}\n", "does not describe a taskset"), (b"", "has no tasks|does not describe")):
        file.write_bytes(wrong)
        with pytest.raises(BadDataset, match=expected):
            opened(options | {"sha256": hashlib.sha256(wrong).hexdigest()})


def test_the_loop_never_waits_and_refuses_what_comes_from_outside() -> None:
    import asyncio  # noqa: PLC0415

    order: list[str] = []

    async def nap(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    async def naps() -> str:
        await asyncio.gather(nap(9e6, "late"), nap(1, "early"))
        return await asyncio.to_thread(lambda: "inline")

    assert loop.run(naps()) == "inline"
    assert order == ["early", "late"]

    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(loop.WaitsForOutsideError):
        loop.run(forever())
