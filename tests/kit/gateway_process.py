"""Runs one replica of a gateway with an in-memory ledger: `python -m tests.kit.gateway_process`.

Standard input has a JSON object: `redis`, `key`, `orchestrator` (keys as hexadecimal text), `members` and `settings`.
The process prints its port.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gateway.app import build_gateway
from gateway.settings import GatewaySettings
from protocol.http.serving.service import run_service
from protocol.identifiers import address
from protocol.identity.keys import Key
from protocol.redis.connection import connect_redis
from protocol.runtime.logs import configure_logs
from tests.kit.gateway import POOL, RUN, MemoryGatewayLedger


def _say(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


def main() -> None:
    """Serves until SIGTERM."""
    given = json.loads(sys.stdin.readline())
    configure_logs(level="WARNING", service=True)
    ledger = MemoryGatewayLedger(Key.from_hex(given["orchestrator"]))
    ledger.members = {address(node): address(node) for node in given["members"]}
    settings = GatewaySettings(
        pool_id=POOL, run=RUN, deployment=Path("unused"), public_url="http://127.0.0.1:8005", **given["settings"]
    )
    app = build_gateway(settings, redis=connect_redis(given["redis"]), ledger=ledger, key=Key.from_hex(given["key"]))
    run_service(app, on_bound=_say)


if __name__ == "__main__":
    main()
