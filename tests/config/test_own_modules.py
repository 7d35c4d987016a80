"""Modules of a user's own: found without running them, imported as they were found, trusted by file and hash."""

import hashlib
import importlib._bootstrap_external as compiled
import json
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import palestra.training  # noqa: F401 (the modules of a command stay imported)
from palestra.cli import app
from palestra.config import UntrustedError, admit, import_own, trusting
from palestra.config.own_modules import (
    Source,
    admit_sources,
    admitted,
    enter_trusted,
    find_sources,
    read_trusted,
    reading_own,
    reading_stored,
    trusted_file,
)

SAYS = "said = 'the source'\n"


@pytest.fixture
def here(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, which is not on Python's path; what is imported from it is forgotten after the test."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(in_tmp_path)])
    monkeypatch.setattr("palestra.config.own_modules._admitted", set())
    monkeypatch.setenv("XDG_STATE_HOME", str(in_tmp_path / "state"))
    before = set(sys.modules)
    yield in_tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def package(here: Path) -> list[Source]:
    """A package with one inside and a module."""
    (here / "kit" / "parts").mkdir(parents=True)
    for name in ("kit/__init__.py", "kit/parts/__init__.py", "kit/parts/wheel.py"):
        (here / name).write_text(f"{SAYS}name = {name!r}\n")
    return find_sources("kit.parts.wheel")


def test_a_module_is_found_with_the_packages_above_it_and_nothing_is_run(here: Path) -> None:
    sources = package(here)
    assert [source.module for source in sources] == ["kit", "kit.parts", "kit.parts.wheel"]
    files = [here / "kit/__init__.py", here / "kit/parts/__init__.py", here / "kit/parts/wheel.py"]
    assert [source.file for source in sources] == [str(file) for file in files]
    assert [source.sha256 for source in sources] == [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert "kit" not in sys.modules


def test_a_folder_without_init_runs_nothing(here: Path) -> None:
    (here / "loose").mkdir()
    (here / "loose" / "wheel.py").write_text(SAYS)
    (source,) = find_sources("loose.wheel")
    assert source.file == str(here / "loose" / "wheel.py")
    admit("loose.wheel")
    assert import_own("loose.wheel").said == "the source"


def test_folders_without_init_may_lie_in_each_other(here: Path) -> None:
    (here / "outside" / "inside").mkdir(parents=True)
    (here / "outside" / "inside" / "wheel.py").write_text(SAYS)
    (source,) = find_sources("outside.inside.wheel")
    assert source.file == str(here / "outside" / "inside" / "wheel.py")
    admit("outside.inside.wheel")
    assert import_own("outside.inside.wheel").said == "the source"


def test_a_process_imports_no_module_that_was_edited_after_the_one_that_started_it_had_imported_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "wheel.py").write_text(SAYS)
    with reading_own():
        assert admit("wheel")
        import_own("wheel")
        (here / "wheel.py").write_text("said = 'something else'\n")
        admit("wheel")  # as a config that is read again does
    sources = admitted()
    for name in ("_admitted", "_handed_over"):
        monkeypatch.setattr(f"palestra.config.own_modules.{name}", {} if name == "_handed_over" else set())
    admit_sources(sources)
    del sys.modules["wheel"]
    with pytest.raises(ValueError, match=r"wheel\.py was edited after the run had imported it; undo that, or resume"):
        import_own("wheel")
    (here / "wheel.py").write_text(SAYS)
    assert import_own("wheel").said == "the source"


def test_a_module_that_a_script_has_imported_and_that_was_edited_is_imported_by_its_processes(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of its sources the script has imported is not known."""
    found = []
    for said in ("the source", "something else"):
        (here / "wheel.py").write_text(f"said = {said!r}\n")
        found += find_sources("wheel")
    for sources in (found, found[::-1]):
        monkeypatch.setattr("palestra.config.own_modules._admitted", set())
        monkeypatch.setattr("palestra.config.own_modules._handed_over", {})
        admit_sources(sources)
        assert import_own("wheel").said == "something else"
        del sys.modules["wheel"]


@pytest.mark.parametrize("name", ["itertools", "_zoneinfo"])
def test_what_has_no_source_is_told(name: str, here: Path) -> None:
    with pytest.raises(ValueError, match=f"expected a module in a .py file, got '{name}', which has no source file"):
        find_sources(name)


@pytest.mark.parametrize("name", ["", ".py", "../mine", "mine:other", "mine-other"])
def test_what_is_no_modules_name_is_not_looked_for(name: str, here: Path) -> None:
    (here / ".py").write_text(SAYS)
    with pytest.raises(ValueError, match=re.escape(f"expected the name of a module, got {name!r}")):
        find_sources(name)


@pytest.mark.parametrize("changed", ["kit/__init__.py", "kit/parts/__init__.py", "kit/parts/wheel.py"])
def test_every_file_that_an_import_runs_must_be_trusted(changed: str, here: Path) -> None:
    enter_trusted(package(here))
    (here / changed).write_text("raise SystemExit('run')")
    name = changed.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    with pytest.raises(UntrustedError, match=f"module '{name}', file {here / changed}, .* has changed since"):
        import_own("kit.parts.wheel")
    with pytest.raises(UntrustedError, match=name), reading_stored(Path("config.yml")):
        assert not admit("kit.parts.wheel")
    assert "kit" not in sys.modules


def test_what_is_trusted_is_imported_as_any_module_is(here: Path) -> None:
    enter_trusted(package(here))
    wheel = import_own("kit.parts.wheel")
    assert wheel is sys.modules["kit"].parts.wheel
    assert import_own("kit.parts.wheel") is wheel
    assert not [finder for finder in sys.meta_path if type(finder).__module__ == "palestra.config.own_modules"]


def test_compiled_code_beside_a_source_is_not_run(here: Path) -> None:
    (here / "mine.py").write_text(SAYS)
    cached = here / "__pycache__" / f"mine.{sys.implementation.cache_tag}.pyc"
    cached.parent.mkdir()
    code = compile("said = 'something else'", "mine.py", "exec")
    cached.write_bytes(compiled._code_to_hash_pyc(code, b"12345678", False))  # whose source nobody compares
    admit("mine")
    assert import_own("mine").said == "the source"


def test_a_source_that_changes_before_its_import_is_refused(here: Path) -> None:
    (here / "mine.py").write_text(SAYS)
    admit("mine")
    (here / "mine.py").write_text("raise SystemExit('run')")
    with pytest.raises(UntrustedError, match="mine"):
        import_own("mine")


def test_neighbours_are_found_after_what_is_installed(here: Path) -> None:
    (here / "mine.py").write_text("import beside, colorsys\n")
    (here / "beside.py").write_text(SAYS)
    (here / "colorsys.py").write_text("raise SystemExit('run')")
    sys.modules.pop("colorsys", None)
    admit("mine")
    mine = import_own("mine")
    assert mine.beside.said == "the source"
    assert mine.colorsys.__file__ != str(here / "colorsys.py")


def test_nothing_joins_pythons_path_for_what_is_refused_or_installed(here: Path) -> None:
    (here / "mine.py").write_text(SAYS)
    with pytest.raises(UntrustedError):
        import_own("mine")
    admit("sched")
    import_own("sched")
    assert str(here) not in sys.path


def test_the_list_is_the_users_alone_and_holds_each_source_once(here: Path) -> None:
    sources = package(here)
    with trusting():
        admit("kit.parts.wheel")
        admit("kit.parts.wheel")
    assert read_trusted() == set(sources)
    assert len(trusted_file().read_text().split("\n\n")) == 1
    assert trusted_file() == here / "state" / "palestra" / "trusted"
    assert trusted_file().stat().st_mode & 0o777 == 0o600
    assert trusted_file().parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("trust", ["--trust", "installed", "of another user"])
def test_an_edited_module_is_the_users_own_only_if_it_lies_here_and_was_trained_by(
    trust: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = here / "installed" if trust == "installed" else here
    place.mkdir(exist_ok=True)
    monkeypatch.syspath_prepend(str(place))
    for content, is_mine in ((SAYS, True), (f"{SAYS}more = 1", False)):
        (place / "mine.py").write_text(content)
        with trusting() if trust == "--trust" else reading_own():
            admit("mine") if is_mine else None
        if trust == "of another user":
            monkeypatch.setattr("os.getuid", lambda: place.stat().st_uid + 1)
    with pytest.raises(UntrustedError, match="has changed since it was trusted"), reading_stored(Path("config.yml")):
        admit("mine")


def test_processes_that_enter_sources_at_once_lose_none(here: Path) -> None:
    sources = [Source(f"m{number}", f"/a b/\udcff{number}.py", "0" * 64) for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda source: enter_trusted([source]), sources))
    assert read_trusted() == set(sources)


TORN = [
    b'{"module": "mi',
    b"\xff\xfe",
    b"[" * 100_000,
    b"7",
    b'{"module": "a"}',
    b'{"module": [], "file": "", "sha256": ""}',
]


@pytest.mark.parametrize("torn", TORN, ids=range(len(TORN)))
def test_a_line_that_was_not_written_so_counts_for_nothing(torn: bytes, here: Path) -> None:
    (source, *_) = package(here)
    enter_trusted([source])
    with open(trusted_file(), "ab") as file:
        file.write(torn)
    other = Source("other", "/other.py", "0" * 64)
    enter_trusted([other])
    assert read_trusted() == {source, other}


def test_a_relative_state_folder_is_none(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lie in a stranger's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(here / "home"))
    assert trusted_file() == here / "home" / ".local" / "state" / "palestra" / "trusted"


def test_a_list_that_cannot_be_read_is_told(here: Path) -> None:
    trusted_file().mkdir(parents=True)
    with pytest.raises(UntrustedError, match=r"/palestra/trusted, cannot be read: Is a directory; .*XDG_STATE_HOME"):
        read_trusted()


def test_a_list_that_cannot_be_written_is_one_line_without_a_key(
    here: Path, make_config: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "file").write_text("")
    (here / "lonely.py").write_text("")
    (here / "c.json").write_text(json.dumps(make_config({"callbacks": [{"name": "lonely:Own"}]})))
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "file"))
    done = CliRunner().invoke(app, ["train", str(here / "c.json"), "--quiet"])
    path = here / "file/palestra/trusted"
    assert done.exit_code == 2
    why = f"the list of modules that you trust, {path}, cannot be written: Not a directory"
    assert done.stderr == f"{why}; another folder can hold it: set XDG_STATE_HOME to one that you may write to\n"
    assert "lonely" not in sys.modules


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user whom the system does not know
    with pytest.raises(UntrustedError, match="you have no home: set XDG_STATE_HOME"):
        read_trusted()
