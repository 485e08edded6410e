"""Records one request of every kind that this release's clients send.

    python -m tests.protocol.record_requests > tests/protocol/requests/RELEASE.json

Record a release once, when it is tagged, and keep the file: `test_recorded_requests.py` sends the requests of former
releases to today's services. Keys, clock and bodies are fixed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import httpx

from protocol.clients.discovery import DiscoveryClient
from protocol.clients.node import NodeClient
from protocol.clients.orchestrator import OrchestratorClient
from protocol.clients.relay import RelayClient
from protocol.errors import MusterError
from protocol.http.client import ServiceClient
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.runtime.clock import ManualClock
from protocol.wire.base import WireModel
from protocol.wire.events import NewWebhook
from protocol.wire.heartbeat import Heartbeat
from protocol.wire.invites import SignedInvite
from protocol.wire.logs import LogBatch
from protocol.wire.nodes import Registration
from protocol.wire.relayed import JoinRequest, SignedDispute, SubmissionRequest
from protocol.wire.runs import Demand, NewAnswers, NewCheckpoint, NewTrainedStep, TrainerWish
from protocol.wire.slots import SlotName, SlotRequest
from protocol.wire.tasks import NewTask, TaskPatch
from protocol.wire.uploads import ObjectKey, UploadRequest
from protocol.wire.validators import NumericsReport
from tests.kit.wire_examples import KEY, OBJECT, example

AT = datetime(2026, 11, 27, tzinfo=UTC)
POOL = 7
SERVICE, VALIDATOR = Key(b"\x02" * 32), Key(b"\x03" * 32)
NODE = KEY
TOKEN = "mst_00000000_recorded"
TASK, WORK = "0" * 32, Digest("0x" + "0b" * 32)

Model = TypeVar("Model", bound=WireModel)
Calls = dict[str, Callable[[], Awaitable[object] | AsyncIterator[object]]]


def of(model: type[Model], **changes: Any) -> Model:
    """Returns an example of a model with some fields changed."""
    return model.model_validate_json(json.dumps({**example(model), **changes}))


async def record() -> list[dict[str, Any]]:
    """Returns the requests of all clients, each with the name of its client and method."""
    found: list[dict[str, Any]] = []
    who = ""

    def answer(request: httpx.Request) -> httpx.Response:
        left_out = {"host", "accept", "connection", "user-agent"}
        found.append(
            {
                "call": who,
                "method": request.method,
                "target": request.url.raw_path.decode(),
                "headers": {name: value for name, value in request.headers.items() if name not in left_out},
                "body": request.content.decode(),
            }
        )
        return httpx.Response(404, json={"code": "not-found", "detail": "a recording", "retryable": False})

    clock, transport = ManualClock(AT), httpx.MockTransport(answer)
    url = f"http://127.0.0.1:1#{SERVICE.address}"
    options: dict[str, Any] = {"clock": clock, "transport": transport}
    clients: list[tuple[str, ServiceClient, Callable[[Any], Calls]]] = [
        ("node", NodeClient(url, key=NODE, **options), node_calls),
        ("validator", NodeClient(url, key=VALIDATOR, **options), validator_calls),
        ("relay", RelayClient(url, key=NODE, **options), relay_calls),
        ("discovery", DiscoveryClient(url, key=NODE, **options), discovery_calls),
        ("owner", OrchestratorClient("http://127.0.0.1:1", token=TOKEN, **options), owner_calls),
    ]
    for name, client, calls in clients:
        for method, call in calls(client).items():
            who = f"{name}.{method}"
            before = len(found)
            with suppress(MusterError):
                made = call()
                if isinstance(made, AsyncIterator):
                    async for _ in made:
                        break
                else:
                    await made
            assert len(found) == before + 1, who
        await client.aclose()
    return found


def node_calls(node: NodeClient) -> Calls:
    return {
        "heartbeat": lambda: node.heartbeat(of(Heartbeat, pool_id=POOL)),
        "push_logs": lambda: node.push_logs(of(LogBatch)),
        "request_upload": lambda: node.request_upload(of(UploadRequest)),
        "object_link": lambda: node.object_link(ObjectKey.parse(OBJECT)),
        "me": node.me,
        "step": node.step,
        "slot": lambda: node.slot(of(SlotRequest)),
        "release": lambda: node.release([of(SlotName)]),
        "my_leases": node.my_leases,
        "submit_work": lambda: node.submit_work(of(SubmissionRequest).work, figures={"reward": 0.5}),
        "dispute": lambda: node.dispute(of(SignedDispute)),
        "join": lambda: node.join(of(JoinRequest)),
        "submission": lambda: node.submission(WORK),
    }


def validator_calls(validator: NodeClient) -> Calls:
    return {"report_numerics": lambda: validator.report_numerics(of(NumericsReport))}


def relay_calls(relay: RelayClient) -> Calls:
    return {"register": lambda: relay.register("https://relay.example"), "leave": relay.leave}


def discovery_calls(discovery: DiscoveryClient) -> Calls:
    invite = of(SignedInvite)
    return {
        "register": lambda: discovery.register(of(Registration, pool_id=POOL)),
        "record": discovery.record,
        "invites": lambda: discovery.invites(wait=timedelta()),
        "acknowledge": lambda: discovery.acknowledge(invite),
        "sign_off": discovery.sign_off,
        "page": lambda: discovery.page(POOL),
        "invite": lambda: discovery.invite(invite),
    }


def owner_calls(owner: OrchestratorClient) -> Calls:
    return {
        "overview": owner.overview,
        "nodes": owner.nodes,
        "allowlist": owner.allowlist,
        "node": lambda: owner.node(NODE.address),
        "history": lambda: owner.history(NODE.address),
        "metrics": lambda: owner.metrics(NODE.address),
        "restart": lambda: owner.restart(NODE.address, reason="slow"),
        "drain": lambda: owner.drain(NODE.address, reason="slow"),
        "resume": lambda: owner.resume(NODE.address),
        "ban": lambda: owner.ban(NODE.address, reason="slow"),
        "unban": lambda: owner.unban(NODE.address),
        "logs": lambda: owner.logs(NODE.address),
        "create_task": lambda: owner.create_task(of(NewTask)),
        "tasks": owner.tasks,
        "task": lambda: owner.task(TASK),
        "change_task": lambda: owner.change_task(TASK, TaskPatch(replicas=2)),
        "delete_task": lambda: owner.delete_task(TASK),
        "groups": owner.groups,
        "run": owner.run,
        "put_demand": lambda: owner.put_demand(of(Demand)),
        "put_checkpoint": lambda: owner.put_checkpoint(of(NewCheckpoint)),
        "hold_trainer_lease": lambda: owner.hold_trainer_lease(of(TrainerWish)),
        "put_answers": lambda: owner.put_answers(of(NewAnswers)),
        "answers": owner.answers,
        "put_trained": lambda: owner.put_trained(of(NewTrainedStep)),
        "trained": lambda: owner.trained(first=1),
        "samples": lambda: owner.samples(step=1),
        "figures": lambda: owner.figures(first=1),
        "rollouts": lambda: owner.rollouts(step=1),
        "rollout": lambda: owner.rollout(WORK),
        "leases": lambda: owner.leases(NODE.address),
        "events": owner.events,
        "relays": owner.relays,
        "allow_relay": lambda: owner.allow_relay(NODE.address),
        "deny_relay": lambda: owner.deny_relay(NODE.address),
        "create_webhook": lambda: owner.create_webhook(of(NewWebhook, url="https://1.1.1.1/hook")),
        "webhooks": owner.webhooks,
        "delete_webhook": lambda: owner.delete_webhook(TASK),
        "object_link": lambda: owner.object_link(ObjectKey.parse(OBJECT)),
    }


if __name__ == "__main__":
    json.dump(asyncio.run(record()), sys.stdout, indent=1)
    sys.stdout.write("\n")
