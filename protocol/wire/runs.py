"""Wire models of a run: policy version, steps, demand, and the trainer's lease.

All packages number versions alike: **version v is the policy that has learned every step below v**. Version 0 is the
base model. If a version is published every second step, versions have even numbers. In step s, the trainer computes
version s + 1 from rollouts of version s and of slightly older versions.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from protocol.identifiers import WireAddress, WireDigest
from protocol.wire.base import MAX_INT64, Identifier, Milliseconds, Name, ShortText, WireModel
from protocol.wire.leases import Count

MOST_GROUPS_PER_SLOT = 4096
MOST_GROUPS_PER_STEP = 1 << 20
MOST_UNITS_PER_GROUP = 1 << 32
MOST_RELAYS = 64
"""Maximum number of relay URLs in a request or answer."""
MOST_ARITHMETIC = 16
MOST_FIGURES = 16
MOST_ANSWERS = 8
MOST_ANSWER_CHARACTERS = 500
MOST_TRAINED_STEPS = 500
"""Number of steps whose metrics the orchestrator keeps, and maximum number in one answer."""
MOST_SAMPLES = 8
"""Maximum number of sampled rollouts of a step."""
MOST_SAMPLED_STEPS = 50
"""Number of steps whose sampled rollouts the orchestrator keeps."""
MOST_SAMPLE_CHARACTERS = 1000

Step = Annotated[int, Field(ge=0, lt=1 << 48)]
Version = Annotated[int, Field(ge=0, lt=1 << 48)]
"""Number of a version. Numbers below 2^48 are exact in every component; Redis scripts have only doubles."""
Attempt = Annotated[int, Field(ge=0, lt=1 << 32)]
"""Number of the attempt at publishing a version; a higher one replaces the lower."""
SlotIndex = Annotated[int, Field(ge=0, lt=1 << 32)]
SlotGroups = Annotated[int, Field(ge=1, le=MOST_GROUPS_PER_SLOT)]
StepGroups = Annotated[int, Field(ge=0, le=MOST_GROUPS_PER_STEP)]
Units = Annotated[int, Field(ge=1, lt=1 << 56)]
UnitsPerGroup = Annotated[int, Field(ge=1, le=MOST_UNITS_PER_GROUP)]
RelayUrl = Annotated[
    str,
    StringConstraints(min_length=8, max_length=512, pattern=r"^https?://[!-~]+$"),
    Field(examples=["https://relay.example"]),
]
GatewayUrl = Annotated[
    str,
    StringConstraints(max_length=512, pattern=r"^(https?://[!-~]+)?$"),
    Field(examples=["https://gateway.example"]),
]
"""URL of a gateway, followed by `#0x…` if the address of its key is pinned; empty if there is none."""
ArithmeticName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9._-]{1,31}(/[a-z0-9_-]{1,31}){1,2}$"),
    Field(examples=["vllm-0.32.0/bfloat16/cpu-avx2"]),
]
"""An engine and its number type, for example `torch/float32`, or a numerics class: engine with version, number type and
class of the device, for example `vllm-0.32.0/bfloat16/cpu-avx2`."""


def is_numerics_class(name: str) -> bool:
    """Returns whether an `ArithmeticName` is a numerics class, and not an engine with its number type."""
    return name.count("/") == 2


Arithmetic = Annotated[tuple[ArithmeticName, ...], Field(max_length=MOST_ARITHMETIC)]
"""Engines with number types that a version accepts. Empty if they are unknown until the recipe is read."""
Figures = Annotated[dict[Name, float], Field(max_length=MOST_FIGURES)]
"""Metrics of a file as its node reports them (`samples`, `reward`, `length`). They are unverified and only for display.
"""


# The policy


class NewCheckpoint(WireModel):
    """Body of `PUT /v1/run/checkpoint`: a version that the trainer announced on the ledger.

    It also contains data that leases need.

    The digest must be the one that the ledger names for (version, attempt). The version must not be lower than before.
    """

    version: Version
    attempt: Attempt = 0
    digest: WireDigest
    units_per_group: UnitsPerGroup
    """Maximum number of work units (generated tokens) in one group of this version."""
    relays: Annotated[tuple[RelayUrl, ...], Field(max_length=MOST_RELAYS)] = ()
    arithmetic: Arithmetic = ()
    """Engines with number types that the version's recipe accepts."""
    trainer: ShortText = ""
    """The trainer's lease; empty in a request by a person, which is accepted whoever holds the lease."""


