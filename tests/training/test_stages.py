"""The two stages of a run: what they declare is what they do, the test is one piece, and each has its context.

Covers palestra.kinds.games.descriptions.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import PPO
from conftest import LEARNER
from resuming import Killed, ask_to_leave, assert_same_bits, at_call, fit, kill, records
from torch import nn

from palestra import make_trainer
from palestra.callbacks import Callback
from palestra.evaluation.evaluations import Evaluations
from palestra.evaluation.evaluator import Watch
from palestra.kinds.games.together import Together
from palestra.kinds.games.trainer import Trainer
from palestra.players.player import Player
from palestra.recording.results import Stage, stage_text
from palestra.rollouts.transitions import Transitions
from palestra.run.kinds import read_config
from palestra.runtime.signals import Interrupted
from palestra.training.opening import named_classes
from tests.docs.examples import block

Data = dict[str, Any]
MakeConfig = Callable[..., Data]


OWN_EVALUATION: Data = {
    "name": "own",
    "interval": None,
    "at_start": True,
    "num_games": 3,
    "final_num_games": 5,
    "seed": None,
    "played_by": {"name": "constant_score:Constant"},
}
CONSTANT = """
from palestra.config import UserConfig
from palestra.evaluation.config import UserEvaluation

class Constant(UserEvaluation):
    Config = UserConfig
    scores = ("one",)

    def play(self, players, num_games, seed, watch):
        watch(num_games)
        return {"one": 1.0}
