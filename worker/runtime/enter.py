"""Runs inside the sandbox, becomes the task. Standard library only; reads one JSON object from standard input.

Secrets come by standard input because a command line is seen by everyone on the machine. Limits and environment are set
after the user has changed, so that nothing the task's owner chose is ever read by a process with privileges.
"""

from __future__ import annotations

import json
import os
import resource
import sys


def main() -> None:
    """Drops to the task's user, sets its limits and becomes it; exit code 127 if the program does not exist."""
    task = json.load(sys.stdin)
    if task["uid"] is not None:
        os.setgroups([])
        os.setresgid(task["gid"], task["gid"], task["gid"])
        os.setresuid(task["uid"], task["uid"], task["uid"])
    for name, value in task["limits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (bound, bound))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.closerange(3, 4096)
    command, environment = task["command"], task["environment"]
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - becoming another program is this one's purpose
    except OSError as error:
        print(f"{command[0]} can't be run here: {error.strerror}", file=sys.stderr)  # noqa: T201 - the task's stderr
        sys.exit(126 if isinstance(error, PermissionError) else 127)


if __name__ == "__main__":
    main()
