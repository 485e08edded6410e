"""`python -m rollouts`."""

import sys

from rollouts.task.program import main

if __name__ == "__main__":
    sys.exit(main())
