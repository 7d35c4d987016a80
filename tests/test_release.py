"""A release: where its version comes from."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).parent.parent


def version_of(folder: Path) -> str:
    """The version that a build in this folder would get."""
    return ProjectMetadata(str(folder), PluginManager()).version


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What says how the project is built, in a folder without git."""
    made = tmp_path / "project"
    (made / "palestra").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "palestra/__init__.py"):
        shutil.copy(ROOT / name, made / name)
    return made


@pytest.fixture
def checkout(folder: Path) -> Path:
    """The same as a git repository of one commit."""
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_the_version_is_the_tag(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.3")
    assert version_of(checkout) == "1.2.3"
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "second")
    assert version_of(checkout) == "1.2.4.dev1"


def test_a_clone_without_tags_and_a_folder_without_git_have_versions_that_are_before_any_release(
    checkout: Path,
) -> None:
    assert version_of(checkout) == "0.1.dev1"
    shutil.rmtree(checkout / ".git")
    assert version_of(checkout) == "0.0"


def test_an_sdist_keeps_the_version_of_the_tag_without_git(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "tag", "v1.2.3")
    [archive] = SdistBuilder(str(checkout)).build(directory=str(tmp_path / "dist"))
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    assert version_of(tmp_path / "unpacked" / "palestra-1.2.3") == "1.2.3"
