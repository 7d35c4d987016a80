"""What all tests share: what may be skipped, no network, a run of a fraction of a second, an S3 server."""

import contextlib
import copy
import ctypes
import fcntl
import functools
import gc
import json
import logging
import os
import shutil
import socket
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import reading_once
from hypothesis import settings

# Before torch is imported, here or in a test's processes: tests run side by side, where the threads of one that wait
# for work, spinning, take the cores from another's. Runs of two threads take a sixth of the processor if they sleep.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


# Beside other work everything takes many times as long: no example fails by its time.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")


# A worker that holds little is forked fast. What is large goes back to the system as soon as it is freed: this is
# M_MMAP_THRESHOLD, which would otherwise grow with what is freed.
if sys.platform == "linux":
    ctypes.CDLL(None).mallopt(-3, 1 << 20)


# What is collected stays: to search its million objects for garbage again and again takes a sixth of the processor, and
# copies them into every process that is forked. So they are exempt, and a run in this process exempts no others. What
# tests import themselves is not, so garbage is looked for less often. What is compiled of these files is kept, also
# where the environment says otherwise of the files of users.
@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
        gc.enable()
        gc.freeze()
        gc.set_threshold(10_000)


@pytest.fixture(scope="session", autouse=True)
def garbage_of_tests_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palestra.run.run.frozen_garbage", contextlib.nullcontext)
        yield


# ---- nothing is skipped in CI, nothing leaves this machine -----------------------------------------------

# What may be skipped under CI=true, and why; any other skip is a failure there.
MAY_BE_SKIPPED = {
    "tests/test_full_disk.py": "fills a file system of its own; not everybody may mount one",
    "tests/kinds/games/test_trainer.py::test_a_device_that_is_not_there": "needs a machine without a GPU",
    "tests/test_cuda.py": "needs a GPU",
}
if os.geteuid() != 0 or shutil.which("apt-get") is None:
    MAY_BE_SKIPPED["tests/report/test_report_in_browser.py"] = "needs Chromium, which .ci/run cannot install here"

Report = pytest.TestReport | pytest.CollectReport


def fail_where_skipped(report: Report) -> Report:
    is_expected = hasattr(report, "wasxfail") or report.nodeid.startswith(tuple(MAY_BE_SKIPPED))
    if os.environ.get("CI") == "true" and report.skipped and not is_expected:
        report.outcome = "failed"
        *_, reason = report.longrepr  # after file and line
        report.longrepr = f"{reason}\nIn CI nothing is skipped but what MAY_BE_SKIPPED names: tests/conftest.py"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Report, Report]:
    return fail_where_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Report, Report]:
    return fail_where_skipped((yield))


