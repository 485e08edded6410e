"""Wire models of tasks, and of the assignment that a node receives."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, StringConstraints, field_serializer, model_validator

from protocol.enumerations import WireEnum
from protocol.wire.assignments import AssignmentState, GroupPlace
from protocol.wire.base import Bytes, Identifier, Labels, Milliseconds, Name, ShortText, WireModel
from protocol.wire.nodes import Gpu, gpu_fits

IDEMPOTENCY_HEADER = "Idempotency-Key"
"""Header with the idempotency key of a request: random printable ASCII, the same in every retry."""

MEBIBYTE = 1 << 20

ImageReference = Annotated[
    str,
    StringConstraints(
        max_length=512,
        pattern=r"^[a-zA-Z0-9][a-zA-Z0-9.:/_-]*(@sha256:[0-9a-f]{64})?$",
    ),
    Field(examples=["ghcr.io/owner/task:1"]),
]
"""Any image reference that a Docker engine accepts: registry, repository, tag or digest."""

ContainerPath = Annotated[
    str, StringConstraints(max_length=512, pattern=r"^/[^\x00-\x1f\x7f:]*$"), Field(examples=["/data"])
]
"""An absolute path in the container, without control characters and colons."""

EnvironmentName = Annotated[
    str, StringConstraints(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), Field(examples=["LOG_LEVEL"])
]
EnvironmentValue = Annotated[str, StringConstraints(max_length=32_768, pattern=r"^[^\x00]*$")]
Argument = Annotated[str, StringConstraints(max_length=32_768, pattern=r"^[^\x00]*$")]


def _without_nul(value: SecretStr) -> SecretStr:
    if "\0" in value.get_secret_value():
        raise ValueError("a secret must not contain a NUL character, because environment variables can't")
    return value


SecretValue = Annotated[SecretStr, Field(max_length=32_768), AfterValidator(_without_nul)]

VARIABLES: dict[str, str] = {
    "MUSTER_POOL_ID": "number of the pool on the ledger",
    "MUSTER_NODE_ADDRESS": "address of the node that runs the task",
    "MUSTER_TASK_ID": "id of the task",
    "MUSTER_TASK_NAME": "name of the task",
    "MUSTER_ASSIGNMENT_ID": "id of this node's assignment",
    "MUSTER_GENERATION": "generation of the assignment; grows with every change",
    "MUSTER_GROUP_ID": "id of the node's group; empty without one",
    "MUSTER_GROUP_RANK": "this node's place in its group, from 0; empty without one",
    "MUSTER_GROUP_SIZE": "number of nodes in the group; empty without one",
    "MUSTER_GPU_COUNT": "number of GPUs given to the task",
    "MUSTER_DATA_DIR": "the task's own volume, inside the container",
    "MUSTER_SHARED_DIR": "the volume that outlives tasks, inside the container",
    "MUSTER_BRIDGE_SOCKET": "unix socket of the bridge to the worker, inside the container",
}
"""Variables, with descriptions, that command, entrypoint and environment of a task may use as `${NAME}`. No others are
allowed. The task's container also has them as environment variables."""


class RestartKind(WireEnum):
    """Condition under which a task's container is restarted."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


class RestartRule(WireModel):
    """Restart policy of a task's container.

    The worker waits before each restart, exponentially longer with jitter.
    """

    kind: RestartKind = RestartKind.ON_FAILURE
    attempts: Annotated[int, Field(ge=0, le=1000)] = 5
    """Maximum number of failures in a row; at the next failure, the assignment fails."""


class Resources(WireModel):
    """Resource limits of a task's container.

    A node must have these resources free.
    """

    cpus: Annotated[float, Field(gt=0, le=4096)] = 1.0
    memory_bytes: Annotated[int, Field(ge=16 * MEBIBYTE, le=1 << 50)] = 1024 * MEBIBYTE
    shared_memory_bytes: Annotated[int, Field(ge=MEBIBYTE, le=1 << 50)] = 64 * MEBIBYTE
    pids: Annotated[int, Field(ge=1, le=1 << 22)] = 512
    disk_bytes: Bytes = 0


class GpuNeeds(WireModel):
    """Number and kind of GPUs that a task needs on one node."""

    count: Annotated[int, Field(ge=0, le=64)] = 0
    memory_bytes: Bytes = 0
    """Minimum memory of each GPU, in bytes."""
    models: Annotated[tuple[ShortText, ...], Field(max_length=32)] = ()
    """Allowed models; empty for any model."""

    def accepts(self, gpu: Gpu) -> bool:
        """Returns whether a GPU has enough memory and is of an allowed model."""
        return gpu_fits(gpu, memory_bytes=self.memory_bytes, models=self.models)


class Volume(WireModel):
    """A directory of the worker that is mounted into the container.

    The worker chooses the directory; a task can't name a path of the host.
    """

    target: ContainerPath
    shared: bool = False
    """Whether the worker's shared volume, which outlives tasks (for weights), is mounted instead of the task's own
    volume.
    """
    read_only: bool = False


class Selector(WireModel):
    """Conditions that nodes must meet to run a task.

    All given conditions must hold.
    """

    labels: Labels = {}
    min_memory_bytes: Bytes = 0
    min_disk_bytes: Bytes = 0
    architecture: ShortText | None = None


class NetworkMode(WireEnum):
    """Network access of a task's container."""

    NONE = "none"
    BRIDGE = "bridge"
    HOST = "host"


