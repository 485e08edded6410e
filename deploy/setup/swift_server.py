"""A whole OpenStack Swift with its S3 API in one process, for tests: `python swift_server.py HOME`.

Run by the Python of the environment that `swift.sh` makes. One device, one copy; the account `test` has the user
`tester`, whose secret is in `SWIFT_SECRET`. The server writes its port to `HOME/port` once it serves, and ends
when its standard input closes.
"""

from __future__ import annotations

import warnings

warnings.simplefilter("ignore")  # eventlet warns at every import that it is deprecated

import eventlet  # noqa: E402 - eventlet has to patch the process before other imports

eventlet.monkey_patch()

import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import eventlet.wsgi  # noqa: E402
from eventlet import tpool  # noqa: E402

KINDS = ("account", "container", "object")


def main() -> None:
    """Serves until standard input ends."""
    home = Path(sys.argv[1])
    _configure(home)
    sockets = {kind: eventlet.listen(("127.0.0.1", 0)) for kind in (*KINDS, "proxy")}
    _write_rings(home, {kind: sockets[kind].getsockname()[1] for kind in KINDS})
    with Path(os.devnull).open("w") as nowhere:
        for kind, app in _apps(home).items():
            _spawn(sockets[kind], app, nowhere)
        partial = home / "port.partial"
        partial.write_text(str(sockets["proxy"].getsockname()[1]))
        partial.rename(home / "port")
        tpool.execute(sys.stdin.buffer.read)


def _configure(home: Path) -> None:
    """Writes the configuration that Swift reads when it is imported."""
    (home / "devices" / "d1").mkdir(parents=True)
    (home / "proxy.conf").write_text("[app:proxy]\n")
    path = home / "swift.conf"
    path.write_text(
        "[swift-hash]\nswift_hash_path_suffix = test\nswift_hash_path_prefix = test\n"
        "[storage-policy:0]\nname = gold\ndefault = yes\n"
    )
    from swift.common import utils  # noqa: PLC0415
    from swift.common.utils import config  # noqa: PLC0415

    utils.SWIFT_CONF_FILE = config.SWIFT_CONF_FILE = str(path)


def _write_rings(home: Path, ports: dict[str, int]) -> None:
    from swift.common.ring import RingBuilder  # noqa: PLC0415

    for kind, port in ports.items():
        builder = RingBuilder(4, 1, 0)
        place = {"ip": "127.0.0.1", "port": port, "replication_ip": "127.0.0.1", "replication_port": port}
        builder.add_dev({"id": 0, "region": 1, "zone": 1, "weight": 1.0, "device": "d1", **place})
        builder.rebalance()
        builder.get_ring().save(str(home / f"{kind}.ring.gz"))


def _apps(home: Path) -> dict[str, Any]:
    from swift.account import server as account  # noqa: PLC0415
    from swift.common.middleware import catch_errors, gatekeeper, listing_formats, tempauth  # noqa: PLC0415
    from swift.common.middleware.s3api import s3api  # noqa: PLC0415
    from swift.container import server as container  # noqa: PLC0415
    from swift.obj import server as objects  # noqa: PLC0415
    from swift.proxy import server as proxy  # noqa: PLC0415

    conf = {
        "swift_dir": str(home),
        "devices": str(home / "devices"),
        "mount_check": "false",
        "fallocate_reserve": "0",
        "log_level": "CRITICAL",
    }
    front = proxy.app_factory(
        {**conf, "__name__": "proxy", "__file__": str(home / "proxy.conf"), "account_autocreate": "true"}
    )
    layers: tuple[tuple[Any, dict[str, str]], ...] = (
        (tempauth, {"user_test_tester": f"{os.environ['SWIFT_SECRET']} .admin"}),
        (s3api, {"location": "us-east-1", "auth_pipeline_check": "false"}),
        (listing_formats, {}),
        (gatekeeper, {}),
        (catch_errors, {}),
    )
    for layer, more in layers:
        front = layer.filter_factory({**conf, **more})(front)
    return {
        "account": account.app_factory(conf),
        "container": container.app_factory(conf),
        "object": objects.app_factory(conf),
        "proxy": front,
    }


def _spawn(socket: Any, app: Any, log: Any) -> None:  # noqa: ANN401 - eventlet's
    from swift.common.http_protocol import SwiftHttpProtocol  # noqa: PLC0415

    eventlet.spawn(eventlet.wsgi.server, socket, app, log=log, log_output=False, protocol=SwiftHttpProtocol)


if __name__ == "__main__":
    main()
