"""`check_game`: sound games pass, and each broken promise is named, with the method that breaks it.

Covers palestra.games.tryout, palestra.games.tryout_calls, palestra.testing.
"""

import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PLAIN
from torch import Tensor
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError
from palestra.games import UserGameConfig, make_game
from palestra.games.game import Observation, State, TensorGame
from palestra.games.spaces import Box, Discrete, MultiDiscrete, Space
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.match import begin_match
from palestra.randomness import global_states, random_integers
from palestra.testing import check_game
from palestra.testing import environments as checked_games
from tests.games.tag_game import TagGame

MakeConfig = Callable[..., dict[str, Any]]
CPU = torch.device("cpu")


class Race(TensorGame):
    """Two runners one after the other throw a die and may take it or leave it; who is first beyond 20 wins. Sound.

    State: places int64 (B, 2); mover int64 (B,); die int64 (B,), 1 to 6. Actions: 0 leaves the die, 1 to 8 take so many
    of its eyes.
    """

    class Config(UserGameConfig):
        pass

    roles = ("one", "two")
    moves = (("one", "two"),)
    quiet_moves = ()
    tallies = ()
    lockstep = False

    def __init__(self, config: Any = None, device: torch.device = CPU) -> None:
        self.device = device
        self.spaces = {role: {"seen": Space((4,), torch.float32, False)} for role in self.roles}
        self.action_spaces = dict.fromkeys(self.roles, Discrete(9))

    def reset(self, keys: Tensor) -> State:
        places = torch.zeros(len(keys), 2, dtype=torch.int64)
        return {"places": places, "mover": torch.zeros_like(keys), "die": random_integers(keys, 1, 6)[:, 0] + 1}

    def is_over(self, state: State) -> Tensor:
        return (state["places"] > 20).any(dim=1)

    def deciding(self, state: State) -> Tensor:
        return (state["mover"].unsqueeze(1) == torch.arange(2)) & ~self.is_over(state).unsqueeze(1)

    def observe(self, state: State, role: str) -> Observation:
        parts = [state["places"], state["mover"].unsqueeze(1), state["die"].unsqueeze(1)]
        return {"seen": torch.cat(parts, dim=1).float()}

    def legal(self, state: State, role: str) -> Tensor:
        return torch.arange(9) <= state["die"].unsqueeze(1)

    def transition(
        self, state: State, actions: dict[str, Tensor], keys: Tensor
    ) -> tuple[State, Tensor, Tensor, Tensor]:
        runs = ~self.is_over(state)
        step = torch.where(state["mover"] == 0, actions["one"], actions["two"]) * runs
        places = state["places"] + step.unsqueeze(1) * (torch.arange(2) == state["mover"].unsqueeze(1))
        new = {"places": places, "mover": 1 - state["mover"], "die": random_integers(keys, 1, 6)[:, 0] + 1}
        over = self.is_over(new)
        sign = torch.where(state["mover"] == 0, 1.0, -1.0) * (over & runs)
        return new, torch.stack([sign, -sign], dim=1), over.unsqueeze(1).expand(-1, 2), torch.zeros_like(over)


class Lone(Race):
    """The same with one runner, by a box or by two choices, cut off after three moves."""

    roles = ("one",)
    moves = (("one",),)
    lockstep = True

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.action_spaces = {"one": space}

    def deciding(self, state: State) -> Tensor:
        return ~self.is_over(state).unsqueeze(1)

    def legal(self, state: State, role: str) -> Tensor:
        return torch.ones(1, self.action_spaces["one"].num_flags, dtype=torch.bool).expand(len(state["die"]), -1)

    def transition(
        self, state: State, actions: dict[str, Tensor], keys: Tensor
    ) -> tuple[State, Tensor, Tensor, Tensor]:
        taken = actions["one"].sum(dim=1).abs().ceil().long()
        new, rewards, over, _ = super().transition(state, {"one": taken, "two": taken}, keys)
        new["mover"] = state["mover"]
        return new, rewards[:, :1], over[:, :1], (new["places"].sum(dim=1) > 9) & ~over[:, 0]


