"""Transition builders: n-step sums against a plain reference, over any ends, gaps and roll-outs."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import Probe

from palestra.config import ConfigError, check
from palestra.games.nim import NimConfig, NimGame
from palestra.games.normalization import UNCHANGED
from palestra.games.world import TensorWorld
from palestra.players import make_script
from palestra.rollouts.fused import FusedGame
from palestra.rollouts.n_step import NStep, NStepConfig, OneStepConfig
from palestra.rollouts.solo import SoloGame
from palestra.rollouts.transitions import Transitions, join_roles

CPU = torch.device("cpu")
GAMMA = 0.9
KINDS = ("nothing", "goes on", "terminated", "truncated", "begun anew")

Told = dict[float, tuple[float, float, float, bool, bool]]
"""What rows say, by the decision's number: reward, discount, next observation, terminated, truncated."""


def n_step(steps: int, num_rounds: int, moves: tuple[str, ...] = ("a",)) -> NStep:
    config = NStepConfig(name="n_step", steps=steps)
    builder = config.build(GAMMA, num_rounds, moves, CPU)
    assert isinstance(builder, NStep)
    return builder


def told(rows: Transitions) -> Told:
    """What the valid rows say, which are to be of different decisions."""
    discount = rows.extras.get("discount", torch.full_like(rows.reward, GAMMA))
    columns = (rows.reward, discount, rows.next_observation["at"], rows.terminated, rows.truncated)
    values = zip(*(column[rows.valid].tolist() for column in columns), strict=True)
    numbers = rows.observation["at"][rows.valid].tolist()
    assert len(set(numbers)) == len(numbers)
    assert torch.equal(rows.action[rows.valid], rows.observation["at"][rows.valid].long())
    assert torch.equal(rows.next_legal[rows.valid][:, 0], rows.next_observation["at"][rows.valid] > 0)
    assert torch.equal(rows.legal[rows.valid][:, 0], rows.observation["at"][rows.valid] % 2 == 0)
    assert torch.equal(rows.extras["own"][rows.valid], rows.observation["at"][rows.valid] + 0.5)
    return dict(zip(numbers, values, strict=True))