class CheckpointRef(WireModel):
    """The announced version of the policy for which slots are leased now."""

    version: Version
    attempt: Attempt
    digest: WireDigest
    """Digest of the version. A task finds the files in `checkpoints/<digest>` of its shared volume."""
    block: Count
    """Number of the block that contains the announcement."""
    publisher: WireAddress
    """Address of the key that signed the version's manifest."""
    relays: Annotated[tuple[RelayUrl, ...], Field(max_length=MOST_RELAYS)] = ()
    """URLs of relays that serve the version. The relays need no trust, because downloads are verified by the digest."""
    arithmetic: Arithmetic = ()
    """Pairs of engine and number type that are paid, as the trainer read them from the recipe, e.g. `vllm/bfloat16`.

    With this list a node can check its own engine and number type before it downloads the version. The recipe itself
    is authoritative.
    """
    unverifiable: Arithmetic = ()
    """Those numerics classes in `arithmetic` that no validator of the pool can verify at present.

    Validators report the classes that they can verify. The field is empty if none has reported; older validators do
    not report. A pair of engine and number type is never listed, because every validator can verify it.
    """


# Steps


class StepAnswer(WireModel):
    """Answer of `GET /v1/run/step`: the step that needs rollouts.

    Both the orchestrator and the bridge have this route.
    """

    run: Name
    run_id: WireDigest
    step: Step
    """The lowest step of the window that needs rollouts. If `need` is 0, it is the last step of the window, or the
    first open step if the run leases no slots now.
    """
    need: StepGroups
    """Number of groups that the step needs and that no node has leased, submitted or delivered. If it is 0, there is
    nothing to do; see `reason`.
    """
    groups_per_slot: SlotGroups
    """Maximum number of groups in one slot."""
    checkpoint: CheckpointRef | None
    retry_after_ms: Annotated[int, Field(ge=0, le=3_600_000)]
    """Milliseconds to wait before the next request, if there is nothing to do."""
    reason: ShortText = ""
    """Reason why there is nothing to do, for display."""
    gateway: GatewayUrl = ""
    """Gateway whose clients the run's slots answer; empty if the run's slots have prompts of their own."""


class Demand(WireModel):
    """Body of `PUT /v1/run/demand`: the trainer's total demand of a step, in groups.

    Each increase begins a new round. An increase beyond the run's maximum number of rounds closes the step with the
    rollouts that it has. A demand that is not above the previous one changes nothing, so the request may be repeated.
    """

    step: Step
    groups: StepGroups
    closed: bool = False
    """Whether the trainer has its batch. If so, this step and all earlier steps need no more rollouts."""
    trainer: ShortText = ""
    """The trainer's lease; empty in a request by a person."""


class StepView(WireModel):
    """Counts of one step, in groups.

    `need` = demand - accepted - pending - leased + spare, but at least zero.
    """

    step: Step
    demand: StepGroups
    rounds: Annotated[int, Field(ge=0, le=1_000_000)]
    """Number of times that the demand was increased."""
    closed: bool
    accepted: StepGroups
    pending: StepGroups
    """Number of submitted groups whose file is in the store and whose verdict can still arrive in time."""
    leased: StepGroups
    """Number of leased groups that are not submitted yet."""
    spare: StepGroups = 0
    """Number of leased groups for which the step does not wait. Their leases are past half of their time, or belong to
    nodes on trial or to former members.
    """
    rejected: StepGroups
    need: StepGroups


class RunView(WireModel):
    """Answer of `GET /v1/run`: state of the run."""

    run: Name
    run_id: WireDigest
    checkpoint: CheckpointRef | None
    units_per_group: UnitsPerGroup | None
    steps: Annotated[tuple[StepView, ...], Field(max_length=64)]
    """The steps of the window and a few earlier ones, in ascending order."""
    async_level: Annotated[int, Field(ge=0, le=1024)]
    max_rounds: Annotated[int, Field(ge=0, le=1_000_000)]
    queued_submissions: Annotated[int, Field(ge=0, le=MAX_INT64)]
    """Number of transactions that wait in the relayer's queue."""
    paused: ShortText = ""
    """Reason why no slots are leased now, for example that the escrow can't pay for more; empty if slots are leased."""


# The trainer's lease


