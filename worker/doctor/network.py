"""Checks of the services: reachability, clock difference and bandwidth."""

from __future__ import annotations

import time
from datetime import UTC
from email.utils import parsedate_to_datetime

import httpx

from protocol.clients import ServiceLocation
from protocol.errors import MusterError
from protocol.http.location import check_service_url
from protocol.runtime.clock import Clock
from protocol.runtime.findings import DoctorFinding, failure, ok, warning

MOST_SKEW_S = 60.0
"""Maximum difference of the clocks, in seconds. Services refuse requests that differ more."""
NOTICEABLE_SKEW_S = 10.0
"""Minimum difference of the clocks, in seconds, for which the doctor warns."""
_MEASURED_S = 1.0
"""Duration of the bandwidth measurement in seconds."""
_MOST_BYTES = 64 << 20
"""Maximum number of bytes that the measurement downloads."""
_ASK_OPERATOR = "try again later, or ask the service's operator"
_MOST_DOWNLOADS = 16
"""Maximum number of downloads of the measurement, so that it leaves the worker its share of the service's rate limit.
"""


async def check_service(name: str, location: str, *, clock: Clock, allow_plain_http: bool) -> list[DoctorFinding]:
    """Checks reachability, clock difference and bandwidth of a service.

    Args:
        name: Name of the service in the report.
        location: URL of the service, with or without `#address`.
        clock: This machine's clock.
        allow_plain_http: Whether `http` to other machines is allowed.
    """
    try:
        url = ServiceLocation.parse(location, allow_plain_http=allow_plain_http).url
        check_service_url(url, allow_plain_http=allow_plain_http)
    except MusterError as error:
        return [failure(name, error.detail, error.hint)]
    try:
        async with httpx.AsyncClient(base_url=url, timeout=10, follow_redirects=False) as client:
            began = time.perf_counter()
            answer = await client.get("/readyz")
            took = time.perf_counter() - began
            findings = [_readiness(name, url, answer.status_code, took)]
            if (date := answer.headers.get("date")) is not None:
                findings.append(_clock(date, clock))
            findings.append(await _bandwidth(name, client))
            return findings
    except httpx.HTTPError as error:
        return [
            failure(
                name,
                f"{url} does not answer: {type(error).__name__} {error}".strip(),
                "check the URL, your network and your firewall; the worker needs only outgoing connections",
            )
        ]


def _readiness(name: str, url: str, status: int, took: float) -> DoctorFinding:
    found = f"{url} answers in {took * 1000:.0f} ms"
    if status == 200:
        return ok(name, found)
    return warning(name, f"{found}, but reports that it is not ready ({status})", _ASK_OPERATOR)


def _clock(date: str, clock: Clock) -> DoctorFinding:
    """Compares this machine's clock with the answer's `Date` header.

    The header has a resolution of one second.
    """
    try:
        skew = (clock.now() - parsedate_to_datetime(date).astimezone(UTC)).total_seconds()
    except (TypeError, ValueError):
        return warning("clock", "the service sent no valid date", "check this machine's clock by other means")
    found = f"this machine is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the service"
    advice = "set the clock: install chrony or systemd-timesyncd"
    if abs(skew) >= MOST_SKEW_S:
        return failure("clock", f"{found}; services refuse requests that are more than {MOST_SKEW_S:.0f} s off", advice)
    if abs(skew) >= NOTICEABLE_SKEW_S:
        return warning("clock", found, advice)
    return ok("clock", f"within {max(1, abs(skew)):.0f} s of the service")


async def _bandwidth(name: str, client: httpx.AsyncClient) -> DoctorFinding:
    """Measures a lower bound of the bandwidth.

    It downloads a public page repeatedly for at most one second. The first download is not measured, because the
    service may build the page then.
    """
    check = f"{name} bandwidth"
    received, took = 0, 0.0
    for number in range(_MOST_DOWNLOADS + 1):
        began = time.perf_counter()
        answer = await client.get("/openapi.json")
        if answer.status_code == 429:
            break
        if answer.status_code != 200:
            return warning(check, f"could not be measured: the service answers {answer.status_code}", _ASK_OPERATOR)
        if number > 0:
            received += len(answer.content)
            took += time.perf_counter() - began
        if took >= _MEASURED_S or received >= _MOST_BYTES:
            break
    if not received:
        return ok(check, "not measured, because the service's rate limit is reached")
    speed = received * 8 / took / 1e6
    found = f"at least {speed:.1f} Mbit/s for downloads"
    if speed < 1:
        return warning(check, found, "downloading model weights takes a long time at this speed")
    return ok(check, found)
