"""Every attack on dialogues is judged forged for its reason; honest dialogues are not, also at limits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.attack_tries import examiner
from cli.devnet.attacks.attack import Attack, Trick
from cli.devnet.attacks.dialogues import EpisodeWrapper
from cli.devnet.attacks.registry import ATTACKS
from cli.devnet.attacks.toolkit import AttackToolkit, DialogueChange
from protocol.errors import InvalidInput
from protocol.identity.keys import Key
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import CheckState
from protocol.wire.slots import SlotGrant
from rollouts.engines.torch.engine import TorchEngine
from rollouts.environments.dialogue import Episode, GivenMessage, Reply, Role
from rollouts.environments.errors import NoSuchPrompt
from rollouts.environments.interface import Score
from rollouts.files.samples import RolloutFile, Sample
from rollouts.precision import Dtype
from rollouts.turns import Turn
from tests.kit.attack_comparison import Compared
from tests.kit.attack_harness import AttackHarness, HandedIn
from tests.kit.rollout_files import as_version
from tests.kit.talking_family import EPISODES, RECIPE, registered, talking_version
from tests.kit.tiny_model import tiny_folder
from validator.audit.draw import RowDraw
from validator.examination.channel import Order
from validator.examination.interface import Conclusion, NotJudged
from validator.examination.procedure import Procedure

CHEATS = {name: attack for name, attack in ATTACKS.items() if attack.dialogues}
SLOTS = 8
_index = itertools.count()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackHarness]:
    home = tmp_path_factory.mktemp("dialogues")
    with registered():
        yield from opened(talking_version(home / "version").folder, home)


def opened(folder: Path, home: Path) -> Iterator[AttackHarness]:
    engine = TorchEngine(dtype=Dtype.FLOAT32, max_batch=64)
    with AttackHarness(engine, folder, history=(), home=home, node=Key.from_hex("0x" + "a7" * 32).address) as made:
        yield made


@pytest.fixture(scope="module")
def procedure() -> Procedure:
    return examiner(None)


@pytest.fixture(autouse=True)
def honest_episodes() -> Iterator[None]:
    yield
    EPISODES.clear()


class Changed(Trick):
    """Changes the samples of an honest file."""

    def __init__(self, change: Callable[[Sample], Sample], *, change_of: DialogueChange | None = None) -> None:
        self._change = change
        self._dialogue = change_of

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        file = toolkit.file(grant, dialogue=self._dialogue)
        return RolloutFile(file.header, tuple(map(self._change, file.samples)))


def made(node: AttackHarness, trick: Trick, *, groups: int = 2) -> HandedIn:
    work = node.hand_in(trick, node.grant(next(_index), groups=groups))
    assert work is not None
    return work


def examined(procedure: Procedure, node: AttackHarness, work: HandedIn) -> Conclusion | NotJudged:
    order = Order(facts=work.facts, file=work.path, folder=node.version.folder, draw=RowDraw(seed=None, share=1.0))
    return procedure.examine(order, is_copy=lambda _: False)


def judge(procedure: Procedure, node: AttackHarness, work: HandedIn) -> Conclusion:
    found = examined(procedure, node, work)
    assert isinstance(found, Conclusion), found
    return found


def test_an_honest_file_of_dialogues_is_accepted(node: AttackHarness, procedure: Procedure) -> None:
    found = judge(procedure, node, made(node, Trick(), groups=4))
    assert found.outcome is Outcome.ACCEPTED, found.words
    assert [(one.name, one.state) for one in found.checks[-2:]] == [
        ("dialogue", CheckState.PASSED),
        ("reward", CheckState.PASSED),
    ]
    turns = found.checks[-2].figures["turns"]
    assert isinstance(turns, int)
    assert turns > 16 * 1.5, "otherwise the tests of attacks would test single answers"
    assert all(row.reward is not None for row in found.rows)


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
def test_each_attack_on_dialogues_is_judged_forged(cheat: Attack, node: AttackHarness, procedure: Procedure) -> None:
    trick = Compared(cheat.trick())
    for _ in range(SLOTS):
        work = made(node, trick)
        forged, found = trick.forged(work), judge(procedure, node, work)
        if forged:
            break
        assert found.outcome is Outcome.ACCEPTED, found.words
    assert forged, "no slot gave a forged file"
    assert (found.outcome, found.reason in cheat.reasons) == (Outcome.FORGED, True), found.words


def test_attacks_on_dialogues_need_dialogues(tmp_path: Path) -> None:
    for node in opened(as_version(tiny_folder(tmp_path / "version")).folder, tmp_path):
        with pytest.raises(InvalidInput, match="single answers"):
            made(node, CHEATS["forged-reply"].trick())


def longer(sample: Sample) -> Sample:
    """Returns the sample with a longer reply than the recipe allows."""
    first, *rest = sample.turns
    return replace(sample, turns=(Turn(first.drawn, np.full(17, 9, np.int32)), *rest)) if rest else sample


def beyond(sample: Sample) -> Sample:
    """Returns the sample with a given token outside the vocabulary."""
    first, *rest = sample.turns
    return replace(sample, turns=(Turn(first.drawn, np.full(3, 64, np.int32)), *rest)) if rest else sample


def merged(sample: Sample) -> Sample:
    """Returns the sample with its first two turns as one."""
    if len(sample.turns) == 1:
        return sample
    first, second, *rest = sample.turns
    return replace(sample, turns=(Turn(first.drawn + second.drawn, second.given), *rest))


def split(sample: Sample) -> Sample:
    """Returns the sample with a reply within its first message."""
    first, *rest = sample.turns
    if first.drawn < 2 or len(rest) > 2:
        return sample
    return replace(sample, turns=(Turn(1, np.full(1, 9, np.int32)), Turn(first.drawn - 1, first.given), *rest))


BAD_FILES: dict[str, tuple[Callable[[Sample], Sample], ReasonCode]] = {
    "without turns": (lambda one: replace(one, turns=()), ReasonCode.BOUNDS_TURNS),
    "a reply beyond the limit": (longer, ReasonCode.BOUNDS_TURNS),
    "a given token outside the vocabulary": (beyond, ReasonCode.BOUNDS_LENGTH),
    "two messages in one turn": (merged, ReasonCode.TERMINATION_LATE),
    "a reply within a message": (split, ReasonCode.TERMINATION_EARLY),
}


@pytest.mark.parametrize(("change", "reason"), BAD_FILES.values(), ids=BAD_FILES)
def test_malformed_dialogues_are_forged(
    change: Callable[[Sample], Sample], reason: ReasonCode, node: AttackHarness, procedure: Procedure
) -> None:
    found = judge(procedure, node, made(node, Changed(change)))
    assert (found.outcome, found.reason) == (Outcome.FORGED, reason), found.words


def test_a_huge_number_of_turns_is_refused_by_its_size(node: AttackHarness, procedure: Procedure) -> None:
    def many(sample: Sample) -> Sample:
        turn = Turn(1, np.zeros(1, np.int32))
        count = 100_000
        return replace(
            sample,
            output_tokens=np.zeros(count, np.int32),
            logprobs=np.zeros(count, np.float32),
            turns=(turn,) * (count - 1) + (Turn(1, np.zeros(0, np.int32)),),
        )

    found = judge(procedure, node, made(node, Changed(many), groups=1))
    assert (found.outcome, found.reason) == (Outcome.FORGED, ReasonCode.FORMAT_TOO_LARGE), found.words


def test_turns_in_a_version_of_single_answers_are_forged(tmp_path: Path, procedure: Procedure) -> None:
    def one_turn(sample: Sample) -> Sample:
        return replace(sample, turns=(Turn(len(sample.output_tokens), np.zeros(0, np.int32)),))

    for node in opened(as_version(tiny_folder(tmp_path / "version")).folder, tmp_path):
        assert judge(procedure, node, made(node, Trick())).outcome is Outcome.ACCEPTED
        found = judge(procedure, node, made(node, Changed(one_turn)))
        assert (found.outcome, found.reason) == (Outcome.FORGED, ReasonCode.BOUNDS_TURNS), found.words


class Limited(EpisodeWrapper):
    """An episode with a limit of time: the calls of some messages reach it."""

    def __init__(self, inner: Episode, hit: Callable[[], bool]) -> None:
        self._hit = hit
        self._ended = False
        super().__init__(inner, self._limit)

    def _limit(self, _: int, reply: Reply) -> Reply:
        self._ended = self._ended or self._hit()
        return Reply(done=True, limited=True) if self._ended else reply

    def score(self) -> Score:
        score = super().score()
        return Score(task=0.0 if self._ended else score.task, parts={"undecided": float(self._ended)})


def on_the_node(hits: list[bool]) -> DialogueChange:
    """Returns the change for a node on which the listed calls hit a limit, and no later ones."""
    return DialogueChange(episode=lambda episode: Limited(episode, lambda: bool(hits) and hits.pop(0)))


@pytest.mark.parametrize(
    ("hits", "outcome"), [([True], Outcome.ACCEPTED), ([True] * 6, Outcome.REJECTED)], ids=["one", "many"]
)
def test_a_limit_on_the_node_is_excused_in_few_rows(
    hits: list[bool], outcome: Outcome, node: AttackHarness, procedure: Procedure
) -> None:
    EPISODES.append(lambda episode: Limited(episode, lambda: False))
    found = judge(procedure, node, made(node, Changed(lambda one: one, change_of=on_the_node([*hits]))))
    assert found.outcome is outcome, found.words
    if outcome is Outcome.ACCEPTED:
        assert [row.reward is None for row in found.rows].count(True) == 1
    else:
        assert found.reason is ReasonCode.DIALOGUE_END
        assert "too slow" in found.words


def test_an_early_end_with_a_reward_or_without_limits_is_forged(node: AttackHarness, procedure: Procedure) -> None:
    def rewarded(sample: Sample) -> Sample:
        return replace(sample, task_reward=1.0, reward=1.0)

    one = [True]
    found = judge(procedure, node, made(node, Changed(lambda sample: sample, change_of=on_the_node(one))))
    assert (found.outcome, found.reason) == (Outcome.FORGED, ReasonCode.DIALOGUE_END), "nothing here has a limit"
    EPISODES.append(lambda episode: Limited(episode, lambda: False))
    found = judge(procedure, node, made(node, Changed(rewarded, change_of=on_the_node([True]))))
    assert found.outcome is Outcome.FORGED, found.words


def test_a_limit_on_the_validator_excuses_the_row(node: AttackHarness, procedure: Procedure) -> None:
    work = made(node, Trick())
    EPISODES.append(lambda episode: Limited(episode, lambda: True))
    found = judge(procedure, node, work)
    assert (found.outcome, found.reason) == (Outcome.ACCEPTED, ReasonCode.PASSED_UNDECIDED), found.words
    assert all(row.reward is None for row in found.rows)


def test_an_environment_that_answers_differently_each_time_penalises_nobody(
    node: AttackHarness, procedure: Procedure
) -> None:
    number = itertools.count()

    def unstable(_: int, reply: Reply) -> Reply:
        return replace(reply, messages=[GivenMessage(role=Role.USER, text=f"{next(number)}")])

    EPISODES.append(lambda episode: EpisodeWrapper(episode, unstable))
    found = judge(procedure, node, made(node, Trick()))
    assert found.outcome is Outcome.ACCEPTED, found.words
    assert any(row.reward is None for row in found.rows)


def forged_replies(reward: float) -> Changed:
    def forged(_: int, __: Reply) -> Reply:
        return Reply(messages=[GivenMessage(role=Role.USER, text="forged")])

    change = DialogueChange(episode=lambda episode: EpisodeWrapper(episode, forged))
    return Changed(lambda sample: replace(sample, task_reward=reward, reward=reward), change_of=change)


def test_a_row_that_this_machine_cant_replay_is_not_accepted(node: AttackHarness, procedure: Procedure) -> None:
    def sloppy(_: int, __: Reply) -> Reply:
        raise NoSuchPrompt("the environment looked up a row that does not exist")

    work = made(node, forged_replies(1.0))
    EPISODES.append(lambda episode: EpisodeWrapper(episode, sloppy))
    found = examined(procedure, node, work)
    assert isinstance(found, NotJudged)
    assert found.code == "environment-fault"
    assert "raised NoSuchPrompt" in found.why


def test_forged_turns_after_an_answer_without_a_decision_are_forged(node: AttackHarness, procedure: Procedure) -> None:
    """Only a limit in a reply excuses what follows; an undecided score of the answer does not."""

    class Answer(EpisodeWrapper):
        def score(self) -> Score:
            return Score(task=0.0, parts={"undecided": 1.0})

    work = made(node, forged_replies(0.0))
    EPISODES.append(lambda episode: Answer(episode, lambda _, __: Reply(done=True)))
    found = judge(procedure, node, work)
    assert (found.outcome, found.reason) == (Outcome.FORGED, ReasonCode.DIALOGUE_END), found.words


def test_a_finding_names_turn_place_and_both_replies(node: AttackHarness, procedure: Procedure) -> None:
    found = judge(procedure, node, made(node, CHEATS["forged-reply"].trick()))
    check = next(one for one in found.checks if one.name == "dialogue")
    first = check.findings[0]
    assert (check.fails, first.reason) == ("exact", ReasonCode.DIALOGUE_REPLY)
    assert "after turn 0, given token 1 is" in first.what
    assert "the row has '<2" in first.what
    assert "the environment replies '<1" in first.what
    assert first.position is not None


def test_dialogues_of_the_recipe_have_several_turns_at_every_limit(node: AttackHarness, procedure: Procedure) -> None:
    """Files whose dialogues end at the turn limit, the token limit and the environment's end are accepted."""
    assert RECIPE.dialogue is not None
    most, ends = RECIPE.dialogue.turns, set[str]()

    def count(sample: Sample) -> Sample:
        drawn = len(sample.output_tokens)
        ends.add("tokens" if drawn == 60 else "turns" if len(sample.turns) == most else "environment")
        return sample

    for _ in range(4):
        assert judge(procedure, node, made(node, Changed(count), groups=3)).outcome is Outcome.ACCEPTED
    assert ends == {"tokens", "turns", "environment"}