# W&B, MLflow and Hugging Face report how they are used, also when the run itself stays on this machine.
os.environ |= {"WANDB_ERROR_REPORTING": "false", "DO_NOT_TRACK": "true", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="session", autouse=True)
def loopback_alone() -> Iterator[None]:
    """No test looks up the address of another machine."""
    asked: list[Any] = []
    look_up = socket.getaddrinfo

    def refuse(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host in ("localhost", "127.0.0.1"):
            return look_up(host, *args, **kwargs)
        asked.append(host)
        raise socket.gaierror(f"a test looks for {host}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", refuse)
        yield
    assert asked == []


# ---- a whole run, small: trained in a fraction of a second, and with every part that a run can have --------

Data = dict[str, Any]

LEARNER: Data = {
    "algorithm": {
        "name": "dqn",
        "gamma": 0.95,
        "double": True,
        "dueling": False,
        "value": {"name": "expected", "huber_delta": 1.0},
        "transitions": {"name": "one_step"},
        "rollout_length": 1,
        "updates_per_turn": 2,
        "warmup_env_steps": 16,
        "batch_size": 8,
        "target": {"name": "polyak", "tau": 0.1, "interval": 1},
        "max_grad_norm": 10.0,
        "net": {"name": "mlp", "net_arch": [8, "b"], "activation": "relu"},
        "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
        "learning_rate": {"name": "linear", "initial": 0.01, "final": 0.001, "num_steps": 10},
        "exploration": {
            "name": "epsilon_greedy",
            "epsilon": {"name": "linear", "initial": 1.0, "final": 0.1, "num_steps": 8},
        },
        "replay_buffer": {"name": "uniform", "capacity": 40, "layout": "whole", "scratch_folder": None},
    },
    "warm_start": None,
    "updates": {"name": "constant"},
    "meets": None,
}
PLAIN: Data = {"normalize": None, "clip": None}  # observations as a game gives them
TINY: Data = {
    "seed": 0,
    "trainer": {"name": "in_turn"},
    "game": {
        "name": "polyhedra",
        "variant": "basic",
        "dimension": 3,
        "max_num_points": 6,
        "max_value": 5,
        "initial_points": None,
        "reduction": "vertices",
        "rescale": True,
        "rescale_state": False,
        "max_rounds": 8,
        "reward": {"name": "win"},
        "observation": PLAIN,
    },
    "num_worlds": 8,
    "num_replicas": 1,
    "actors": None,
    "roles": {"host": "host", "agent": "agent"},
    "players": {"host": LEARNER, "agent": copy.deepcopy(LEARNER)},
    "stop": {"after": 24, "unit": "opt_steps"},
    "evaluations": [
        {
            "name": "main",
            "interval": {"every": 8, "unit": "opt_steps"},
            "at_start": True,
            "num_games": 8,
            "final_num_games": 12,
            "max_rounds": 10,
            "seed": None,
            "game": None,
            "pairings": [
                {"host": "host", "agent": "random"},
                {"host": "random", "agent": "agent"},
                {"host": "random", "agent": "random"},
            ],
            "references": None,
        }
    ],
    "best": {"evaluation": "main", "pairing": 0, "measure": "rho", "goal": "max"},
    "evaluators": None,
    "callbacks": [],
    "execution": {
        "device": "cpu",
        "num_threads": 1,
        "num_processes": 1,
        "timeout_s": 600.0,
        "max_restarts": 0,
        "kernel": "numba",
        "step_within_s": None,
        "gradients": "by_hand",
        "compile": False,
        "actor_processes": 0,
    },
    "output": {
        "display": "quiet",
        "record": {"every": 4, "unit": "opt_steps"},
        "statistics": ["mean"],
        "layer_norms": False,
        "info": [],
        "recorders": [],
        "save": {"every": 8, "unit": "opt_steps"},
        "keep_last": 2,
        "keep_every": 1,
        "replay_in_checkpoints": "all",
        "checkpoint_folder": None,
        "stop_within_s": 60.0,
        "mirror": None,
    },
}

_SCENARIO: Data = {
    "name": "scenario",
    "protocol": {
        "name": "nip",
        "rewards": {"right": 1.0, "wrong": -1.0, "out_of_time": -1.0, "go_on": 0.0, "prover": 1.0, "shared": False},
        "stance": "accept",
        "first": "verifier",
        "min_rounds": 1,
        "max_rounds": 8,
    },
    "scenario": {"name": "witness", "num_bits": 4, "num_seen": 2},
    "role": "verifier",
    "held_out": False,
    "num_items": 22,
}
_MOMENTUM: Data = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0}
# As many evaluations and saves as in the tiny run, of a model that learns from data: epochs of 3 batches.
TINY_FIT: Data = {
    "seed": 0,
    "trainer": {"name": "fit"},
    "model": {
        "name": "classifier",
        "net": {"name": "mlp", "net_arch": [4], "activation": "tanh"},
        "num_classes": 2,
        "label_smoothing": 0.1,
        "class_weights": [1.0, 2.0],
    },
    "warm_start": None,
    "data": {"train": _SCENARIO, "valid": _SCENARIO | {"held_out": True}},
    "num_replicas": 1,
    "learning": {
        "order": {"name": "shuffled"},
        "batch_size": 8,
        "last_batch": "keep",
        "seeding": "per_item",
        "num_microbatches": 2,
        "groups": [{"weights": "*", "optimizer": _MOMENTUM, "learning_rate": {"name": "constant", "value": 0.1}}],
        "max_grad_norm": 1.0,
        "ema": {"decay": 0.5},
        "precision": "float32",
    },
    "evaluations": [
        {
            "name": "valid",
            "data": "valid",
            "batch_size": 9,
            "interval": {"every": 4, "unit": "opt_steps"},
            "at_start": True,
            "weights": "averaged",
            "metrics": [],
        }
    ],
    "best": {"evaluation": "valid", "pairing": None, "measure": "loss", "goal": "min"},
    "evaluators": None,
    "stop": {"after": 12, "unit": "opt_steps"},
    "callbacks": [],
    "execution": {
        "device": "cpu",
        "num_threads": 1,
        "num_processes": 1,
        "timeout_s": 600.0,
        "max_restarts": 0,
        "loading": {"num_workers": 0, "num_prefetched": 2, "start_method": "fork", "batch_within_s": None},
    },
    "output": {
        "display": "quiet",
        "record": {"every": 2, "unit": "opt_steps"},
        "statistics": ["mean"],
        "recorders": [],
        "save": {"every": 4, "unit": "opt_steps"},
        "keep_last": 2,
        "keep_every": 1,
        "checkpoint_folder": None,
        "stop_within_s": 60.0,
        "mirror": None,
    },
}

