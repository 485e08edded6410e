"""Trains a model with groups of rollouts, one optimiser step at a time.

    learner = Learner(model, settings, temperature=recipe.sampling.temperature)
    done = learner.learn(groups, step=7)

Gradients of a batch's parts are summed, and the sum is divided once, by the totals of the whole batch. So the result
does not depend on how a batch is cut into micro-batches or sharded over processes. A batch can also be added in parts,
while its groups arrive (Periodic Asynchrony, section 4):

    learner.begin(step=7)
    learner.add(first)
    learner.add(second)
    done = learner.finish()

In a single CPU process, equal weights and equal groups in equal order give bit-identical results.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.utils import get_total_norm
from transformers import PreTrainedModel

from protocol.errors import Conflict, InvalidInput
from trainer.errors import TrainingDiverged
from trainer.learning.batch import Answers, Counts, answers_of
from trainer.learning.forward import answer_logits, checkpoint_activations, layers_of
from trainer.learning.groups import TrainingGroup
from trainer.learning.layout import PackedBatch, lay_out
from trainer.learning.losses import COUNTED, logprobs_and_entropies
from trainer.learning.metrics import LearnedStep, MetricSums
from trainer.learning.objective import objective_of
from trainer.learning.optimisers import make_optimisers, set_learning_rate
from trainer.learning.schedules import learning_rate
from trainer.learning.settings import LearningSettings
from trainer.learning.sharding import agreed, check_same_batch, own_share, shard
from trainer.saving.training_state import restore_training, stored_weights, training_tensors

_NORM_EPSILON = 1e-6
"""Added to the norm before dividing, as in torch.nn.utils.clip_grad_norm_."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnerState:
    """State that determines all further learning.

    Args:
        tensors: Weights, optimiser averages and state of the random generator, by name. Unsharded tensors are not
            copies: the learner's next `finish` or `restore` overwrites them.
        facts: Numbers of skipped steps (`counts`) and kind of the optimiser, as JSON values.
    """

    tensors: Mapping[str, torch.Tensor]
    facts: Mapping[str, Any]


