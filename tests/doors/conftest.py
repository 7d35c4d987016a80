"""palestra as a wheel installs it: its command, typed in an empty folder that has no checkout above it."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the wheel is installed, by whichever process of a session comes first."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of all workers
    installed = folder / "wheel"
    with FileLock(folder / "wheel.lock"):
        if not (installed / "bin" / "palestra").exists():
            pip = [
                sys.executable,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "install",
                "--quiet",
                "--no-deps",
                "--no-compile",
            ]
            subprocess.run([*pip, "--no-build-isolation", "--no-index", "--target", installed, ROOT], check=True)
            _take_compiled_code_along(installed / "palestra")
    return installed


def _take_compiled_code_along(package: Path) -> None:
    """Give a copy of the checkout's package its bytecode and kernels, which are found by the times of the files."""
    for path in (ROOT / "palestra").rglob("*.*"):
        copy = package / path.relative_to(ROOT / "palestra")
        if path.suffix in (".pyc", ".nbi", ".nbc"):
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
        elif path.suffix == ".py":
            shutil.copystat(path, copy)


@dataclass
class Shell:
    """A terminal in `folder`."""

    folder: Path
    wheel: Path

    def start(self, words: Sequence[str | Path], typed: str | None = None) -> subprocess.Popen[str]:
        """The process of a palestra command, or of the program that follows "python"."""
        command = ["-c", words[1]] if words[0] == "python" else [self.wheel / "bin" / "palestra", *words]
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.wheel), "COLUMNS": "160"},
            stdin=subprocess.DEVNULL if typed is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str | Path, code: int = 0, typed: str | None = None) -> str:
        """What a command prints; what it says on stderr, if it is to fail with that code: never a traceback."""
        process = self.start(words, typed)
        stdout, stderr = process.communicate(typed, timeout=300.0)
        assert process.returncode == code, f"{words}: {process.returncode}\n{stdout}\n{stderr}"
        if code == 0:
            return stdout
        assert "Traceback" not in stderr, stderr
        return stderr.removeprefix("importing PyTorch and numba; this takes some two seconds, the first time more\n")

    def python(self, *lines: str) -> str:
        """What a program prints that imports palestra from the wheel, and modules from the folder."""
        found = "import sys; sys.path.insert(0, ''); import palestra"
        program = "\n".join([found, f"assert palestra.__file__.startswith({str(self.wheel)!r})", *lines])
        return self("python", program)

    def kill(self, *words: str | Path, at: Path) -> None:
        """SIGKILL for a command as soon as a file exists."""
        process, deadline = self.start(words), time.monotonic() + 120.0
        while not (self.folder / at).exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
        process.communicate()
        assert process.returncode == -9, "it was at its end already"

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)


@pytest.fixture
def shell(wheel: Path, tmp_path: Path) -> Shell:
    return Shell(tmp_path, wheel)


# ---- runs that several doors lead from --------------------------------------------------------------------

POLYHEDRA = ("dqn-polyhedra", "stop.after=300", "num_worlds=64", "interval.every=100", "final_num_games=100")
CARTPOLE = ("ppo", "CartPole-v1", "stop.after=4096", "output.save={every: 1, unit: epochs}")


@pytest.fixture(scope="session")
def runs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short run of the polyhedra game, two of Nim, and two of CartPole; tests only read it."""
    shell = Shell(tmp_path_factory.mktemp("trained"), wheel)
    shell("train", *POLYHEDRA, "--run", "polyhedra", "--quiet")
    shell("train", "dqn", "nim", "stop.after=2000", "--seeds", "0,1", "--run", "nim", "--quiet")
    shell("train", *CARTPOLE, "--seeds", "0,1", "--run", "cart", "--quiet")
    return shell.folder
