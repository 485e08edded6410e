"""Refuses query parameters that a route does not declare.

Otherwise a misspelt filter would silently return unfiltered results.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from fastapi import Request
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.routing import APIRoute

from protocol.errors import Unprocessable

_MOST_NAMED = 5
"""Maximum number of unknown parameters that an error names."""
_MOST_SHOWN = 40
"""Maximum number of characters shown of a parameter's name."""


async def declared_parameters_only(request: Request) -> None:
    """Checks a request's query against the parameters of its route.

    `create_service` makes every route depend on this function.

    Raises:
        Unprocessable: The query has a parameter that the route does not declare.
    """
    route = request.scope.get("route")
    if request.scope["query_string"] and isinstance(route, APIRoute):
        declared = {field.alias for field in get_flat_dependant(route.dependant).query_params}
        check_parameters(request.query_params.keys(), declared)


def check_parameters(given: Iterable[str], declared: Collection[str]) -> None:
    """Checks that all given parameters are declared.

    Args:
        given: Names of the parameters in the query.
        declared: Names of the parameters that the route declares.

    Raises:
        Unprocessable: There are unknown parameters. The error names them and the route's parameters.
    """
    unknown = [name for name in dict.fromkeys(given) if name not in declared]
    if not unknown:
        return
    shown = [name[:_MOST_SHOWN] for name in unknown[:_MOST_NAMED]]
    close = difflib.get_close_matches(shown[0], declared, n=1, cutoff=0.6)
    known = f"this route takes {', '.join(sorted(declared))}" if declared else "this route takes no parameters"
    raise Unprocessable(
        f"unknown query parameter{'s' if len(unknown) > 1 else ''}: {', '.join(map(repr, shown))}",
        fields={f"query.{name}": "unknown parameter" for name in shown},
        hint=f"did you mean {close[0]}? {known}" if close else known,
        code="unknown-parameter",
    )
