"""Covers palestra.rollouts, palestra.rollouts.fused_kernel, palestra.rollouts.played."""

import copy
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palestra.games.game import GameEnds, Observation, TensorGame
from palestra.games.nim import NimConfig, NimGame
from palestra.games.normalization import UNCHANGED
from palestra.games.policy import Decision, Memory, Observes
from palestra.games.polyhedra.game import PolyhedraGame
from palestra.players import make_script
from palestra.randomness import base_key, fold, random_choice, world_keys
from palestra.rollouts import fused
from palestra.rollouts.fused import FusedGame, Worlds
from palestra.rollouts.seated import Results, SeatedPolicy, Sitter
from palestra.rollouts.transitions import Transitions, join_roles
from tests.games.plain_polyhedra import polyhedra_config
from tests.games.tag_game import TagGame

CPU = torch.device("cpu")
SEED, STREAM = 5, "play"


class RandomWithExtras:
    """Random play that keeps an extra with every decision."""

    observes: Observes = "nothing"

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        return Decision(random_choice(keys, legal), {"key": keys}, memory)


GAMES: dict[str, TensorGame] = {
    "polyhedra": PolyhedraGame(polyhedra_config(max_num_points=5, max_rounds=3), CPU, "numba"),
    "polyhedra, longer": PolyhedraGame(polyhedra_config(max_rounds=12, reward={"name": "length"}), CPU, "numba"),
    "nim": NimGame(NimConfig(name="nim", num_heaps=2, max_stones=3, observation=UNCHANGED), CPU),
    "two together": TagGame(2, "together"),
    "two one by one": TagGame(2, "one by one"),
    "three at will": TagGame(3, "at will"),
    "alone": TagGame(1, "together"),
}
CASES = [
    *[(name, roles) for name in ("polyhedra", "polyhedra, longer") for roles in (("host",), ("agent",))],
    *[(name, ("host", "agent")) for name in ("polyhedra", "polyhedra, longer")],
    *[("nim", roles) for roles in (("first",), ("second",), ("first", "second"))],
    *[("two together", roles) for roles in (("a",), ("b",), ("a", "b"))],
    *[("two one by one", roles) for roles in (("a",), ("b",), ("a", "b"))],
    *[("three at will", roles) for roles in (("a",), ("c",), ("a", "b", "c"))],
    ("alone", ("a",)),
]
TAGGED = [case for case in CASES if isinstance(GAMES[case[0]], TagGame)]
every_case = pytest.mark.parametrize(("name", "roles"), CASES)


def start(name: str, num_worlds: int) -> tuple[FusedGame, Worlds]:
    game = GAMES[name]
    fused_game = FusedGame(game, dict.fromkeys(game.roles, RandomWithExtras()))
    return fused_game, fused_game.new_worlds(num_worlds, SEED, STREAM)


def valid_rows(transitions: Transitions) -> list[Any]:
    """The rows that count, as tuples."""
    columns = {name: value[transitions.valid].tolist() for name, value in sorted(transitions.rows().items())}
    return [frozen(row) for row in zip(*columns.values(), strict=True)]


def frozen(value: Any) -> Any:
    return tuple(frozen(item) for item in value) if isinstance(value, list | tuple) else value


