"""Replicas in one process: they learn as one, stop and go on to the same bits, and fail together, in a line."""

import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import LEARNERS, combinations_of, config_of, pairwise
from conftest import PLAIN
from replica_cases import CASES, NUM_REPLICAS, OWN_CLASSES, case
from resuming import ask_to_leave, assert_same_bits, at_call, fit, records

from palestra.algorithms.dqn import DQN
from palestra.algorithms.sac import SAC
from palestra.callbacks import Callback
from palestra.config import ConfigError
from palestra.kinds.games.trainer import Trainer
from palestra.optimizers import Optimizer
from palestra.scaling.replica import Replica
from palestra.scaling.states import equal
from palestra.training.checks import TrainingFailed
from palestra.training.training import Training

Data = dict[str, Any]
NUM = 2


def all_replicas(trainer: Trainer) -> list[Trainer]:
    return [trainer, *(each.training for each in trainer.lockstep.followers)]


@pytest.fixture
def config(make_config: Any) -> Data:
    changes = {"num_replicas": NUM, "stop.after": 12, "evaluations.0.interval.every": 6, "output.record.every": 4}
    config: Data = make_config(changes)
    return config


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() <= before


# ---- they learn as one --------------------------------------------------------------------------------


def test_replicas_have_the_same_players_and_their_own_experience(config: Data, tmp_path: Path) -> None:
    trainer = Trainer(config, run=tmp_path / "run")
    trainer.fit()
    one, other = all_replicas(trainer)
    for name in ("host", "agent"):
        assert equal(one.players[name].weights(), other.players[name].weights())
        rows = [each.players[name].replay_buffer.rows(0, 8) for each in (one, other)]  # type: ignore[union-attr]
        assert not equal(*rows)
        assert not torch.isin(one.worlds[name].keys, other.worlds[name].keys).any()
        assert one.players[name].key("net") == other.players[name].key("net")
        assert one.players[name].replay_buffer.key != other.players[name].replay_buffer.key  # type: ignore[union-attr]
        assert one.players[name].replay_buffer.num_added < one.players[name].env_steps  # type: ignore[union-attr]
    assert one.counts() == other.counts()
    alone = fit(tmp_path / "alone", config | {"num_replicas": 1})
    assert trainer.env_steps == NUM * alone.env_steps
    assert trainer.opt_steps == alone.opt_steps
    num_finished = [int(worlds.num_finished) for each in (one, other) for worlds in each.worlds.values()]
    assert trainer.episodes == sum(num_finished) > max(num_finished)
    assert trainer.episodes == sum(
        each["players"][name]["episodes"]["number"]
        for each in records(tmp_path / "run")
        for name in ("host", "agent")
        if each["kind"] == "training"
    )


@pytest.mark.parametrize("game", ["classic control", "gymnasium"])
def test_the_worlds_of_replicas_begin_as_those_of_one_training_with_as_many(game: str) -> None:
    (combination,) = [each for each in combinations_of("dqn") if each["game"] == game][:1]
    config = config_of("dqn", combination)
    config["game"] |= {"observation": PLAIN | ({"channels": None} if game == "gymnasium" else {})}
    whole = Trainer(config | {"num_worlds": 4 * NUM}).worlds["agent"]
    parts = [Trainer(config | {"num_replicas": NUM}, replica=Replica(k, NUM)).worlds["agent"] for k in range(NUM)]
    assert torch.equal(torch.cat([each.keys for each in parts]), whole.keys)
    observed = [each.world.observation["observation"] for each in (*parts, whole)]
    assert torch.equal(torch.cat(observed[:NUM]), observed[NUM])


def test_what_replicas_have_in_all_is_said_before_they_begin(config: Data) -> None:
    told = Trainer.train_stage(Trainer(config).config).description
    assert "in 2 replicas of 8 worlds, 16 in all" in told


