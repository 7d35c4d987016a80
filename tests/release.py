"""Build a release and try it as strangers do: `make release`.

    python tests/release.py --seconds 60

The wheel and the sdist lie in dist/ afterwards. Each is installed into a new environment with nothing but what it
requires, and trains the main job. Three extras are then installed one by one, each beside the wheel's environment
alone, and their commands run. pip may use a package index, or what it was set up to use; constraints.txt pins versions.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parent.parent
JOB = "dqn-polyhedra"
STOPPED = 128 + signal.SIGINT
PATIENCE_S = 600.0  # until a run has a record: imports, and kernels that are compiled for the first time
EXTRAS = {
    "frames": ["table", "run", "--parquet", "records.parquet"],
    "onnx": ["export", "run", "--player", "host", "--onnx"],
    "optuna": ["sweep", "dqn-nim", "players.player.algorithm.gamma=0.9,0.99", "stop.after=20"],
}
"""extras, and for each a command that needs it; `run` is a run of the main job"""


class ReleaseError(Exception):
    """Something that must not be released."""


def require(is_so: bool, what: str) -> None:
    if not is_so:
        raise ReleaseError(what)


def tell(text: str) -> None:
    print(f"release: {text}", flush=True)


# ---- what is built -----------------------------------------------------------------------------------------


def build(dist: Path) -> tuple[Path, Path, str]:
    """Build the wheel and the sdist into an empty folder; gives both, and their version."""
    shutil.rmtree(dist, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--directory", dist], cwd=ROOT, check=True)
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    return wheel, sdist, wheel.name.split("-")[1]


def check_metadata(wheel: Path, sdist: Path, version: str) -> None:
    """Require one name, version and licence in both files, the licence's text, and no file that git does not have."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        folder = f"palestra-{version}.dist-info"
        metadata = packed.read(f"{folder}/METADATA").decode()
        licences = [packed.read(f"{folder}/licenses/LICENSE").decode()]
    with tarfile.open(sdist) as packed_source:
        top = f"palestra-{version}/"
        files = {name.removeprefix(top) for name in packed_source.getnames()}
        infos = [metadata, _text(packed_source, f"{top}PKG-INFO")]
        licences.append(_text(packed_source, f"{top}LICENSE"))
    for info in map(Parser().parsestr, infos):
        found = {key: info[key] for key in ("Name", "Version", "License-Expression", "Requires-Python")}
        expected = {"Name": "palestra", "Version": version, "License-Expression": "MIT", "Requires-Python": ">=3.11"}
        require(found == expected, f"expected the metadata {expected}, got {found}")
    require(set(licences) == {(ROOT / "LICENSE").read_text()}, "expected the text of LICENSE in wheel and sdist")
    places = {name.split("/")[0] for name in names}
    require(places == {"palestra", folder}, f"expected nothing but palestra in the wheel, got {sorted(places)}")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    others = files - set(tracked.splitlines()) - {"PKG-INFO"}
    require(not others, f"expected no file in the sdist that git does not have, got {sorted(others)}")


def _text(packed: tarfile.TarFile, name: str) -> str:
    file = packed.extractfile(name)
    assert file is not None
    return file.read().decode()


def check_changelog(version: str) -> None:
    """Require a section for a version that is a tag's; others are not released."""
    if "dev" in version or version == "0.0":
        tell(f"{version} is no release: its commit has no tag, or files differ from it")
        return
    text = (ROOT / "CHANGELOG.md").read_text()
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    require(bool(re.search(heading, text, re.M)), f"expected a section on {version} with its date in CHANGELOG.md")


# ---- how it is tried ---------------------------------------------------------------------------------------