class Chain:
    """Decisions of one role in one world, made up: every one has a number of its own, by which it is seen."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float, bool, bool, bool]] = []

    def add(self, number: float, kind: str, reward: float, next_number: float) -> None:
        ends = (kind == "terminated", kind == "truncated", kind == "begun anew")
        self.rows.append((number, reward, next_number, *ends))

    def n_step_rows(self, steps: int) -> Told:
        """Plainly, decision by decision, what is complete by now."""
        made: Told = {}
        for first, (number, *_) in enumerate(self.rows):
            total, factor = 0.0, 1.0
            for place in range(first, min(first + steps, len(self.rows))):
                _, reward, after, terminated, truncated, begun_anew = self.rows[place]
                total += factor * reward
                factor *= GAMMA
                known_to_be_new = begun_anew and place + 1 < len(self.rows)
                if terminated or truncated or known_to_be_new or place == first + steps - 1:
                    made[number] = (total, factor, after, terminated, truncated)
                    break
        return made


def test_a_sum_ends_with_its_game_even_where_the_next_game_begins_alike() -> None:
    """All observations are the same, so that only the flags tell the games apart."""
    zeros, no = torch.zeros(4), torch.zeros(4, dtype=torch.bool)
    flags = torch.ones(4, 1, dtype=torch.bool)
    rows = Transitions(
        observation={"at": zeros},
        action=zeros.long(),
        reward=torch.tensor([1.0, 2.0, 4.0, 8.0]),
        next_observation={"at": zeros},
        next_legal=flags,
        terminated=torch.tensor([False, True, False, False]),
        truncated=torch.tensor([False, False, True, False]),
        valid=~no,
        extras={},
        legal=flags,
    )
    summed = n_step(3, 4)(rows)
    assert summed.reward[summed.valid].tolist() == pytest.approx([1.0 + GAMMA * 2.0, 2.0, 4.0])
    assert summed.extras["discount"][summed.valid].tolist() == pytest.approx([GAMMA**2, GAMMA, GAMMA])


@st.composite
def roll_outs(draw: st.DrawFn) -> dict[str, Any]:
    moves = draw(st.sampled_from([("a",), ("a", "b"), ("a", "b", "a"), ("b", "b")]))
    num_worlds, num_rounds = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    num_rows = num_worlds * num_rounds * len(moves)
    row = st.tuples(st.sampled_from(KINDS), st.integers(-4, 4))
    number = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(row, min_size=num_rows, max_size=num_rows), min_size=number, max_size=number))
    return {"moves": moves, "num_worlds": num_worlds, "num_rounds": num_rounds, "rows": rows}


def play(data: dict[str, Any]) -> list[tuple[Transitions, list[Chain]]]:
    """The roll-outs, each with the chains as they are after it."""
    chains: dict[tuple[str, int], Chain] = {}
    sees: dict[tuple[str, int], float] = {}
    number, played = 1.0, []
    for rows in data["rows"]:
        columns: dict[str, list[Any]] = {name: [] for name in ("at", "reward", "after", "kind")}
        for place, (kind, reward) in enumerate(rows):
            role = data["moves"][place // data["num_worlds"] % len(data["moves"])]
            where = (role, place % data["num_worlds"])
            at, after, number = sees.get(where, number), number + 1.0, number + 2.0
            if kind == "nothing":
                at, after = -9.0, -9.0
            else:
                chains.setdefault(where, Chain()).add(at, kind, reward, after)
                sees[where] = after if kind == "goes on" else number
                number += 1.0
            for name, value in (("at", at), ("reward", float(reward)), ("after", after), ("kind", kind)):
                columns[name].append(value)
        at_, after_ = torch.tensor(columns["at"]), torch.tensor(columns["after"])
        flags = {kind: torch.tensor([value == kind for value in columns["kind"]]) for kind in KINDS}
        experience = Transitions(
            observation={"at": at_},
            action=at_.long(),
            reward=torch.tensor(columns["reward"]),
            next_observation={"at": after_},
            next_legal=(after_ > 0).unsqueeze(1),
            terminated=flags["terminated"],
            truncated=flags["truncated"],
            valid=~flags["nothing"],
            extras={"own": at_ + 0.5},
            legal=(at_ % 2 == 0).unsqueeze(1),
        )
        played.append((experience, copy.deepcopy(list(chains.values()))))
    return played


def assert_equal(found: Told, expected: Told) -> None:
    assert found.keys() == expected.keys()
    for number, row in expected.items():
        assert found[number] == pytest.approx(row, rel=1e-5, abs=1e-5)


@settings(max_examples=300)
@given(data=roll_outs(), steps=st.integers(1, 4), reload=st.booleans())
def test_n_step_rows_are_those_of_a_plain_reference(data: dict[str, Any], steps: int, reload: bool) -> None:
    """Every decision is told once, as soon as its sum is complete, also by a builder that was loaded in between."""
    builder = n_step(steps, data["num_rounds"], data["moves"])
    before: set[float] = set()
    for experience, chains in play(data):
        made = builder(experience)
        expected = {number: row for chain in chains for number, row in chain.n_step_rows(steps).items()}
        assert_equal(told(made), {number: row for number, row in expected.items() if number not in before})
        before |= expected.keys()
        if reload:
            state = copy.deepcopy(builder.state_dict())
            builder = n_step(steps, data["num_rounds"], data["moves"])
            builder.load_state_dict(state)


@settings(max_examples=50)
@given(data=roll_outs())
def test_one_step_rows_are_those_of_the_roll_out(data: dict[str, Any]) -> None:
    one_step = OneStepConfig(name="one_step").build(GAMMA, data["num_rounds"], data["moves"], CPU)
    for experience, _ in play(data):
        assert one_step(experience) is experience
        assert one_step.state_dict() == {}


def test_every_roll_out_gives_as_many_rows() -> None:
    data = {"moves": ("a",), "num_worlds": 2, "num_rounds": 3, "rows": [[("goes on", 1)] * 6] * 3}
    builder = n_step(4, 3)
    assert [(len(made.valid), int(made.valid.sum())) for made in (builder(e) for e, _ in play(data))] == [
        (12, 0),
        (12, 6),
        (12, 6),
    ]


# ---- real games ----------------------------------------------------------------------------------------


def test_nothing_is_summed_across_a_reset_of_a_solo_game() -> None:
    """`endless` gives 1 a step and is cut off after 4: sums of 3, but for the last two decisions before a cut."""
    probe = Probe(Probe.Config(name="probes:Probe", kind="endless", continuous=False, limit=4), CPU)
    game = SoloGame(
        probe, {"agent": make_script("random", probe)}, lambda num, key, first, keys: TensorWorld(probe, keys)
    )
    worlds, builder = game.new_worlds(3, 0, "play"), n_step(3, 2, ("agent",))
    made = [builder(game.collect(worlds, ("agent",), 2)["agent"]) for _ in range(6)]
    rewards = torch.cat([rows.reward[rows.valid & ~rows.truncated] for rows in made])
    assert torch.allclose(rewards, torch.tensor(1 + GAMMA + GAMMA**2))
    cut = [rows.valid & rows.truncated for rows in made]
    at_cuts = torch.cat([rows.reward[where] for rows, where in zip(made, cut, strict=True)])
    counts = {round(value, 4): at_cuts.isclose(torch.tensor(value)).sum() for value in (1.0, 1.9, 2.71)}
    assert counts == {1.0: 9, 1.9: 9, 2.71: 9}
    assert sum(counts.values()) == len(at_cuts)


@pytest.mark.parametrize("roles", [("first",), ("second", "first")])
def test_in_a_game_of_two_roles_every_seat_is_a_chain(roles: tuple[str, ...]) -> None:
    """Nim between players at random: its rows by the plain reference, seat by seat and world by world."""
    game = NimGame(NimConfig(name="nim", num_heaps=3, max_stones=3, observation=UNCHANGED), CPU)
    played = FusedGame(game, {role: make_script("random", game) for role in game.roles})
    moves = tuple(role for role in game.roles if role in roles)
    worlds, builder = played.new_worlds(8, 0, "play"), n_step(2, 3, moves)
    chains, num_told, num_sums = [Chain() for _ in range(8 * len(moves))], 0, 0
    nexts: list[torch.Tensor] = []
    for _ in range(5):
        rows = join_roles(played.collect(worlds, roles, 3), moves, 8)
        rows.extras = {"number": torch.arange(len(rows.valid)) + len(nexts)}
        for place in rows.valid.nonzero().squeeze(1).tolist():
            kind = "terminated" if rows.terminated[place] else "truncated" if rows.truncated[place] else "goes on"
            number = len(nexts) + place
            chains[place % len(chains)].add(number, kind, float(rows.reward[place]), number)
        nexts += list(rows.next_observation["heaps"])
        made = builder(rows)
        expected = {number: row for chain in chains for number, row in chain.n_step_rows(2).items()}
        for place in made.valid.nonzero().squeeze(1).tolist():
            reward, discount, last, terminated, truncated = expected[int(made.extras["number"][place])]
            assert float(made.reward[place]) == pytest.approx(reward)
            assert float(made.extras["discount"][place]) == pytest.approx(discount)
            assert torch.equal(made.next_observation["heaps"][place], nexts[int(last)])
            assert (bool(made.terminated[place]), bool(made.truncated[place])) == (terminated, truncated)
            num_sums += discount < GAMMA
        num_told += int(made.valid.sum())
        assert num_told == len(expected)
    assert 20 < num_sums < num_told


# ---- configs ---------------------------------------------------------------------------------------------


def test_no_steps_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="steps: expected an integer >= 1, got 0"):
        check({"name": "n_step", "steps": 0}, NStepConfig)
