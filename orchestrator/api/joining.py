"""Route with what a contributor needs to join the pool."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from orchestrator.api.access import Node
from orchestrator.dependencies import dependencies_of
from protocol.wire.joining import MOST_DISCOVERY, JoiningInformation, LedgerDeployment

router = APIRouter(prefix="/v1", tags=["pool"])


@router.get("/joining", response_model=JoiningInformation)
async def get_joining_information(signed: Node, request: Request) -> Response:
    """Return the pool's number, the addresses of the ledger's contracts and the discovery services.

    Any key may sign the request. The orchestrator signs the answer, so that the caller can compare the signer with the
    pool's orchestrator key on the ledger.
    """
    dependencies = dependencies_of(request)
    deployment = dependencies.ledger.deployment
    answer = JoiningInformation(
        pool_id=dependencies.settings.pool_id,
        deployment=LedgerDeployment(
            chain_id=deployment.chain_id,
            block=deployment.block,
            contracts={name.value: place for name, place in deployment.contracts.items()},
            version=deployment.version,
        ),
        discovery=dependencies.settings.discovery[:MOST_DISCOVERY],
    )
    return signed.answer(dependencies.key, answer)
