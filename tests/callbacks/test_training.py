"""What a callback may use of a training: one list, in the code, in the documents, and true of the trainer."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from palestra.callbacks import Callback
from palestra.callbacks.training import AnyTraining, PlayingTraining
from palestra.config import ConfigError
from palestra.kinds.games.trainer import Trainer
from palestra.players.player import Player
from palestra.rollouts.transitions import Transitions

MakeConfig = Callable[..., dict[str, Any]]
PAGE = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()


def members(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


def table(heading: str) -> set[str]:
    """The names in the first column of a table of the page: of `a`, `b(x)` both."""
    [found] = re.findall(rf"\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE)
    cells = [row.split("|")[1] for row in found.splitlines()]
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}


def test_the_document_lists_what_a_callback_may_use() -> None:
    assert table("name") == members(AnyTraining) | members(PlayingTraining)


def test_the_document_lists_the_hooks() -> None:
    assert table("hook") == {"check"} | {name for name in vars(Callback) if name.startswith(("before_", "after_"))}


def test_the_trainer_is_such_a_training(make_config: MakeConfig) -> None:
    trainer = Trainer(make_config())
    for name in members(AnyTraining) | members(PlayingTraining):
        assert hasattr(trainer, name)


class Misspelt(Callback):
    """Has hooks that nothing would call."""

    def after_stp(self, training: Any, player: Any, metrics: Any) -> None: ...


class CamelCase(Callback):
    """Has the hook of another library."""

    def beforeEpoch(self, training: Any) -> None: ...  # noqa: N802


class OwnHook(Callback):
    """Has a hook that there is not."""

    def before_lunch(self, training: Any) -> None: ...


class MisspeltTrainer(Trainer):
    """A trainer with such a hook."""

    def after_epoc(self) -> None: ...


class Helping(Callback):
    """Has other methods than hooks, and an attribute with the name of one."""

    after_steps = 3

    def step(self) -> None: ...

    def _after_stp(self) -> None: ...


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (Misspelt, "'after_stp' of Misspelt, which nothing uses; did you mean 'after_step'?"),
        (CamelCase, "'beforeEpoch' of CamelCase, which nothing uses; did you mean 'before_epoch'?"),
        (OwnHook, "'before_lunch' of OwnHook, which nothing uses"),
    ],
)
def test_a_method_that_looks_like_a_hook_and_is_none_is_refused(
    callback: type[Callback], told: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^callbacks: expected check, before_train, .*, got {re.escape(told)}"):
        Trainer(make_config(), run=tmp_path / "run", callbacks=[callback(None)]).fit()
    assert not (tmp_path / "run").exists()


def test_a_hook_of_a_trainer_that_is_misspelt_is_refused_too(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^trainer: .*'after_epoc' of MisspeltTrainer.*'after_epoch'\?$"):
        MisspeltTrainer(make_config(), run=tmp_path / "run").fit()


class Noting(Trainer):
    """Has an attribute that is named like a hook, and a method that nothing calls."""

    before_turning = 0.1

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.after_turning = 0.2

    def turned(self) -> None: ...


def test_a_trainer_may_have_attributes_that_are_named_like_hooks(make_config: MakeConfig) -> None:
    Noting(make_config()).require_ready()


def test_a_callback_may_have_other_methods(make_config: MakeConfig) -> None:
    Trainer(make_config(), callbacks=[Helping(None)]).require_ready()


class Looking(Callback):
    """Writes down what was collected, and what was saved."""

    def __init__(self) -> None:
        super().__init__(None)
        self.collected: list[tuple[str, int, int]] = []
        self.saved: list[tuple[Path, Mapping[str, Any]]] = []

    def after_roll_out(self, training: Any, player: Player, by_role: Mapping[str, Transitions]) -> None:
        assert training.epoch_counts["roll_outs"] > 0
        self.collected.append((player.name, training.env_steps, sum(len(rows.valid) for rows in by_role.values())))

    def after_save(self, training: Any, checkpoint: Path) -> None:
        self.saved.append((checkpoint, {path.name: path.stat().st_size for path in checkpoint.iterdir()}))


def test_a_callback_sees_roll_outs_and_what_was_saved(make_config: MakeConfig, tmp_path: Path) -> None:
    looking = Looking()
    stop = {"after": 3, "unit": "epochs"}
    Trainer(make_config({"stop": stop}), run=tmp_path / "run", callbacks=[looking]).fit()
    rolled_out = [(name, 8 * (index + 1), 8) for index, name in enumerate(3 * ["host", "agent"])]
    assert looking.collected == rolled_out
    assert [checkpoint for checkpoint, _ in looking.saved] == [
        tmp_path / "run" / "checkpoints" / f"{number:08d}" for number in range(len(looking.saved))
    ]
    assert all({"manifest.json", "state.json", "tensors.safetensors"} <= files.keys() for _, files in looking.saved)
    assert len(looking.saved) >= 2


class Slow(Callback):
    """Does something long at the end of each epoch, and leaves when it is asked to."""

    def __init__(self) -> None:
        super().__init__(None)
        self.asked: list[bool] = []

    def after_epoch(self, training: AnyTraining) -> None:
        with training.during("measuring", []):
            training.show()
            self.asked.append(training.is_asked_to_leave())


def test_a_callback_may_take_long(make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phases: list[str] = []
    monkeypatch.setattr("palestra.run.run.SHOW_INTERVAL_S", -1.0)
    monkeypatch.setattr(
        "palestra.recording.display.Display.update", lambda display, progress: phases.append(progress.phase())
    )
    slow = Slow()
    stop = {"after": 2, "unit": "epochs"}
    Trainer(make_config({"stop": stop}), run=tmp_path / "run", callbacks=[slow]).fit()
    assert slow.asked == [False, False]
    assert "measuring" in phases
