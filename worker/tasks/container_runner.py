"""Launches a task: creates its volumes, pulls the image and starts the container."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from protocol.identifiers import Address
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.wire.tasks import Assignment
from worker.runtime.interface import Runtime
from worker.state import StateDirectory, check_room, make_volume, remove_tree
from worker.tasks.container_spec import ContainerPlacement, InstalledGpu, Volumes, container_spec
from worker.tasks.saved_state import RunningTask

_log = get_logger(__name__)


class ContainerRunner:
    """Starts the containers of assignments.

    Args:
        runtime: Runtime for containers.
        state: The worker's state directory.
        node: This node's address.
        pool_id: Number of this node's pool.
        gpus: GPUs of this machine.
        task_user: User id that owns the task volumes, if tasks run as a separate user; else None.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: StateDirectory,
        *,
        node: Address,
        pool_id: int,
        gpus: tuple[InstalledGpu, ...],
        task_user: int | None,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._node = node
        self._pool_id = pool_id
        self._gpus = gpus
        self._task_user = task_user

    async def prepare(self, assignment: Assignment, *, present: RunningTask | None) -> RunningTask:
        """Creates the task's data volume and bridge token.

        The same assignment keeps its token. Volumes of other tasks are deleted.
        """
        token = secrets.token_urlsafe(32)
        if present is not None and present.assignment_id == assignment.id:
            token = present.token
        task = RunningTask(
            assignment_id=assignment.id,
            task_id=assignment.task_id,
            task_name=assignment.spec.name,
            generation=assignment.generation,
            token=token,
            group=assignment.group,
        )
        for place in self._state.tasks.iterdir():
            if place.name != task.task_id:
                await run_in_thread(remove_tree, place)
        make_volume(self._volumes(task).data, user=self._task_user)
        self._state.shared.chmod(0o777)
        return task

    async def start(
        self,
        assignment: Assignment,
        task: RunningTask,
        *,
        number: int,
        fingerprint: str,
        pulling: Callable[[str], None],
    ) -> None:
        """Pulls the image and starts the container.

        Args:
            assignment: The assignment.
            task: Result of `prepare`.
            number: Number of the launch, which is part of the container's name.
            fingerprint: Fingerprint of the assignment, which is stored in the container's labels.
            pulling: Function that receives the progress of the pull as text.

        Raises:
            ImageMissing, PullFailed: The image could not be pulled.
            LaunchRefused: The container can't be started as specified.
            RuntimeDown: The runtime does not answer.
            TaskDiskFull: The disk has too little free space.
        """
        placement = ContainerPlacement(
            node=self._node,
            pool_id=self._pool_id,
            volumes=self._volumes(task),
            gpus=self._gpus,
            bridge_token=task.token,
        )
        spec = container_spec(assignment, placement, fingerprint=fingerprint, number=number)
        check_room(self._state.root, assignment.spec.resources.disk_bytes)
        for mount in spec.mounts:
            if mount.source != placement.volumes.bridge and not mount.source.exists():
                make_volume(mount.source, user=self._task_user)
        await self._runtime.pull(spec.image, credentials=assignment.registry, progress=pulling)
        await self._runtime.start(spec)
        _log.info("started", task=task.task_name, container=spec.name, image=spec.image)

    def _volumes(self, task: RunningTask) -> Volumes:
        return Volumes.of(self._state, task_id=task.task_id, assignment_id=task.assignment_id)
