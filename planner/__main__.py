"""``python -m planner``: the same as the ``planner`` command."""

import sys

from planner.cli import main

if __name__ == "__main__":
    sys.exit(main())
