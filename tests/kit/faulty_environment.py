"""An environment that violates its contract in a chosen way: the family `faulty` with the option `kind`."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGE = """
import ctypes, datetime, random, threading, time
from rollouts.environments import Prompt, Rewards, Score
from rollouts.environments.dialogue import GivenMessage, Reply, Role, Tool
from rollouts.environments.factory import Family, Options
from rollouts.environments.indices import check_index

class Faulty:
    name, version = "faulty", "1"
    made = 0
    def __init__(self, kind): self.kind = kind
    def size(self): return 50
    def prompt(self, index):
        if self.kind != "outside":
            check_index(index, size=50)
        Faulty.made += 1
        text = f"{index}?"
        match self.kind:
            case "hash": text += str(hash(text))
            case "date": text += str(datetime.date.today().year)
            case "state": text += str(Faulty.made)
            case "locale": text += open(__file__).encoding
            case "random": text += str(random.random())
            case "raises" if index == 3: raise RuntimeError("no such puzzle")
            case "hangs" if index == 3: time.sleep(60)
            case "allocates" if index == 3: self.kept = bytes(1 << 40)
            case "grows" if index == 3:
                self.kept = []
                while True: self.kept.append(bytes(1 << 20))
            case "prints": print("hello"); ctypes.CDLL(None).puts(b"hello")
            case "exits" if index == 3: import os; os._exit(9)
        return Prompt(index=index, text=text, data={"object": object()})
    def score(self, prompt, completion, *, finished):
        right = completion == str(prompt.index)
        match self.kind:
            case "nan": return Score(task=float("nan"))
            case "half": return Score(task=0.5)
            case "most": return Score(task=0.95 if completion else 0.0)
            case "any": right = bool(completion)
            case "undecided": return Score(task=float(right and random.random() < 0.5), parts={"undecided": 1.0})
            case "wrong" if completion.startswith("answer "):
                right = completion == f"answer {prompt.index}"
                return Score(task=float(right), parts={"close": 1.0 if right else random.random()})
            case "text" if "\\x00" in completion: raise ValueError("a zero byte")
        return Score(task=float(right))
    def demonstration(self, prompt): return f"answer {prompt.index}" if self.kind == "wrong" else str(prompt.index)

class Talker(Faulty):
    def prompt(self, index): return Prompt(index=check_index(index, size=50), text=f"{index}?")
    def begin(self, prompt): return Talk(self.kind, prompt)
    def demonstration_turns(self, prompt): return ["ask(a)", str(prompt.index)]

class Talk:
    heard = 0
    def __init__(self, kind, prompt):
        self.kind, self.prompt, self.answer, self.calls = kind, prompt, "", 0
        self.opening = [GivenMessage(role=Role.USER, text=prompt.text)]
        schema = {"type": "object", "properties": {"key": {}}}
        self.tools = [Tool(name="ask me" if kind == "talk-name" else "ask", description="", parameters=schema)]
        if kind == "talk-schema": self.tools[0].parameters["properties"] = object()
    def reply(self, message):
        Talk.heard += 1
        self.calls += 1
        text, role, count, done = "yes", Role.TOOL, 1, not message.calls
        call = message.calls[0] if message.calls else None
        match self.kind:
            case "talk-hash": text = str(hash(message.text))
            case "talk-date": text = str(datetime.date.today().year)
            case "talk-state": text = str(Talk.heard)
            case "talk-random": text = str(random.random())
            case "talk-end": done = done or random.random() < 0.5
            case "talk-raises" if call and call.arguments is None: text = call.arguments["key"]
            case "talk-hangs" if len(message.text) > 9999: time.sleep(60)
            case "talk-floods" if len(message.calls) > 5: count = 65
            case "talk-echoes" if call: text = str(call.arguments) * 99
            case "talk-half": text = chr(0xD800)
            case "talk-system": role = Role.SYSTEM
        self.answer = message.text
        return Reply(messages=[GivenMessage(role=role, text=text)] * count, done=done)
    def score(self):
        undecided = self.kind == "talk-undecided"
        task = random.random() < 0.5 if undecided else self.answer == str(self.prompt.index)
        return Score(task=float(task), parts={"undecided": float(undecided)})

class FaultyOptions(Options):
    kind: str = "good"

def build(version, options, sandboxes):
    return (Talker if options.kind.startswith("talk") else Faulty)(options.kind)
def rewards(options): return Rewards.UNIT if options.kind in ("most", "unit") else Rewards.BINARY
family = Family(name="faulty", version="1", summary="", options=FaultyOptions, build=build, rewards=rewards)
"""


@pytest.fixture
def faulty_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs the package with the environment."""
    home = tmp_path / "packages"
    info = home / "muster_test_faulty-1.0.dist-info"
    info.mkdir(parents=True)
    (home / "muster_test_faulty.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: muster-test-faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[muster.environments]\nfaulty = muster_test_faulty:family\n")
    monkeypatch.syspath_prepend(str(home))