"""


def stages_of(config: Data) -> dict[str, Stage]:
    """What `palestra check` asks for: the class and the config, and nothing that is built."""
    read = read_config(config)
    trainer = named_classes(read)[0]
    return {"train": trainer.train_stage(read), "test": trainer.test_stage(read)}


def learning(algorithm: Data = LEARNER["algorithm"], **updates: Any) -> Data:
    return {"algorithm": algorithm, "warm_start": None, "updates": updates or {"name": "constant"}, "meets": None}


# ---- what they declare ---------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", ["in_turn", "together"])
@pytest.mark.parametrize("stop", [(24, "opt_steps"), (64, "env_steps"), (5, "epochs")])
def test_a_run_does_what_its_stages_declare(
    stop: tuple[int, str], trainer: str, make_config: MakeConfig, in_tmp_path: Path
) -> None:
    """Without games that are over at their start, which count nowhere else."""
    (in_tmp_path / "constant_score.py").write_text(CONSTANT)
    config = make_config({"trainer": {"name": trainer}, "stop": {"after": stop[0], "unit": stop[1]}})
    config["evaluations"].append(OWN_EVALUATION)
    declared = stages_of(config)
    run = make_trainer(config, run="run")
    run.fit()
    assert (declared["train"].length, declared["train"].unit) == stop
    assert run.counts()[stop[1]] == stop[0]
    *_, main, own = [record for record in records(Path("run")) if record["kind"] == "evaluation"]
    assert [(each["evaluation"], each["epochs"]) for each in (main, own)] == [(n, run.epochs) for n in ("main", "own")]
    games = sum(pair["games"] + pair.get("started_over", 0) for record in (main, own) for pair in record["pairs"])
    assert (games, "games") == (3 * 12 + 5, "games") == (declared["test"].length, declared["test"].unit)
    assert run.progress.stages == declared


CYCLE: Data = {"name": "contiguous_periodic", "period": 10, "first": 0, "last": 3}
TURNS = (
    ({}, "host and agent update in turn, each after a roll-out of 1 round in 8 worlds of its own"),
    ({"players.agent": {"scripted": "random"}}, "host updates after each roll-out of 1 round in 8 worlds"),
    (
        {"num_worlds": {"host": 8, "agent": 1}, "players.agent": learning(PPO | {"num_minibatches": 1})},
        "host and agent update in turn: host after a roll-out of 1 round in 8 worlds, agent after a roll-out of "
        f"{PPO['rollout_length']} rounds in 1 world",
    ),
    ({"trainer.name": "together"}, "host and agent update together after each roll-out of 1 round in 8 worlds"),
    (
        {"trainer.name": "together", "players.agent": {"scripted": "random"}},
        "host updates after each roll-out of 1 round in 8 worlds",
    ),
    (
        {"trainer.name": "together", "players.agent": learning(**CYCLE)},
        "host and agent update together after each roll-out of 1 round in 8 worlds; host learns in every epoch, agent "
        "learns in epochs 0 to 2 of every 10",
    ),
)


@pytest.mark.parametrize(("changes", "words"), TURNS)
def test_what_an_epoch_does_is_said_in_words(changes: Data, words: str, make_config: MakeConfig) -> None:
    if "players.agent" in changes and "scripted" in changes["players.agent"]:
        changes |= {"evaluations": [], "best": None}
    assert stages_of(make_config(changes))["train"] == Stage(words, 24.0, "opt_steps")


def test_what_the_test_does_is_said_in_words(make_config: MakeConfig, in_tmp_path: Path) -> None:
    (in_tmp_path / "constant_score.py").write_text(CONSTANT)
    config = make_config()
    assert stage_text("test", stages_of(config)["test"]) == (
        "test: 36 games, evaluation main: 3 pairings of 12 games each"
    )
    config["evaluations"] = [config["evaluations"][0] | {"pairings": [{"host": "host", "agent": "agent"}]}]
    config["evaluations"][0]["final_num_games"] = 1000
    config["evaluations"].append(OWN_EVALUATION)
    assert stage_text("test", stages_of(config)["test"]) == (
        "test: 1,005 games, evaluation main: 1 pairing of 1,000 games; evaluation own: 5 games, played by "
        "constant_score:Constant"
    )
    assert stage_text("test", stages_of(make_config({"evaluations": [], "best": None}))["test"]) == (
        "test: no evaluations"
    )


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (Stage("as it is", 1.0, "opt_steps"), "train: 1 opt step, as it is"),
        (Stage("as it is", 0.5, "minutes"), "train: 0.5 minutes, as it is"),
        (Stage("as it is", 1.0, "minutes"), "train: 1 minute, as it is"),
        (Stage("as it is", None, ""), "train: as it is"),
        (Stage("", 12_000.0, "env_steps"), "train: 12,000 env steps"),
    ],
)
def test_a_stage_as_text(stage: Stage, text: str) -> None:
    assert stage_text("train", stage) == text


def test_a_trainer_that_declares_nothing_is_described_by_its_docstrings(make_config: MakeConfig) -> None:
    class Silent(Trainer):
        def _train(self) -> None:
            super()._train()

        def _test(self) -> None:
            pass

    class Telling(Silent):
        def _train(self) -> None:
            """Only the
            host learns.

            And so on.
            """

        def _test(self) -> None:
            """Nothing."""

    class Heir(Telling):
        pass

    class Joint(Together):
        def _train(self) -> None:
            """As one."""

    config = read_config(make_config({"players.agent": learning(**CYCLE)}))
    cut = "; host learns in every epoch, agent learns in epochs 0 to 2 of every 10"
    assert Silent.train_stage(config).description == f"by Silent{cut}"
    assert Silent.test_stage(config) == Stage("by Silent", None, "")
    for cls in (Telling, Heir):
        assert cls.train_stage(config).description == f"as Telling says: Only the host learns{cut}"
        assert cls.test_stage(config) == Stage("as Telling says: Nothing", None, "")
    assert Joint.train_stage(config).description == f"as Joint says: As one{cut}"
    assert Joint.test_stage(config) == Trainer.test_stage(config)


def test_a_player_that_never_learns_in_a_run_is_told(make_config: MakeConfig) -> None:
    late = {"name": "contiguous_periodic", "period": 6, "first": 4, "last": 6}
    for after, cut in ((4.0, ", first in epoch 4: never in this run"), (4.5, "")):
        config = read_config(
            make_config({"players.agent": learning(**late), "stop": {"after": after, "unit": "epochs"}})
        )
        told = Trainer.train_stage(config).description
        assert told.endswith(f"; host learns in every epoch, agent learns in epochs 4 to 5 of every 6{cut}")


# ---- the test ------------------------------------------------------------------------------------------


class Twice(Trainer):
    """Plays its evaluation twice, and then remembers something."""

    def _test(self) -> None:
        self.evaluate(["main"])
        self.evaluate(["main"])
        self._think()
        self.note("thought", 1.0)
        self.extra_state["thought"] = self.extra_state.get("thought", 0) + 1

    def _think(self) -> None:
        if self.is_asked_to_leave():
            raise Interrupted


STOPS: dict[str, Callable[[], Any]] = {
    "killed in the first": lambda: at_call(Evaluations, "play", 4, kill),
    "killed in the second": lambda: at_call(Evaluations, "play", 5, kill),
    "killed after both": lambda: at_call(Twice, "_think", 1, kill),
    "killed while what was found is written": lambda: at_call(Trainer, "after_evaluation", 4, kill),
    "killed before the last record": lambda: at_call(Trainer, "record", 4, kill),
    "asked in the first": lambda: asking_at_play(4),
    "asked in the second": lambda: asking_at_play(5),
    "asked after both": lambda: at_call(Twice, "_think", 1, ask_to_leave),
}


@contextmanager
def asking_at_play(number: int) -> Iterator[None]:
    """A signal comes when an evaluation begins."""
    played, signals = Evaluations.play, []

    def play(self: Evaluations, name: str, num_games: int, with_scripted: bool, watch: Watch) -> Any:
        signals.append(name)
        if len(signals) == number:
            cells = zip(watch.__code__.co_freevars, watch.__closure__ or (), strict=True)
            ask_to_leave({name: cell.cell_contents for name, cell in cells}["self"].progress)
        return played(self, name, num_games, with_scripted, watch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluations, "play", play)
        yield


def saved_often(make_config: MakeConfig, changes: Data | None = None) -> Data:
    every = {"every": 6, "unit": "opt_steps"}
    return make_config({"output.record": every, "output.save": every} | (changes or {}))


@pytest.mark.parametrize("stop", STOPS)
def test_a_run_that_is_stopped_in_its_test_does_it_again_to_the_same_bits(
    stop: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = saved_often(make_config)
    Twice(config, run=tmp_path / "alone").fit()
    trainer = Twice(config, run=tmp_path / "run")
    with STOPS[stop](), pytest.raises(Killed) if "killed" in stop else contextmanager(lambda: (yield))():
        trainer.fit()
    assert not trainer.finished
    found = [(record["kind"], record["opt_steps"]) for record in records(tmp_path / "run")]
    assert ("training", 24) not in found or "record" in stop
    assert ("evaluation", 24) not in found or "writ" in stop or "record" in stop
    Twice.load(tmp_path / "run").fit()
    assert_same_bits(tmp_path / "run", tmp_path / "alone")
    *_, first, second, last = records(tmp_path / "run")
    assert (first["opt_steps"], first) == (24, second)
    assert last["notes"]["thought"] == 1.0


def test_a_trainer_that_was_asked_to_leave_in_its_test_goes_on_by_itself(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = saved_often(make_config)
    Twice(config, run=tmp_path / "alone").fit()
    trainer = Twice(config, run=tmp_path / "run")
    with asking_at_play(5):
        trainer.fit()
    assert (trainer.finished, trainer.evaluating.is_final) == (False, False)
    trainer.fit()
    assert trainer.finished
    assert trainer.extra_state["thought"] == 1
    assert_same_bits(tmp_path / "run", tmp_path / "alone")


def test_the_test_comes_once_at_the_end_and_not_at_a_pause(make_config: MakeConfig, tmp_path: Path) -> None:
    with at_call(Trainer, "_test", 0, lambda *_: None) as calls:
        trainer = Trainer(make_config(), run=tmp_path / "run")
        trainer.fit(num_steps=10, unit="opt_steps")
        assert calls == []
        trainer.fit()
        trainer.fit()
        assert calls == [1]
        Trainer.load(tmp_path / "run").fit()
        assert calls == [1]


def test_a_test_of_its_own_takes_the_place_of_the_final_evaluations(make_config: MakeConfig, tmp_path: Path) -> None:
    class Untested(Trainer):
        def _test(self) -> None:
            self.extra_state["is_tested"] = not torch.is_grad_enabled()

    config = make_config({"callbacks": []})
    trainer = Untested(config, run=tmp_path / "run")
    trainer.fit()
    fit(tmp_path / "other", config)
    assert trainer.extra_state == {"is_tested": True}
    own, other = records(tmp_path / "run"), records(tmp_path / "other")
    assert own == [r for r in other if (r["kind"], r["opt_steps"]) != ("evaluation", 24)]
    assert len(other) - len(own) == 1


def test_the_test_has_no_safe_points(make_config: MakeConfig, tmp_path: Path) -> None:
    class Trainer2(Trainer):
        def _test(self) -> None:
            self.give_turn(self.learners[0])

    with pytest.raises(RuntimeError, match=r"expected no safe point .* inside _test, got one"):
        Trainer2(make_config(), run=tmp_path / "run").fit()


def test_while_testing_the_display_says_so(make_config: MakeConfig, tmp_path: Path) -> None:
    seen = []

    def look(evaluations: Evaluations, name: str, num_games: int, *_: Any) -> None:
        now = trainer.progress.now()
        seen.append((now.phase(), now.stage, now.fraction, now.remaining_s is None, [task.total for task in now.tasks]))

    trainer = Trainer(make_config(), run=tmp_path / "run")
    played = Evaluations.play
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluations, "play", lambda *args: (look(*args), played(*args))[1])
        trainer.fit()
    assert seen == [
        ("evaluating", "train", 0.0, True, [24]),
        ("evaluating", "train", pytest.approx(8 / 24), False, [16]),
        ("evaluating", "train", pytest.approx(16 / 24), False, [16]),
        ("testing", "test", 1.0, True, [36]),
    ]
    end = trainer.progress.now()
    assert (end.phase(), end.stage, end.fraction, end.remaining_s) == ("finished", None, 1.0, 0.0)


# ---- contexts ------------------------------------------------------------------------------------------

ATTENTION = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

seen = []

class Attention(nn.Module):
    '''Attends over the points of a board.'''

    def __init__(self, width, num_outputs):
        super().__init__()
        self.first, self.last = nn.Linear(width, 12), nn.Linear(12, num_outputs)

    def forward(self, observation):
        points = observation["points"].flatten(1)
        q = self.first(points).view(len(points), 1, 3, 4)
        backends = torch.backends.cuda
        kernel = (backends.math_sdp_enabled(), backends.mem_efficient_sdp_enabled(), backends.flash_sdp_enabled())
        seen.append((kernel, torch.is_grad_enabled()))
        return self.last(scaled_dot_product_attention(q, q, q).flatten(1))

def of_host():
    return Attention(18, 4)
"""
MATH, FASTER, ANY = (True, False, False), (True, True, False), (True, True, True)
"""Which kernels of attention may run: the plain one, the memory-efficient one, flash attention."""


