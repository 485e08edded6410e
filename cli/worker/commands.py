"""`muster worker`: commands of the daemon, and of keys, stake and rewards for contributors."""

from __future__ import annotations

from cli.groups import CommandGroup
from cli.lazy import Parts

PARTS: Parts = {
    "init": (
        "cli.worker.init",
        "Set up this machine for a pool: keys, stake, registration, configuration and checks.",
    ),
    "run": (
        "cli.worker.service:run",
        "Run the worker until SIGTERM or SIGINT.",
    ),
    "doctor": (
        "cli.worker.service:doctor",
        "Check everything that a node needs to join the pool.",
    ),
    "status": ("cli.worker.daemon:status", "Show what the worker is doing, and why."),
    "logs": ("cli.worker.daemon:logs", "Show the output of the task that runs here."),
    "drain": (
        "cli.worker.daemon:drain",
        "Finish the running task and accept no new task, until `--undo`, also after a restart.",
    ),
    "resume": (
        "cli.worker.daemon:resume",
        "Lease slots again after leasing has stopped because work was not paid (see `status`).",
    ),
    "leave": (
        "cli.worker.daemon:leave",
        "Stop the task, deliver queued files, leave the pool on the ledger and end the daemon.",
    ),
    "retry": ("cli.worker.daemon:retry", "Retry a file that was parked because it could not be delivered."),
    "upgrade": ("cli.worker.daemon:upgrade", "Print how to install a release, and what happens to the running task."),
    "verdicts": (
        "cli.worker.verdicts",
        "Show verdicts on your node's work: reason, reward or penalty, and the end of the challenge period.",
    ),
    "dispute": (
        "cli.worker.dispute",
        "Dispute a verdict on your work within the challenge period. Another validator then decides.",
    ),
    "page": (
        "cli.worker.page",
        "Print a one-time link to your page at the pool: earnings, verdicts and stake.",
    ),
    "rewards": (
        "cli.worker.rewards",
        "Show the earnings of your nodes: claimable now, and from work that is not final yet.",
    ),
    "claim": ("cli.ledger.work:claim", "Collect what your nodes have earned."),
    "keys": ("cli.keys", "Make, import and show keys."),
    "stake": ("cli.ledger.stake", "Add, show, unbond and withdraw stake."),
}

app = CommandGroup(name="worker", no_args_is_help=True, help="Contribute this machine to a pool.")