def test_an_opt_step_descends_the_mean_of_all_gradients(
    config: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, used = [], []
    gradient, descend = DQN.find_gradient, Optimizer.descend

    def find_gradient(self: DQN, batch: Any) -> Any:
        found = gradient(self, batch)
        own.append(found[0].clone())
        return found

    def see(self: Optimizer, gradient: torch.Tensor, *more: Any) -> Any:
        used.append(gradient.clone())
        return descend(self, gradient, *more)

    monkeypatch.setattr(DQN, "find_gradient", find_gradient)
    monkeypatch.setattr(Optimizer, "descend", see)
    config["execution"]["compile"] = False
    Trainer(config, run=tmp_path / "run").fit()
    assert len(own) == len(used) == NUM * 12
    for step in range(12):  # one replica computes at a time: first the gradients of all, then the steps of all
        pair = slice(NUM * step, NUM * (step + 1))
        mean = (own[pair][0] + own[pair][1]) / NUM
        assert all(torch.equal(gradient, mean) for gradient in used[pair])
        assert not torch.equal(*own[pair])


def test_each_replica_learns_with_a_copy_of_networks_that_were_handed_over(config: Data, tmp_path: Path) -> None:
    trainer = Trainer(config, run=tmp_path / "run")
    given = copy.deepcopy(trainer.host_net)
    for weight in given.parameters():
        weight.data.mul_(0.5)
    trainer.set_model("host", {"net": given})
    with pytest.raises(ConfigError):
        trainer.set_model("host", {"net": torch.nn.Linear(1, 1)})  # none of the replicas takes it
    trainer.fit()
    one, other = all_replicas(trainer)
    assert one.host_net is given
    assert other.host_net is not given
    assert equal(one.players["host"].weights(), other.players["host"].weights())
    named = fit(tmp_path / "named", config)
    assert not equal(named.players["host"].weights(), one.players["host"].weights())


def test_normalised_observations_count_the_rows_of_all_replicas(tmp_path: Path) -> None:
    (combination,) = [each for each in pairwise(combinations_of("ppo")) if each.get("observations") == "normalized"][:1]
    trainer = fit(tmp_path / "run", config_of("ppo", combination) | {"num_replicas": NUM})
    one, other = all_replicas(trainer)
    assert len(one.game.statistics()) > 0
    for mine, theirs in zip(one.game.statistics(), other.game.statistics(), strict=True):
        assert equal(mine.common.own_state(), theirs.common.own_state())  # type: ignore[union-attr]
        assert equal(mine.own_state(), mine.common.own_state())  # type: ignore[union-attr]


class Notes(Callback):
    """Notes the number of its replica."""

    def after_epoch(self, trainer: Any) -> None:
        trainer.note("replica", float(trainer.replica.index))


def test_a_record_has_the_notes_of_all_replicas(config: Data, tmp_path: Path) -> None:
    config["output"]["statistics"] = ["mean", "count", "max"]
    Trainer(config, run=tmp_path / "run", callbacks=[Notes(None)]).fit()
    noted = [each["notes"] for each in records(tmp_path / "run") if "notes" in each]
    assert noted
    assert all((each["replica"], each["replica/max"]) == (0.5, 1.0) for each in noted)
    assert sum(each["replica/count"] for each in noted) % NUM == 0


# ---- they stop and go on ------------------------------------------------------------------------------


def cases() -> list[Any]:
    """Of each algorithm two combinations, and the rest of the pairwise ones as slow."""
    found = []
    for algorithm in LEARNERS:
        for number, each in enumerate(pairwise(combinations_of(algorithm))):
            marks = [pytest.mark.slow] if number >= 2 or each.get("vectorization") == "async" else []
            label = f"{algorithm}: {', '.join(each.values())}"
            found.append(pytest.param(algorithm, each, id=label, marks=marks))
    return found


@pytest.mark.parametrize(("algorithm", "combination"), cases())
def test_replicas_that_were_stopped_go_on_to_the_same_bits(
    algorithm: str, combination: dict[str, str], tmp_path: Path
) -> None:
    config = config_of(algorithm, combination) | {"num_replicas": NUM}
    fit(tmp_path / "whole", config)
    for number, safe_point in enumerate((5, 8)):  # of all replicas together: the second one hears of it from another
        with at_call(Training, "safe_point", safe_point, ask_to_leave):
            fit(tmp_path / "run", None if number else config)
    fit(tmp_path / "run")
    assert_same_bits(tmp_path / "run", tmp_path / "whole")


QUICK = ("PPO, recurrent", "on_policy", "two roles together", "algorithm, trainer")  # with what differs most


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each.startswith(QUICK) else [pytest.mark.slow]) for each in CASES]
)
def test_four_replicas_that_were_stopped_go_on_to_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(OWN_CLASSES)
    fit(tmp_path / "whole", case(name))
    with at_call(Training, "safe_point", 8 * NUM_REPLICAS, ask_to_leave):  # of the last replica
        assert not fit(tmp_path / "run", case(name)).finished
    assert fit(tmp_path / "run").finished
    assert_same_bits(tmp_path / "run", tmp_path / "whole")


# ---- they end and fail together -----------------------------------------------------------------------


class EndsInOne(Callback):
    """Ends the run by what one replica alone sees."""

    def after_step(self, trainer: Any, player: Any, metrics: Any) -> None:
        if trainer.replica.index == 1 and trainer.opt_steps == 1:
            trainer.end_run("seen by the second replica alone")


def test_a_reason_of_one_replica_ends_all_at_one_safe_point(config: Data, tmp_path: Path) -> None:
    trainer = Trainer(config, run=tmp_path / "run", callbacks=[EndsInOne(None)])
    trainer.fit()
    assert [each.end_reason for each in all_replicas(trainer)] == ["seen by the second replica alone"] * NUM
    assert len({each.opt_steps for each in all_replicas(trainer)}) == 1
    assert records(tmp_path / "run")[-1]["ended"] == "seen by the second replica alone"
    assert trainer.opt_steps in (1, 2)  # at the first safe point after the next exchange; nothing else is due so soon


def test_a_run_of_replicas_is_extended(config: Data, tmp_path: Path) -> None:
    trainer = fit(tmp_path / "run", config)
    trainer.extend(["stop.after=16"])
    trainer.fit()
    whole = fit(tmp_path / "whole", config | {"stop": {"after": 16, "unit": "opt_steps"}})
    for each in all_replicas(trainer):
        assert each.opt_steps == 16
        assert equal(each.players["host"].weights(), whole.players["host"].weights())