class Phased(list[Any]):
    """What the network notes, each with the phase of the training."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer = trainer

    def append(self, noted: Any) -> None:
        super().append((self.trainer.run.time_log.phase, *noted))


def test_kernels_of_attention_are_those_of_the_contexts(
    make_config: MakeConfig, in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In roll-outs and updates those of training, in evaluations the others: also in the one at the start, in the test,
    and in those of a run that goes on."""
    (in_tmp_path / "attention.py").write_text(ATTENTION)
    monkeypatch.syspath_prepend(in_tmp_path)
    import attention  # type: ignore[import-not-found]

    names: dict[str, Any] = {}
    exec(block("own-trainer.md", "sdpa_kernel"), names)
    own: type[Trainer] = names["WithKernels"]
    host = learning(LEARNER["algorithm"] | {"net": {"name": "attention:of_host"}})
    pairings = [{"host": "host", "agent": "random"}]
    changes = {"players": {"host": host, "agent": {"scripted": "random"}}, "evaluations.0.pairings": pairings}
    config = make_config(changes)

    def seen_of(trainer: Trainer) -> set[Any]:
        attention.seen = Phased(trainer)
        trainer.fit()
        return set(attention.seen)

    in_training = {("play", MATH, False), ("update", MATH, True), ("update", MATH, False)}
    expected = {*in_training, ("evaluation", FASTER, False)}
    alone = own(config, run="alone")
    assert seen_of(alone) == expected
    assert torch.backends.cuda.flash_sdp_enabled()
    with at_call(Evaluations, "play", 3, kill), pytest.raises(Killed):
        own(config, run="run").fit()
    assert seen_of(own.load("run")) == expected
    assert_same_bits(Path("run"), Path("alone"))
    stock = Trainer(config, run="stock")
    assert {kernel for _, kernel, _ in seen_of(stock)} == {ANY}


