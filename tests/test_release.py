"""A release: where its version comes from, what it says of itself, and what `make release` refuses before it installs.

How it is installed and tried takes up to 20 minutes: `make release`.
"""

import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
import release
import yaml
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
    for name in ("pyproject.toml", "README.md", "LICENSE", "palestra/__init__.py"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, made / name)
    shutil.copytree(ROOT / "configs", made / "configs")
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


# ---- what make release refuses -----------------------------------------------------------------------------


@pytest.fixture
def released(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(release, "ROOT", checkout)
    git(checkout, "tag", "v1.2.3")
    return checkout


def test_wheel_and_sdist_say_the_same_and_hold_what_git_has(released: Path) -> None:
    wheel, sdist, version = release.build(released / "dist")
    assert version == "1.2.3"
    release.check_metadata(wheel, sdist, version)
    (released / "notes.txt").write_text("mine\n")
    with pytest.raises(release.ReleaseError, match=r"expected no file in the sdist .*notes\.txt"):
        release.check_metadata(*release.build(released / "dist"))
    (released / "notes.txt").unlink()
    built = release.build(released / "dist")
    (released / "LICENSE").write_text("another\n")
    with pytest.raises(release.ReleaseError, match="expected the text of LICENSE"):
        release.check_metadata(*built)


@pytest.mark.parametrize("heading", ["## [1.2.3]", "## [1.2.3] (soon)", "## [1.2.30] - 2030-01-02", ""])
def test_a_release_needs_a_dated_section_of_the_changelog(heading: str, released: Path) -> None:
    (released / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")
    with pytest.raises(release.ReleaseError, match=r"expected a section on 1\.2\.3"):
        release.check_changelog("1.2.3")
    (released / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2030-01-02\n")
    release.check_changelog("1.2.3")


def test_what_is_cited_is_the_package() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message"} <= cited.keys()
    for key, name in (("name", "title"), ("license", "license"), ("keywords", "keywords"), ("authors", "authors")):
        assert cited[name] == project[key]
    assert "version" not in cited, "it stands nowhere but in the tag"


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    headings = re.findall(r"^(#+) (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[:2] == [("#", "Changelog"), ("##", "[Unreleased]")]
    versions = [text for depth, text in headings if depth == "##"]
    assert [v for v in versions[1:] if not re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", v)] == []
    kinds = {text for depth, text in headings if depth not in ("#", "##")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
