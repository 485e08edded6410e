"""The Docker runtime, which runs tasks in containers of the local Docker engine.

It calls the Docker SDK in threads, and follows output over HTTP on the engine's socket. The engine must be local,
because containers mount directories of this machine and the socket of the bridge.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import docker
import httpx
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from requests.exceptions import RequestException

from protocol.errors import InvalidInput
from protocol.http.trust import no_authorities
from protocol.identifiers import Address
from protocol.runtime.threads import run_in_thread
from protocol.wire.nodes import RuntimeKind
from protocol.wire.tasks import NetworkMode, RegistryCredentials
from worker.runtime.docker_arguments import ALLOW, LABEL_LOCAL_NETWORK, LABEL_WORKER, creation_arguments, observed
from worker.runtime.docker_output import OutputParser
from worker.runtime.images import PulledImages
from worker.runtime.interface import (
    Container,
    ContainerSpec,
    ContainerStatus,
    FilterFailed,
    ImageMissing,
    LaunchRefused,
    OutputLine,
    Progress,
    PullFailed,
    RuntimeDown,
    name_prefix,
    refuse_foreign,
)
from worker.runtime.network_filter import FilterRules, NetworkFilter, name_servers, own_addresses
from worker.runtime.network_holder import (
    held_container,
    holder_name,
    is_running,
    remove_container,
    remove_holder,
    remove_network,
    start_holder,
    try_filter,
)
from worker.runtime.registries import pull_error, require_public_registry

DEFAULT_SOCKET = Path("/var/run/docker.sock")

_CALL_TIMEOUT_SECONDS = 60

T = TypeVar("T")


def engine_socket(docker_host: str | None = None) -> Path:
    """Returns the path of the engine's unix socket.

    The path comes from the setting, else from `DOCKER_HOST`, else it is `DEFAULT_SOCKET`.

    Raises:
        InvalidInput: The engine's address is not a unix socket. A remote engine can't mount this machine's directories.
    """
    host = docker_host or os.environ.get("DOCKER_HOST") or f"unix://{DEFAULT_SOCKET}"
    if not host.startswith("unix://"):
        raise InvalidInput(
            f"the Docker engine at {host} is not reached through a unix socket of this machine",
            hint="run the worker on the engine's machine and use a unix socket, as in unix:///var/run/docker.sock",
            code="docker-not-local",
        )
    return Path(host.removeprefix("unix://"))


class DockerRuntime:
    """Runs the containers of one worker on the local Docker engine.

    Args:
        node: This node's address. Containers of other workers are neither listed nor changed.
        socket: Path of the engine's unix socket.
        allow_host_network: Whether the contributor allows tasks to use the host's network.
        readable: Files and directories that the contributor lets tasks read, mounted at the same paths.
        user: `uid:gid` of tasks; None for the user of the image. A worker that is not root passes its own user, so that
            it can delete the files of tasks.
        network_filter: Filter that keeps tasks with network `bridge` away from the local network; None for no filter.
        images: Record of the images that this runtime pulls; None to record and remove none.
    """

    kind = RuntimeKind.DOCKER

    def __init__(
        self,
        node: Address,
        *,
        socket: Path,
        allow_host_network: bool = False,
        readable: Sequence[Path] = (),
        user: str | None = None,
        network_filter: NetworkFilter | None = None,
        images: PulledImages | None = None,
    ) -> None:
        self._images = images
        self._node = node
        self._socket = socket
        self._allow_host_network = allow_host_network
        self._readable = tuple(path.absolute() for path in readable if path.exists())
        self._user = user
        self._filter = network_filter
        self._local_network = ALLOW if network_filter is None else network_filter.label
        self._network_name = f"{name_prefix(node)}net"
        self._sdk: docker.DockerClient | None = None
        self._http: httpx.AsyncClient | None = None

    async def check(self) -> str:
        """Returns the engine's version."""
        version = await self._call(lambda sdk: sdk.version())
        return str(version["Version"])

    async def gpus_supported(self) -> bool:
        """Returns whether the engine has the NVIDIA runtime or a CDI description of the GPUs."""
        info = await self._call(lambda sdk: sdk.info())
        return "nvidia" in info.get("Runtimes", {}) or any(
            "nvidia" in str(device) for device in info.get("DiscoveredDevices") or ()
        )

    async def pull(self, image: str, *, credentials: RegistryCredentials | None, progress: Progress) -> None:
        """Pulls the image unless it is on this machine.

        An image with the tag `latest` is pulled every time. If that pull fails, the copy on this machine is used.

        With a network filter, only public registries and those in the filter's allowed networks are asked.

        Raises:
            LaunchRefused: The registry is this machine or in a private network, which the filter denies.
            ImageMissing: The image does not exist or access is denied.
            PullFailed: The registry could not be reached.
        """
        if self._images is not None:  # before the look-up, so that the image is not removed after it
            await run_in_thread(self._images.note_use, image)
        present = await self._has(image)
        if present and not _is_latest(image):
            return
        try:
            if self._filter is not None:
                await require_public_registry(image, self._filter.allowed)
            await self._call(lambda sdk: _pull_and_record(sdk, image, credentials, progress, self._images))
        except (ImageMissing, PullFailed, LaunchRefused):
            if not present:
                raise
            progress(f"{image} could not be pulled again; the copy on this machine is used")

    async def start(self, spec: ContainerSpec) -> None:
        """Creates and starts a container.

        A container that can't be started, for example without a GPU driver, is removed.
        """
        refuse_foreign(spec.name, self._node)
        held = self._filter is not None and spec.network is NetworkMode.BRIDGE
        arguments = creation_arguments(
            spec,
            node=self._node,
            network=f"container:{holder_name(spec.name)}" if held else self._network_name,
            local_network=self._local_network,
            allow_host_network=self._allow_host_network,
            readable=self._readable,
            user=self._user,
        )
        if spec.network is NetworkMode.BRIDGE:
            await self._call(self._make_network)
        await self._call(lambda sdk: self._start_held(sdk, arguments) if held else _create_and_start(sdk, arguments))

    async def check_filter(self) -> None:
        """Installs the packet filter for no task, in a network of its own, and removes both.

        It does nothing if tasks may reach the local network.

        Raises:
            FilterFailed: The packet filter can't be installed on this machine.
            RuntimeDown: The engine does not answer.
        """
        if self._filter is not None:
            await self._call(lambda sdk: try_filter(sdk, self._rules()))

    async def containers(self) -> tuple[Container, ...]:
        """Returns the containers of tasks with this worker's label.

        It removes network holders of containers that have ended or are gone. A worker that was killed between two steps
        leaves such holders.
        """
        return await self._call(self._list)

    async def stop(self, name: str, *, grace: timedelta) -> None:
        """Sends SIGTERM to the container, and SIGKILL after the grace period."""
        refuse_foreign(name, self._node)
        seconds = max(0, int(grace.total_seconds()))

        def stop(sdk: docker.DockerClient) -> None:
            try:
                sdk.api.stop(name, timeout=seconds)
            except NotFound:
                return

        await self._call(stop)

    async def remove(self, name: str) -> None:
        """Removes the container and its anonymous volumes."""
        refuse_foreign(name, self._node)

        def remove(sdk: docker.DockerClient) -> None:
            remove_container(sdk, name)
            remove_holder(sdk, name)

        await self._call(remove)

    async def output(self, name: str, *, after_ns: int) -> AsyncIterator[OutputLine]:
        """Follows the engine's log of a container, after the time `after_ns`.

        The engine may end the followed stream before it has logged the last lines. Therefore the log is read once more.
        """
        refuse_foreign(name, self._node)
        for follow in (True, False):
            async for line in self._log(name, after_ns=after_ns, follow=follow):
                after_ns = line.time_ns
                yield line

    async def _log(self, name: str, *, after_ns: int, follow: bool) -> AsyncIterator[OutputLine]:
        if self._http is None:
            transport = httpx.AsyncHTTPTransport(uds=str(self._socket), verify=no_authorities())
            timeout = httpx.Timeout(60, read=None)  # a task may be silent for days
            self._http = httpx.AsyncClient(transport=transport, base_url="http://docker", timeout=timeout)
        query = {"follow": str(int(follow)), "stdout": "1", "stderr": "1", "timestamps": "1", "since": _since(after_ns)}
        parser = OutputParser()
        try:
            async with self._http.stream("GET", f"/containers/{name}/logs", params=query) as answer:
                if answer.status_code != 200:
                    return
                async for chunk in answer.aiter_raw():
                    for line in parser.feed(chunk):
                        if line.time_ns > after_ns:
                            yield line
        except httpx.HTTPError as error:
            raise RuntimeDown(f"the connection that reads the output of {name} broke: {error}") from error
        for line in parser.end():
            if line.time_ns > after_ns:
                yield line

    async def close(self) -> None:
        """Closes the connections to the engine.

        Containers keep running.
        """
        if self._http is not None:
            await self._http.aclose()
        if self._sdk is not None:
            await run_in_thread(self._sdk.close)

    async def remove_unused_images(self, *, named: Collection[str], unused_for: timedelta) -> tuple[str, ...]:
        """Removes recorded images that no task used within `unused_for`; returns their references."""
        record = self._images
        if record is None:
            return ()
        return await self._call(lambda sdk: record.remove_unused(sdk, named=named, unused_for=unused_for))

    async def remove_network(self) -> None:
        """Removes the worker's network, unless a container is still connected to it.

        Call it when the worker runs no container.
        """
        await self._call(lambda sdk: remove_network(sdk, self._network_name))

    async def _has(self, image: str) -> bool:
        return await self._call(lambda sdk: _image_id(sdk, image) is not None)

    def _make_network(self, sdk: docker.DockerClient) -> None:
        """Creates the worker's own network, in which containers can't reach each other."""
        if sdk.networks.list(names=[f"^{self._network_name}$"]):
            return
        sdk.networks.create(
            self._network_name,
            driver="bridge",
            check_duplicate=True,
            options={"com.docker.network.bridge.enable_icc": "false"},
            labels={LABEL_WORKER: self._node},
        )

    def _start_held(self, sdk: docker.DockerClient, arguments: dict[str, Any]) -> None:
        name = arguments["name"]
        start_holder(sdk, name, node=self._node, network=self._network_name, rules=self._rules())
        try:
            _create_and_start(sdk, arguments)
        except BaseException as error:
            held = is_running(sdk, holder_name(name))
            remove_holder(sdk, name)
            if isinstance(error, LaunchRefused) and not held:
                raise FilterFailed(f"the network holder of {name} has ended: {error.detail}") from error
            raise

    def _rules(self) -> FilterRules:
        chosen = self._filter or NetworkFilter()
        return chosen.rules(own=own_addresses(), name_servers=name_servers())

    def _list(self, sdk: docker.DockerClient) -> tuple[Container, ...]:
        summaries = sdk.api.containers(all=True, filters={"label": f"{LABEL_WORKER}={self._node}"})
        held = {
            name: one["State"]
            for one in summaries
            if (name := held_container(one)) is not None and name.startswith(name_prefix(self._node))
        }
        found = []
        for summary in summaries:
            if held_container(summary) is not None:
                continue
            try:
                attributes = sdk.api.inspect_container(summary["Id"])
            except NotFound:  # removed between the two calls
                continue
            container = observed(attributes)
            if not container.name.startswith(name_prefix(self._node)):
                continue
            ended = container.status is ContainerStatus.EXITED
            if not ended and not self._network_as_chosen(attributes, holder=held.pop(container.name, "")):
                container = replace(container, fingerprint="", network_denied=True)  # the reconciler replaces it
            found.append(container)
        for name in held:
            remove_holder(sdk, name)
        return tuple(found)

    def _network_as_chosen(self, attributes: dict[str, Any], *, holder: str) -> bool:
        """Returns whether a container that has not ended has the network that the contributor's settings allow it.

        The settings may have changed since the container was started.

        Args:
            attributes: The engine's description of the container.
            holder: State of the container's network holder; empty if there is none.
        """
        mode = attributes["HostConfig"]["NetworkMode"]
        if mode == "none":
            return True
        if mode == "host":
            return self._allow_host_network
        chosen = attributes["Config"]["Labels"].get(LABEL_LOCAL_NETWORK, ALLOW)
        return bool(chosen == self._local_network and (self._filter is None or holder == "running"))

    async def _call(self, work: Callable[[docker.DockerClient], T]) -> T:
        return await run_in_thread(self._guarded, work)

    def _guarded(self, work: Callable[[docker.DockerClient], T]) -> T:
        try:
            if self._sdk is None:
                self._sdk = docker.DockerClient(
                    base_url=f"unix://{self._socket}", version="auto", timeout=_CALL_TIMEOUT_SECONDS
                )
            return work(self._sdk)
        except APIError as error:
            raise RuntimeDown(f"the Docker engine failed: {_explain(error)}") from error
        except (DockerException, RequestException, OSError) as error:
            raise RuntimeDown(f"the Docker engine at {self._socket} does not answer: {error}") from error


