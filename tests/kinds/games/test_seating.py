"""Who meets whom in worlds: pairings in blocks, past selves, results; stopped and resumed.

Covers palestra.kinds.games.meetings, palestra.players.past, palestra.rollouts.seated.
"""

import copy
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from combinations import GAMES
from conftest import TINY
from leagues import LEARNERS, NIM, league
from resuming import Killed, assert_same_bits, at_call, fit, kill, records, stopping_at

from palestra import ConfigError, load_player, make_trainer
from palestra.algorithms.dqn import DQN
from palestra.commands.replay import verify
from palestra.config import load_yaml
from palestra.evaluation.exploitability import action_probabilities
from palestra.games.nim import NimGame
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.imported_players import read_player
from palestra.kinds.games.seating import Met, Seating
from palestra.kinds.games.trainer import Trainer
from palestra.players import FromRunConfig
from palestra.players.past import PastPolicy, PrioritizedChoiceConfig
from palestra.report.page import write_report
from palestra.rollouts.fused import FusedGame
from palestra.run.branching import tree_differences
from palestra.run.checkpoints import CheckpointError, Checkpoints
from palestra.run.kinds import read_config
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.run_folder import RunFolder
from palestra.training.stored_training import StoredRun
from tests.report.parsing import Parsed

Data = dict[str, Any]
EVALUATORS: Data = {
    **{"num_processes": 1, "timeout_s": 600.0, "max_restarts": 0},
    "results": {"after": 6, "unit": "opt_steps"},
}


def nets_of(trainer: Any) -> Data:
    return {name: player.weights()["nets"] for name, player in trainer.players.items() if player.learning}


@pytest.mark.parametrize("learner", LEARNERS)
def test_one_pairing_as_in_roles_has_the_bits_of_null(learner: str, tmp_path: Path) -> None:
    config = league(LEARNERS[learner], normalized=True)
    player = config["players"]["main"]
    config |= {"players": {"main": player}}
    config["evaluations"][0]["pairings"] = [config["roles"]]
    with_null = fit(tmp_path / "null", config | {"players": {"main": player | {"meets": None}}})
    player["meets"] = [{"share": 1.0, "pairing": config["roles"]}]
    with_meets = fit(tmp_path / "meets", config | {"players": {"main": player}})
    assert list(tree_differences(nets_of(with_null), nets_of(with_meets))) == []
    assert list(tree_differences(with_null.game.state_dict(), with_meets.game.state_dict())) == []


