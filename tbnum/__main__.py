"""`python -m tbnum`: the command."""

import sys

from tbnum.cli import main

if __name__ == "__main__":
    sys.exit(main())