def equal(a: Any, b: Any) -> bool:
    """Equality of nested dicts of tensors, to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


# ---- one world at a time, from its history -----------------------------------------------------------


@dataclass
class Move:
    """One move of one game. seen: what the deciding roles saw (observation, legal), did, and kept."""

    number: int
    opens_round: bool
    seen: dict[str, tuple[Observation, Tensor, Decision]]
    rewards: dict[str, float]
    over: dict[str, bool]
    cut: bool


def histories(game: TensorGame, key: Tensor, collected: tuple[str, ...], num_rounds: int) -> list[list[Move]]:
    """The games of one world; the last one is still going on. A game that was cut off goes on until every decision
    of a collected role has found its next."""
    policy, R = RandomWithExtras(), len(game.roles)
    games: list[list[Move]] = [[]]
    state, number = game.reset(fold(key, 0)), 0
    for _ in range(num_rounds):
        for index, move in enumerate(game.moves):
            number += 1
            move_key = fold(key, number)
            actions, seen = {}, {}
            for r, role in enumerate(game.roles):
                if role in move:
                    legal = game.legal(state, role)
                    decision = policy.act({}, legal, move_key + r + 1, {})
                    actions[role] = decision.action
                    if game.deciding(state)[0, r]:
                        seen[role] = game.observe(state, role), legal, decision
            opens_round = index == 0 and bool(game.deciding(state).any())
            state, rewards, terminated, truncated = game.transition(state, actions, move_key + R + 1)
            over = dict(zip(game.roles, terminated[0].tolist(), strict=True))
            earned = dict(zip(game.roles, rewards[0].tolist(), strict=True))
            games[-1].append(Move(number, opens_round, seen, earned, over, bool(truncated)))
            leaves = all(over.values()) or (cut_index(games[-1]) is not None and not waiting(games[-1], collected))
            if leaves and index not in game.quiet_moves:
                state = game.reset(move_key + R + 2)
                games.append([])
    return games


def cut_index(moves: list[Move]) -> int | None:
    return next((i for i, move in enumerate(moves) if move.cut), None)


def spans(moves: list[Move], role: str) -> list[tuple[int, int | None, bool]]:
    """For each decision of a role, up to the cut: its index, the index of what closes it, and whether that is the
    end."""
    cut = cut_index(moves)
    found: list[tuple[int, int | None, bool]] = []
    for i in [i for i, move in enumerate(moves) if role in move.seen and (cut is None or i <= cut)]:
        end = next((k for k in range(i, len(moves)) if moves[k].over[role]), None)
        following = next((k for k in range(i + 1, len(moves)) if role in moves[k].seen), None)
        is_end = end is not None and (following is None or end < following)
        found.append((i, end if is_end else following, is_end))
    return found


def waiting(moves: list[Move], collected: tuple[str, ...]) -> bool:
    return any(closing is None for role in collected for _, closing, _ in spans(moves, role))


def plain_transitions(game: TensorGame, games: list[list[Move]], collected: tuple[str, ...], last: int) -> list[Any]:
    """What the seats of the collected roles have experienced, as far as they have decided again by move `last`."""
    turns_of = {
        role: [n for n in range(1, last + 1) if role in game.moves[(n - 1) % len(game.moves)]] for role in collected
    }
    rows: list[Any] = []
    for moves in games:
        cut = cut_index(moves)
        for role in collected:
            for i, closing, is_end in spans(moves, role):
                if closing is None or (is_end and not any(n > moves[closing].number for n in turns_of[role])):
                    continue
                observation, legal, decision = moves[i].seen[role]
                if is_end:
                    spaces = game.spaces[role]
                    nothing = {
                        name: torch.full_like(value, -1 if spaces[name].padded else 0)
                        for name, value in observation.items()
                    }
                    following, next_legal = (
                        nothing,
                        torch.zeros(1, game.action_spaces[role].num_flags, dtype=torch.bool),
                    )
                else:
                    following, next_legal, _ = moves[closing].seen[role]
                row = Transitions(
                    observation=observation,
                    action=decision.action,
                    reward=torch.tensor([sum(m.rewards[role] for m in moves[i : closing + is_end])]),
                    next_observation=following,
                    next_legal=next_legal,
                    terminated=torch.tensor([is_end]),
                    truncated=torch.tensor([not is_end and cut is not None and i <= cut < closing]),
                    valid=torch.tensor([True]),
                    extras=decision.extras,
                    legal=legal,
                )
                rows += valid_rows(row)
    return rows


def plain_totals(game: TensorGame, games: list[list[Move]]) -> dict[str, float]:
    """Sums over the games that have ended or were cut off, without what was played after the cut."""
    totals = defaultdict[str, float](float)
    for moves in games:
        cut = cut_index(moves)
        is_over = bool(moves) and all(moves[-1].over.values())
        played = moves if cut is None else moves[: cut + 1]
        length = sum(move.opens_round for move in played)
        if length and (is_over or cut is not None):
            totals["episodes"] += 1
            totals["terminated" if cut is None else "truncated"] += 1
            totals["length"] += length
            for role in game.roles:
                totals[f"return/{role}"] += sum(move.rewards[role] for move in played)
            if "odd" in game.tallies:
                tags = [seen[0]["tag"] for move in moves for seen in move.seen.values()]
                totals["odd"] += int(tags[0][0, 0]) % 2
    return totals


NUM_WORLDS, NUM_ROUNDS = 8, 30


@cache
def plain_play(name: str, roles: tuple[str, ...]) -> tuple[Counter[Any], dict[str, float]]:
    game = GAMES[name]
    keys = world_keys(base_key(SEED, STREAM), NUM_WORLDS, CPU).split(1)
    games = [moves for key in keys for moves in histories(game, key, roles, NUM_ROUNDS)]
    return Counter(plain_transitions(game, games, roles, NUM_ROUNDS * len(game.moves))), plain_totals(game, games)


def collected(fused_game: FusedGame, worlds: Worlds, roles: tuple[str, ...], num_rounds: int) -> Transitions:
    """`collect`, of all roles together, which see things of the same shape."""
    moves = [role for move in fused_game.game.moves for role in move if role in roles]
    return join_roles(fused_game.collect(worlds, roles, num_rounds), moves, len(worlds.keys))


def collected_rows(fused_game: FusedGame, worlds: Worlds, roles: tuple[str, ...], num_rounds: int) -> Counter[Any]:
    """`collect`, as a multi-set."""
    by_role = fused_game.collect(worlds, roles, num_rounds)
    assert set(by_role) == set(roles)
    return Counter(row for rows in by_role.values() for row in valid_rows(rows))


@every_case
def test_transitions_are_those_of_a_plain_loop(name: str, roles: tuple[str, ...]) -> None:
    expected, _ = plain_play(name, roles)
    assert collected_rows(*start(name, NUM_WORLDS), roles, NUM_ROUNDS) == expected
    assert sum(expected.values()) > NUM_ROUNDS


@every_case
def test_totals_are_those_of_a_plain_loop(name: str, roles: tuple[str, ...]) -> None:
    _, expected = plain_play(name, roles)
    fused_game, worlds = start(name, NUM_WORLDS)
    collected_rows(fused_game, worlds, roles, NUM_ROUNDS)
    totals = fused_game.take_totals(worlds)
    assert totals == dict.fromkeys(fused_game.total_names, 0.0) | expected
    assert set(fused_game.take_totals(worlds).values()) == {0.0}


@every_case
def test_the_returns_of_finished_games_are_kept_in_the_order_in_which_they_ended(
    name: str, roles: tuple[str, ...]
) -> None:
    fused_game, worlds = start(name, NUM_WORLDS)
    game, ends = fused_game.game, []
    for world, key in enumerate(world_keys(base_key(SEED, STREAM), NUM_WORLDS, CPU).split(1)):
        for moves in histories(game, key, roles, NUM_ROUNDS):
            cut = cut_index(moves)
            lived = moves if cut is None else moves[: cut + 1]
            if any(move.opens_round for move in lived) and (cut is not None or all(moves[-1].over.values())):
                returns = [sum(move.rewards[role] for move in lived) for role in game.roles]
                ends.append((lived[-1].number, world, returns))
    collected_rows(fused_game, worlds, roles, NUM_ROUNDS)
    assert fused_game.recent_returns(worlds).tolist() == [returns for _, _, returns in sorted(ends)][-100:]


@pytest.mark.parametrize(("name", "roles"), TAGGED)
def test_no_transition_crosses_a_reset(name: str, roles: tuple[str, ...]) -> None:
    fused_game, worlds = start(name, 200)
    t = collected(fused_game, worlds, roles, 60)
    going_on = t.valid & ~t.terminated
    (game, step, role), (next_game, next_step, next_role) = (
        seen["tag"][going_on].unbind(1) for seen in (t.observation, t.next_observation)
    )
    assert torch.equal(game, next_game)
    assert torch.equal(role, next_role)
    assert (step < next_step).all()
    assert (t.valid & t.terminated).any()
    assert not (t.terminated & t.truncated).any()


@pytest.mark.parametrize(("name", "roles"), TAGGED)
def test_every_decision_is_collected_once(name: str, roles: tuple[str, ...]) -> None:
    fused_game, worlds = start(name, 60)
    t = collected(fused_game, worlds, roles, 60)
    tags = t.observation["tag"][t.valid]
    assert len(tags.unique(dim=0)) == len(tags)


def test_truncation_is_bootstrapped_from_what_the_agent_decides_on_next() -> None:
    fused_game, worlds = start("polyhedra", 100)
    t = fused_game.collect(worlds, ("agent",), 30)["agent"]
    cut = t.valid & t.truncated
    assert cut.sum() > 50
    assert (t.next_observation["coords"][cut].sum(1) >= 2).all()
    assert torch.equal(t.next_observation["coords"][cut].bool(), t.next_legal[cut])


def test_an_ending_move_closes_the_decision_of_the_opponent() -> None:
    """One heap of at most two stones, taken one by one: who moves first at two stones loses."""
    game = NimGame(NimConfig(name="nim", num_heaps=1, max_stones=2, observation=UNCHANGED), CPU)
    fused_game = FusedGame(game, {role: make_script("choose_first", game) for role in game.roles})
    t = fused_game.collect(fused_game.new_worlds(50, 0, "play"), ("first",), 9)["first"]
    stones = t.observation["heaps"][t.valid].squeeze(1).argmax(1)
    assert set(stones.tolist()) == {1, 2}
    assert torch.equal(t.reward[t.valid], torch.where(stones == 1, 1.0, -1.0))
    assert t.terminated[t.valid].all()
    assert not t.next_legal[t.valid].any()
    assert not t.next_observation["heaps"][t.valid].any()


def test_one_player_in_both_seats_experiences_what_two_would() -> None:
    alone = [collected_rows(*start("nim", 20), (role,), 40) for role in ("first", "second")]
    assert collected_rows(*start("nim", 20), ("first", "second"), 40) == alone[0] + alone[1]


@every_case
def test_the_way_of_a_gpu_plays_the_same_games(
    name: str, roles: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for masks in (False, True):
        if masks:
            monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        fused_game, worlds = start(name, 30)
        rows = collected_rows(fused_game, worlds, roles, 25)
        results.append((rows, worlds.state_dict()))
    assert results[0][0] == results[1][0]
    assert equal(results[0][1], results[1][1])


@settings(max_examples=100, derandomize=True)
@given(
    seed=st.integers(0, 2**32), num_worlds=st.integers(1, 6), num_roles=st.integers(1, 3), num_actions=st.integers(1, 4)
)
def test_loops_and_tensors_keep_the_same_statistics(
    seed: int, num_worlds: int, num_roles: int, num_actions: int
) -> None:
    """Any statistics, also those that no game would lead to."""
    generator = torch.Generator().manual_seed(seed)

    def any_of(high: int, *shape: int) -> Tensor:
        return torch.randint(high, (num_worlds, *shape), generator=generator)

    game = TagGame(num_roles, "together")
    worlds = FusedGame(game, {}).new_worlds(num_worlds, seed, STREAM)
    worlds.truncated_pending, worlds.lengths = any_of(2).bool(), any_of(3).int()
    worlds.awaiting, worlds.done = any_of(2, num_roles).bool(), any_of(2, num_roles).bool()
    worlds.pending_reward, worlds.returns = any_of(9, num_roles) - 4.0, any_of(9, num_roles) - 4.0
    worlds.num_finished = any_of(300)[0]
    move = any_of(9, num_roles) - 4.0, any_of(2, num_roles).bool(), any_of(2).bool()
    deciding, legal = any_of(2, num_roles).bool(), any_of(2, num_actions).bool()
    role = int(any_of(num_roles)[0])

    by_loops, by_tensors = FusedGame(game, {}), FusedGame(game, {})
    others = copy.deepcopy(worlds)
    assert equal(
        dict(enumerate(fused._exchange_on_cpu(worlds, role, deciding, legal))),
        dict(enumerate(fused._exchange(others, role, deciding, legal))),
    )
    assert equal(worlds.state_dict(), others.state_dict())
    num_ended, num_refilled, *masks = by_loops._update_statistics_on_cpu(worlds, *move)
    assert all(map(torch.equal, masks, by_tensors._update_statistics(others, *move)))
    ended, refilled = masks
    assert num_ended == int(ended.sum())
    assert num_refilled == refilled.sum()
    assert equal(worlds.state_dict(), others.state_dict())


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
def test_rows_are_chosen_as_torch_chooses_them(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one row stands for all, as legal actions often do."""
    mask = torch.arange(7) % 3 == 0
    for dtype in (torch.float32, torch.int64, torch.bool):
        yes, no = (torch.randint(2, (num, *shape)).to(dtype).expand(7, *shape) for num in (1, 7))
        found = fused._choose(mask, yes, no), fused._choose(mask, no, yes)
        with monkeypatch.context() as patch:
            patch.setattr(fused, "runs_on_cpu", lambda tensor: False)
            expected = fused._choose(mask, yes, no), fused._choose(mask, no, yes)
        assert all(map(torch.equal, found, expected))
        assert found[0].dtype == dtype