class Environment:
    """A new environment in `folder`, and an empty folder beside it in which its commands run.

    sees: another environment whose packages it can import.
    """

    def __init__(self, folder: Path, sees: "Environment | None" = None) -> None:
        self.bin, self.work = folder / "bin", folder.with_name(f"{folder.name}-work")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.work.mkdir()
        if sees is not None:
            (self._packages(folder) / "seen.pth").write_text(f"{self._packages(sees.bin.parent)}\n")
            shutil.copytree(sees.work / "run", self.work / "run")

    @staticmethod
    def _packages(folder: Path) -> Path:
        [packages] = folder.glob("lib/python*/site-packages")
        return packages

    def install(self, *what: str | Path) -> None:
        self.python("-m", "pip", "install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt", *what)

    def python(self, *words: str | Path) -> str:
        return self._end(self._start("python", *words), (0,))

    def palestra(self, *words: str | Path, codes: Sequence[int] = (0,)) -> str:
        """What a command prints, stderr included. codes: those with which it may end."""
        return self._end(self._start("palestra", *words), codes)

    def train(self, *words: str, seconds: float) -> None:
        """Train a run in the folder `run`, for at most so many seconds after its first record."""
        process = self._start("palestra", "train", *words, "--run", "run", "--quiet")
        records, end_s = self.work / "run" / "records.jsonl", time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < end_s and not (records.exists() and records.stat().st_size):
            time.sleep(0.1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.send_signal(signal.SIGINT)  # which a process that has ended does not get
        self._end(process, (0, STOPPED))

    def _start(self, program: str, *words: str | Path) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"XDG_STATE_HOME": str(self.work / ".state"), "COLUMNS": "160"}
        return subprocess.Popen(
            [self.bin / program, *words],
            cwd=self.work,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _end(self, process: subprocess.Popen[str], codes: Sequence[int]) -> str:
        said, _ = process.communicate()
        words = " ".join(map(str, process.args[1:]))  # type: ignore[index]
        require(process.returncode in codes, f"{words}: expected exit code {codes}, got {process.returncode}\n{said}")
        return said


def try_install(file: Path, version: str, folder: Path, seconds: float) -> Environment:
    """Install a file alone into a new environment, and train the main job there; gives the environment."""
    tell(f"{file.name} in an empty environment")
    environment = Environment(folder)
    environment.install(file)
    environment.python("-m", "pip", "check")
    said = environment.palestra("--version")
    require(said == f"palestra {version}\n", f"expected palestra {version} as --version, got {said!r}")
    environment.train(JOB, seconds=seconds)
    require((environment.work / "run" / "checkpoints" / "latest").exists(), "expected a checkpoint of the main job")
    environment.palestra("report", "run")
    return environment


def try_extra(extra: str, command: list[str], file: Path, folder: Path, base: Environment) -> None:
    """Require that a command names its extra where it is missing, and that it works once that is installed."""
    tell(f"the extra {extra}")
    said = base.palestra(*command, codes=(1, 2))
    require(f"palestra[{extra}]" in said, f"expected the extra {extra} to be named, got {said!r}")
    environment = Environment(folder, sees=base)
    environment.install("--ignore-installed", "--no-deps", file)  # palestra itself, which pip would take from the base
    environment.install(f"{file}[{extra}]")
    environment.palestra(*command)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a release, and try it as strangers do.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the main job trains at most [60]")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="release-") as temporary:
        folder = Path(temporary)
        try:
            wheel, sdist, version = build(ROOT / "dist")
            check_metadata(wheel, sdist, version)
            check_changelog(version)
            tools = Environment(folder / "tools")
            tools.install("twine")
            tools.python("-m", "twine", "check", "--strict", wheel, sdist)
            base = try_install(wheel, version, folder / "wheel", seconds)
            try_install(sdist, version, folder / "sdist", seconds)
            for extra, command in EXTRAS.items():
                try_extra(extra, command, wheel, folder / extra, base)
        except (ReleaseError, subprocess.CalledProcessError) as error:
            sys.exit(f"release: {error}")
    tell(f"{version} may be released: {wheel} and {sdist}")


if __name__ == "__main__":
    main()