class Watching(Callback):
    """Notes the context in which each hook is called: gradients, and how many modules are in training mode."""

    def __init__(self) -> None:
        super().__init__(None)
        self.seen: dict[str, set[tuple[bool, bool]]] = {}

    def note(self, hook: str, training: Any) -> None:
        nets = [player.nets[name] for player in training.learners for name in player.optimizers]  # those that learn
        are_training = {module.training for net in nets for module in net.modules()}
        assert len(are_training) == 1
        self.seen.setdefault(hook, set()).add((torch.is_grad_enabled(), are_training.pop()))

    def before_train(self, training: Any) -> None:
        self.note("before_train", training)

    def after_roll_out(self, training: Any, player: Player, by_role: Mapping[str, Transitions]) -> None:
        self.note("after_roll_out", training)

    def before_step(self, training: Any, player: Player) -> None:
        self.note("before_step", training)

    def after_evaluation(self, training: Any, record: Any) -> None:
        self.note("after_evaluation", training)


def test_modes_and_gradients_are_those_of_the_contexts(make_config: MakeConfig, tmp_path: Path) -> None:
    """Also if the caller has none."""

    class Own(Trainer):
        def _test(self) -> None:
            watching.note("_test", self)
            super()._test()

    watching, played = Watching(), Evaluations.play

    def play(*args: Any) -> Any:
        watching.note("play", trainer)
        return played(*args)

    trainer = Own(make_config(), run=tmp_path / "run", callbacks=[watching])
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(Evaluations, "play", play)
        trainer.fit()
        assert not torch.is_grad_enabled()
    on, off = {(True, True)}, {(False, False)}
    hooks = {"before_train": on, "after_roll_out": on, "before_step": on, "after_evaluation": on}
    assert watching.seen == hooks | {"_test": off, "play": off}
    fit(tmp_path / "other", make_config())
    assert records(tmp_path / "run") == records(tmp_path / "other")