@every_case
def test_play_goes_on_from_a_saved_state_to_the_bit(name: str, roles: tuple[str, ...]) -> None:
    fused_game, worlds = start(name, 30)
    collected_rows(fused_game, worlds, roles, 7)
    state = copy.deepcopy(worlds.state_dict())
    restored = fused_game.new_worlds(30, SEED + 1, "another")
    restored.load_state_dict(state)
    assert collected_rows(fused_game, worlds, roles, 20) == collected_rows(fused_game, restored, roles, 20)
    assert equal(worlds.state_dict(), restored.state_dict())


@every_case
def test_a_world_plays_the_same_games_in_a_batch_of_any_size(name: str, roles: tuple[str, ...]) -> None:
    fused_game, few = start(name, 4)
    many = fused_game.new_worlds(9, SEED, STREAM)
    rows = [collected_rows(fused_game, worlds, roles, 20) for worlds in (few, many)]
    assert rows[0] <= rows[1]
    assert all(torch.equal(value, many.state[key][:4]) for key, value in few.state.items())


@pytest.mark.parametrize("name", GAMES)
def test_playing_without_collecting_plays_the_same_totals(name: str) -> None:
    """Where nothing is collected, nothing waits; games that are never cut off are the same."""
    fused_game, worlds = start(name, 30)
    fused_game.collect(worlds, (), 25)
    assert not worlds.truncated_pending.any()
    assert worlds.seats == {}
    totals = fused_game.take_totals(worlds)
    assert totals["episodes"] == totals["terminated"] + totals["truncated"] > 30


