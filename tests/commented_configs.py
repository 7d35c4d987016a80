"""Writes the shipped configs anew, each key with its present comment: `python -m tests.commented_configs`."""

from pathlib import Path

from palestra.config import render
from palestra.run.kinds import read_config
from palestra.run.shipped import shipped_configs


def commented(file: Path) -> str:
    config = read_config(file)
    return render(config, type(config))


if __name__ == "__main__":
    for file in shipped_configs().values():
        file.write_text(commented(file))
