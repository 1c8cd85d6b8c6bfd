"""Says which loops are recorded right, and what is wrong with the others.

python -m tests.published             # a line a loop
python -m tests.published gan -v      # those whose names contain "gan", with everything that is wrong
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import traceback
from pathlib import Path

import torch

from tests.published.check import all_loops, problems
from tests.published.pending import PENDING


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("patterns", nargs="*", help="parts of names; all loops where there is none")
    options.add_argument("-v", action="store_true", help="everything that is wrong, not only the first")
    args = options.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    for name, loop in all_loops().items():
        if args.patterns and not any(pattern in name for pattern in args.patterns):
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            try:
                found = problems(loop, Path(folder) / "runs")
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                found = [f"RAISED {type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"]
        wrong += bool(found)
        pending = " (pending)" if name in PENDING else ""
        print(f"{'no ' if found else 'ok '} {name}{pending}", flush=True)
        for problem in found if args.v else found[:1]:
            print(f"      {problem}")
    print(f"{wrong} wrong")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
