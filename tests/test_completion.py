"""What shells complete behind `palestra`: commands, options, shipped configs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETED = """
import sys
from palestra.__main__ import main
try:
    main()
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""


def palestra(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A new interpreter that is asked by a shell: what it prints; the modules that it has imported, on stderr."""
    return subprocess.run(
        [sys.executable, "-c", COMPLETED, *words], env=os.environ | environment, capture_output=True, text=True
    )


def of_zsh(typed: str) -> str:
    return palestra(_PALESTRA_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=typed).stdout


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of somebody who has the command `palestra`."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "palestra"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m palestra "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    return tmp_path


def test_bash_completes_in_every_terminal_once_it_is_installed(home: Path) -> None:
    (home / ".bashrc").write_text("alias mine=ls\n")
    subprocess.run(["bash", "-c", "palestra --install-completion; true"], check=True, capture_output=True)
    asked = "COMP_WORDS=(palestra exp); COMP_CWORD=1; _palestra_completion palestra; echo ${COMPREPLY[@]}"
    terminal = f"source ~/.bashrc; complete -p palestra; {asked}; alias mine"
    done = subprocess.run(["bash", "-c", terminal], check=True, capture_output=True, text=True)
    registered, completed, own = done.stdout.splitlines()
    assert registered == "complete -o default -F _palestra_completion palestra"
    assert completed == "export"
    assert own == "alias mine='ls'", "what was in .bashrc stays"


def test_zsh_gets_commands_and_options_with_their_help() -> None:
    assert of_zsh("palestra exte").startswith("""_arguments '*: :(("extend":"Give a run another end""")
    assert '"--quiet":"show only errors"' in of_zsh("palestra train --q")
    assert of_zsh("palestra resume ").strip() == "_files"


def test_configs_are_completed_by_name_and_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ppo-mine.yml").touch()
    (tmp_path / "mine.yml").touch()
    found = of_zsh("palestra train ppo-")
    assert '"ppo-cartpole"' in found
    assert '"ppo-mine.yml"' in found
    assert '"mine.yml"' not in found
    assert of_zsh("palestra train mi").strip() == "_files"


def test_completion_is_quick_because_it_imports_no_large_library() -> None:
    done = palestra(_PALESTRA_COMPLETE="complete_bash", COMP_WORDS="palestra train ppo-ca", COMP_CWORD="2")
    assert done.stdout.split() == ["ppo-cartpole-batched", "ppo-cartpole"]
    assert {"torch", "numba", "numpy"} & set(done.stderr.split()) == set()
    assert "palestra.cli" in done.stderr.split()
