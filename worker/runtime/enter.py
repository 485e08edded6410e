"""Entry program of the sandbox.

It sets user, limits and environment, and then executes the task's command.

It uses only the standard library. It reads its input, one JSON object, from standard input and not from the command
line, because all users of the machine can see command lines. It changes the user first, so that no privileged process
uses limits and variables that the task's owner chose.
"""

from __future__ import annotations

import json
import os
import resource
import sys


def main() -> None:
    """Switches to the task's user, sets limits and executes the task.

    Exits with 126 or 127 if the command can't be executed.
    """
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
        os.execvpe(command[0], command, environment)  # noqa: S606 - executing the task is this program's purpose
    except OSError as error:
        print(f"{command[0]} can't be run here: {error.strerror}", file=sys.stderr)  # noqa: T201 - the task's stderr
        sys.exit(126 if isinstance(error, PermissionError) else 127)


if __name__ == "__main__":
    main()
