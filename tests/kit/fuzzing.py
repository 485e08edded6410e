"""Fuzzes a service from its OpenAPI schema over real HTTP, with signed requests or a token."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from requests.auth import AuthBase
from requests.models import PreparedRequest
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.signing import sign_request

EXAMPLES = 8
"""Cases per operation and caller; with a dozen operations that is a few seconds."""

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


class Signed(AuthBase):
    """Signs what requests is about to send."""

    def __init__(self, key: Key, audience: Address) -> None:
        self._key, self._audience = key, audience

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        body = request.body or b""
        stamp = sign_request(
            self._key,
            audience=self._audience,
            method=request.method or "GET",
            target=request.path_url,
            body=body.encode() if isinstance(body, str) else body,
            at=datetime.now(UTC),
        )
        request.headers.update(stamp.headers())
        return request


def operations(app: FastAPI, *, but: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """(method, path) of everything that OpenAPI has, except paths that begin with one of `but`."""
    return [
        (method.upper(), path)
        for path, item in app.openapi()["paths"].items()
        if not path.startswith(but)
        for method in item
    ]


def _schema_of(app: FastAPI) -> Any:
    """Returns the fuzzer's form of the app's OpenAPI document, made once per app."""
    if not hasattr(app.state, "fuzzed"):
        app.state.fuzzed = schemathesis.openapi.from_dict(app.openapi())
    return app.state.fuzzed


def fuzz(
    app: FastAPI,
    url: str,
    operation: tuple[str, str],
    *,
    speakers: Mapping[str, AuthBase | None],
    known: Mapping[str, list[object]],
    fixed: Mapping[str, object] | None = None,
    examples: int = EXAMPLES,
) -> list[int]:
    """Calls one operation with whatever its schema allows, and some that it does not; returns the answers' statuses.

    Args:
        app: The service.
        url: Where it runs.
        operation: Method and path template.
        speakers: Allowed callers, by name.
        known: Values that exist, by parameter; half of the cases have only these, to get behind the first check.
        fixed: Values that these parameters always have.
        examples: How many cases for each caller.

    Raises:
        AssertionError: A 5xx, or an answer that OpenAPI does not promise.
    """
    schema = _schema_of(app)
    method, path = operation
    statuses: list[int] = []

    def ask(auth: AuthBase | None) -> None:
        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=schema[path][method].as_strategy(), data=st.data())
        def run(case: Any, data: st.DataObject) -> None:
            all_known = data.draw(st.booleans())
            for place in (case.path_parameters, case.query):
                for name in list(place or ()):
                    if name in (fixed or {}):
                        place[name] = (fixed or {})[name]
                    elif name in known and (all_known or data.draw(st.booleans())):
                        place[name] = data.draw(st.sampled_from(known[name]))
            response = case.call(base_url=url, auth=auth, timeout=60)
            statuses.append(response.status_code)
            case.validate_response(response, checks=CHECKS)

        run()

    for auth in speakers.values():
        ask(auth)
    return statuses
