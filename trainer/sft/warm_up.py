"""Warm-up (`muster trainer sft`): trains a start model on examples and writes a publishable version.

A step takes the next examples in the seeded order, packs them, computes the gradient of the mean loss over their
learned tokens (completions, or the model's messages in dialogues), clips it and performs a step of AdamW. The packing
does not change a token's weight. A step depends only on settings and state file, so in a single CPU process a resumed
warm-up ends with bit-identical weights.

During the warm-up, the folder `TARGET.training` holds the state, and the start model if the settings create one.
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
from trainer.learning.schedules import learning_rate
from trainer.models.trainable import open_model, write_version
from trainer.sft.examples import ExampleStream
from trainer.sft.gradients import add_gradients
from trainer.sft.preparing import corpus_of, environment_of, evaluator_of, recipe_of, start_of
from trainer.sft.settings import WarmUpSettings
from trainer.sft.state import STATE_FILE, WarmUpState, load_state, save_state

_EVALUATED = "evaluated"
_WITHOUT_EFFECT = {"checkpoint_every", "evaluation", "dtype"}
"""Settings that may change between resumptions, because they do not affect the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpStep:
    """Progress after a step, or after an evaluation that follows it.

    Args:
        step: Number of completed steps.
        steps: Total number of steps.
        loss: Mean loss over the step's learned tokens, in nats. A step with a NaN or infinite loss is skipped.
        gradient: Norm of the gradient before clipping.
        learning_rate: Learning rate of the step.
        tokens: Number of learned tokens of the step.
        seconds: Duration of the step.
        skipped: Number of skipped steps so far.
        evaluation: Result of the evaluation after this step, if one was due.
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
    """Trains and writes a version; resumes an earlier call with the same settings and target.

    Args:
        settings: Settings of the warm-up.
        target: Folder of the version, which must not exist.
        device: Device to train on.
        progress: Called after each step.

    Returns:
        The last evaluation; None without held-out prompts.

    Raises:
        Conflict: The target exists, or the state beside it has other settings.
        BadVersionFolder: The start model can't be trained.
        BadSettings: The start model can't be created.
        BadExamples: There are no usable examples.
        TrainingDiverged: Loss or gradient was NaN or infinite too often in a row.
        NotWritten: The disk is full or refuses the write.
    """
    work = target.with_name(f"{target.name}.training")
    taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if taken and not (work / STATE_FILE).exists():
        raise Conflict(f"{target} already exists", hint="give another --to, or delete it")
    new = not work.exists()
    work.mkdir(parents=True, exist_ok=True)
    try:
        prepared = WarmUp(settings, work, device=device)
    except BaseException:
        if new:  # no step was done, so there is nothing to resume
            shutil.rmtree(work)
        raise
    evaluation = prepared.run(None if taken else target, progress)
    shutil.rmtree(work)
    return evaluation


class WarmUp:
    """A warm-up in progress.

    Args:
        settings: Settings of the warm-up.
        work: Folder for the state, a start model from scratch, and the versions that are evaluated.
        device: Device to train on.
    """

    def __init__(self, settings: WarmUpSettings, work: Path, *, device: torch.device) -> None:
        self._work = work
        self._device = device
        self._start = start_of(settings, work)
        self._model, facts = open_model(self._start, device=device)
        if "row_tokens" not in settings.model_fields_set:
            settings = settings.model_copy(update={"row_tokens": min(settings.row_tokens, facts.context)})
        self._settings = settings
        if settings.row_tokens > facts.context:
            raise BadSettings(
                f"rows have {settings.row_tokens} tokens, and the model's context is {facts.context}",
                hint=f"set row_tokens to {facts.context} or less",
            )
        tokenizer = FolderTokenizer(self._start)
        environment = environment_of(settings.recipe)
        self._recipe, self._eligible = recipe_of(settings.recipe, environment)
        corpus, self._examples_digest = corpus_of(settings, environment, self._recipe, tokenizer=tokenizer, model=facts)
        self._stream = ExampleStream(corpus, seed=settings.seed, longest=settings.row_tokens)
        self._optimiser = torch.optim.AdamW(
            self._model.parameters(), betas=settings.optimiser.betas, weight_decay=settings.optimiser.weight_decay
        )
        self._evaluator = evaluator_of(settings, environment, self._recipe, tokenizer)

    def run(self, target: Path | None, progress: Callable[[WarmUpStep], None]) -> Evaluation | None:
        """Runs the remaining steps and writes the version.

        Args:
            target: Folder of the version; None if an earlier process wrote it and was killed afterwards.
            progress: Called after each step.

        Raises:
            Conflict: The state has other settings, or steps remain although `target` is None.
        """
        settings, every = self._settings, self._settings.evaluation.every
        about = self._about()
        place = load_state(self._work, about=about, model=self._model, optimiser=self._optimiser)
        if target is None and place.step < settings.steps:
            raise Conflict(f"the target of {self._work} already exists", hint="give another --to, or delete it")
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
        values: dict[str, object] = self._settings.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
        return values | {
            "start": str(version_digest(folder_files(self._start))),
            "examples": [values["examples"], self._examples_digest],
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
        tokens = sum(example.learned for example in examples)
        loss = add_gradients(self._model, examples, row_tokens=settings.row_tokens, rows_at_once=settings.rows_at_once)
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), settings.optimiser.clip).item()
        good = math.isfinite(loss) and math.isfinite(norm)
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
                f"{after.skipped_in_a_row} steps in a row had a NaN or infinite loss or gradient, "
                f"the last in step {after.step}: loss {loss}, gradient norm {norm}"
            )
        done = WarmUpStep(
            step=after.step,
            steps=settings.steps,
            loss=loss,
            gradient=norm,
            learning_rate=rate,
            tokens=tokens,
            seconds=time.perf_counter() - since,
            skipped=after.skipped,
        )
        return after, done

    def _evaluate(self) -> Evaluation | None:
        """Evaluates the current weights with an inference engine.

        The weights are written as a version first, so the engine runs them as it does for users.
        """
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