def _create_and_start(sdk: docker.DockerClient, arguments: dict[str, Any]) -> None:
    name = arguments["name"]
    try:
        container = sdk.containers.create(**arguments)
    except ImageNotFound as error:
        raise ImageMissing(f"the image {arguments['image']} is not on this machine") from error
    except APIError as error:
        if error.status_code == 409:
            raise LaunchRefused(f"a container with the name {name} exists already", retryable=True) from error
        raise _refused(error) from error
    try:
        container.start()
    except BaseException as error:
        container.remove(force=True, v=True)
        if isinstance(error, APIError):
            raise _refused(error) from error
        raise


def _refused(error: APIError) -> LaunchRefused | RuntimeDown:
    text = _explain(error)
    if "device driver" in text or "nvidia" in text.lower():
        return LaunchRefused(
            f"the engine can't give the task a GPU: {text}",
            hint="install the NVIDIA driver and container toolkit, then restart the engine; `muster worker doctor` "
            "shows what is missing",
            code="gpu-unavailable",
        )
    if "port is already allocated" in text or "no space left" in text:
        return RuntimeDown(f"the engine could not start the container: {text}")
    return LaunchRefused(f"the engine refused the container: {text}")


def _pull(sdk: docker.DockerClient, image: str, credentials: RegistryCredentials | None, progress: Progress) -> None:
    # An empty dict makes an anonymous request. With None, the SDK would use the credentials in ~/.docker/config.json,
    # so that a pool owner could run and read the contributor's private images.
    login: dict[str, str] = {}
    if credentials is not None:
        login = {"username": credentials.username, "password": credentials.password.get_secret_value()}
    try:
        tag = None if _is_pinned(image) else "latest"  # without a tag the engine pulls all tags
        for event in sdk.api.pull(image, tag=tag, stream=True, decode=True, auth_config=login):
            if "error" in event:
                raise pull_error(image, str(event["error"]))
            if status := event.get("status"):
                progress(f"pulling {image}: {status}")
    except APIError as error:
        raise pull_error(image, _explain(error)) from error