class TrainerWish(WireModel):
    """Body of `PUT /v1/run/trainer`: a request for the run's trainer lease.

    The trainer acquires, renews or releases the lease.
    """

    holder: Identifier
    """Id of the trainer, which it keeps across restarts."""
    lease: ShortText = ""
    """The lease that the trainer holds; empty if it has just started."""
    start: Identifier | None = None
    """Random id of the trainer's start. If an answer was lost, the repeated request with this id gets the same lease.
    """
    life_ms: Annotated[int, Field(ge=1, le=600_000)]
    """Milliseconds after which the lease expires unless it is renewed; 1 releases the lease."""


class TrainerLease(WireModel):
    """Answer of `PUT /v1/run/trainer`.

    The orchestrator refuses requests under an older lease, so that a former trainer can't change the run.
    """

    lease: ShortText
    life_ms: Annotated[int, Field(ge=1, le=600_000)]


class SampledAnswer(WireModel):
    """A prompt and the policy's answer, cut for display. Both are untrusted text."""

    prompt: Annotated[str, Field(max_length=MOST_ANSWER_CHARACTERS)]
    answer: Annotated[str, Field(max_length=MOST_ANSWER_CHARACTERS)]
    correct: bool


Answers = Annotated[tuple[SampledAnswer, ...], Field(max_length=MOST_ANSWERS)]


class NewAnswers(WireModel):
    """Body of `PUT /v1/run/answers`: a version's greedy answers to held-out prompts, for display only."""

    version: Version
    answers: Answers


class RunAnswers(WireModel):
    """Answer of `GET /v1/run/answers`: answers of the first and of the newest version that was evaluated.

    Both are None before the first evaluation. The two versions answer the same prompts in the same order.
    """

    before: NewAnswers | None = None
    after: NewAnswers | None = None


Metric = Annotated[float, Field(ge=-1e300, le=1e300)] | None
"""A metric of the trainer; None if the trainer has no value for it."""


class TrainedStep(WireModel):
    """The trainer's metrics of a learned step. They are only displayed."""

    step: Step
    at_ms: Milliseconds
    """Time at which the trainer finished the step, by its clock."""
    reward: Metric = None
    """Mean reward of the step's rollouts, also of those that were not chosen for the batch."""
    loss: Metric = None
    entropy: Metric = None
    """Mean entropy over tokens, in nats."""
    kl: Metric = None
    """Estimated distance to the reference policy in nats per token; None without a reference."""
    sampler_kl: Metric = None
    """Estimated distance to the policies that generated the rollouts, in nats per token."""
    gradient_norm: Metric = None
    length: Metric = None
    """Mean number of generated tokens of an answer."""
    tokens_per_second: Metric = None
    """Answer tokens learned per second, without the time spent waiting for rollouts."""
    staleness: Metric = None
    """Mean number of versions between the policy that generated a group and the one that learned from it."""


class SampledRollout(WireModel):
    """A rollout of a step, with texts that are cut for display. Both texts are untrusted."""

    key: WireDigest
    """Work key of the rollout's file."""
    group: Count
    """Number of the prompt in that file, from 0."""
    version: Version
    """Version of the policy that generated the rollout."""
    prompt: Annotated[str, Field(max_length=MOST_SAMPLE_CHARACTERS)]
    answer: Annotated[str, Field(max_length=MOST_SAMPLE_CHARACTERS)]
    """The answer, or the transcript of a dialogue: messages of the policy after `> `, what it read after `< `."""
    tokens: Count
    """Number of generated tokens."""
    reward: Annotated[float, Field(ge=-1e300, le=1e300)]


Samples = Annotated[tuple[SampledRollout, ...], Field(max_length=MOST_SAMPLES)]


class NewTrainedStep(TrainedStep):
    """Body of `PUT /v1/run/trained`: metrics of a learned step, and a few of its rollouts as text, for display only."""

    samples: Samples = ()


class RunSamples(WireModel):
    """Answer of `GET /v1/run/samples`: sampled rollouts of one step."""

    step: Step | None
    """The requested step, by default the newest one with samples; None if no step has samples."""
    samples: Samples
    """Samples of the step; empty if it has none, or was learned long ago."""
    steps: Annotated[tuple[Step, ...], Field(max_length=MOST_SAMPLED_STEPS)]
    """All steps that have samples, ascending."""


class TrainedPage(WireModel):
    """Answer of `GET /v1/run/trained`: steps in ascending order."""

    items: Annotated[tuple[TrainedStep, ...], Field(max_length=MOST_TRAINED_STEPS)]
