"""Containers that hold the filtered network namespace of a task's container.

The packet filter has to exist before the first process of the task, and the task must not be able to change it. So a
holder container, which only sleeps, gets the namespace first; a short command in it installs the rules; then the
task's container joins the namespace (`network_mode=container:…`). Only the holder has the capabilities to change the
rules, and the task shares nothing else with it.

The holder's image is empty: it sees this machine's programs, read-only. An image from a registry, or one that a task's
owner can name, must not run with the privilege to change the rules. `iptables` is the machine's own, with which the
engine sets up its networks.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound, NotFound

from protocol.identifiers import Address
from protocol.runtime.bubblewrap import LIBRARY_LINKS
from protocol.runtime.clock import SystemClock
from protocol.runtime.randomness import token_hex
from worker.runtime.docker_arguments import LABEL_WORKER, holder_arguments
from worker.runtime.interface import FilterFailed
from worker.runtime.network_filter import FilterRules

IMAGE_REPOSITORY, IMAGE_TAG = "muster.invalid/network-holder", "1"
"""Name of the empty image. Names below `invalid` never resolve (RFC 6761), so that no registry can provide an image of
this name for a task.
"""
_SYSTEM = ("/usr", *LIBRARY_LINKS, "/etc/alternatives", "/etc/ld.so.cache")
"""Directories and files of this machine that its programs need."""
_SUFFIX = "-network"
"""End of the names of holders; names of tasks' containers end with a number."""
_SLEEP = ("/bin/sleep", "2147483647")
_INSTALL = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
printf %s "$RULES_IPV4" | iptables-restore
if [ -e /proc/net/if_inet6 ]; then printf %s "$RULES_IPV6" | ip6tables-restore; fi
"""
_CHECK = "muster-check-"
"""Beginning of the names of the network and the holder of `try_filter`, followed by the time in seconds since 1970."""
_CHECK_OWNER = "check"
"""Value of the label `LABEL_WORKER` of these; no node has it, so that no worker takes them for its own."""
_LONGEST_CHECK = timedelta(minutes=1)
"""Age at which what `try_filter` made is left over from a run that was interrupted."""


def holder_name(container: str) -> str:
    """Returns the name of the holder of a task's container."""
    return container + _SUFFIX


def start_holder(
    sdk: docker.DockerClient, container: str, *, node: Address | str, network: str, rules: FilterRules
) -> None:
    """Starts the holder of a task's container and installs the rules in its namespace.

    If that fails, the holder is removed.

    Args:
        sdk: Client of the engine.
        container: Name of the task's container, which does not exist yet.
        node: This node's address, the value of the label `LABEL_WORKER`.
        network: Name of the worker's own Docker network.
        rules: Rules of the packet filter.

    Raises:
        FilterFailed: The packet filter can't be installed. The error is retryable if the engine failed, and not if
            `iptables` did.
    """
    name = holder_name(container)
    remove_container(sdk, name)
    try:
        holder = sdk.containers.create(
            **holder_arguments(
                name=name,
                node=node,
                image=_empty_image(sdk),
                command=_SLEEP,
                network=network,
                readable=[Path(path) for path in _SYSTEM if Path(path).exists()],
            )
        )
        holder.start()
        _install(sdk, name, {"RULES_IPV4": rules.ipv4, "RULES_IPV6": rules.ipv6})
    except APIError as error:
        remove_container(sdk, name)
        raise _failed(str(error.explanation or error)) from error
    except BaseException:
        remove_container(sdk, name)
        raise


def remove_container(sdk: docker.DockerClient, name: str) -> None:
    """Removes a container and its anonymous volumes, if it exists; kills it first if it runs."""
    with contextlib.suppress(NotFound):
        try:
            sdk.api.remove_container(name, force=True, v=True)
        except APIError as error:
            if error.status_code != 409:  # the engine is removing it already
                raise