@pytest.fixture
def few_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some games, not many."""
    monkeypatch.setattr(checked_games, "NUM_MOVES", 60)


# ---- sound ---------------------------------------------------------------------------------------------


def shipped() -> list[Any]:
    found: dict[str, Any] = {}
    for path in sorted((Path(__file__).parents[2] / "configs").glob("*.yml")):
        config = palestra.load_config(path)
        game = config.game
        if isinstance(config, RunConfig) and game.name != "gymnasium":
            found.setdefault(repr(game), game)
    classic = [
        {
            "name": "cartpole",
            "max_rounds": 9,
            "initial_low": -0.2,
            "initial_high": 0.2,
            "sutton_barto_reward": False,
            "observation": PLAIN,
        },
        {
            "name": "pendulum",
            "max_rounds": 9,
            "g": 10.0,
            "initial_angle": 3.0,
            "initial_speed": 1.0,
            "observation": PLAIN,
        },
        {"name": "acrobot", "max_rounds": 9, "initial_low": -0.1, "initial_high": 0.1, "observation": PLAIN},
        {
            "name": "mountain_car",
            "max_rounds": 9,
            "initial_low": -0.6,
            "initial_high": -0.4,
            "goal_speed": 0.0,
            "observation": PLAIN,
        },
    ]
    return [*found.values(), *classic]


@pytest.mark.usefixtures("few_moves")
@pytest.mark.parametrize("kernel", ["numba", "torch"])
@pytest.mark.parametrize("config", shipped(), ids=lambda config: config["name"] if isinstance(config, dict) else None)
def test_our_games_keep_their_promises(config: Any, kernel: Any) -> None:
    model = make_game(config).config if isinstance(config, dict) else config  # type: ignore[attr-defined]
    game = model.build(CPU, kernel)
    assert isinstance(game, TensorGame)
    check_game(game)


@pytest.mark.usefixtures("few_moves")
@pytest.mark.parametrize("kind", ["delayed", "two_step", "endless", "identity", "memory"])
@pytest.mark.parametrize("continuous", [False, True])
def test_our_probes_keep_their_promises(kind: str, continuous: bool) -> None:
    game = make_game({"name": "tests.probes:Probe", "kind": kind, "continuous": continuous, "limit": 4})
    assert isinstance(game, TensorGame)
    check_game(game)


@pytest.mark.parametrize("game", [Race(), Lone(Box((-1.0, -9e9), (1.0, 9e9))), Lone(MultiDiscrete((2, 3)))])
def test_sound_games_of_every_kind_of_action_pass(game: TensorGame) -> None:
    before = global_states()
    check_game(game)
    assert global_states() == before


@pytest.mark.usefixtures("few_moves")
def test_a_game_that_plays_on_after_it_was_cut_off_passes() -> None:
    for pattern in ("together", "one by one", "at will"):
        check_game(TagGame(3, pattern))


# ---- broken --------------------------------------------------------------------------------------------


def broken(**methods: Any) -> Any:
    return type("Broken", (Race,), methods)()


def then(method: str, change: Callable[..., Any]) -> Any:
    """A Race of which one method's result is changed: change(game, result, *arguments)."""
    original = getattr(Race, method)
    return broken(**{method: lambda game, *arguments: change(game, original(game, *arguments), *arguments)})


def outcome(index: int, change: Callable[[Any], Any]) -> Any:
    """A Race of which one part of what transition gives is changed."""
    return then("transition", lambda g, parts, *_: (*parts[:index], change(parts[index]), *parts[index + 1 :]))


def counted() -> Any:
    """Rewards that fall from call to call."""
    game = outcome(1, lambda rewards: rewards)

    def transition(state: State, actions: dict[str, Tensor], keys: Tensor) -> Any:
        game.calls = getattr(game, "calls", 0) + 1
        new, rewards, *ends = Race.transition(game, state, actions, keys)
        return new, rewards - game.calls, *ends

    game.transition = transition
    return game


