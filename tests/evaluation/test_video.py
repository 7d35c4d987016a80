"""Films show every step of the episodes, their last frames too, and nothing else.

Covers palestra.games.gymnasium.pictures.
"""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from palestra.cli import app
from palestra.config import ConfigError
from palestra.evaluation.video import episode_frames, film_episodes
from palestra.players import make_script
from palestra.run.shipped import shipped_configs
from tests.games.gym_worlds import gym_game

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")


def brightness(film: Path) -> list[float]:
    """Of every frame."""
    frames = imageio_ffmpeg.read_frames(str(film))
    assert next(frames)["size"] == (48, 32)  # the usual coding wants even numbers
    return [float(np.frombuffer(frame, np.uint8).mean()) for frame in frames]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_film_shows_every_step_and_the_last_one(tmp_path: Path, mode: str) -> None:
    game = gym_game("sync", mode, id="tests.gym_oddities:Drawn-v0")
    film = tmp_path / "film.mp4"
    assert film_episodes(game, make_script("random", game), 2, 100, 0, film) == [3.0, 3.0]
    assert np.allclose(brightness(film), [40, 80, 120, 160] * 2, atol=4)


def test_a_film_is_cut_where_an_evaluation_is(tmp_path: Path) -> None:
    game = gym_game(id="tests.gym_oddities:Drawn-v0")
    film = tmp_path / "film.mp4"
    assert film_episodes(game, make_script("random", game), 2, 2, 0, film) == [2.0, 2.0]
    assert np.allclose(brightness(film), [40, 80, 120] * 2, atol=4)


FORMS = ("flat", "grey", "opaque", "first", "list", "flat list", "nested", "float", "large", "long", "no fps")


@pytest.mark.parametrize("how", FORMS)
def test_a_picture_in_any_form_makes_the_same_film(tmp_path: Path, how: str) -> None:
    game = gym_game(id="tests.gym_oddities:Drawn-v0", arguments={"how": how})
    film = tmp_path / "film.mp4"
    assert film_episodes(game, make_script("random", game), 1, 100, 0, film) == [3.0]
    assert np.allclose(brightness(film), [40, 80, 120, 160], atol=4)


def test_a_picture_that_is_drawn_over_stays_as_it_was() -> None:
    game = gym_game(id="tests.gym_oddities:Drawn-v0", arguments={"how": "kept"})
    frames = list(episode_frames(game, make_script("random", game), 1, 100, 0))
    assert [int(frame.pixels.mean()) for frame in frames] == [40, 80, 120, 160]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("none", "expected a picture of shape (height, width, 3) from render, got None"),
        ("empty", "expected a picture of shape (height, width, 3) from render, got []"),
        ("text", "expected a picture of shape (height, width, 3) from render, got 'a picture'"),
        ("ragged", "expected a picture of shape (height, width, 3) from render, got [[1, 2], [3]]"),
        ("two", "expected a picture of shape (height, width, 3) from render, got an array of shape (33, 48, 2)"),
        ("nan", "expected numbers from 0 to 255, or from 0 to 1, from render, got some of nan..nan"),
        ("too large", "expected numbers from 0 to 255, or from 0 to 1, from render, got some of 300.0..300.0"),
        ("row", "expected at least 2 x 2 pixels from render, got shape (1, 48, 3)"),
        ("growing", "expected shape (32, 48, 3), as before, from render, got shape (34, 48, 3)"),
    ],
)
def test_what_is_no_picture_is_told_in_one_line(tmp_path: Path, how: str, why: str) -> None:
    game = gym_game(id="tests.gym_oddities:Drawn-v0", arguments={"how": how})
    with pytest.raises(ConfigError) as caught:
        film_episodes(game, make_script("random", game), 1, 100, 0, tmp_path / "film.mp4")
    message = str(caught.value)
    assert message.startswith(f"game.id: 'tests.gym_oddities:Drawn-v0' cannot be rendered here: {why}")
    assert len(message.splitlines()) == 1


def test_an_environment_that_cannot_be_drawn_is_told(tmp_path: Path) -> None:
    game = gym_game(id="tests.gym_probes:Walk-v0")
    with pytest.raises(ConfigError, match=r"cannot be (made with these arguments|rendered here)"):
        film_episodes(game, make_script("random", game), 1, 2, 0, tmp_path / "film.mp4")


def test_the_command_line_films_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palestra.run.run.plot_scores", lambda *_: None)
    config = shipped_configs()["dqn-cartpole"]
    run = str(tmp_path / "run")
    changes = ["game.id=tests.gym_oddities:Drawn-v0", "game.arguments={}", "stop={after: 2, unit: opt_steps}"]
    changes += ["players.agent.algorithm.warmup_env_steps=8", "num_worlds=1", "evaluations.0.final_num_games=2"]
    assert CliRunner().invoke(app, ["train", str(config), *changes, "--run", run, "--quiet"]).exit_code == 0
    told = CliRunner().invoke(app, ["evaluate", run, "--games", "2", "--video"])
    assert told.exit_code == 0, told.output
    assert "a film of episodes with returns 3, 3, 3: " in told.output
    (film,) = (tmp_path / "run" / "evaluations").glob("*.mp4")
    assert len(brightness(film)) == 12
    monkeypatch.setattr("palestra.evaluation.video.find_spec", lambda name: None)
    monkeypatch.setattr("palestra.evaluation.evaluations.Evaluations.play", None)  # no game is played before
    told = CliRunner().invoke(app, ["evaluate", run, "--games", "2", "--video"])
    assert told.exit_code == 2
    assert told.stderr.strip() == "--video: filming needs an extra: pip install 'palestra[video]'"