class FailsInOne(Callback):
    def after_step(self, trainer: Any, player: Any, metrics: Any) -> None:
        if trainer.replica.index == 1 and trainer.opt_steps == 5:
            raise ZeroDivisionError("in the second replica")


class DiffersInOne(Callback):
    """Changes a weight by what one replica alone sees."""

    def after_step(self, trainer: Any, player: Any, metrics: Any) -> None:
        if trainer.replica.index == 1:
            next(player.nets["q"].parameters()).data.add_(1.0)


class CoolsInOne(Callback):
    """Lowers the temperature of SAC in one replica alone."""

    def after_step(self, trainer: Any, player: Any, metrics: Any) -> None:
        if trainer.replica.index == 1 and isinstance(player.algorithm, SAC):
            player.algorithm.log_alpha.data.sub_(1.0)


class AsksInOne(Callback):
    """Asks for the values of all replicas in one of them alone."""

    def after_epoch(self, trainer: Any) -> None:
        if trainer.replica.index == 1:
            trainer.replica.each("a secret", 1)


class Selfish(DQN):
    """Learns without the other replicas."""

    def update(self, rows: Any) -> Any:
        gradient, metrics, priorities = self.find_gradient(self.transitions(rows))
        return {**metrics, **self.optimizer.descend(gradient, self.config.max_grad_norm)}, priorities

    def transitions(self, rows: Any) -> Any:
        from palestra.rollouts.transitions import Transitions

        return Transitions.from_rows(rows)


class ByItself(Trainer):
    """Makes opt steps itself, as if there were no other replicas."""

    def _train(self) -> None:
        player = self.learners[0]
        self.before_step(player)
        player.optimizers["q"].step(torch.ones_like(player.optimizers["q"].weights))
        self.after_step(player, {})
        self.safe_point()


def test_a_failure_of_one_replica_is_that_of_the_run(config: Data, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="in the second replica"):
        Trainer(config, run=tmp_path / "run", callbacks=[FailsInOne(None)]).fit()


def test_an_exchange_that_one_replica_alone_makes_is_told(config: Data, tmp_path: Path) -> None:
    message = "expected the same exchange by all replicas, got the end of an epoch by replica 0, a secret by replica 1"
    with pytest.raises(TrainingFailed, match=message):
        Trainer(config, run=tmp_path / "run", callbacks=[AsksInOne(None)]).fit()


def test_replicas_that_come_to_other_weights_fail_at_the_next_save(config: Data, tmp_path: Path) -> None:
    message = r"replica 1 has come to another state than replica 0: players\.(host|agent)\.nets\.q\.\S+ and \d+ more"
    with pytest.raises(TrainingFailed, match=message):
        Trainer(config, run=tmp_path / "run", callbacks=[DiffersInOne(None)]).fit()


def test_replicas_that_come_to_another_temperature_fail_at_the_next_save(tmp_path: Path) -> None:
    config = config_of("sac", pairwise(combinations_of("sac"))[0]) | {"num_replicas": NUM}
    message = r"replica 1 .* players\.\w+\.algorithm\.log_entropy_coefficient; expected equal ones"
    with pytest.raises(TrainingFailed, match=message):
        Trainer(config, run=tmp_path / "run", callbacks=[CoolsInOne(None)]).fit()


def test_a_common_state_that_is_not_there_is_told(
    config: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DQN, "common_state", ("temperature",))
    message = r"DQN has 'temperature' in common_state; expected an entry of its state_dict"
    with pytest.raises(TrainingFailed, match=message):
        Trainer(config, run=tmp_path / "run").fit()


def test_an_algorithm_that_learns_without_the_others_fails_at_its_first_opt_step(
    config: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palestra.algorithms.dqn.DQN", Selfish)
    with pytest.raises(
        TrainingFailed, match=r"Selfish has made an opt step without the other replicas; expected `grad"
    ):
        Trainer(config, run=tmp_path / "run").fit()


def test_a_trainer_that_makes_opt_steps_without_the_others_is_told_so(config: Data, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingFailed, match=r"\.ByItself has made an opt step .* expected `gradient, metrics = player"
    ):
        ByItself(config, run=tmp_path / "run").fit()


# ---- bad input ----------------------------------------------------------------------------------------


def test_a_number_that_is_no_power_of_two_is_refused(config: Data) -> None:
    with pytest.raises(ConfigError, match="num_replicas: expected 1 or a power of two, got 6"):
        Trainer(config | {"num_replicas": 6})


class Uncopied(torch.nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("there is one of it")


def test_networks_that_cannot_be_copied_are_refused(config: Data, tmp_path: Path) -> None:
    trainer = Trainer(config, run=tmp_path / "run")
    told = (
        r"num_replicas: expected 1, because set_model\('host', ...\) hands over what cannot be copied \(.*there is one"
    )
    with pytest.raises(ConfigError, match=told):
        trainer.set_model("host", {"net": Uncopied(1, 1)})
    assert not (tmp_path / "run").exists()