def write(place: Callable[..., Tensor]) -> Callable[..., Any]:
    def change(game: Any, result: Any, *arguments: Any) -> Any:
        place(*arguments).add_(1)
        return result

    return change


def kept_buffer(game: Any, result: Any, state: State, role: str) -> Any:
    game.buffer = getattr(game, "buffer", torch.zeros(64, 9, dtype=torch.bool))
    game.buffer[: len(result)] = result
    return game.buffer[: len(result)]


def raising(*arguments: Any) -> Any:
    raise ArithmeticError("no such\nplace")


def ignores(part: str) -> Any:
    return lambda game, keys: Race.reset(game, torch.zeros_like(keys)) | {"die": torch.randint(1, 7, (len(keys),))}


DIE = Space((), torch.float32, padded=False)


class Stuck(Race):
    """Nobody takes more than four eyes."""

    def deciding(self, state: State) -> Tensor:
        return super().deciding(state) & (state["places"].sum(dim=1, keepdim=True) < 5)

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Any:
        goes_on = state["places"].sum(dim=1) < 5
        return super().transition(state, {role: action * goes_on for role, action in actions.items()}, keys)


class Short(Race):
    """A race that is cut off beyond 9, where nobody decides any more."""

    def is_cut(self, state: State) -> Tensor:
        return state["places"].sum(dim=1) > 9

    def deciding(self, state: State) -> Tensor:
        return super().deciding(state) & ~self.is_cut(state).unsqueeze(1)

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Any:
        goes_on = ~self.is_cut(state)
        new, *results, _ = super().transition(state, {role: x * goes_on for role, x in actions.items()}, keys)
        return new, *results, self.is_cut(new) & ~self.is_over(new)


class ShortTogether(Short):
    """The same with both at once."""

    lockstep = True

    def deciding(self, state: State) -> Tensor:
        return super().deciding(state).any(dim=1, keepdim=True).expand(-1, 2)


