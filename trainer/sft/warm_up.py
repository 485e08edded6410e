"""`muster trainer sft`: from a start and examples to a version that rollouts can be made with.

A step takes examples in their seeded order, packs them, adds up the gradients of their completions' tokens (each token
of the step weighs the same, however it was packed), clips, and moves AdamW. Everything that a step depends on is in the
settings and in the state file, so a run that was killed ends in the weights of one that was not, to the bit on one CPU
process.

Beside the target stands `TARGET.training` while it works: the start, if it is made from scratch, and the state.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import Conflict
from rollouts.engines.opening import open_engine
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype, EngineName
from trainer.errors import BadSettings, TrainingDiverged
from trainer.evaluator import Evaluation
from trainer.models import end_token, open_model, write_version
from trainer.schedules import learning_rate
from trainer.sft.examples import ExampleStream
from trainer.sft.gradients import add_gradients
from trainer.sft.preparing import corpus_of, environment_of, evaluator_of, recipe_of, start_of
from trainer.sft.settings import WarmUpSettings
from trainer.sft.state import STATE_FILE, WarmUpState, load_state, save_state

_EVALUATED = "evaluated"
_WITHOUT_EFFECT = {"checkpoint_every", "evaluation", "dtype"}
"""Settings that a run may go on with changed: they decide nothing that is learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpStep:
    """One step that was done, or an evaluation after it.

    Args:
        step: Steps done.
        steps: Of how many.
        loss: Mean over the step's learned tokens, in nats; no number if the step was skipped.
        gradient: The gradient's length before it was clipped.
        learning_rate: The step's.
        tokens: Learned tokens of the step.
        seconds: What the step took.
        skipped: Steps that were skipped so far.
        evaluation: What was found after this step, if it was time to look.
    """

    step: int
    steps: int
    loss: float
    gradient: float
    learning_rate: float
    tokens: int
    seconds: float
    skipped: int = 0
    evaluation: Evaluation | None = None


def warm_up(
    settings: WarmUpSettings,
    target: Path,
    *,
    device: torch.device,
    progress: Callable[[WarmUpStep], None] = lambda _: None,
) -> Evaluation | None:
    """Makes a version; goes on where an earlier call with these settings and this target was stopped.

    Args:
        settings: What to do.
        target: Where the version will be; not there yet.
        device: What to train on.
        progress: Told of each step.

    Returns:
        The last evaluation, if there are prompts to evaluate with.

    Raises:
        Conflict: The target is taken, or half-finished work beside it is of other settings.
        BadVersionFolder: The start can't be trained.
        BadSettings: The start can't be made.
        BadExamples: There is nothing to learn from.
        TrainingDiverged: Loss or gradient is no number, and stays none.
        NotWritten: The disk is full, or refuses.
    """
    work = target.with_name(f"{target.name}.training")
    taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if taken and not (work / STATE_FILE).exists():
        raise Conflict(f"{target} is there already", hint="give another --to, or delete it")
    work.mkdir(parents=True, exist_ok=True)
    work_left = WarmUp(settings, work, device=device)
    evaluation = work_left.run(None if taken else target, progress)
    shutil.rmtree(work)
    return evaluation