@pytest.mark.parametrize("name", GAMES)
def test_whoever_is_no_longer_collected_leaves_nothing_open(name: str) -> None:
    """Worlds that were cut off while they waited for such a role are refilled, and play on like the others."""
    fused_game, worlds = start(name, 30)
    first, *others = roles = fused_game.game.roles
    collected_rows(fused_game, worlds, roles, 7)
    assert worlds.seats.keys() == set(roles)
    fused_game.take_totals(worlds)
    collected_rows(fused_game, worlds, (first,), 25)
    assert worlds.seats.keys() == {first}
    indices = [roles.index(role) for role in others]
    assert not worlds.awaiting[:, indices].any()
    assert not worlds.done[:, indices].any()
    assert not worlds.pending_reward[:, indices].any()
    fused_game.collect(worlds, (), 1)
    assert worlds.seats == {}
    assert not worlds.awaiting.any()
    assert not worlds.truncated_pending.any()
    assert fused_game.take_totals(worlds)["episodes"] > 30


def test_a_role_without_a_policy_is_told_before_anything_is_played() -> None:
    fused_game, worlds = start("nim", 4)
    before = copy.deepcopy(worlds.state_dict())
    del fused_game.policies["second"]
    with pytest.raises(
        ValueError, match=r"^expected a policy for each role \(first, second\).*, got none for 'second';"
    ):
        fused_game.collect(worlds, ("first",), 3)
    assert equal(worlds.state_dict(), before)


