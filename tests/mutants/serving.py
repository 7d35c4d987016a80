"""Mistakes in the server of our own."""

from tests.mutants.mutant import mutants

ENGINE = "serving/test_engine.py"
GUARD = "serving/test_guard.py"
SERVING = "serving/test_serving.py"

SERVING_MUTANTS = [
    *mutants(
        "serving/engine.py",
        ENGINE,
        ("(not self.exact and num_rows", "(num_rows"),
        ("and (each.model, each.sampling) == (first.model, first.sampling)", ""),
        ("if each.found.set_running_or_notify_cancel():", "if each.found.set_running_or_notify_cancel() or True:"),
        ("                    self._answer([each])", "                    each.found.cancel()"),
    ),
    *mutants(
        "serving/guard.py",
        GUARD,
        ("if size > self.most:", "if False:"),
        ('b"origin" in headers or ', ""),
        (" or not is_loopback(name)", ""),
    ),
    *mutants(
        "serving/computing.py",
        SERVING,
        ('        tuning.load_state_dict(state["tuning"])\n', ""),
        ("if not model.is_finite():", "if False:"),
    ),
    *mutants(
        "serving/runner.py",
        SERVING,
        ('(self._compute, ("running", "queued"))', '(self._compute, ("queued",))'),
        ("range(1, MOST_STARTS + 1)", "range(1, 2)"),
    ),
    *mutants(
        "text/servers/job_files.py",
        "text/servers/test_job_files.py",
        ("if not read or prompt[: len(read)] != read:", "if not read or prompt[: len(read) - 1] != read[:-1]:"),
        ('else plain | {"weight": 0}', "else plain"),
    ),
]
