"""The commands of the four ways in are run, with fewer steps and games than a reader sees."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palestra.cli import app

DOCS = Path(__file__).parents[2] / "docs"
GAMES = ("evaluations.0.num_games=2", "evaluations.0.final_num_games=2")
SHORTER = {
    "ppo-cartpole": ("stop.after=16", "num_worlds=8", *GAMES),
    "run.yml": ("stop.after=16", "num_worlds=8", *GAMES),
    "dqn-nim": ("stop.after=8", "num_worlds=8", "players.player.algorithm.warmup_env_steps=8", *GAMES),
    "nip-witness": ("stop.after=16", "num_worlds=8", *GAMES),
    "debate.yml": ("stop.after=16", "num_worlds=8", *GAMES),
    "points.yml": ("stop.after=2",),
    "supervised-claims": ("stop.after=1", "num_questions=4", "players.verifier.imitate=null", *GAMES),
}
"""changes of the trainings, by config"""
QUIET = ("output.display=quiet", "output.recorders=[]")


@pytest.mark.parametrize("page", [path.stem for path in sorted(DOCS.glob("start-*.md"))])
def test_the_commands_of_a_way_in_lead_to_a_report(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / f"{page}.md").read_text()
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(code, {})
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()]
    assert [line for line in lines if not line.startswith("palestra ")] == []
    for line in lines:
        command, _, file = line.removeprefix("palestra ").partition(" > ")
        words = shlex.split(command)
        if words[0] == "train":
            options = next((number for number, word in enumerate(words) if word.startswith("--")), len(words))
            words[options:options] = [*SHORTER[words[1]], *QUIET]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.stderr}"
        if file:
            Path(file).write_text(done.stdout)
    assert list(tmp_path.glob("runs/*/report.html"))