class RegistryCredentials(WireModel):
    """Credentials to pull a private image.

    The API never returns them.
    """

    username: ShortText
    password: SecretValue

    @field_serializer("password", when_used="json")
    def _reveal(self, password: SecretStr) -> str:
        return password.get_secret_value()


class TaskSpec(WireModel):
    """A pool owner's specification of a task.

    Command, entrypoint and environment may use the variables in `VARIABLES` as `${MUSTER_…}`, and no others.
    """

    name: Name
    image: ImageReference
    entrypoint: Annotated[tuple[Argument, ...], Field(max_length=256)] | None = None
    command: Annotated[tuple[Argument, ...], Field(max_length=256)] = ()
    environment: Annotated[dict[EnvironmentName, EnvironmentValue], Field(max_length=256)] = {}
    volumes: Annotated[tuple[Volume, ...], Field(max_length=16)] = ()
    resources: Resources = Resources()
    gpus: GpuNeeds = GpuNeeds()
    restart: RestartRule = RestartRule()
    selector: Selector = Selector()
    replicas: Annotated[int, Field(ge=1, le=100_000)] | Literal["every-node"] = "every-node"
    group_size: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of nodes per group. With 2 or more, a replica is a group of nodes that start together."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """A node runs the task with the highest priority. Among equal priorities, it runs the oldest task."""
    deadline_ms: Milliseconds | None = None
    read_only_root: bool = True
    network: NetworkMode = NetworkMode.BRIDGE
    stop_grace_seconds: Annotated[float, Field(ge=0, le=600)] = 10.0

    @model_validator(mode="after")
    def _volumes_are_apart(self) -> Self:
        targets = [volume.target.rstrip("/") for volume in self.volumes]
        if len(set(targets)) != len(targets):
            raise ValueError("two volumes have the same target")
        return self


class NewTask(WireModel):
    """Body of `POST /v1/tasks`: a specification, and secrets that the API never returns."""

    spec: TaskSpec
    secrets: Annotated[dict[EnvironmentName, SecretValue], Field(max_length=64)] = {}
    registry: RegistryCredentials | None = None

    @field_serializer("secrets", when_used="json")
    def _reveal(self, secrets: dict[str, SecretStr]) -> dict[str, str]:
        return {name: value.get_secret_value() for name, value in secrets.items()}


class TaskSecrets(WireModel):
    """Body of `PUT /v1/tasks/{id}/secrets`: new secrets, or new registry credentials, or both."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"secrets": {"HF_TOKEN": "hf_…"}}],
            "anyOf": [
                {"required": ["secrets"], "properties": {"secrets": {"type": "object"}}},
                {"required": ["registry"], "properties": {"registry": {"type": "object"}}},
            ],
        }
    )

    secrets: Annotated[dict[EnvironmentName, SecretValue], Field(max_length=64)] | None = None
    """All secrets of the task, which replace the present ones; empty for none. Absent: they stay."""
    registry: RegistryCredentials | None = None
    """Credentials that replace the present ones. Absent: they stay."""

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.secrets is None and self.registry is None:
            raise ValueError("give secrets, registry credentials, or both")
        return self

    @field_serializer("secrets", when_used="json")
    def _reveal(self, secrets: dict[str, SecretStr] | None) -> dict[str, str] | None:
        return None if secrets is None else {name: value.get_secret_value() for name, value in secrets.items()}


class DesiredState(WireEnum):
    """State of a task that the owner wants."""

    RUNNING = "running"
    STOPPED = "stopped"


class TaskPatch(WireModel):
    """Body of `PATCH /v1/tasks/{id}`.

    Absent fields stay unchanged. A new `spec` increases the generation.
    """

    desired_state: DesiredState | None = None
    replicas: Annotated[int, Field(ge=1, le=100_000)] | Literal["every-node"] | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    spec: TaskSpec | None = None


class TaskState(WireEnum):
    """State of a task."""

    PENDING = "pending"
    """No node runs the task yet; the task's `reason` says why."""
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class Task(WireModel):
    """A task as the API returns it, without secrets."""

    id: Identifier
    spec: TaskSpec
    generation: Annotated[int, Field(ge=1)]
    desired_state: DesiredState
    state: TaskState
    reason: str
    """Reason why the task is pending, failed or stopped, as text."""
    created_at_ms: Milliseconds
    secret_names: tuple[str, ...]
    assignments: dict[AssignmentState, int]
    """Number of assignments by state."""
    version: Annotated[int, Field(ge=0)] = 0
    """Number that every change raises, for blocking reads."""


class TaskPage(WireModel):
    """Answer of `GET /v1/tasks`."""

    tasks: tuple[Task, ...]
    next_cursor: str | None


class Assignment(WireModel):
    """Assignment of a task to one node.

    The orchestrator signs it as part of the heartbeat's answer.

    `generation` grows whenever anything about the assignment changes. A worker refuses a generation lower than the
    highest one that it has seen for the same `id`.
    """

    id: Identifier
    task_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    spec: TaskSpec
    secrets: dict[EnvironmentName, SecretValue] = {}
    registry: RegistryCredentials | None = None
    group: GroupPlace | None = None
    restart_nonce: Annotated[int, Field(ge=0)] = 0
    """Counter of restarts that the owner requested. The worker replaces a container that was started with a lower
    number.
    """

    @field_serializer("secrets", when_used="json")
    def _reveal(self, secrets: dict[str, SecretStr]) -> dict[str, str]:
        return {name: value.get_secret_value() for name, value in secrets.items()}
