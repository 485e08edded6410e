"""`python -m rollouts`."""

import os
import sys

from rollouts.task.program import main

if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # at once: a thread that still computes can't be interrupted, and has nothing to put in order
