"""How often tbnum is right: planted faults and healthy loops, and the table of what it says of them.

    python -m benchmarks.truth                     # an hour the first time; records are kept in .cache/truth
    python -m benchmarks.truth lr_ zero_grad       # the kinds whose names hold one of these
    python -m benchmarks.truth --failing           # lists the tuned cases that are not right, and what was said
    python -m benchmarks.truth --one-a-kind        # a sixth of the runs

A third of the kinds is held out: of these the table has the counts, and nothing else is shown.
"""

import sys

import torch

from benchmarks.truth.harness import main

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
