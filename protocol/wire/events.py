"""Events of a pool, and the webhooks to which they are delivered."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr, StringConstraints, field_serializer

from protocol.identifiers import WireAddress
from protocol.wire.base import Identifier, Milliseconds, WireModel


class PoolEvent(WireModel):
    """An event of the pool, which is also the body of a webhook's delivery."""

    id: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}-[0-9]{1,20}$"), Field(examples=["1767225600000-0"])]
    """Increasing id of the event. A reader continues after the last id that it has read."""
    time_ms: Milliseconds
    kind: Annotated[
        str, StringConstraints(pattern=r"^[a-z]+(\.[a-z-]+)+$", max_length=64), Field(examples=["node.dead"])
    ]
    """Kind of the event: `node.joined`, `node.dead`, `task.completed`, `assignment.failed`, `command.acknowledged`, …
    """
    detail: str
    actor: str
    node: WireAddress | None = None
    task_id: Identifier | None = None
    assignment_id: Identifier | None = None


class EventPage(WireModel):
    """Answer of `GET /v1/events`."""

    events: tuple[PoolEvent, ...]
    next_cursor: str
    """Value for `after` in the next request; with `sort=newest`, for `before`."""


class NewWebhook(WireModel):
    """Body of `POST /v1/webhooks`."""

    url: Annotated[
        str,
        StringConstraints(max_length=2048, pattern=r"^https?://[\x21-\x7e]+$"),
        Field(examples=["https://owner.example/hook"]),
    ]
    events: Annotated[tuple[Annotated[str, StringConstraints(max_length=64)], ...], Field(max_length=64)] = ()
    """Kinds of events to deliver, or prefixes that end with a dot, such as `node.`; empty for all events."""


class Webhook(WireModel):
    """A webhook as the API returns it, without its secret."""

    id: Identifier
    url: str
    events: tuple[str, ...]
    created_at_ms: Milliseconds
    delivered: int
    """Number of events that the receiver accepted."""
    waiting: bool
    """Whether the last delivery failed and will be retried."""
    last_error: str = ""
    old_secret_until_ms: Milliseconds | None = None
    """Time until which the secret before the last rotation signs deliveries, too; None if there is none."""


class SecretRotation(WireModel):
    """Body of `POST /v1/webhooks/{id}/secret`."""

    overlap_seconds: Annotated[int, Field(ge=0, le=7 * 86_400)] = 86_400
    """Time for which deliveries are signed with the old and with the new secret. 0 ends the old secret at once, for
    example because it leaked."""


class CreatedWebhook(WireModel):
    """Answer of `POST /v1/webhooks` and of `POST /v1/webhooks/{id}/secret`.

    No other answer shows the secret.
    """

    webhook: Webhook
    secret: SecretStr
    """Key of the HMAC-SHA256 in the header `X-Muster-Webhook-Signature` of each delivery."""

    @field_serializer("secret", when_used="json")
    def _reveal(self, secret: SecretStr) -> str:
        return secret.get_secret_value()


class WebhookList(WireModel):
    """Answer of `GET /v1/webhooks`."""

    webhooks: tuple[Webhook, ...]
