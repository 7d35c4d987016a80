"""In the place of palestra.training.worker: answers from a file what an evaluation gave in turn, or fails.

    python fake_evaluator.py PLAN PIPE RUN SERVER SOURCES

PLAN: JSON, {"answers": {"main/8": result, ...}, "deeds": {"main/8": ["hang", "crash", ...]}}. The deeds of an
evaluation are done one per attempt; after the last one it is answered. Attempts are counted in PLAN.tried.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

plan_file, pipe, run, server, sources = sys.argv[1:]


def tried(key: str) -> int:
    """How often an evaluation was tried before."""
    with open(plan_file + ".tried", "a+") as file:
        file.seek(0)
        before = file.read().split().count(key)
        file.write(key + "\n")
    return before


for line in sys.stdin.buffer:
    content = sys.stdin.buffer.read(int(line))
    evaluation, _, _, state = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    plan = json.loads(Path(plan_file).read_text())
    key = f"{evaluation}/{state['counters']['opt_steps']}"
    attempt = tried(key)
    deeds = plan["deeds"].get(key, [])
    deed = deeds[attempt] if attempt < len(deeds) else ""
    if deed == "hang":
        time.sleep(600.0)
    elif deed == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif deed == "leave":
        sys.exit(3)
    elif deed == "raise":
        print(json.dumps({"error": "ValueError: no such board"}), flush=True)
        sys.exit(1)
    elif deed == "babble":
        print("nothing that anybody asked for", flush=True)
    elif deed == "slow":
        time.sleep(0.3)
    elif deed == "talk":  # far more than a pipe holds
        sys.stderr.write("what an environment prints\n" * 20_000)
    print(json.dumps({"num_over": 1, "num_rounds": 1}), flush=True)
    print(json.dumps({"result": plan["answers"][key], "seconds": 0.0}), flush=True)