MakeConfig = Callable[..., Data]


@pytest.fixture
def make_config() -> MakeConfig:
    """The tiny config, or another one, as data of its own, with values replaced, or taken out by `...`:
    make_config({"output.save": None})."""

    def make(changes: Data | None = None, of: Data = TINY) -> Data:
        config = copy.deepcopy(of)
        for path, value in (changes or {}).items():
            *parents, last = path.split(".")
            place: Any = config
            for key in parents:
                place = place[int(key) if isinstance(place, list) else key]
            if value is ...:
                del place[last]
            else:
                place[last] = copy.deepcopy(value)
        return config

    return make


MakeRun = Callable[[Data], Path]


@pytest.fixture(scope="session")
def uninterrupted_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """The folder of a run that trained to its end, to be read alone: equal configs share it."""
    from resuming import fit

    made: dict[str, Path] = {}

    def run_of(config: Data) -> Path:
        key = json.dumps(config)
        if key not in made:
            folder = tmp_path_factory.mktemp("uninterrupted") / "run"
            fit(folder, config)
            made[key] = folder
        return made[key]

    return run_of


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the user's state lies, also for child processes: which sources are trusted."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory: modules in it can be named in a config, runs land in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session", autouse=True)
def no_run_in_the_repository() -> Iterator[None]:
    """A run without a folder of its own lands in runs/ of the working directory; a test has one of its own."""
    from palestra.storage.run_folder import RunFolder

    create, of_the_repository = RunFolder.create, Path(__file__).parents[1] / "runs"

    def refuse(runs: Path, name: str) -> RunFolder:
        assert runs.resolve() != of_the_repository, "this test trains without a folder: it needs in_tmp_path"
        return create(runs, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "create", refuse)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_plots() -> Iterator[None]:
    """Runs end without their plot, which takes longer than a tiny run. A test of the plot asks for `plots`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palestra.run.run.plot_scores", lambda *_: None)
        yield


@pytest.fixture
def plots(no_plots: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end with their plot."""
    from palestra.recording.plots import plot_scores

    monkeypatch.setattr("palestra.run.run.plot_scores", plot_scores)


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report has one figure of a run's metrics, and two pictures of a game; many take most of a report's time."""
    monkeypatch.setattr("palestra.report.learning.MOST_FIGURES", 1)
    monkeypatch.setattr("palestra.kinds.games.report.MOST_PICTURES", 2)


@pytest.fixture(scope="session", autouse=True)
def texts_read_once() -> Iterator[None]:
    """To read YAML takes longer than all else that loads a tiny run, and the tests load their runs again and again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("yaml.compose", reading_once())
        yield


@pytest.fixture(scope="session", autouse=True)
def libraries_searched_once() -> Iterator[None]:
    """Every run looks twice which of all loaded libraries have threads: 5 ms each time, where a run takes 100."""
    from palestra.runtime import threads

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "ThreadpoolController", functools.cache(threads.ThreadpoolController))
        yield


@pytest.fixture(scope="session", autouse=True)
def kernels_compiled_once() -> Iterator[None]:
    """Of workers that need a kernel at the same time one compiles it, which takes seconds; the others then load it."""
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    from palestra.runtime.compiling import KernelCache

    compile_kernel = Dispatcher.compile

    def compile_once(kernel: Any, signature: Any) -> Any:
        if not isinstance(kernel._cache, KernelCache):
            return compile_kernel(kernel, signature)
        Path(kernel._cache.cache_path).mkdir(parents=True, exist_ok=True)
        with global_compiler_lock, open(f"{kernel._cache._cache_file._index_path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_kernel(kernel, signature)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dispatcher, "compile", compile_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waits_for_the_disk() -> Iterator[None]:
    """What tests write need not outlive a power failure; a tiny run would wait for the disk fifty times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture
def forked_evaluators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of evaluators are forked. In tests/docs/test_documents.py they are interpreters."""
    from tests.forked import FORKING

    monkeypatch.setattr("palestra.runtime.signals.subprocess", FORKING)


# ---- an S3-compatible server on loopback -----------------------------------------------------------------

S3_SECRET = "wJalrXUtnFEMI-a-secret-of-the-tests"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of moto's server, in a thread of this process."""
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket; its server and the credentials stand in the environment, also of child processes."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = f"bucket-{uuid.uuid4().hex}"
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(name)
    return f"s3://{name}"