def _pull_and_record(
    sdk: docker.DockerClient,
    image: str,
    credentials: RegistryCredentials | None,
    progress: Progress,
    record: PulledImages | None,
) -> None:
    """Pulls an image, and records it if neither the image nor an image with this name was on the machine before.

    If the name belonged to an image that this worker had pulled, the new image is recorded, too. The record is written
    in the same thread as the pull, because the caller may be cancelled meanwhile.
    """
    if record is None:
        _pull(sdk, image, credentials, progress)
        return
    known, former = set(sdk.api.images(quiet=True, all=True)), _image_id(sdk, image)
    _pull(sdk, image, credentials, progress)
    pulled = _image_id(sdk, image)
    if pulled is not None and pulled not in known and (former is None or record.is_recorded(former)):
        record.note_pull(pulled, reference=image, tags=sdk.images.get(pulled).tags)


def _image_id(sdk: docker.DockerClient, image: str) -> str | None:
    try:
        return str(sdk.images.get(image).id)
    except ImageNotFound:
        return None


def _is_pinned(image: str) -> bool:
    return "@" in image or ":" in image.rsplit("/", 1)[-1]


def _is_latest(image: str) -> bool:
    """Returns whether the reference means the tag `latest`, explicitly or by default."""
    return not _is_pinned(image) or ("@" not in image and image.endswith(":latest"))


def _explain(error: APIError) -> str:
    return str(error.explanation or error).strip()[:1000]


def _since(after_ns: int) -> str:
    return f"{after_ns // 1_000_000_000}.{after_ns % 1_000_000_000:09d}" if after_ns else "0"
