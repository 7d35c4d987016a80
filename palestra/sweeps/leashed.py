"""The process of one run of a sweep, which ends with the process that holds the other end of a pipe.

`python -m palestra.sweeps.leashed PIPE ARGUMENTS` does what `palestra ARGUMENTS` does.
"""

import os
import runpy
import sys

from palestra.runtime.signals import end_with_parent

if __name__ == "__main__":
    pipe = int(sys.argv.pop(1))
    os.set_inheritable(pipe, False)
    end_with_parent(pipe)
    sys.argv[0] = "palestra"
    runpy.run_module("palestra", run_name="__main__", alter_sys=True)