def test_nobody_plays_beside_past_selves_before_they_are_copied() -> None:
    trainer = make_trainer(league(LEARNERS["dqn"]))
    with pytest.raises(ValueError, match=r"^expected fit, which copies past selves as 'past' .*sit as 'first' beside"):
        trainer.roll_out("first", 2)


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_run_stopped_and_killed_in_every_phase_ends_in_the_same_bits(learner: str, tmp_path: Path) -> None:
    config = league(LEARNERS[learner], normalized=learner != "sac", explores=learner != "ppo")
    uninterrupted, run, rng = fit(tmp_path / "uninterrupted", config), tmp_path / "run", random.Random(learner)
    stops = [stopping_at(2), at_call(Trainer, "_play", 2, kill), stopping_at(rng.randint(2, 5))]
    num_stops = 0
    for stop in [*stops, at_call(Trainer, "_play", rng.randint(1, 2), kill)]:
        with stop:
            try:
                num_stops += not fit(run, None if run.exists() else config).finished
            except Killed:
                num_stops += 1
    assert num_stops >= 2
    trainer = fit(run)
    assert list(tree_differences(uninterrupted.state_dict(), trainer.state_dict())) == []
    assert_same_bits(run, tmp_path / "uninterrupted")
    assert sorted(each.name for each in (run / "past").iterdir()) == sorted(
        each.name for each in (tmp_path / "uninterrupted" / "past").iterdir()
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a league with a checkpoint at every copy of `main`."""
    run = tmp_path_factory.mktemp("league") / "run"
    config = league(LEARNERS["dqn"], normalized=True)
    config["output"] |= {"save": {"every": 1, "unit": "opt_steps"}, "keep_every": 1}
    config["players"]["past"]["num_kept"] = 20
    fit(run, config)
    return run


def test_a_past_self_is_what_the_checkpoint_of_its_step_holds(stored: Path) -> None:
    latest = Trainer.load(stored)
    latest.fit()
    assert latest.seating is not None
    kept = latest.seating.past["past"].kept
    assert len(kept) > 4
    for opt_steps, own in kept.items():
        then = Checkpoints(RunFolder.open(stored), 1, None).load(f"@{opt_steps}").state
        assert list(tree_differences(then["players"]["main"]["nets"], own["player"]["nets"])) == []
        assert list(tree_differences(then["game"], own["game"])) == []
        assert own["counters"].keys() == set(latest.config.steps()), "else an extended run would have other copies"
        past_self = latest.seating.past["past"].past_self(opt_steps)
        assert list(tree_differences(own["player"]["nets"], past_self.player.weights()["nets"])) == []


def test_past_selves_are_found_where_no_checkpoint_is_kept(stored: Path, tmp_path: Path) -> None:
    config = load_yaml(stored / "config.yml")
    config["output"] |= {"save": {"every": 20, "unit": "opt_steps"}, "keep_every": None, "keep_last": 1}
    config["roles"] = {"first": "main", "second": "exploiter"}
    trainer = fit(tmp_path / "few", config)
    assert trainer.seating is not None
    *_, at, _ = trainer.seating.past["past"].kept
    there = {name: load_player(run, "main", f"@{at}") for name, run in (("few", tmp_path / "few"), ("all", stored))}
    assert list(tree_differences(there["few"].weights(), there["all"].weights())) == []
    with pytest.raises(RunFolderError, match=r"got 'past'; a past self is 'main' with checkpoint @N"):
        read_player(FromRunConfig(from_run=str(stored), player="past", checkpoint="latest"))
    for each in there.values():
        assert each.game is not None
    assert list(tree_differences(there["few"].game.state_dict(), there["all"].game.state_dict())) == []  # type: ignore[union-attr]
    origin = FromRunConfig(from_run=str(tmp_path / "few"), player="main", checkpoint=f"@{at}")
    assert list(tree_differences(read_player(origin).state["nets"], there["all"].weights()["nets"])) == []
    with pytest.raises(CheckpointError, match=rf"no checkpoint @{at + 1} .*copies of past selves @0, @"):
        load_player(tmp_path / "few", "main", f"@{at + 1}")
    for ask in (
        lambda: read_player(origin.model_copy(update={"player": "exploiter"})),
        lambda: load_player(tmp_path / "few", "exploiter", f"@{at}"),
    ):
        with pytest.raises(CheckpointError, match="'exploiter', got copies of main alone"):
            ask()
    for unknown in ("@abc", "@"):
        with pytest.raises(CheckpointError, match=f"no checkpoint {unknown}"):
            load_player(tmp_path / "few", "main", unknown)
    with pytest.raises(CheckpointError, match="no checkpoint @5 "):
        load_player("palestra:polyhedra-host", None, "@5")
    again = StoredRun.open(tmp_path / "few")
    again.load(f"@{at}")
    again.load("latest")  # with all players
    assert list(tree_differences(again.players["exploiter"].weights(), trainer.players["exploiter"].weights())) == []


def test_only_the_copies_that_are_needed_are_read(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, original = list[str](), Folder.read_exactly
    monkeypatch.setattr(Folder, "read_exactly", lambda *its: read.append(its[1]) or original(*its))

    def copies() -> list[str]:
        of_past = [name for name in read if name.endswith(".state")]
        read.clear()
        return of_past

    load_player(stored, "main", "latest")
    read_player(FromRunConfig(from_run=str(stored), player="main", checkpoint="latest"))
    opened = StoredRun.open(stored)
    opened.load("latest")
    assert copies() == []
    policy: Any = opened.players["past"].policy(False, "second")
    policy.past_self(one := [*policy.kept][1])
    assert [name.split("-")[1] for name in copies()] == [str(one)]
    other = next(each for each in (stored / "past").iterdir() if f"-{[*policy.kept][2]}-" in each.name)
    content = other.read_bytes()
    other.write_bytes(b"other")
    try:
        with pytest.raises(CheckpointError, match=f"^{re.escape(str(other))} is missing, or differs from what was"):
            policy.past_self([*policy.kept][2])
    finally:
        other.write_bytes(content)


def test_a_report_says_whom_each_player_has_met_and_how_past_selves_fare(
    stored: Path, few_figures: None, tmp_path: Path
) -> None:
    page = Parsed(write_report([stored], tmp_path / "report.html"))
    for heading in ("Who met whom", "Past selves"):
        assert f"{heading}</h2>" in page.html
    met = page.html.partition("Who met whom</h2>")[2].partition("Past selves</h2>")[0]
    assert re.findall(r"<h3>(.*?)</h3>", met) == ["Player main", "Player exploiter"]
    ended = [record["players"]["main"]["meets"] for record in records(stored) if record["kind"] == "training"]
    for block in ("second=past", "first=past"):
        [table] = [each for caption, each in page.tables.items() if f"main with {block}:" in caption]
        told = {f"past @{past['opt_steps']}" for each in ended for past in each.get(block, {}).get("past_selves", ())}
        assert {text for text, _ in table.column("past self")} <= told
        assert len(table.rows) > 2
    [cross] = [each for caption, each in page.tables.items() if "past selves of past among themselves" in caption]
    assert [row[0][0] for row in cross.rows[1:]] == [text for text, _ in cross.rows[0][1:]]
    shares = [value for row in cross.rows[1:] for _, value in row[1:]]
    assert len(shares) == 25
    assert all(share is not None and 0.0 <= share <= 1.0 for share in shares)


def test_evaluators_play_against_the_past_selves_of_the_moment(stored: Path, tmp_path: Path) -> None:
    config = load_yaml(stored / "config.yml") | {"evaluators": EVALUATORS}
    fit(tmp_path / "beside", config)
    own, beside = (
        [each for each in records(run) if each["kind"] == "evaluation"] for run in (stored, tmp_path / "beside")
    )
    assert len(own) == len(beside) > 2
    assert [each["pairs"] for each in own] == [each["pairs"] for each in beside]


@pytest.mark.parametrize("learner", ["dqn", "recurrent"])
def test_blocks_play_as_games_of_their_own(learner: str, tmp_path: Path) -> None:
    """Rows and results are those of each pairing alone in the same worlds; seats of others give no row."""
    trainer = fit(tmp_path / "run", league(LEARNERS[learner], explores=True))
    seating, game, main, num_rounds = trainer.seating, trainer.game, trainer.players["main"], 12
    assert seating is not None
    kept = seating.past["past"].kept
    _, middle, newest = kept
    kept[other := newest + 1] = negated = copy.deepcopy(kept[newest])  # it plays otherwise than they do
    for net in negated["player"]["nets"].values():
        for weight in [each for name, each in net.items() if name.endswith("weight")]:
            weight.mul_(-3.0)
    seating.seated["main"] = [{}, {"second": [other, newest]}, {"first": [middle, other]}]
    assert seating.copy([], trainer.counts(), trainer.replica) == {}  # of nobody: nobody is drawn anew
    together = FusedGame(game, {})
    worlds = together.new_worlds(8, 0, "test")
    seating.seat(together, "main", worlds, 0)
    rows = together.collect(worlds, NIM, num_rounds)
    assert worlds.results is not None
    seconds, firsts = [-1, -1, other, newest, newest, -1, -1, -1], [-1, -1, -1, -1, -1, middle, other, other]
    assert worlds.results.sitters.T.tolist() == [firsts, seconds]
    sums, num_places = worlds.results.take(), 0
    for block, seated in zip(seating.blocks["main"], seating.seated["main"], strict=True):
        for number, place in enumerate(next(iter(block.shares.values()), [block.worlds])):
            policies: dict[str, Any] = {role: main.policy(True) for role in NIM}
            for role, past in seated.items():
                policies[role] = trainer.players["past"].policy(False, role).past_self(past[number])  # type: ignore[attr-defined]
            alone = FusedGame(game, policies)
            there = alone.new_worlds(len(place), 0, "test", first=place.start)
            expected = alone.collect(there, tuple(role for role in NIM if role not in seated), num_rounds)
            for role in NIM:
                here = torch.arange(num_rounds * 8).view(num_rounds, 8)[:, place.start : place.stop].flatten()
                own = rows[role].at(here)
                if role not in expected:
                    assert not own.valid.any()
                    continue
                valid = expected[role].valid
                assert own.valid.equal(valid)
                own, alone_rows = own.at(valid.nonzero()[:, 0]).rows(), expected[role].at(valid.nonzero()[:, 0]).rows()
                torch.testing.assert_close(own, alone_rows)  # other batch sizes round otherwise
            totals, of_place = alone.take_totals(there), sums[place.start : place.stop].sum(dim=0).tolist()
            assert of_place[:3] == [totals["episodes"], *(totals[f"return/{role}"] for role in NIM)]
            assert of_place[3:] == [(of_place[0] + of_place[number]) / 2 for number in (1, 2)]
            num_places += 1
    assert num_places == 5


def test_seats_of_others_move_no_running_statistic(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = fit(tmp_path / "run", league(LEARNERS["dqn"], normalized=True))
    game, asked = trainer.game, list[tuple[Any, ...]]()
    assert trainer.seating is not None
    assert isinstance(game, NimGame)
    assert game.observation_transform is not None
    monkeypatch.setattr(
        NimGame, "transformed", lambda game, role, seen, counted=None: asked.append((role, counted)) or seen
    )
    played = FusedGame(game, {})
    worlds = played.new_worlds(8, 0, "test")
    trainer.seating.seat(played, "main", worlds, 0)
    deciding = game.deciding(worlds.state)
    played.collect(worlds, NIM, 1)
    for role, counted in [each for each in asked if each[1] is not None]:
        held = torch.ones(8, dtype=torch.bool)
        held[slice(2, 5) if role == "second" else slice(5, 8)] = False
        assert counted.equal(deciding[:, NIM.index(role)] & held)
    assert {role for role, counted in asked if counted is not None} == {*NIM}


def test_a_game_whose_sitter_changes_is_cut_off_and_counts_for_nobody(tmp_path: Path) -> None:
    trainer = fit(tmp_path / "run", league(LEARNERS["recurrent"], explores=True))
    seating = trainer.seating
    assert seating is not None
    game = FusedGame(trainer.game, {})
    worlds = game.new_worlds(8, 0, "test")
    seating.seat(game, "main", worlds, 0)
    game.collect(worlds, NIM, 2)
    assert worlds.results is not None
    worlds.results.take()
    awaiting = worlds.awaiting[5:, 1] & ~worlds.done[5:, 1] & (worlds.lengths[5:] > 0)
    cut = 5 + int(awaiting.nonzero()[0])  # where `main` has moved as second
    new = worlds.results.sitters.clone()
    new[cut, 0] = 1000
    remembered = copy.deepcopy(worlds.memory["second"])
    game.seat(worlds, new)
    assert worlds.truncated_pending.nonzero().tolist() == [[cut]]
    assert not any(bool(value[cut].any()) for name, value in worlds.memory["first"].items())
    assert any(bool(value[cut].any()) for value in remembered.values())  # who stays still observes where it was cut off
    assert list(tree_differences(remembered, worlds.memory["second"])) == []
    rows = game.collect(worlds, NIM, 2)["second"]
    own = rows.at(torch.tensor([cut, 8 + cut]))
    assert own.valid.sum() == 1
    assert (own.truncated | own.terminated)[own.valid].all()
    assert worlds.results.take()[cut, 0] == 0
    assert worlds.lengths[cut] == 0  # the next game begins


def test_results_are_told_once_by_whom_the_player_has_met(tmp_path: Path) -> None:
    trainer = fit(tmp_path / "run", league(LEARNERS["dqn"]))
    seating, worlds = trainer.seating, trainer.players["main"].worlds
    one, _, other = seating.past["past"].kept
    seating.take("main", trainer.replica)
    seating.scores["main"].clear()
    worlds.results.sitters[2, 1], worlds.results.sitters[5, 0] = one, other
    for world, ended in {0: [4, 0, 0, 2, 2], 2: [3, 1, -1, 2, 1], 5: [2, 2, -2, 2, 0]}.items():
        worlds.results.sums[world] = torch.tensor(ended)
    as_first, as_second = {"games": 3.0, "return": 1 / 3, "won": 2 / 3}, {"games": 2.0, "return": -1.0, "won": 0.0}
    assert seating.take("main", trainer.replica) == {
        "itself": {"games": 4.0, "return": 0.0},
        "second=past": {**as_first, "past_selves": [{"player": "past", "opt_steps": one, **as_first}]},
        "first=past": {**as_second, "past_selves": [{"player": "past", "opt_steps": other, **as_second}]},
    }
    assert seating.take("main", trainer.replica) == {}
    with_past = {met: scores.tolist() for met, scores in seating.scores["main"].items() if met.role}
    assert with_past == {Met(1, "second", one): [3.0, 2.0], Met(2, "first", other): [2.0, 0.0]}


def test_draws_have_the_probabilities_of_the_choice(tmp_path: Path) -> None:
    """Within 4.5 standard deviations over 10,000 draws, by shares lost of .9, .5, .1 and none played."""
    seating = Seating(make_trainer(league(LEARNERS["dqn"]), run=tmp_path / "run").parts)
    lost = {1: 0.9, 2: 0.5, 3: 0.1}
    weights = np.array([((100 * lost[n] + 2) / 104) ** 2 if n in lost else 0.25 for n in (1, 2, 3, 4)])
    counts, num_equal = np.zeros(5), 0
    for number in range(2500):
        kept, drawn = seating.past["past"].kept, list[int]()
        kept.clear()
        kept.update({past: {} for past in (1, 2, 3, 100 + number)})
        for met in (Met(1, "second"), Met(2, "first")):
            scores = {met._replace(past=n): np.array([100.0, 100 * (1 - lost[n])]) for n in lost}
            drawn += (pair := seating.drawn("main", met, 2, scores))
            num_equal += pair[0] == pair[1]
        counts += np.bincount(np.minimum(drawn, 4), minlength=5)
    expected = 10_000 * weights / weights.sum()
    assert counts.sum() == 10_000
    assert (np.abs(counts[1:] - expected) < 4.5 * np.sqrt(expected)).all()
    share = float(((weights / weights.sum()) ** 2).sum())  # of pairs that are equal by chance
    assert abs(num_equal - 5000 * share) < 4.5 * np.sqrt(5000 * share)


def test_a_branch_keeps_fewer_and_one_without_changes_has_the_same_bits(stored: Path, tmp_path: Path) -> None:
    same = Trainer.branch(stored / "checkpoints" / "00000006", [], run=tmp_path / "same")
    same.fit()
    assert list(tree_differences(Trainer.load(stored).config.model_dump(), same.config.model_dump())) == []
    whole = Trainer.load(stored)
    whole.fit()
    assert list(tree_differences(whole.state_dict()["past"], same.state_dict()["past"])) == []
    assert list(tree_differences(nets_of(whole), nets_of(same))) == []
    changes = ["players.past.num_kept=2", "players.past.choice={name: uniform}", "output.keep_every=null"]
    fewer = Trainer.branch(stored / "checkpoints" / "00000006", changes, run=tmp_path / "fewer")
    fewer.fit()
    assert fewer.seating is not None
    assert len(fewer.seating.past["past"].kept) == 2
    assert len([*(tmp_path / "fewer" / "past").iterdir()]) < len([*(stored / "past").iterdir()])
    with pytest.raises(ConfigError, match="interval"):
        Trainer.branch(stored / "checkpoints" / "00000006", ["players.past.interval=5"], run=tmp_path / "other")


def test_a_stretch_is_verified_and_a_mirror_holds_the_copies(stored: Path, tmp_path: Path) -> None:
    assert verify(stored, "00000012").difference is None
    config = load_yaml(stored / "config.yml")
    config["players"]["past"]["num_kept"] = 3
    keys: Data = {"options": {}, "attempts": 1, "first_wait_s": 0.0, "end_wait_s": 60.0}
    mirror = {"mirror": {"url": f"file://{tmp_path}/mirrors"} | keys, "keep_every": None, "keep_last": 1}
    of_last = {"keep_every": None, "keep_last": 8}
    uninterrupted = fit(tmp_path / "uninterrupted", config | {"output": config["output"] | of_last})
    kept = Checkpoints(RunFolder.open(tmp_path / "uninterrupted"), 8, None)
    named = [{*kept.load(number).manifest.once["past"]} for number in kept.numbers()]  # raises if one is missing
    assert named[0] - named[-1], "older checkpoints name older copies"
    with stopping_at(12):
        assert not fit(tmp_path / "run", config | {"output": config["output"] | mirror}).finished
    there = sorted(each.name for each in (tmp_path / "mirrors" / "run" / "past").iterdir())
    assert there == sorted(each.name for each in (tmp_path / "run" / "past").iterdir())
    shutil.rmtree(tmp_path / "run")
    again = Trainer.load(f"file://{tmp_path}/mirrors/run", into=tmp_path / "again")
    again.fit()
    assert list(tree_differences(uninterrupted.state_dict(), again.state_dict())) == []


MEETS = "players.main.meets"
FAULTS: dict[str, tuple[Data, str]] = {
    "shares": ({f"{MEETS}.0.share": 0.5}, f"{MEETS}: expected shares that add up to 1.0, got 1.25"),
    "less than all": ({f"{MEETS}.0.share": 0.125}, f"{MEETS}: expected shares that add up to 1.0, got 0.875"),
    "no whole number": (
        {f"{MEETS}.0.share": 0.3, f"{MEETS}.1.share": 0.325},
        f"{MEETS}.0.share: expected a whole number of the 8 worlds, such as 0.25 or 0.375, got 0.3 (2.4 worlds)",
    ),
    "fewer than seated": (
        {"players.past.num_seated": 4, "players.past.num_kept": 4},
        f"{MEETS}.1.share: expected at least 4 worlds, players.past.num_seated, got 0.375 (3 of 8)",
    ),
    "without a role": (
        {f"{MEETS}.0.pairing": {"first": "main"}},
        f"{MEETS}.0.pairing.second: expected a player of this file (main, exploiter, past), but the key is missing",
    ),
    "without itself": (
        {f"{MEETS}.1.pairing": {"first": "past", "second": "exploiter"}},
        f"{MEETS}.1.pairing: expected 'main' in one of its roles, got past, exploiter",
    ),
    "nobody": (
        {f"{MEETS}.1.pairing.second": "rival"},
        f"{MEETS}.1.pairing.second: expected a player of this file (main, exploiter, past), got 'rival'; a new one "
        "needs players.rival",
    ),
    "a scripted one by its name alone": (
        {f"{MEETS}.1.pairing.second": "random"},
        f"{MEETS}.1.pairing.second: expected a player of this file (main, exploiter, past), got 'random'; a new one "
        "needs players.NAME={scripted: random}",
    ),
    "twice": (
        {f"{MEETS}.2.pairing": {"first": "main", "second": "past"}},
        f"{MEETS}: expected each pairing once, with the whole of its share, got second=past twice",
    ),
    "a class of one's own": (
        {"players.main.meets.1.pairing.second": "own:Last"},
        f"{MEETS}.1.pairing.second: expected a player of this file (main, exploiter, past), got 'own:Last'; a new one "
        "needs players.NAME={scripted: own:Last}",
    ),
    "a past of nobody": (
        {"players.past.past_of": "rival"},
        "players.past.past_of: expected a player that learns of this file (main, exploiter), got 'rival'; a new one "
        "needs players.rival",
    ),
    "a past of past selves": (
        {"players.past.past_of": "past"},
        "players.past.past_of: expected a player that learns of this file (main, exploiter), got 'past'",
    ),
    "a learner that sits nowhere": (
        {"players.exploiter.meets": None},
        "players.exploiter: expected a player that sits in a role, in its own `meets`, or without learning in a "
        "pairing, got one that does none of it",
    ),
    "more seated than kept": (
        {"players.past.num_seated": 3, "players.past.num_kept": 2},
        "players.past.num_seated: expected at most num_kept = 2, got 3",
    ),
    "in roles": (
        {"roles.second": "past"},
        "roles.second: expected a player as it is now (past selves sit in pairings), got 'past'",
    ),
    "together": (
        {"trainer": {"name": "together"}},
        f"{MEETS}: expected null with trainer 'together', whose players share their worlds, got a list",
    ),
}


@pytest.mark.parametrize("name", ["m" * 180, "é" * 30])
def test_the_longest_name_is_saved_and_a_longer_one_refused(name: str, tmp_path: Path) -> None:
    def named(name: str) -> Data:
        config: Data = json.loads(json.dumps(league(LEARNERS["dqn"])).replace('"past"', json.dumps(name)))
        return config | {"evaluations": [], "best": None, "stop": {"after": 1, "unit": "opt_steps"}}

    longer = name + name[0]
    with pytest.raises(
        ConfigError, match=rf"^players\.{longer}: expected a name that takes at most 180 bytes in names"
    ):
        make_trainer(named(longer))
    fit(tmp_path / "run", named(name))
    [file, *_] = (each.name for each in (tmp_path / "run" / "past").iterdir())
    assert file.startswith(f"{quote(name)}-0-")


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_refused_in_a_line(fault: str) -> None:
    config, (changes, told) = league(LEARNERS["dqn"]), FAULTS[fault]
    for path, value in changes.items():
        *keys, last = (int(key) if key.isdecimal() else key for key in path.split("."))
        part: Any = config
        for key in keys:
            part = part[key]
        part[last] = value
    with pytest.raises(ConfigError) as raised:
        make_trainer(config)
    assert told in str(raised.value).splitlines()


def test_a_pairing_is_the_same_in_another_order_of_its_roles() -> None:
    config = league(LEARNERS["dqn"]) | {"game": GAMES["harvest"]["discrete"]}
    pairing = {"farmer_0": "main", "farmer_1": "exploiter", "farmer_2": "past"}
    meets = [{"share": 0.5, "pairing": each} for each in (pairing, dict(reversed(pairing.items())))]
    config["players"]["main"]["meets"] = meets
    with pytest.raises(
        ConfigError, match=r"meets: expected each pairing once, .*, got farmer_1=exploiter,farmer_2=past"
    ):
        read_config(config)


def test_check_says_who_meets_whom() -> None:
    config: RunConfig = read_config(league(LEARNERS["dqn"]))
    assert config.plan()[-5:] == [
        "worlds of main: 2 of 8 with first main, second main",
        "worlds of main: 3 of 8 with first main, second past (2 past selves at a time in second)",
        "worlds of main: 3 of 8 with first past, second main (2 past selves at a time in first)",
        "worlds of exploiter: 4 of 8 with first exploiter, second main",
        "worlds of exploiter: 4 of 8 with first main, second exploiter",
    ]
    one: RunConfig = read_config(league(LEARNERS["dqn"]), ["players.past.num_seated=1"])
    assert one.plan()[-4] == "worlds of main: 3 of 8 with first main, second past (1 past self at a time in second)"


def make_wide() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 7), torch.nn.Tanh(), torch.nn.Linear(7, 6))


def test_past_selves_have_the_networks_that_set_model_names(tmp_path: Path) -> None:
    trainer = make_trainer(league(LEARNERS["dqn"]), run=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"players\.past\.past_of: .* those of set_model are not built once more"):
        trainer.set_model("first", make_wide())
    trainer.set_model("first", make_wide)
    trainer.fit()
    _, kept = trainer.seating.past["past"].kept.popitem()
    assert kept["player"]["nets"]["q"]["1.weight"].shape == (7, 8)


def test_a_player_outside_of_roles_is_named_where_networks_are_handed_over(tmp_path: Path) -> None:
    trainer = make_trainer(league(LEARNERS["dqn"]), run=tmp_path / "run")
    with pytest.raises(ValueError, match=r"expected one of the roles exploiter, first, second before the networks"):
        trainer.set_model(make_wide())
    trainer.set_model("exploiter", make_wide())
    with stopping_at(9):
        trainer.fit()
    with pytest.raises(RunFolderError, match=r"models=\{'exploiter': \.\.\.\}"):
        Trainer.load(tmp_path / "run").fit()
    again = Trainer.load(tmp_path / "run", models={"exploiter": make_wide()})
    again.fit()
    stored = StoredRun.open(tmp_path / "run", models={"exploiter": make_wide()})
    stored.load("latest")
    assert list(tree_differences(stored.players["exploiter"].weights(), again.players["exploiter"].weights())) == []
    with pytest.raises(ValueError, match=r"expected one of the roles exploiter, first, second, got 'past'"):
        Trainer.load(tmp_path / "run", models={"past": make_wide()})


def test_past_hosts_and_agents_of_the_polyhedra_game(few_figures: None, tmp_path: Path) -> None:
    config = copy.deepcopy(TINY)
    for own, other in (("host", "agent"), ("agent", "host")):
        pairings = [{own: own, other: other}, {own: own, other: f"past_{other}"}]
        config["players"][own]["meets"] = [{"share": 0.5, "pairing": pairing} for pairing in pairings]
        past = {"past_of": own, "interval": 4, "num_kept": 5, "num_seated": 2, "explores": True}
        config["players"][f"past_{own}"] = past | {"choice": {"name": "prioritized", "power": 1.0, "prior_games": 2.0}}
    uninterrupted = fit(tmp_path / "uninterrupted", config)
    with stopping_at(9):
        assert not fit(tmp_path / "run", config).finished
    again = fit(tmp_path / "run")
    assert list(tree_differences(uninterrupted.state_dict(), again.state_dict())) == []
    training = [each for each in records(tmp_path / "run") if each["kind"] == "training"]
    met = {whom: told for each in training for whom, told in each["players"]["host"]["meets"].items()}
    assert set(met) == {"agent=agent", "agent=past_agent"}
    assert all(0.0 <= each["won"] <= 1.0 for each in met.values())
    wide, swapped = copy.deepcopy(config), copy.deepcopy(config)
    wide["evaluations"][0] |= {
        "game": config["game"] | {"dimension": 4},
        "pairings": [{"host": "past_host", "agent": "random"}],
    }
    swapped["players"]["host"]["meets"][0]["pairing"] = {"host": "agent", "agent": "host"}
    for faulty, told in (
        (
            wide,
            r"^evaluations\.0\.game: expected a game in which 'past_host' can play as 'host'; its network q has",
        ),
        (
            swapped,
            r"^players\.host: expected 'agent' to observe and act like 'host', for 'host' sits in both",
        ),
    ):
        with pytest.raises(ConfigError, match=told):
            make_trainer(faulty | {"best": None})
    page = Parsed(write_report([tmp_path / "run"], tmp_path / "report.html"))
    [cross] = [each for caption, each in page.tables.items() if "of past_host against those of past_agent" in caption]
    kept = {name: [f"@{at}" for at in again.seating.past[f"past_{name}"].kept] for name in ("host", "agent")}
    assert [row[0][0] for row in cross.rows[1:]] == kept["host"]
    assert [text for text, _ in cross.rows[0][1:]] == kept["agent"]


EPSILON = {"name": "constant", "value": 0.4}
EXPLORATIONS = """
from palestra.algorithms.parts.exploration import EpsilonGreedyConfig, UserExploration
from palestra.randomness import random_choice


class Often(UserExploration, EpsilonGreedyConfig):
    name: str

    def choose(self, q, legal, keys, epsilon):
        return random_choice(keys, legal)


class First(Often):
    def choose(self, q, legal, keys, epsilon):
        return legal.int().argmax(1)
"""


def test_past_selves_that_explore_are_exploited_by_their_probabilities(in_tmp_path: Path) -> None:
    config = league(LEARNERS["dqn"], explores=True)
    exploited = {"name": "exploitability", "roles": {"row": "past", "column": "past"}, "max_positions": 4}
    evaluation = {
        "name": "main",
        "num_games": 1,
        "final_num_games": 1,
        "seed": None,
        "at_start": True,
        "interval": None,
    }
    pennies = [[[1.0, -1.0], [-1.0, 1.0]], [[-1.0, 1.0], [1.0, -1.0]]]
    players = {name: config["players"][name] for name in ("main", "past")}
    players["main"]["algorithm"] = LEARNERS["dqn"] | {"exploration": {"name": "epsilon_greedy", "epsilon": EPSILON}}
    players["main"]["meets"] = [{"share": 1.0, "pairing": {"row": "main", "column": "past"}}]
    config |= {"players": players, "roles": dict.fromkeys(("row", "column"), "main"), "best": None}
    config["game"] = {
        "name": "matrix",
        "payoffs": pennies,
        "num_rounds": 1,
        "observation": config["game"]["observation"],
    }
    trainer = make_trainer(config | {"evaluations": [evaluation | {"played_by": exploited}]}, run=Path("run"))
    for num_kept in (0, 1):
        assert len(trainer.seating.past["past"].kept) == num_kept
        found = trainer.evaluations.play("main", 1, with_scripted=True)["pairs"][0]["scores"]
        assert found["exploitability"] == pytest.approx(0.6), "it plays one side with probability 0.8"
        trainer.seating.copy(["past"], trainer.counts(), trainer.replica)
    (in_tmp_path / "own_explorations.py").write_text(EXPLORATIONS)
    own = players["main"]["algorithm"]["exploration"]
    own["name"], config["evaluations"] = "own_explorations:Often", [evaluation | {"played_by": exploited}]
    with pytest.raises(ConfigError, match=r"roles\.row: expected .*, or whose own class or exploration has `probab"):
        make_trainer(config)
    own["name"] = "own_explorations:First"
    found = make_trainer(config).evaluations.play("main", 1, with_scripted=True)["pairs"][0]["scores"]
    assert found["exploitability"] == 1.0, "it draws nothing"


def test_before_there_is_a_copy_a_past_self_is_the_player_as_it_is_now(tmp_path: Path) -> None:
    config = league(LEARNERS["dqn"], normalized=True)
    config["evaluations"][0]["pairings"] += [dict.fromkeys(NIM, "main")]
    trainer = make_trainer(config, run=tmp_path / "run")
    past, now = (each["scores"] for each in trainer.evaluations.play("main", 12, with_scripted=True)["pairs"])
    assert past == now


def test_the_mixture_of_past_selves_is_exploited_in_games_of_one_round(tmp_path: Path) -> None:
    config = league(LEARNERS["ppo"] | {"evaluation": "sampled"})
    exploited = {"roles": dict.fromkeys(NIM, "past"), "max_positions": 1000}
    evaluation = {"num_games": 1, "final_num_games": 1, "seed": None, "at_start": True, "interval": None}
    config["evaluations"] = [{"name": "main", **evaluation, "played_by": {"name": "exploitability", **exploited}}]
    config["best"] = None
    with pytest.raises(
        ConfigError, match="first: expected one player, because games have more than one round, got 'past'"
    ):
        make_trainer(config, run=tmp_path / "nim")
    seats = {"row": "main", "column": "main"}
    payoffs = [[[x, -x] for x in row] for row in ([0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0])]
    config["game"] = {
        "name": "matrix",
        "payoffs": payoffs,
        "num_rounds": 1,
        "observation": config["game"]["observation"],
    }
    config["players"] = {name: config["players"][name] for name in ("main", "past")}
    pairings = [{"row": "main", "column": "past"}, {"row": "past", "column": "main"}]
    config["players"]["main"]["meets"] = [{"share": 0.5, "pairing": each} for each in pairings]
    config["evaluations"][0]["played_by"]["roles"] = {"row": "past", "column": "past"}
    trainer = fit(tmp_path / "run", config | {"roles": seats, "stop": {"after": 40, "unit": "opt_steps"}})
    table, kept = torch.tensor(payoffs)[:, :, 0].double(), trainer.seating.past["past"].kept
    assert len(kept) == 3
    game, mixed = trainer.game, {}
    for role in ("row", "column"):
        script: Any = trainer.players["past"].policy(False, role)
        told = [
            action_probabilities(script.past_self(each), game, role, game.reset(torch.zeros(1).long())) for each in kept
        ]  # type: ignore[attr-defined]
        mixed[role] = torch.stack(told).mean(0)[0]
    of_both = [-float((mixed["row"] @ table).min()), float((table @ mixed["column"]).max())]  # its value is 0
    [*_, last] = [each for each in records(tmp_path / "run") if each["kind"] == "evaluation"]
    assert (last["pairs"][0]["learned"], last["pairs"][0]["past"]) == (["row", "column"], ["row", "column"])
    found = last["pairs"][0]["scores"]
    assert found["exploitability"] == pytest.approx(sum(of_both) / 2, abs=1e-6)
    assert found["exploitability"] > 0.01


def test_a_missing_number_of_worlds_is_told_beside_meetings() -> None:
    config = league(LEARNERS["dqn"]) | {"num_worlds": {"main": 8}}
    with pytest.raises(
        ConfigError, match=r"num_worlds\.exploiter: expected an integer >= 1 for each player that learns"
    ):
        make_trainer(config)


def test_a_run_that_saves_nothing_keeps_its_past_selves_in_memory(tmp_path: Path) -> None:
    config = league(LEARNERS["dqn"])
    config["output"] |= {"save": None}
    trainer = fit(tmp_path / "run", config)
    assert len(kept := trainer.seating.past["past"].kept) == 3
    assert 0 not in kept, "the oldest goes"
    assert not (tmp_path / "run" / "past").exists()


def test_branches_may_replace_past_selves_and_change_exploration(tmp_path: Path) -> None:
    config = league(LEARNERS["dqn"], explores=True) | {"actors": {"num": 2, "lag": 1}}
    config["output"] |= {"save": {"every": 8, "unit": "opt_steps"}}
    config["evaluations"], config["best"] = [], None
    fit(tmp_path / "run", config)
    place, stop = tmp_path / "run" / "checkpoints" / "latest", "stop.after=40"
    replaced = Trainer.branch(place, [stop], replace={"past": "random"}, run=tmp_path / "replaced")
    replaced.fit()
    assert set(records(tmp_path / "replaced")[-1]["players"]["main"]["meets"]) <= {
        "itself",
        "second=past",
        "first=past",
    }
    softmax = "players.main.algorithm.exploration={name: softmax, temperature: {name: constant, value: 1.0}}"
    changed = Trainer.branch(place, [stop, softmax], run=tmp_path / "changed")
    changed.fit()
    assert changed.finished


def test_all_past_selves_meet_all_in_evaluations(stored: Path) -> None:
    opened = StoredRun.open(stored)
    opened.load("latest")
    first, second = (opened.players["past"].policy(False, role) for role in NIM)
    assert isinstance(first, PastPolicy)
    num = len(first.kept) ** 2
    state, keys = opened.game.reset(torch.arange(num)), torch.arange(num)
    legal = torch.ones(num, 6, dtype=torch.bool)
    memories = [policy.act(state, legal, keys, {}).memory for policy in (first, second)]
    sat = [memory["self"].tolist() for memory in memories]
    assert len({*zip(*sat, strict=True)}) == num
    later = [
        policy.act(state, legal, keys + 7, own).memory["self"]
        for policy, own in zip((first, second), memories, strict=True)
    ]
    assert [each.tolist() for each in later] == sat, "they stay for the whole game"


def test_what_an_algorithm_does_with_the_state_of_a_past_self_changes_no_copy(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = StoredRun.open(stored)
    opened.load("latest")
    policy: Any = opened.players["past"].policy(False, "first")
    monkeypatch.setattr(DQN, "load_acting_state", lambda algorithm, state: state.update(changed=True))
    policy.past_self(at := next(iter(policy.kept)))
    assert "changed" not in policy.kept[at]["player"]["acting"]


def test_past_selves_alone_are_evaluated_at_every_interval(tmp_path: Path) -> None:
    config = league(LEARNERS["dqn"])
    pairings = [{"first": "past", "second": "random"}, {"first": "random", "second": "random"}]
    config["evaluations"][0]["pairings"] = pairings
    fit(tmp_path / "run", config)
    assert (tmp_path / "run" / "checkpoints" / "best").exists()  # `best` names the pairing of past selves alone
    found = [len(each["pairs"]) for each in records(tmp_path / "run") if each["kind"] == "evaluation"]
    assert found == [2, 1, 1, 2]  # of those that do not change, at the start and the end alone


def test_a_large_power_draws_whom_the_player_loses_to_most() -> None:
    choice = PrioritizedChoiceConfig(name="prioritized", power=1e4, prior_games=1.0)
    weights = choice.weights(np.array([10.0, 10.0, 0.0]), np.array([2.0, 9.0, 0.0]))
    assert weights.tolist() == [1.0, 0.0, 0.0]
