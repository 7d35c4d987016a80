"""Trainer: the lifecycle of a run, its counters and intervals, its safe points.

Players learn by algorithms (palestra.algorithms, one file each); the trainer gives them their turns, and handles at
safe points what is the same for all: evaluation, records, checkpoints, signals, the end.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from rich.console import Console
from torch import Tensor

from palestra.clock import StopSignals, TrainingClock
from palestra.config import ConfigError, ConfigErrorItem, load_class
from palestra.evaluation.evaluator import evaluation_mode, play_games
from palestra.games import make_game
from palestra.games.fused import FusedGame, Policy, Transitions
from palestra.intervals import Counters, Interval
from palestra.output import RunOutput, default_folder
from palestra.player import Metrics, Player
from palestra.players import make_script
from palestra.players.seating import make_player
from palestra.recording.display import Progress
from palestra.storage.checkpoints import Checkpoints
from palestra.storage.run_folder import RunFolder, write_json

if TYPE_CHECKING:
    from palestra.algorithms import RunConfig


class TrainingFailed(RuntimeError):
    """Training cannot go on (a loss that is no number, say). The last checkpoint stands."""


class TrainingEnds(Exception):
    """Raised by a safe point to leave the loops: the run is done, or a signal asked to leave."""


class Callback:
    """Override any hook. Each receives the trainer; `trainer.epoch_counts` says what the running epoch has done so far.

    A callback that keeps state gives it by `state_dict` and takes it back by `load_state_dict`.
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    def before_train(self, trainer: "Trainer") -> None: ...

    def before_epoch(self, trainer: "Trainer") -> None: ...

    def before_step(self, trainer: "Trainer", player: Player) -> None: ...

    def after_step(self, trainer: "Trainer", player: Player, metrics: Metrics) -> None: ...

    def after_evaluation(self, trainer: "Trainer", record: Mapping[str, Any]) -> None: ...

    def after_epoch(self, trainer: "Trainer") -> None: ...

    def after_train(self, trainer: "Trainer") -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class PlayerTurn:
    """The trainer, as seen by the algorithm of the player whose turn it is (palestra.player.Turn)."""

    def __init__(self, trainer: "Trainer", player: Player) -> None:
        self.trainer, self.player = trainer, player

    def collect(self, num_rounds: int) -> Transitions:
        return self.trainer._roll_out(self.player.roles[0], num_rounds)

    def before_step(self) -> None:
        self.trainer.before_step(self.player)

    def after_step(self, metrics: Metrics) -> None:
        self.trainer.after_step(self.player, metrics)
        self.trainer.safe_point()

    def safe_point(self) -> None:
        self.trainer.safe_point()