BROKEN: dict[str, tuple[Any, str]] = {
    "reset has another number of worlds": (
        then("reset", lambda g, state, keys: {name: torch.cat([value, value]) for name, value in state.items()}),
        "Broken.reset: expected entry 'die' to be a tensor of 5 worlds, (5, ...), on cpu, got int64 (10,) on cpu",
    ),
    "reset gives a list": (
        then("reset", lambda g, state, keys: state | {"die": state["die"].tolist()}),
        "Broken.reset: expected entry 'die' to be a tensor of 5 worlds, (5, ...), on cpu, got a list",
    ),
    "reset gives no dict": (
        then("reset", lambda *_: None),
        "Broken.reset: expected a dict of tensors by name, got None",
    ),
    "reset draws from torch": (
        broken(reset=ignores("keys")),
        "Broken.reset: expected chance from its keys alone, got numbers from a global random generator",
    ),
    "reset draws from numpy": (
        then("reset", lambda g, state, keys: state | {"die": state["die"] * 0 + int(np.random.randint(1, 7))}),
        "Broken.reset: expected chance from its keys alone, got numbers from a global random generator",
    ),
    "reset draws from Python": (
        then("reset", lambda g, state, keys: state | {"die": state["die"] * 0 + random.randint(1, 6)}),
        "Broken.reset: expected chance from its keys alone, got numbers from a global random generator",
    ),
    "reset draws by the world's place": (
        then("reset", lambda g, state, keys: state | {"die": torch.arange(len(keys)) % 6 + 1}),
        "Broken.reset: expected a world to come out alone as it does among others, got something else for one of 5",
    ),
    "a state has an expanded tensor": (
        outcome(0, lambda state: state | {"die": torch.full((1,), 9).expand(len(state["die"]))}),
        "Broken.refill: expected the worlds that begin anew as reset makes them, and the others as they were, got "
        "something else (tensors of a state may not share their memory, as expand and views do)",
    ),
    "reset gives its own tensor": (
        broken(
            mover=torch.zeros(9, dtype=torch.int64),
            reset=lambda g, keys: Race.reset(g, keys) | {"mover": g.mover[: len(keys)]},
        ),
        "Broken.reset: expected new tensors at every call, got memory of an earlier call",
    ),
    "deciding has one role": (
        then("deciding", lambda g, flags, state: flags[:, :1]),
        "Broken.deciding: expected bool (5, 2) on cpu, got bool (5, 1) on cpu",
    ),
    "deciding is int": (
        then("deciding", lambda g, flags, state: flags.long()),
        "Broken.deciding: expected bool (5, 2) on cpu, got int64 (5, 2) on cpu",
    ),
    "nobody ever decides": (
        then("deciding", lambda g, flags, state: torch.zeros_like(flags)),
        "Broken.deciding: expected somebody to decide in every world at least once in 100 moves, got nobody in world 0",
    ),
    "a world gets stuck": (
        Stuck(),
        "Stuck.deciding: expected somebody to decide in every world at least once in 100 moves, got nobody in world",
    ),
    "a world that was cut off gets stuck": (
        Short(),
        "Short.deciding: expected each role that has decided to decide once more in a world that was cut off "
        "(truncated), which plays on, got none in world",
    ),
    "a world that was cut off gets stuck in lockstep": (
        ShortTogether(),
        "ShortTogether.deciding: expected each role that has decided to decide once more in a world that was cut off "
        "(truncated), which plays on, got none in world",
    ),
    "who is over decides": (
        then("deciding", lambda g, flags, state: flags | g.is_over(state).unsqueeze(1)),
        "Broken.deciding: expected no role to decide in a world that is over, got one in world",
    ),
    "lockstep is not true": (
        broken(lockstep=True),
        "Broken.deciding: expected a role that has decided to decide at each of its moves, until its game is over "
        "(lockstep says so), got none in world ",
    ),
    "an action is illegal in spite of always_legal": (
        broken(always_legal=True),
        "Broken.legal: expected every action of 'one' to be legal (always_legal says so), got one that is not in world",
    ),
    "observe has another shape": (
        then("observe", lambda g, seen, *_: {"seen": seen["seen"][:, :3]}),
        "Broken.observe: expected entry 'seen' of 'one' to be float32 (5, 4) on cpu, got float32 (5, 3) on cpu",
    ),
    "observe has another dtype": (
        then("observe", lambda g, seen, *_: {"seen": seen["seen"].double()}),
        "Broken.observe: expected entry 'seen' of 'one' to be float32 (5, 4) on cpu, got float64 (5, 4) on cpu",
    ),
    "observe has other entries": (
        then("observe", lambda g, seen, *_: seen | {"more": seen["seen"]}),
        "Broken.observe: expected for 'one' the entries of its spaces: 'seen', got those of 'seen', 'more'",
    ),
    "observe has another number of worlds": (
        then("observe", lambda g, seen, *_: {"seen": seen["seen"][:1]}),
        "Broken.observe: expected entry 'seen' of 'one' to be float32 (5, 4) on cpu, got float32 (1, 4) on cpu",
    ),
    "observe is elsewhere": (
        then("observe", lambda g, seen, *_: {"seen": seen["seen"].to("meta")}),
        "Broken.observe: expected entry 'seen' of 'one' to be float32 (5, 4) on cpu, got float32 (5, 4) on meta",
    ),
    "observe is not finite": (
        then("observe", lambda g, seen, *_: {"seen": seen["seen"] / (seen["seen"] - 3)}),
        "Broken.observe: expected entry 'seen' of 'one' to be finite numbers, got nan or inf",
    ),
    "observe writes to the state": (
        then("observe", write(lambda state, role: state["places"])),
        "Broken.observe: expected its arguments to stay as they were, got other numbers in state['places']",
    ),
    "observe raises": (
        broken(observe=raising),
        "Broken.observe: raises ArithmeticError: no such place (test_check_game.py, line ",
    ),
    "8 flags for 9 actions": (
        then("legal", lambda g, flags, *_: flags[:, :8]),
        "Broken.legal: expected for 'one' bool (5, 9) on cpu, got bool (5, 8) on cpu",
    ),
    "a mask of floats": (
        then("legal", lambda g, flags, *_: flags.float()),
        "Broken.legal: expected for 'one' bool (5, 9) on cpu, got float32 (5, 9) on cpu",
    ),
    "no legal action": (
        then("legal", lambda g, flags, state, role: flags & (state["die"] != 4).unsqueeze(1)),
        "Broken.legal: expected a legal action for 'one' wherever it decides, got none in world",
    ),
    "a mask in one memory": (
        then("legal", kept_buffer),
        "Broken.legal: expected results that are no views of a state, and that later calls do not change, got other",
    ),
    "transition gives three": (
        then("transition", lambda g, parts, *_: parts[:3]),
        "Broken.transition: expected a tuple of state, rewards, terminated, truncated, got a tuple of 3",
    ),
    "a state without an entry": (
        outcome(0, lambda state: {"places": state["places"]}),
        "Broken.transition: expected a state with the entries that reset gives: 'places', 'mover', 'die', got those of "
        "'places'",
    ),
    "a state of another dtype": (
        outcome(0, lambda state: state | {"die": state["die"].int()}),
        "Broken.transition: expected state entry 'die', as reset has made it, to be int64 (5,) on cpu, got int32 "
        "(5,) on cpu",
    ),
    "a state of another shape": (
        outcome(0, lambda state: state | {"die": state["die"].unsqueeze(1)}),
        "Broken.transition: expected state entry 'die', as reset has made it, to be int64 (5,) on cpu, got int64 "
        "(5, 1) on cpu",
    ),
    "rewards without roles": (
        outcome(1, lambda rewards: rewards[:, 0]),
        "Broken.transition: expected the rewards (worlds, roles) to be float32 (5, 2) on cpu, got float32 (5,) on cpu",
    ),
    "rewards with an axis more": (
        outcome(1, lambda rewards: rewards.unsqueeze(2)),
        "Broken.transition: expected the rewards (worlds, roles) to be float32 (5, 2) on cpu, got float32 "
        "(5, 2, 1) on cpu",
    ),
    "rewards are ints": (
        outcome(1, lambda rewards: rewards.long()),
        "Broken.transition: expected the rewards (worlds, roles) to be float32 (5, 2) on cpu, got int64 (5, 2) on cpu",
    ),
    "rewards are no numbers": (
        outcome(1, lambda rewards: rewards / 0),
        "Broken.transition: expected finite rewards, got nan or inf",
    ),
    "terminated is float": (
        outcome(2, lambda terminated: terminated.float()),
        "Broken.transition: expected terminated (worlds, roles) to be bool (5, 2) on cpu, got float32 (5, 2) on cpu",
    ),
    "truncated has roles": (
        outcome(3, lambda truncated: truncated.unsqueeze(1).expand(-1, 2)),
        "Broken.transition: expected truncated (worlds) to be bool (5,) on cpu, got bool (5, 2) on cpu",
    ),
    "terminated and truncated": (
        then("transition", lambda g, parts, *_: (*parts[:3], parts[2][:, 0].clone())),
        "Broken.transition: expected truncated only in worlds that have not terminated, got both in world",
    ),
    "transition writes to the state": (
        then("transition", write(lambda state, actions, keys: state["places"])),
        "Broken.transition: expected its arguments to stay as they were, got other numbers in state['places']",
    ),
    "transition writes to actions": (
        then("transition", write(lambda state, actions, keys: actions["two"])),
        "Broken.transition: expected its arguments to stay as they were, got other numbers in actions['two']",
    ),
    "transition writes to keys": (
        then("transition", write(lambda state, actions, keys: keys)),
        "Broken.transition: expected its arguments to stay as they were, got other numbers in keys",
    ),
    "transition counts its calls": (
        counted(),
        "Broken.transition: expected the same results for the same arguments, got others at a second call",
    ),
    "transition looks at other worlds": (
        outcome(1, lambda rewards: rewards + len(rewards)),
        "Broken.transition: expected a world to come out alone as it does among others, got something else for one "
        "of 5",
    ),
    "transition heeds who does not decide": (
        then(
            "transition",
            lambda g, parts, state, actions, keys: (parts[0], parts[1] + actions["two"].unsqueeze(1), *parts[2:]),
        ),
        "Broken.transition: expected the actions of roles that do not decide to be ignored, got other results for "
        "others",
    ),
    "a quiet move is not quiet": (
        broken(moves=(("one", "two"), ("one", "two")), quiet_moves=(0,)),
        "Broken.transition: expected no rewards and no ends of running games in move 0, one of "
        "quiet_moves, got something",
    ),
    "transition_in_place is another": (
        broken(transition_in_place=lambda g, state, actions, keys: Race.transition(g, state, actions, keys + 1)),
        "Broken.transition_in_place: expected what transition gives, got something else",
    ),
    "refill renews all": (
        broken(refill=lambda g, state, where, keys: g.reset(keys)),
        "Broken.refill: expected the worlds that begin anew as reset makes them, and the others as they were, got",
    ),
    "a tally is missing": (
        broken(tallies=("laps",)),
        "Broken.reset: expected an entry for the tally 'laps', got none",
    ),
    "critics of nobody": (
        broken(critic_spaces={"three": {}}),
        "Broken.critic_spaces: expected a mapping from some of the roles one, two, got 'three'",
    ),
    "critics are shown numbers": (
        broken(critic_spaces={"one": {"die": 3}}),
        "Broken.critic_spaces: expected for 'one' Space, by name, got {'die': 3}",
    ),
    "critics are shown what the role observes": (
        broken(critic_spaces={"two": {"seen": DIE}}),
        "Broken.critic_spaces: expected for 'two' other names than those of its `spaces`, got 'seen'",
    ),
    "critics are shown nothing": (
        broken(critic_spaces={"two": {"die": DIE}}),
        "Broken.observe_for_critics: expected for 'two' the entries of its critic_spaces: 'die', got those of",
    ),
    "critics are shown other numbers": (
        broken(critic_spaces={"two": {"die": DIE}}, observe_for_critics=lambda g, state, role: {"die": state["die"]}),
        "Broken.observe_for_critics: expected entry 'die' of 'two' to be float32 (5,) on cpu, got int64 (5,) on cpu",
    ),
    "a role has no move": (
        broken(moves=(("one",),)),
        "Broken.moves: expected a tuple of tuples of roles, in which every role stands, got (('one',),)",
    ),
    "the last move is quiet": (
        broken(quiet_moves=(0,)),
        "Broken.quiet_moves: expected a tuple of numbers of moves before the last, or (), got (0,)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_named_with_its_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    game, line = BROKEN[name]
    if "gets stuck" not in name:  # all else shows in the first game
        monkeypatch.setattr(checked_games, "NUM_MOVES", 20)
    with pytest.raises(ConfigError) as caught:
        check_game(game)
    assert any(str(error).startswith(line) for error in caught.value.errors), str(caught.value)
    assert len(caught.value.errors) <= 3, str(caught.value)


def test_the_only_role_decides_wherever_its_game_is_not_over() -> None:
    class Idle(Lone):
        def deciding(self, state: State) -> Tensor:
            return super().deciding(state) & (state["die"] != 3).unsqueeze(1)

    with pytest.raises(ConfigError) as caught:
        check_game(Idle(MultiDiscrete((2, 3))))
    told = str(caught.value)
    assert "Idle.deciding: expected a role that has decided to decide at each of its moves" in told
    assert "Idle.transition: expected reward 0 and terminated in a world in which the only role does not decide" in told


def test_a_stepper_gives_what_the_other_methods_do() -> None:
    class Stepping(Lone):
        def stepper(self, state: State) -> Any:
            def step(action: Tensor, keys: Tensor) -> Any:
                new, rewards, over, cut = self.transition(state, {"one": action}, keys)
                seen = self.observe(new, "one")
                state.update(self.refill(new, over[:, 0] | cut, keys + self.shift))
                return seen, self.observe(state, "one"), rewards[:, 0], over[:, 0], cut

            return step

    game = Stepping(MultiDiscrete((2, 3)))
    game.shift = 1
    check_game(game)
    game.shift = 2
    with pytest.raises(ConfigError, match=r"Stepping.stepper: expected what transition, observe and reset give"):
        check_game(game)


def test_all_faults_are_told_at_once() -> None:
    game = broken(
        legal=lambda g, state, role: Race.legal(g, state, role)[:, :8],
        observe=lambda g, state, role: {"seen": Race.observe(g, state, role)["seen"].double()},
        transition=lambda g, *arguments: tuple(
            part.float() if index else part for index, part in enumerate(Race.transition(g, *arguments))
        ),
    )
    with pytest.raises(ConfigError) as caught:
        check_game(game)
    methods = [str(error).partition(":")[0].partition(".")[2] for error in caught.value.errors]
    assert methods == ["observe", "legal", "observe", "legal", "transition", "transition"]
    assert all("\n" not in str(error) for error in caught.value.errors)


def test_what_is_no_tensor_game_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a TensorGame, got int"):
        check_game(3)  # type: ignore[arg-type]


# ---- before a training ----------------------------------------------------------------------------------


NINE = """
import torch
from palestra.games import ObservationConfig, UserGameConfig
from palestra.games.nim import NimGame

class Nine(NimGame):
    class Config(UserGameConfig):
        num_heaps: int
        max_stones: int
        observation: ObservationConfig
        fault: str

    def __init__(self, config, device):
        if config.fault == "init":
            raise ValueError("no heaps")
        super().__init__(config, device)

    def legal(self, state, role):
        flags = super().legal(state, role)
        return flags[:, :-1] if self.config.fault == "legal" else flags
"""


@pytest.mark.parametrize("place", ["game", "evaluations.0.game"])
def test_a_broken_game_is_refused_before_training(make_config: MakeConfig, in_tmp_path: Path, place: str) -> None:
    (in_tmp_path / "nine.py").write_text(NINE)
    nim = {"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": PLAIN}
    own = nim | {"name": "nine:Nine"}
    pairing = {"first": "player", "second": "random"}
    config = make_config({"game": nim, "roles": {"first": "player", "second": "player"}, "best": None})
    config["players"] = {"player": config["players"]["host"]}
    config["evaluations"][0] |= {"pairings": [pairing]}
    at: dict[str, Any] = config if place == "game" else config["evaluations"][0]
    for fault, line in {
        "legal": f"{place}: Nine.legal: expected for 'first' bool (5, 6) on cpu, got bool (5, 5) on cpu",
        "init": f"{place}: 'nine:Nine' cannot be made: ValueError: no heaps (nine.py, line 15)",
    }.items():
        at["game"] = own | {"fault": fault}
        with pytest.raises(ConfigError) as caught:
            palestra.Trainer(config, run=in_tmp_path / "run")
        assert line in str(caught.value).splitlines()
        assert not (in_tmp_path / "run").exists()
    (in_tmp_path / "run.yml").write_text(str(config).replace("None", "null"))
    result = CliRunner().invoke(app, ["train", "run.yml"])
    assert result.exit_code == 2
    at["game"] = own | {"fault": "none"}
    palestra.Trainer(config, run=in_tmp_path / "run")


class WithoutWorlds(Race):
    """Its boards are states of no world."""

    def read_board(self, board: Any) -> State:
        if not isinstance(board, list):
            raise ValueError(f"expected two places, such as [3,4], got {board!r}")
        return {"places": torch.tensor(board), "mover": torch.tensor(0), "die": torch.tensor(1)}


@pytest.mark.usefixtures("few_moves")
def test_a_board_that_is_read_without_the_axis_of_worlds_is_told() -> None:
    told = "expected a state of one world, {'places': 'int64 (1, 2) on cpu', "
    with pytest.raises(ConfigError, match=re.escape(f"WithoutWorlds.read_board: {told}")):
        check_game(WithoutWorlds())
    stored: Any = SimpleNamespace(game=WithoutWorlds())
    with pytest.raises(ConfigError, match=re.escape("--board: expected of read_board of WithoutWorlds a state of one")):
        begin_match(stored, "[3,4]", seed=0)