class WonByMover(NimGame):
    """Nim in which the state at the end says who has won: who would have been next has lost."""

    outcome_entries = ("mover",)

    def wins(self, ends: GameEnds) -> dict[str, Tensor]:
        won = ends.outcomes["mover"].double()
        return {"first": won, "second": 1.0 - won}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["polyhedra", "nim", "won by mover"])
def test_results_of_sitters_add_up_to_the_totals(name: str, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the polyhedra game a host wins as many rounds as games end by the rules, and an agent wins the others."""
    if masked:  # as on a GPU
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setitem(GAMES, "won by mover", WonByMover(GAMES["nim"].config, CPU))
    fused_game, worlds = start(name, 30)
    game, everywhere = fused_game.game, torch.arange(30)
    for role, policy in fused_game.policies.items():
        fused_game.policies[role] = SeatedPolicy([Sitter(everywhere, policy)], 30, CPU)
    worlds.results = Results(torch.zeros(30, 5, dtype=torch.float64), torch.full((30, 2), -1))
    fused_game.collect(worlds, (), 25)
    totals = fused_game.take_totals(worlds)
    won = [(totals["episodes"] + totals[f"return/{role}"]) / 2 for role in game.roles]
    if name == "polyhedra":
        won = [totals["terminated"], totals["length"] - totals["terminated"]]
        assert min(totals["terminated"], totals["truncated"]) > 10
    expected = [totals["episodes"], *(totals[f"return/{role}"] for role in game.roles), *won]
    assert worlds.results.take().sum(dim=0).tolist() == pytest.approx(expected)


def test_results_are_forgotten_but_not_who_sat_there_and_the_last_returns() -> None:
    fused_game, worlds = start("nim", 10)
    fused_game.collect(worlds, (), 10)
    worlds.results = Results(torch.ones(10, 5), torch.arange(20).view(10, 2))
    before = copy.deepcopy(worlds.state_dict())
    worlds.forget_results()
    assert before["totals"].any()
    nothing = {"totals": torch.zeros_like(before["totals"])}
    assert equal(worlds.state_dict(), before | nothing | {"results": before["results"] | {"sums": torch.zeros(10, 5)}})


def test_rows_come_back_from_their_flat_form() -> None:
    fused_game, worlds = start("nim", 10)
    t = fused_game.collect(worlds, ("first",), 10)["first"]
    kept = {name: value[t.valid] for name, value in t.rows().items()}
    again = Transitions.from_rows(kept)
    assert equal(again.rows(), kept)
    assert again.valid.all()


class CountingPolicy:
    """Counts its decisions of a game in its memory, and notes where the count is not the game's step."""

    observes: Observes = "observation"

    def __init__(self) -> None:
        self.wrong = 0

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        count = memory.get("count", torch.zeros(len(keys)))
        self.wrong += int((count != view["tag"][:, 1]).sum())
        return Decision(random_choice(keys, legal), {}, {"count": count + 1})


class DecisionCounter:
    """Keeps with every decision how many of the same game it remembers."""

    observes: Observes = "nothing"

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        count = memory.get("count", torch.zeros_like(keys))
        return Decision(random_choice(keys, legal), {"count": count}, {"count": count + 1})


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("name", "roles"), [case for case in CASES if not (case[0].startswith("polyhedra") and len(case[1]) > 1)]
)
def test_a_player_remembers_its_own_decisions_of_a_game_alone(
    name: str, roles: tuple[str, ...], masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if masked:  # as on a GPU
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    game = GAMES[name]
    fused_game = FusedGame(game, {role: DecisionCounter() for role in game.roles})
    worlds, remembered, num_ends = fused_game.new_worlds(20, SEED, STREAM), dict[tuple[str, int], int](), 0
    order = [role for move in game.moves for role in move if role in roles]
    rows = collected(fused_game, worlds, roles, 40)
    shape = (40, len(order), 20)
    columns = (rows.valid, rows.extras["count"], rows.terminated | rows.truncated)
    valid, count, ended = (column.view(shape).tolist() for column in columns)
    for step, move, world in itertools.product(*map(range, shape)):
        if valid[step][move][world]:
            place = (order[move], world)
            assert count[step][move][world] == remembered.get(place, 0)
            remembered[place] = 0 if ended[step][move][world] else count[step][move][world] + 1
            num_ends += ended[step][move][world]
    assert num_ends > 20


@pytest.mark.parametrize("masked", [False, True])
def test_a_players_memory_is_empty_when_a_world_is_refilled(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if masked:  # as on a GPU
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    policy = CountingPolicy()
    never_over_at_start = TagGame(1, "together")
    monkeypatch.setattr(never_over_at_start, "ends", lambda state: 3 + state["game"].unsqueeze(1) % 4)
    fused_game = FusedGame(never_over_at_start, {"a": policy})
    worlds = fused_game.new_worlds(64, SEED, STREAM)
    fused_game.collect(worlds, (), 50)
    assert fused_game.take_totals(worlds)["episodes"] > 64
    assert policy.wrong == 0