class Trainer:
    """Trains the players of a config.

    config: a path, a mapping or a RunConfig. run: the run's folder, which must not exist; None: runs/<name>-<n>.
    callbacks: more of them, beside the config's.

    May be overridden: `_train`, and every hook (`before_train`, `before_epoch`, `before_step`, `after_step`,
    `after_evaluation`, `after_epoch`, `after_train`); an override calls its parent. Nothing must be implemented.
    """

    read_config: ClassVar[Callable[..., Any]]  # given by palestra.algorithms, which knows every algorithm's config

    def __init__(
        self,
        config: "str | Path | dict[str, Any] | RunConfig",
        run: str | Path | RunFolder | None = None,
        overrides: Sequence[str] = (),
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
    ) -> None:
        self.config: RunConfig = Trainer.read_config(config, tuple(overrides))
        self.name = Path(config).stem if isinstance(config, str | Path) else "run"
        self.run, self.resumed = run, isinstance(run, RunFolder)
        self.console = console or Console()
        self.device = torch.device(self.config.execution.device)
        self.game = make_game(self.config.game, self.device, self.config.execution.kernel)
        self.players = {name: make_player(name, self.config, self.game) for name in self.config.players}
        self.learners = [player for player in self.players.values() if player.learning]
        self.fused_game = FusedGame(self.game, {})
        for player in self.learners:
            player.worlds = self.fused_game.new_worlds(
                self.config.num_worlds, self.config.seed, f"player/{player.name}/play"
            )
        own = [load_class(callback.name, Callback)(callback) for callback in self.config.callbacks]
        self.callbacks = [*own, *callbacks]
        self.output: RunOutput | None = None
        self.env_steps = self.opt_steps = self.epochs = self.episodes = 0
        self.turn = 0
        self.in_epoch = False
        self.epoch_counts = {"roll_outs": 0, "updates": 0}
        self.metrics: dict[str, dict[str, tuple[Tensor | float, int]]] = {p.name: {} for p in self.learners}
        self.best_score: float | None = None
        self.finished = False
        self.clock, self.signals = TrainingClock(), StopSignals()
        self._is_best = False
        self.checked: Counters = self.counters
        self._shown = 0.0
        self._start = self._recorded = Mark(0.0, 0, 0, 0.0)

    # ---- the lifecycle ---------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train until the config's `stop`, or until a signal asks to leave; `signals.received` tells which.

        A run that was loaded goes on where its last checkpoint stands. Raises TrainingFailed if a loss is no number,
        RunFolderError or CheckpointError where the disk refuses.
        """
        with self._opened() as output:
            self.before_train()
            if self.finished:
                return
            try:
                while not self.finished:
                    if not self.in_epoch:
                        self.in_epoch = True
                        self.epoch_counts = {"roll_outs": 0, "updates": 0}
                        self.before_epoch()
                    self._train()
                    self.epochs += 1
                    self.in_epoch = False
                    self.after_epoch()
                    self.safe_point()
            except TrainingEnds:
                pass
            self.after_train()
            progress = self.progress(None)
        output.conclude(progress)

    def _train(self) -> None:
        """One epoch: every learning player takes its turn. The attribute `turn` remembers whose it is."""
        while self.turn < len(self.learners):
            player = self.learners[self.turn]
            assert player.algorithm is not None
            player.algorithm.learn(PlayerTurn(self, player))
            self.turn += 1
        self.turn = 0

    def safe_point(self) -> None:
        """Do what is due: evaluate, record, save; then leave if the run is done or a signal came.

        Only called where all state lies in objects. Due is what has an interval of which a multiple was reached since
        the last safe point.
        """
        config, before, now = self.config, self.checked, self.counters
        self.checked = now
        done = config.stop.share(now) >= 1.0
        self._check_finite()
        if config.evaluation is not None and (done or _due(config.evaluation.interval, before, now)):
            self.evaluate(config.evaluation.final_num_games if done else config.evaluation.num_games)
        if done or _due(config.output.record, before, now):
            self.record()
        self.finished = done
        wanted = done or self.signals.received is not None or self._is_best
        if config.output.save is not None and (wanted or _due(config.output.save, before, now)):
            self.save()
        self._show()
        if done or self.signals.received:
            raise TrainingEnds

    # ---- hooks -----------------------------------------------------------------------------------------

    def before_train(self) -> None:
        """Restore the last checkpoint, or evaluate once and write checkpoint 0."""
        output = self._output()
        if not output.checkpoints.numbers():
            output.rewind(None)
            if self.resumed:
                output.display.log(f"{output.folder.path} has no checkpoint: it starts at 0")
            if self.config.evaluation is not None:
                self.evaluate(self.config.evaluation.num_games)
            if self.config.output.save is not None:
                self.save()
        else:
            self.restore("latest")
        for callback in self.callbacks:
            callback.before_train(self)

    def before_epoch(self) -> None:
        for callback in self.callbacks:
            callback.before_epoch(self)

    def before_step(self, player: Player) -> None:
        for callback in self.callbacks:
            callback.before_step(self, player)

    def after_step(self, player: Player, metrics: Metrics) -> None:
        """Count an opt step and add up its metrics."""
        player.opt_steps += 1
        self.opt_steps += 1
        self.epoch_counts["updates"] += 1
        sums = self.metrics[player.name]
        for name, value in metrics.items():
            total, num = sums.get(name, (0.0, 0))
            sums[name] = (total + value, num + 1)
        for callback in self.callbacks:
            callback.after_step(self, player, metrics)

    def after_evaluation(self, record: Mapping[str, Any]) -> None:
        for callback in self.callbacks:
            callback.after_evaluation(self, record)

    def after_epoch(self) -> None:
        for callback in self.callbacks:
            callback.after_epoch(self)

    def after_train(self) -> None:
        for callback in self.callbacks:
            callback.after_train(self)

    # ---- what is done at safe points -------------------------------------------------------------------

    def evaluate(self, num_games: int) -> dict[str, Any]:
        """Play every pairing apart from training, write the record, and give it.

        Players act without exploration, their networks in evaluation mode; the modes are restored. Pairings of scripted
        players are played at the start and at the end alone: they do not change.
        """
        config = self.config.evaluation
        assert config is not None
        final = num_games == config.final_num_games
        with self._apart("evaluating"):
            started = time.perf_counter()
            pairs = self._play_pairings(num_games, all_of_them=final or self.epochs == 0)
            record = self._record_head("evaluation") | {
                "pairs": pairs,
                "clock": {"seconds": time.perf_counter() - started},
            }
            self._output().write(record)
            self._judge(record)
        self.after_evaluation(record)
        return record

    def _play_pairings(self, num_games: int, all_of_them: bool) -> list[dict[str, Any]]:
        config = self.config.evaluation
        assert config is not None
        pairs = []
        for pairing in config.pairings:
            learned = [role for role, name in pairing.items() if name in self.players and self.players[name].learning]
            if learned or all_of_them:
                games = self._play_pairing(pairing, num_games, config.max_rounds)
                pairs.append({"players": dict(pairing), "learned": learned, **games})
        return pairs

    def _play_pairing(self, pairing: Mapping[str, str], num_games: int, max_rounds: int) -> dict[str, Any]:
        nets = [net for player in self.players.values() for net in player.nets.values()]
        with evaluation_mode(nets):
            policies: dict[str, Policy] = {
                role: self.players[name].policy(explore=False) if name in self.players else make_script(name, self.game)
                for role, name in pairing.items()
            }
            return play_games(self.game, policies, num_games, max_rounds, self.config.seed).summary()

    def _judge(self, record: Mapping[str, Any]) -> None:
        """Note whether the players are better than ever, by the config's measure; the next save is then the best."""
        assert self.config.evaluation is not None
        best = self.config.evaluation.best
        if best is None:
            return
        pairing = self.config.evaluation.pairings[best.pairing]
        pair = next(pair for pair in record["pairs"] if pair["players"] == pairing)
        score = pair["rho"] if best.measure == "rho" else pair["returns"][best.measure.removeprefix("return/")]
        sign = 1.0 if best.goal == "max" else -1.0
        if not math.isnan(score) and (self.best_score is None or sign * score > sign * self.best_score):
            self.best_score = score
            self._is_best = True

    def record(self) -> None:
        """Write the means of the metrics since the last record, and the training's own episodes."""
        players = {}
        for player in self.learners:
            assert player.worlds is not None
            totals = self.fused_game.take_totals(player.worlds)
            episodes = totals.pop("episodes")
            self.episodes += int(episodes)
            means = {name: float(total) / num for name, (total, num) in self.metrics[player.name].items()}
            self.metrics[player.name] = {}
            per_episode = {name: value / episodes for name, value in totals.items()} if episodes else {}
            players[player.name] = {
                **self._player_figures(player),
                **means,
                "episodes": {"number": int(episodes), **per_episode},
            }
        clock = {"train_seconds": self.clock.seconds, **self._rates(self._recorded, "_per_s")}
        self._recorded = self._mark()
        self._output().write(self._record_head("training") | {"players": players, "clock": clock})

    def _record_head(self, kind: str) -> dict[str, Any]:
        return {"kind": kind} | {name: getattr(self, name) for name in ("env_steps", "opt_steps", "epochs", "episodes")}

    def _player_figures(self, player: Player) -> dict[str, float]:
        figures: dict[str, float] = {"env_steps": player.env_steps, "opt_steps": player.opt_steps}
        if player.lr_schedule is not None:
            figures["learning_rate"] = player.lr_schedule(player.opt_steps)
        if player.er_schedule is not None:
            figures["exploration"] = player.er_schedule(player.opt_steps)
        return figures

    def save(self) -> None:
        """Write a checkpoint; the best one, if the last evaluation was better than ever."""
        with self._apart("saving"):
            counters = {name: getattr(self, name) for name in ("env_steps", "opt_steps", "epochs", "episodes")}
            self._output().save(self.state_dict(), counters, self._buffers(), self._is_best)
            self._is_best = False

    def _check_finite(self) -> None:
        """Raise TrainingFailed if a loss is no number. Sums keep a nan: on a GPU, where looking costs a wait, now and
        then is enough."""
        for player in self.learners:
            total, num = self.metrics[player.name].get("loss", (0.0, 1))
            if (self.device.type == "cpu" or num % 256 == 0) and not math.isfinite(float(total)):
                last = "there is no checkpoint"
                if self._output().checkpoints.numbers():
                    last = f"the last checkpoint stands: palestra resume {self._output().folder.path}"
                raise TrainingFailed(
                    f"the loss of player {player.name!r} is {float(total)} at its opt step {player.opt_steps}; {last}"
                )

    # ---- state -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything but the rows of replay buffers."""
        return {
            "counters": {name: getattr(self, name) for name in ("env_steps", "opt_steps", "epochs", "episodes")},
            "turn": self.turn,
            "in_epoch": self.in_epoch,
            "epoch_counts": dict(self.epoch_counts),
            "metrics": self.metrics,
            "best_score": self.best_score,
            "finished": self.finished,
            "players": {name: p.state_dict() for name, p in self.players.items() if p.algorithm is not None},
            "callbacks": [callback.state_dict() for callback in self.callbacks],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["counters"].items():
            setattr(self, name, value)
        self.turn, self.in_epoch, self.epoch_counts = state["turn"], state["in_epoch"], state["epoch_counts"]
        self.metrics = {
            name: {key: (_to(total, self.device), num) for key, (total, num) in sums.items()}
            for name, sums in state["metrics"].items()
        }
        self.best_score, self.finished = state["best_score"], state["finished"]
        for name, player_state in state["players"].items():
            self.players[name].load_state_dict(player_state)
        for callback, callback_state in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(callback_state)

    def restore(self, which: str) -> None:
        """Go back to a checkpoint of this run: state, buffers, and the records up to it."""
        output = self._output()
        loaded = output.checkpoints.load(which)
        output.checkpoints.restore_buffers(loaded, self._buffers())
        self.load_state_dict(loaded.state)
        output.rewind(loaded)
        clocks = [record["clock"].get("train_seconds", 0.0) for record in output.records()]
        self.clock.set_before(max(clocks, default=0.0))
        self.checked = self.counters
        self._start = self._recorded = self._mark()
        for line in [*loaded.warnings, *output.differences(loaded)]:
            output.display.log(line)
        end = "it is finished" if self.finished else "it goes on from there"
        output.display.log(f"{output.folder.path}: checkpoint {loaded.folder.name}, opt step {self.opt_steps}; {end}")

    @classmethod
    def load(cls, run: str | Path, console: Console | None = None, quiet: bool = False) -> Self:
        """The trainer of a run, from its folder. `fit` goes on where its last checkpoint stands."""
        folder = RunFolder.open(Path(run))
        trainer = cls(folder.config, run=folder, overrides=("output.display=quiet",) if quiet else (), console=console)
        trainer.name = folder.path.name
        return trainer

    def evaluate_checkpoint(self, which: str, num_games: int | None) -> tuple[Path, dict[str, Any]]:
        """Play all pairings with the players of a checkpoint of this run; gives the file in evaluations/, and its
        record.

        num_games: per pairing; None: the config's final number. Trains nothing, and may run beside the training.
        """
        assert isinstance(self.run, RunFolder)
        config = self.config.evaluation
        if config is None:
            raise ConfigError([ConfigErrorItem("evaluation", "null; the config of this run names no pairings")])
        checkpoints = Checkpoints(self.run, keep_last=1, keep_every=None)
        self.load_state_dict(checkpoints.load(int(which) if which.isdigit() else which).state)
        record = self._record_head("evaluation") | {
            "pairs": self._play_pairings(num_games or config.final_num_games, all_of_them=True)
        }
        path = self.run.evaluations / f"opt-step-{self.opt_steps}.json"
        write_json(path, record)
        return path, record

    def _buffers(self) -> dict[str, Any]:
        return {p.name: p.replay_buffer for p in self.learners if p.replay_buffer is not None}

    # ---- playing ---------------------------------------------------------------------------------------

    def _roll_out(self, role: str, num_rounds: int) -> Transitions:
        """Play the worlds of the player in that seat on, exploring for it alone, and give its experience; counts env
        steps."""
        player = self.player_of(role)
        assert player.worlds is not None
        self.fused_game.policies = {r: self.player_of(r).policy(explore=r in player.roles) for r in self.game.roles}
        transitions = self.fused_game.collect(player.worlds, player.roles, num_rounds)
        num_steps = num_rounds * self.config.num_worlds
        player.env_steps += num_steps
        self.env_steps += num_steps
        self.epoch_counts["roll_outs"] += 1
        return transitions

    def set_training(self, training: bool) -> None:
        """Switch the networks of all learning players between training and evaluation mode."""
        for player in self.learners:
            player.set_training(training)

    def player_of(self, role: str) -> Player:
        """The player who sits in a role."""
        return self.players[self.config.roles[role]]

    def __getattr__(self, name: str) -> Any:
        """`host_net`, `host_optimizer`, `host_lr_scheduler`, `host_er_scheduler`, `host_replay_buffer`, and so for
        each role."""
        role, _, part = name.partition("_")
        if role in self.__dict__.get("game", _NoGame).roles:
            player = self.player_of(role)
            parts: dict[str, Callable[[], Any]] = {
                "net": lambda: next(iter(player.nets.values()), None),
                "optimizer": lambda: next(iter(player.optimizers.values()), None),
                "lr_scheduler": lambda: player.lr_schedule,
                "er_scheduler": lambda: player.er_schedule,
                "replay_buffer": lambda: player.replay_buffer,
            }
            if part in parts:
                return parts[part]()
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    # ---- time, threads, signals ------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        minutes = self.clock.seconds / 60
        return {"opt_steps": self.opt_steps, "env_steps": self.env_steps, "epochs": self.epochs, "minutes": minutes}

    @contextmanager
    def _apart(self, what: str) -> Iterator[None]:
        """Stop the clock of training while something else goes on."""
        self._show(what)
        with self.clock.paused():
            yield

    @contextmanager
    def _opened(self) -> Iterator[RunOutput]:
        """The run's folder, threads and signal handlers, for the time of one `fit`."""
        if self.output is None:
            folder = self.run if isinstance(self.run, RunFolder) else default_folder(self.run, self.name)
            make = RunOutput if self.resumed else RunOutput.create
            self.run, self.output = folder, make(folder, self.config, self.console)
        num_threads = torch.get_num_threads()
        torch.set_num_threads(self.config.execution.num_threads)
        try:
            with self.output.opened(), self.signals.caught(), self.clock.running():
                yield self.output
        finally:
            torch.set_num_threads(num_threads)

    def _output(self) -> RunOutput:
        if self.output is None:
            raise RuntimeError("the run has no folder yet: call fit() first")
        return self.output

    def _show(self, message: str | None = None) -> None:
        now = time.monotonic()
        if message is not None or now - self._shown > 0.2:
            self._shown = now
            self._output().display.update(self.progress(message))

    def progress(self, message: str | None) -> Progress:
        """The moment, for a display."""
        share, start = self.config.stop.share(self.counters), self._start
        here = self.clock.seconds - start.seconds
        remaining = here * (1.0 - share) / (share - start.share) if share > start.share else None
        players = {}
        for player in self.learners:
            means = {name: float(total) / num for name, (total, num) in self.metrics[player.name].items()}
            figures = {k: v for k, v in self._player_figures(player).items() if k in ("learning_rate", "exploration")}
            players[player.name] = means | figures
        return Progress(
            name=self.name,
            run_folder=str(self._output().folder.path),
            device=str(self.device),
            fraction=share,
            elapsed_s=self.clock.seconds,
            remaining_s=remaining,
            counters={name: getattr(self, name) for name in ("env_steps", "opt_steps", "epochs", "episodes")},
            rates=self._rates(start, ""),
            players=players,
            evaluations=self._output().evaluations,
            message=message,
        )

    def _mark(self) -> "Mark":
        return Mark(self.clock.seconds, self.env_steps, self.opt_steps, self.config.stop.share(self.counters))

    def _rates(self, since: "Mark", suffix: str) -> dict[str, float]:
        seconds = max(self.clock.seconds - since.seconds, 1e-9)
        return {
            f"env_steps{suffix}": (self.env_steps - since.env_steps) / seconds,
            f"opt_steps{suffix}": (self.opt_steps - since.opt_steps) / seconds,
        }


class Mark(NamedTuple):
    """A moment to count from. seconds: of training. share: of the run that lay behind."""

    seconds: float
    env_steps: int
    opt_steps: int
    share: float


class _NoGame:
    roles = ()


def _due(interval: Interval | None, before: Counters, now: Counters) -> bool:
    return interval is not None and interval.due(before, now)


def _to(value: Tensor | float, device: torch.device) -> Tensor | float:
    return value.to(device) if isinstance(value, Tensor) else value
