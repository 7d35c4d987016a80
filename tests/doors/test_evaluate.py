"""Evaluate anywhere: overrides, pairings, tournaments, in Python, from a mirror, by measures of one's own."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.docs.examples import block
from tests.doors.conftest import CARTPOLE, POLYHEDRA, Shell


def test_evaluate_the_shipped_pair_on_other_boards(shell: Shell) -> None:
    words = ("--pairing", "host=zeillinger,agent=agent", "--games", "50", "--run", "results")
    shown = shell("evaluate", "palestra:polyhedra", "game.max_num_points=12", *words)
    assert "zeillinger" in shown
    (result,) = (shell.folder / "results" / "evaluations").glob("*.json")
    (pair,) = json.loads(result.read_text())["pairs"]
    assert pair["players"] == {"host": "zeillinger", "agent": "agent"}
    assert pair["games"] == 50


@pytest.mark.slow
def test_evaluate_a_run_against_a_player_of_ones_own_on_another_board(shell: Shell, runs: Path) -> None:
    shutil.copytree(runs / "polyhedra", shell.folder / "run")
    shell.write("stubborn.py", block("own-opponent.md", "class Lazy"))
    pairing = ("--pairing", "host=host,agent=stubborn:Lazy")
    shell("evaluate", "run", *pairing, "--games", "20", "game.max_value=9")
    (result,) = (shell.folder / "run" / "evaluations").glob("*.json")
    record = json.loads(result.read_text())
    assert [pair["players"]["agent"] for pair in record["pairs"]] == ["stubborn:Lazy"]
    error = shell("evaluate", "run", "game.dimension=4", "--games", "20", code=2)
    assert "host" in error, "the weights that do not fit"


@pytest.mark.slow
def test_a_tournament_of_stored_scripted_and_own_players(shell: Shell, runs: Path) -> None:
    shell.write("stubborn.py", block("own-opponent.md", "class Lazy"))
    learned = f"{{from_run: {runs / 'polyhedra'}, player: host, checkpoint: latest}}"
    everyone = "pairings=[{host: [learned, zeillinger, random], agent: [greedy, 'stubborn:Lazy']}]"
    players = f"players={{learned: {learned}}}"
    words = ("evaluate", "tournament-polyhedra", players, everyone, "--games", "50")
    shown = shell(*words, "--run", "cup")
    for name in ("learned", "zeillinger", "stubborn:Lazy"):
        assert name in shown
    record = json.loads((shell.folder / "cup" / "records.jsonl").read_text())
    assert len(record["pairs"]) == 6
    assert record["ratings"]["host"].keys() == {"learned", "zeillinger", "random"}
    shell(*words, "--run", "again")
    again = json.loads((shell.folder / "again" / "records.jsonl").read_text())
    assert again["pairs"] == record["pairs"]


@pytest.mark.slow
def test_play_a_pairing_in_python(shell: Shell, runs: Path) -> None:
    code = (
        "from palestra.training.stored_training import StoredRun",
        f"run = StoredRun.open({str(runs / 'polyhedra')!r})",
        "pairing = {'host': 'host', 'agent': 'random'}",
        "played = run.play(pairing, game={'max_num_points': 9}, num_games=60, seed=1)",
        "assert played == run.play(pairing, game={'max_num_points': 9}, num_games=60, seed=1)",
        "rho = played.scores['rho']",
        "print(rho.low <= rho.value <= rho.high, played.scores['return/host'].value)",
    )
    assert shell.python(*code).startswith("True ")


@pytest.mark.slow
def test_compare_evaluate_and_watch_a_mirror(shell: Shell, bucket: str) -> None:
    mirror = f"{{url: {bucket}/runs, options: {{}}, attempts: 3, first_wait_s: 0.1, end_wait_s: 60.0}}"
    for seed in (0, 1):
        shell("train", *POLYHEDRA, f"output.mirror={mirror}", f"seed={seed}", "--run", f"seed-{seed}", "--quiet")
        shutil.rmtree(shell.folder / f"seed-{seed}")
    urls = [f"{bucket}/runs/seed-{seed}" for seed in (0, 1)]
    compared = shell("compare", *urls)
    assert all(url.rpartition("/")[2] in compared for url in urls)
    assert "complete" in compared
    assert "rho" in compared
    shell("evaluate", urls[0], "--games", "20", "--run", "copy")
    watched = shell("evaluate", urls[1], "--watch", "--evaluation", "main", "--games", "20", "--run", "watched")
    assert "opt step" in watched or "opt_step" in watched
    assert list((shell.folder / "watched" / "evaluations").glob("main-*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["return/agent/iqm", "length/median", "info/tilt", "scores:middle"])
def test_best_by_any_statistic_and_by_a_function(measure: str, shell: Shell) -> None:
    shell.write("scores.py", "def middle(pair):\n    return -abs(pair['scores']['return/agent'] - 20)\n")
    shell.write("tilted.py", TILTED)
    best = f"best={{evaluation: main, pairing: 0, measure: {measure}, goal: max}}"
    tilt = ("game.wrappers=[{name: tilted:Tilted}]", "output.info=[tilt]")
    shell("train", *CARTPOLE, "interval={every: 1024, unit: env_steps}", best, *tilt, "--run", "run", "--quiet")
    assert (shell.folder / "run" / "checkpoints" / "best").exists()


TILTED = """
import gymnasium
from palestra.config import UserConfig


class Tilted(gymnasium.Wrapper):
    class Config(UserConfig):
        pass

    def __init__(self, env, config):
        super().__init__(env)

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, info | {"tilt": abs(float(observation[2]))}
"""


@pytest.mark.slow
def test_recorded_media_are_on_the_page(shell: Shell) -> None:
    shell.write("painter.py", PAINTER)
    shell("train", *CARTPOLE, "callbacks=[{name: 'painter:Painter'}]", "--run", "run", "--quiet")
    shell("report", "run")
    page = (shell.folder / "run" / "report.html").read_text()
    assert re.search(r"<img[^>]*src=\"data:image/png;base64,", page)


PAINTER = """
import numpy as np
from palestra import Callback
from palestra.config import UserConfig
from palestra.recording import Image


class Painter(Callback):
    Config = UserConfig

    def after_step(self, training, player, metrics):
        training.note("board", Image(np.full((4, 6, 3), 200, dtype=np.uint8)))
"""