def test_a_context_is_entered_once_for_training_and_once_for_each_evaluation(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config({"output.record": {"every": 1, "unit": "opt_steps"}})
    with at_call(Trainer, "train_context", 0, kill) as of_training, at_call(Trainer, "test_context", 0, kill) as tests:
        trainer = Trainer(config, run=tmp_path / "run")
        trainer.fit(num_steps=12, unit="opt_steps")
        assert (len(of_training), len(tests)) == (1, 2)
        trainer.fit()
    assert (len(of_training), len(tests)) == (2, 4)
    assert trainer.epochs > 4


class FixedNorm(Callback):
    """From its fourth epoch on the statistics of batch norm stay as they are."""

    def __init__(self) -> None:
        super().__init__(None)

    def before_epoch(self, training: Any) -> None:
        if training.epochs == 3:
            norms_of(training)[0].eval()


def norms_of(training: Any) -> list[nn.BatchNorm1d]:
    modules = training.players["host"].nets["q"].modules()
    return [module for module in modules if isinstance(module, nn.BatchNorm1d)]


def test_a_mode_that_a_callback_has_chosen_stays(make_config: MakeConfig, tmp_path: Path) -> None:
    """Over evaluations, pauses and stops."""
    config = saved_often(make_config)
    alone = Trainer(config, run=tmp_path / "alone", callbacks=[FixedNorm()])
    alone.fit(num_steps=13, unit="opt_steps")
    (norm,) = norms_of(alone)
    before = int(norm.num_batches_tracked)
    assert (norm.training, before > 0, alone.epochs > 3) == (False, True, True)
    alone.fit()
    assert (norm.training, int(norm.num_batches_tracked), alone.opt_steps) == (False, before, 24)
    whole = Trainer(config, run=tmp_path / "whole", callbacks=[FixedNorm()])
    whole.fit()
    assert_same_bits(tmp_path / "whole", tmp_path / "alone")
    with at_call(Trainer, "safe_point", 30, kill), pytest.raises(Killed):
        Trainer(config, run=tmp_path / "run", callbacks=[FixedNorm()]).fit()
    resumed = Trainer.load(tmp_path / "run", callbacks=[FixedNorm()])
    resumed.fit()
    (norm,) = norms_of(resumed)
    assert (norm.training, int(norm.num_batches_tracked)) == (False, before)
    assert_same_bits(tmp_path / "run", tmp_path / "alone")


# ---- the document --------------------------------------------------------------------------------------


def test_what_the_guide_shows_trains_and_says_what_it_does(make_config: MakeConfig, in_tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(block("own-trainer.md", "class Probed"), names)
    trainer = names["Probed"](make_config(), run="run")
    trainer.fit()
    *_, last = records(Path("run"))
    assert sum(last["notes"]["openings"]["histogram"]["counts"]) == 100
    assert stage_text("test", names["Probed"].test_stage(trainer.config)) == (
        "test: 100 openings, the final evaluations, and how games are opened"
    )
    method = block("own-trainer.md", "def train_stage")
    code = f"from dataclasses import replace\n{block('own-trainer.md', 'class Alternating')}\n{method}"
    exec(code, names)
    config = read_config(make_config({"trainer": {"name": "in_turn"}}))
    config = config.model_copy(update={"trainer": names["Alternating"].Config(name="a:B", num_turns=3)})
    told = names["Alternating"].train_stage(config)
    assert stage_text("train", told) == "train: 24 opt steps, each player takes 3 turns while the others stand still"
