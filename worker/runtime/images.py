"""Images that this worker pulled: a record of their use on disk, and the removal of unused ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import docker
from docker.errors import APIError, ImageNotFound

from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock, milliseconds
from protocol.runtime.files import write_atomically
from protocol.runtime.logs import get_logger

MOST_IMAGES = 500
"""Maximum number of recorded images. The record of the least recently used one is dropped, and the image stays."""
_MOST_BYTES = 1 << 20
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledImage:
    """An image that this worker pulled.

    Args:
        reference: Reference in the task's spec.
        tags: Tags that the engine listed for the image after the pull.
        used_ms: Time at which a task last used the image, in Unix milliseconds.
    """

    reference: str
    tags: tuple[str, ...]
    used_ms: int


class PulledImages:
    """Record of the images that this worker pulled, by the engine's image id.

    An image that was on this machine before is never recorded, so it is never removed. The methods block, and may be
    called from several threads.

    Args:
        path: Path of the record.
        clock: Clock of the times of use.
    """

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._images = _load(path)

    def note_use(self, reference: str) -> None:
        """Records that a task uses the images of this reference now."""
        with self._lock:
            used = {name: each for name, each in self._images.items() if each.reference == reference}
            self._touch(used)
            if used:
                self._save()

    def is_recorded(self, image_id: str) -> bool:
        """Returns whether this worker pulled the image."""
        with self._lock:
            return image_id in self._images

    def note_pull(self, image_id: str, *, reference: str, tags: Collection[str]) -> None:
        """Records an image that was not on this machine before."""
        with self._lock:
            self._images[image_id] = PulledImage(reference=reference, tags=tuple(sorted(tags)), used_ms=self._now_ms())
            for oldest in sorted(self._images, key=lambda name: self._images[name].used_ms)[:-MOST_IMAGES]:
                del self._images[oldest]
            self._save()

    def remove_unused(
        self, sdk: docker.DockerClient, *, named: Collection[str], unused_for: timedelta
    ) -> tuple[str, ...]:
        """Removes recorded images that no task used within `unused_for`; returns their references.

        An image stays while a container of anybody uses it. If the contributor gave the image another tag, it belongs
        to the contributor from then on, and its record is dropped. The engine never removes an image by force.

        Args:
            sdk: Client of the engine.
            named: References that the present task names.
            unused_for: Time without use after which an image is removed.
        """
        with self._lock:
            self._touch({name: each for name, each in self._images.items() if each.reference in named})
            before_ms = self._now_ms() - milliseconds(unused_for)
            removed = []
            for image_id, image in sorted(self._images.items()):
                if image.used_ms < before_ms and self._remove(sdk, image_id, image):
                    removed.append(image.reference)
            self._save()
        return tuple(removed)

    def _remove(self, sdk: docker.DockerClient, image_id: str, image: PulledImage) -> bool:
        try:
            tags = sdk.images.get(image_id).tags
            ours = {tag for each in self._images.values() for tag in each.tags}
            if set(tags) - ours:
                del self._images[image_id]
                return False
            if sdk.api.containers(all=True, filters={"ancestor": image_id}):
                self._touch({image_id: image})
                return False
            sdk.images.remove(image_id, force=False)
        except ImageNotFound:
            del self._images[image_id]
            return False
        except APIError as error:
            if error.status_code != 409:
                raise
            _log.info("image-in-use", image=image.reference, detail=str(error.explanation)[:300])
            return False  # another image or container needs it; the next round tries again
        del self._images[image_id]
        _log.info("image-removed", image=image.reference, unused_since_ms=image.used_ms)
        return True

    def _touch(self, images: dict[str, PulledImage]) -> None:
        now = self._now_ms()
        self._images |= {name: replace(each, used_ms=now) for name, each in images.items()}

    def _now_ms(self) -> int:
        return unix_ms(self._clock.now())

    def _save(self) -> None:
        content = {name: asdict(each) for name, each in self._images.items()}
        try:
            write_atomically(self._path, json.dumps({"images": content}).encode())
        except OSError as error:  # a task must not fail for it; at worst an image is never removed
            _log.warning("images-not-recorded", path=str(self._path), error=error.strerror or str(error))


def _load(path: Path) -> dict[str, PulledImage]:
    """Reads the record; an unreadable one counts as empty, so that its images stay."""
    try:
        with path.open("rb") as file:
            images = json.loads(file.read(_MOST_BYTES))["images"]
        return {name: PulledImage(**(each | {"tags": tuple(each["tags"])})) for name, each in images.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