class Learner:
    """Trains a model, deterministically.

    Args:
        model: Model in float32, on its device. The learner puts it into evaluation mode, because dropout would change
            the policy.
        settings: Algorithm, optimiser and batch layout.
        temperature: Sampling temperature of the recipe.
        reference: Model that `algorithm.kl` keeps the policy close to; never changed.
        mesh: One-dimensional mesh of the processes that share the weights; None if this process trains alone. The
            caller must give all processes the same groups.

    Raises:
        InvalidInput: The algorithm needs a reference model, and `reference` is None.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: LearningSettings,
        *,
        temperature: float = 1.0,
        reference: PreTrainedModel | None = None,
        mesh: DeviceMesh | None = None,
    ) -> None:
        if settings.algorithm.kl and reference is None:
            raise InvalidInput("the algorithm has a KL penalty, and no reference model was given")
        self._model = model
        self._reference = reference
        self._width: int = model.config.get_text_config().hidden_size
        for each in [model] if reference is None else [model, reference]:
            call: Any = each  # transformers annotates only some of its methods
            call.eval()
        if reference is not None:
            reference.requires_grad_(requires_grad=False)
        self._settings = settings
        self._temperature = temperature
        self._mesh = mesh
        if settings.checkpoint_activations:
            checkpoint_activations(model)
        if settings.compile:
            for layer in layers_of(model):
                layer.compile()
        if mesh is not None:
            shard(model, mesh)
        self._optimisers = make_optimisers(model, settings.optimiser)
        self._bad = self._bad_in_a_row = 0
        self._step = 0
        self._counts, self._sums, self._seconds = Counts(), MetricSums(), 0.0

    @property
    def skipped(self) -> int:
        """Number of skipped steps so far."""
        return self._bad

    def learn(self, groups: Sequence[TrainingGroup], *, step: int, parts: Sequence[int] = ()) -> LearnedStep:
        """Performs one optimiser step on a batch.

        Args:
            groups: The global batch: the groups of the whole step, for all processes.
            step: Number of the step, from 0, which determines the learning rate.
            parts: Number of groups in each call of `add`. With the parts of a streamed step, the result is
                bit-identical to it. By default one call adds all groups.

        Raises:
            InvalidInput: There is no group, or an answer is longer than a row. The weights are unchanged.
            TrainingDiverged: Too many steps in a row were skipped.
        """
        self.begin(step=step)
        first = 0
        for count in parts or [len(groups)]:
            self.add(groups[first : first + count])
            first += count
        return self.finish()

    def begin(self, *, step: int) -> None:
        """Begins a step; discards the gradients of an unfinished step."""
        self._step = step
        self._counts, self._sums, self._seconds = Counts(), MetricSums(), 0.0
        self._forget_gradients()

    def add(self, groups: Sequence[TrainingGroup]) -> None:
        """Adds the gradients of some groups to the step's batch.

        Raises:
            InvalidInput: There is no group, an answer is longer than a row, or the algorithm needs the whole batch in
                one call and this is the second call.
        """
        since = time.perf_counter()
        settings = self._settings
        if settings.algorithm.needs_whole_batch and self._counts.groups:
            raise InvalidInput(
                f"{settings.algorithm.name} compares all answers of a batch, but this batch was added in parts",
                hint="turn stream off, or choose an advantage that compares answers of one group",
            )
        rows = lay_out(
            groups,
            layout=settings.layout,
            row_tokens=settings.row_tokens,
            rows_at_once=settings.rows_at_once,
            width=self._width,
        )
        if self._mesh is not None:
            check_same_batch(groups, self._mesh)
        answers = answers_of(groups, settings.algorithm)
        for share, counts in own_share(rows, self._mesh):
            self._add_rows(share, answers, counts=counts)
        self._counts.groups += len(groups)
        self._counts.answers += len(answers.length_s)
        self._counts.tokens += len(answers.token_n)
        self._sums.rewards += [sample.reward for group in groups for sample in group.samples]
        self._sums.longest = max(self._sums.longest, int(answers.length_s.max()))
        self._seconds += time.perf_counter() - since

    def finish(self) -> LearnedStep:
        """Performs the optimiser step, or skips it if loss or gradient is unusable.

        The step overwrites tensors that `state` returned earlier.

        Raises:
            InvalidInput: No group was added.
            TrainingDiverged: Loss or gradient was NaN, infinite or too large in too many steps in a row.
        """
        if not self._counts.groups:
            raise InvalidInput("the step has no group", hint="wait for groups whose rewards differ")
        since = time.perf_counter()
        settings = self._settings.optimiser
        if self._mesh is not None:
            self._sums.all_reduce(self._model.device)
        rate = learning_rate(
            self._step,
            steps=settings.steps,
            peak=settings.learning_rate,
            schedule=settings.schedule,
            warm_up_steps=settings.warm_up_steps,
            final_share=settings.final_share,
        )
        count = self._counts.of(COUNTED[self._settings.algorithm.aggregation])
        loss = -self._sums.objective / count
        norm = self._gradient_norm(count)
        if self._mesh is not None:  # equal values, so that no process skips a step that another process performs
            loss, norm = agreed((loss, norm), self._mesh)
        bad = not (math.isfinite(loss) and math.isfinite(norm) and norm <= settings.largest_gradient)
        if not bad:
            set_learning_rate(self._optimisers, rate)
            self._scale_gradients(min(1.0, settings.clip / (norm + _NORM_EPSILON)) * self._processes / count)
            for optimiser in self._optimisers:
                optimiser.step()
        self._forget_gradients()
        self._bad += bad
        self._bad_in_a_row = self._bad_in_a_row + 1 if bad else 0
        self._seconds += time.perf_counter() - since
        if self._bad_in_a_row > settings.most_bad_steps:
            raise TrainingDiverged(
                f"{self._bad_in_a_row} steps in a row gave no usable gradient; the last was step {self._step}, with "
                f"loss {loss} and gradient norm {norm}"
            )
        return self._sums.report(
            counts=self._counts,
            step=self._step,
            bad=bad,
            loss=loss,
            gradient_norm=norm,
            learning_rate=rate,
            seconds=self._seconds,
        )

    def weights(self, *, dtype: torch.dtype = torch.float32, keep: bool = True) -> dict[str, torch.Tensor]:
        """Returns copies of all weights on the CPU.

        Every process of a mesh must call this method, because it gathers sharded weights.

        Args:
            dtype: Type of the copies.
            keep: False for a process that does not need the copies. The process gets an empty dict and holds only one
                gathered tensor at a time.
        """
        return stored_weights(self._model, dtype=dtype, keep=keep)

    def state(self, *, keep: bool = True) -> LearnerState:
        """Returns the present state without copying it.

        Every process of a mesh must call this method; a process that passes `keep=False` gets no tensors.
        """
        counts = {"bad": self._bad, "bad_in_a_row": self._bad_in_a_row}
        return LearnerState(
            tensors=training_tensors(self._model, self._optimisers, keep=keep),
            facts={"counts": counts, "optimiser": self._settings.optimiser.kind.value},
        )

    def restore(self, state: LearnerState) -> None:
        """Restores a state.

        Raises:
            Conflict: The state belongs to another model, or to another kind of optimiser with other averages.
        """
        own = self._settings.optimiser.kind.value
        kind = state.facts.get("optimiser", own)
        if kind != own:
            raise Conflict(
                f"the state has optimiser averages of {kind}, and the settings say {own}",
                hint=f'set learning.optimiser.kind to "{kind}", or begin a new run from the newest version',
            )
        try:
            restore_training(state.tensors, self._model, self._optimisers)
            counts = state.facts["counts"]
            self._bad, self._bad_in_a_row = counts["bad"], counts["bad_in_a_row"]
        except (KeyError, ValueError, RuntimeError) as error:
            raise Conflict(
                f"the state is not of this model: {error}", hint="give the base that the run began with"
            ) from error
        self._forget_gradients()

    def _add_rows(self, rows: PackedBatch, answers: Answers, *, counts: bool) -> None:
        """Adds the gradient of some rows.

        A process with fewer rows than others repeats a row with `counts=False`, because all processes must take part in
        each collective operation.
        """
        picked = answers.pick(torch.from_numpy(rows.answers), self._model.device)
        logprob_n, entropy_n = self._logprobs(self._model, rows, picked)
        reference_n = None
        if self._reference is not None:
            with torch.no_grad():
                reference_n, _ = self._logprobs(self._reference, rows, picked)
        found = objective_of(
            self._settings.algorithm,
            picked,
            logprob_n=logprob_n,
            entropy_n=entropy_n,
            reference_n=reference_n,
            old_policy=self._settings.old_policy,
        )
        # A repeated row runs the backward pass with a gradient of zero, because this pass has collective operations.
        loss: Any = -found.total if counts else found.total * 0.0
        loss.backward()
        if counts:
            self._sums.add(found, sampler_n=picked.sampler_n, rows_tokens=rows.tokens.size)

    def _logprobs(
        self, model: PreTrainedModel, rows: PackedBatch, picked: Answers
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits_nv = answer_logits(model, rows, dtype=self._settings.dtype)
        return logprobs_and_entropies(logits_nv, picked.token_n, temperature=self._temperature)

    @property
    def _processes(self) -> int:
        """Number of processes, by which FSDP divides gradients."""
        return 1 if self._mesh is None else self._mesh.size()

    def _gradients(self) -> list[torch.Tensor]:
        return [weight.grad for weight in self._model.parameters() if weight.grad is not None]

    def _gradient_norm(self, count: int) -> float:
        # FSDP has divided the gradients by the number of processes. The factor undoes this, so that the sum over all
        # processes is divided by `count` only.
        norm: Any = get_total_norm(self._gradients())
        whole_norm: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole_norm.item() * self._processes / count

    def _scale_gradients(self, by: float) -> None:
        torch._foreach_mul_(self._gradients(), by)

    def _forget_gradients(self) -> None:
        for optimiser in self._optimisers:
            optimiser.zero_grad(set_to_none=True)
