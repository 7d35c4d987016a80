"""Finds what is in the place of a seed's run before that is begun or gone on with.

The run lies below the folder of a trial, or of runs side by side.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palestra.config import load_yaml
from palestra.recording.results import printable
from palestra.runs.base import BaseRunConfig
from palestra.runs.branching import tree_differences
from palestra.runs.imported_players import files_of_copies
from palestra.storage.disk import WORDS, Folder, RunFolderError, plain_path
from palestra.storage.run_folder import RunFolder


def arguments_for(folder: Folder, seed: int, base: Path, config: BaseRunConfig, data: Mapping[str, Any]) -> list[str]:
    """Return the arguments with which palestra begins the run of a seed, or goes on with it.

    base: the file of the config of all seeds. The others, and what is raised, are as in `has_begun`.
    """
    path = folder.path / f"seed-{seed}"
    if has_begun(folder, path.name, config, {**data, "seed": seed}):
        return ["resume", str(path), "--quiet"]
    return ["train", str(base), f"seed={seed}", "--run", str(path), "--quiet"]


def has_begun(folder: Folder, name: str, config: BaseRunConfig, data: Mapping[str, Any]) -> bool:
    """Return whether there is a run to go on with. What is left of one that was killed before it was one is removed.

    folder: of the trial, or of the runs side by side. name: of the run in it. config: the run's. data: the same as the
    mapping that its config.yml holds. Raises RunFolderError or ConfigError for anything else than this run, as a link
    to another one, one with another config, or one that has lost a file; then nothing is changed.
    """
    for entry, expected in ((name, "folder"), (f"{name}.log", "file")):
        if (kind := folder.kind(entry)) not in (expected, None):
            raise RunFolderError(f"{folder.path / entry}: expected a {expected} of a run, got {WORDS[kind]}")
    if folder.kind(name) is None:
        return False
    run = RunFolder(folder.path / name)
    run.require_plain()
    has_config = run.root.kind(run.config.name) is not None
    found = load_yaml(plain_path(run.root, run.config.name)) if has_config else data
    if changes := list(tree_differences(data, found)):
        key, ours, theirs = changes[0]
        raise RunFolderError(
            f"{run.path}: expected the run in which {printable(key)} is {ours!r:.100}, got one in which it is "
            f"{theirs!r:.100}; move that one away, and the run begins anew"
        )
    if has_config and run.root.kind(run.run.name) is not None:
        return True
    run.remove_begun(files_of_copies(config))
    return False
