"""Route of validators: they report the numerics classes that they can verify."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from orchestrator.api.access import Validator
from orchestrator.dependencies import dependencies_of
from protocol.http.openapi import json_body
from protocol.wire.validators import NumericsReceipt, NumericsReport

router = APIRouter(prefix="/v1/validators", tags=["validators"])


@router.put("/me/numerics", response_model=NumericsReceipt, openapi_extra=json_body(NumericsReport))
async def report_numerics(signed: Validator, request: Request) -> Response:
    """Report the numerics classes that the signing validator can verify, in place of its earlier report.

    Nodes generate no work of a class that no validator can verify. The report expires unless it is repeated.
    """
    dependencies = dependencies_of(request)
    receipt = await dependencies.numerics.report(signed.address, signed.read(NumericsReport).classes)
    return signed.answer(dependencies.key, receipt)
