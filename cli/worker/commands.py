"""`muster worker`: commands of the daemon, and of keys, stake and rewards for contributors."""

from __future__ import annotations

from cli.groups import CommandGroup
from cli.lazy import Parts

PARTS: Parts = {
    "run": (
        "worker.daemon_cli:run",
        "Run the worker until SIGTERM or SIGINT, which stop the task and deliver queued files first.",
    ),
    "doctor": (
        "worker.daemon_cli:doctor",
        "Check everything that joining needs. Exits with 0 if all is well, 1 on warnings, 2 if the worker can't join.",
    ),
    "status": ("worker.cli:status", "Show what the worker is doing, and why."),
    "logs": ("worker.cli:logs", "Show the output of the task that runs here."),
    "drain": (
        "worker.cli:drain",
        "Finish the running task and accept no new one; lasts until `--undo`, also after a restart.",
    ),
    "resume": (
        "worker.cli:resume",
        "Lease slots again after the worker stopped leasing because delivered work was not paid (see `status`).",
    ),
    "leave": (
        "worker.cli:leave",
        "Stop the task, deliver queued files, leave the pool on the ledger and end the daemon. This frees the stake.",
    ),
    "retry": ("worker.cli:retry", "Retry a file that was parked because it could not be delivered."),
    "upgrade": ("worker.cli:upgrade", "Print how to install the newest release and what happens to the running task."),
    "verdicts": (
        "cli.worker.verdicts",
        "Show verdicts on your node's work: reason, reward or penalty, and the end of the challenge period.",
    ),
    "dispute": (
        "cli.worker.dispute",
        "Dispute a verdict on your work within the challenge period; the decision of another validator is final.",
    ),
    "rewards": ("cli.worker.rewards", "Show the earnings of your nodes: claimable now, and not final yet."),
    "claim": ("cli.ledger.work:claim", "Collect what your nodes have earned."),
    "keys": ("cli.keys", "Make, import and show keys."),
    "stake": ("cli.ledger.stake", "Add, show, unbond and withdraw stake."),
}

app = CommandGroup(name="worker", no_args_is_help=True, help="Contribute this machine to a pool.")
