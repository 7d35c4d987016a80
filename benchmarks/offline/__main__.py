"""Learning from recorded play: what is learned, and how fast, beside d3rlpy.

    python -m benchmarks.offline learn [--only TEXT] [--seeds 0..2] [--folder FOLDER] [--json FILE]
    python -m benchmarks.offline speed [--rows D1,D2,...] [--repeats 5] [--quick] [--out FOLDER]

README.md says what is measured; the first lines of benchmarks/peers/d3rlpy.py say how d3rlpy is installed.
"""

import sys

from benchmarks.offline import learning, speed

if __name__ == "__main__":
    part = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    parts = {"learn": learning.main, "speed": speed.main}
    if part not in parts:
        sys.exit(__doc__)
    parts[part](__doc__)