class WarmUp:
    """One warm-up at work.

    Args:
        settings: What to do.
        work: Holds its state.
        device: What to train on.
    """

    def __init__(self, settings: WarmUpSettings, work: Path, *, device: torch.device) -> None:
        self._settings = settings
        self._work = work
        self._device = device
        self._start = start_of(settings, work)
        self._model, facts = open_model(self._start, device=device)
        if settings.row_tokens > facts.context:
            raise BadSettings(
                f"rows of {settings.row_tokens} tokens, and the model's context is {facts.context}",
                hint=f"set row_tokens to {facts.context} or less",
            )
        tokenizer = FolderTokenizer(self._start)
        environment = environment_of(settings.recipe)
        self._recipe, self._eligible = recipe_of(settings.recipe, environment)
        corpus, self._examples_digest = corpus_of(
            settings, environment, self._recipe, tokenizer=tokenizer, end=end_token(facts, tokenizer)
        )
        self._stream = ExampleStream(corpus, seed=settings.seed, longest=settings.row_tokens)
        self._optimiser = torch.optim.AdamW(
            self._model.parameters(), betas=settings.optimiser.betas, weight_decay=settings.optimiser.weight_decay
        )
        self._evaluator = evaluator_of(settings, environment, self._recipe, tokenizer)

    def run(self, target: Path | None, progress: Callable[[WarmUpStep], None]) -> Evaluation | None:
        """Runs the missing steps and writes the version.

        Args:
            target: Folder of the version; None if it was written before a kill.
            progress: Called for each step.

        Raises:
            Conflict: The state has other settings, or steps are missing and there is no target.
        """
        settings, every = self._settings, self._settings.evaluation.every
        about = self._about()
        place = load_state(self._work, about=about, model=self._model, optimiser=self._optimiser)
        if target is None and place.step < settings.steps:
            raise Conflict(f"the target of {self._work} is taken", hint="give another --to, or delete it")
        self._stream.position = place.position
        self._model.train()
        while place.step < settings.steps:
            place, done = self._step(place)
            if place.step % settings.checkpoint_every == 0 or place.step == settings.steps:
                save_state(self._work, place=place, about=about, model=self._model, optimiser=self._optimiser)
            if every and place.step % every == 0 and place.step != settings.steps:
                done = replace(done, evaluation=self._evaluate())
            progress(done)
        evaluation = self._evaluate()
        if target is not None:
            self._write(target)
        return evaluation

    def _about(self) -> dict[str, object]:
        """Returns the values that determine the result."""
        said: dict[str, object] = self._settings.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
        return said | {
            "start": str(version_digest(folder_files(self._start))),
            "examples": [said["examples"], self._examples_digest],
        }

    def _step(self, place: WarmUpState) -> tuple[WarmUpState, WarmUpStep]:
        settings, since = self._settings, time.perf_counter()
        examples = self._stream.take(settings.examples_per_step)
        rate = learning_rate(
            place.step,
            steps=settings.steps,
            peak=settings.optimiser.learning_rate,
            schedule=settings.optimiser.schedule,
            warm_up_steps=settings.optimiser.warm_up_steps,
            final_share=settings.optimiser.final_share,
        )
        tokens = sum(len(example.completion) for example in examples)
        loss = add_gradients(self._model, examples, row_tokens=settings.row_tokens, rows_at_once=settings.rows_at_once)
        length = torch.nn.utils.clip_grad_norm_(self._model.parameters(), settings.optimiser.clip).item()
        good = math.isfinite(loss) and math.isfinite(length)
        if good:
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        after = WarmUpState(
            step=place.step + 1,
            position=self._stream.position,
            skipped=place.skipped + (not good),
            skipped_in_a_row=0 if good else place.skipped_in_a_row + 1,
        )
        if after.skipped_in_a_row > settings.optimiser.most_bad_steps:
            raise TrainingDiverged(
                f"{after.skipped_in_a_row} steps in a row gave no number, the last one step {after.step}: loss {loss}, "
                f"gradient {length}"
            )
        done = WarmUpStep(
            step=after.step,
            steps=settings.steps,
            loss=loss,
            gradient=length,
            learning_rate=rate,
            tokens=tokens,
            seconds=time.perf_counter() - since,
            skipped=after.skipped,
        )
        return after, done

    def _evaluate(self) -> Evaluation | None:
        """Asks the weights as they are, through an engine as anybody would who has the version."""
        if self._evaluator is None:
            return None
        folder = self._work / _EVALUATED
        shutil.rmtree(folder, ignore_errors=True)
        self._write(folder)
        with torch.random.fork_rng():
            engine = open_engine(EngineName.TORCH, dtype=Dtype.FLOAT32, device=str(self._device))
            engine.load(folder, version=version_digest(folder_files(folder)))
            try:
                return self._evaluator.evaluate(engine)
            finally:
                engine.close()

    def _write(self, folder: Path) -> None:
        write_version(
            folder,
            self._model,
            start=self._start,
            dtype=self._settings.dtype,
            recipe=self._recipe,
            eligible=self._eligible,
        )
