"""Entry point of the generation task: `python -m rollouts`."""

import os
import sys

from protocol.runtime.extras import missing_extra


def _run() -> int:
    try:
        from rollouts.task.program import main  # noqa: PLC0415 - it needs an extra, which may be missing
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is None:
            raise
        sys.stderr.write(f"error: {missing.detail}\n  hint: {missing.hint}\n")
        return 1
    return main()


if __name__ == "__main__":
    status = _run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skips interpreter shutdown, which would wait for compute threads; they have nothing to clean up