def remove_network(sdk: docker.DockerClient, name: str) -> None:
    """Removes a network of the engine, if it exists and no container uses it."""
    try:
        sdk.api.remove_network(name)
    except NotFound:
        return
    except APIError as error:
        if error.status_code != 403:  # a container is connected to it
            raise


def try_filter(sdk: docker.DockerClient, rules: FilterRules) -> None:
    """Installs the rules in a holder without a task, in a network of its own, and removes both.

    It also removes what an interrupted call left more than a minute ago.

    Raises:
        FilterFailed: As for `start_holder`.
    """
    _remove_interrupted(sdk)
    name = f"{_CHECK}{int(SystemClock().now().timestamp())}-{token_hex(8)}"
    try:
        try:
            sdk.networks.create(name, driver="bridge", labels={LABEL_WORKER: _CHECK_OWNER})
        except APIError as error:
            raise _failed(str(error.explanation or error)) from error
        start_holder(sdk, name, node=_CHECK_OWNER, network=name, rules=rules)
    finally:
        remove_holder(sdk, name)
        remove_network(sdk, name)


def remove_holder(sdk: docker.DockerClient, container: str) -> None:
    """Removes the holder of a task's container, if it exists."""
    remove_container(sdk, holder_name(container))


def is_running(sdk: docker.DockerClient, name: str) -> bool:
    """Returns whether a container exists and runs."""
    try:
        return bool(sdk.api.inspect_container(name)["State"]["Running"])
    except NotFound:
        return False


def held_container(summary: Mapping[str, Any]) -> str | None:
    """Returns the name of the task's container that a listed container is the holder of; None for other containers.

    The name decides, because labels can come from a task's image.
    """
    names = [str(name).removeprefix("/") for name in summary["Names"]]
    return next((name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)), None)


def _install(sdk: docker.DockerClient, name: str, environment: dict[str, str]) -> None:
    """Runs the command that installs the rules, and waits for its end."""
    call = sdk.api.exec_create(name, ["/bin/sh", "-ec", _INSTALL], environment=environment, user="0:0")
    output = sdk.api.exec_start(call["Id"])
    code = sdk.api.exec_inspect(call["Id"])["ExitCode"]
    if code != 0:
        said = output.decode(errors="replace").strip()[:500]
        raise _failed(f"iptables ended with exit code {code}: {said}", retryable=False)


def _failed(detail: str, *, retryable: bool = True) -> FilterFailed:
    return FilterFailed(
        f"tasks can't be kept away from the local network: {detail.strip()[:1000]}", retryable=retryable
    )


def _remove_interrupted(sdk: docker.DockerClient) -> None:
    """Removes networks and holders that interrupted calls of `try_filter` left."""
    label = {"label": f"{LABEL_WORKER}={_CHECK_OWNER}"}
    oldest = (SystemClock().now() - _LONGEST_CHECK).timestamp()
    for summary in sdk.api.containers(all=True, filters=label):
        name = str(summary["Names"][0]).removeprefix("/")
        if _started_at(name) < oldest:
            remove_container(sdk, name)
    for network in sdk.networks.list(filters=label):
        if _started_at(str(network.name)) < oldest:
            remove_network(sdk, str(network.name))


def _started_at(name: str) -> float:
    """Returns the time in the name of what `try_filter` made, in seconds since 1970; infinity for other names."""
    seconds = name.removeprefix(_CHECK).partition("-")[0]
    return float(seconds) if name.startswith(_CHECK) and seconds.isdecimal() else float("inf")


def _empty_image(sdk: docker.DockerClient) -> str:
    """Returns the name of the empty image; makes it if it does not exist."""
    image = f"{IMAGE_REPOSITORY}:{IMAGE_TAG}"
    try:
        sdk.images.get(image)
    except ImageNotFound:
        archive = io.BytesIO()
        tarfile.open(fileobj=archive, mode="w").close()
        sdk.api.import_image_from_data(archive.getvalue(), repository=IMAGE_REPOSITORY, tag=IMAGE_TAG)
        sdk.images.get(image)
    return image
