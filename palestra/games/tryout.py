"""The try-out of a game: a few worlds are played with random legal actions before anybody learns in it.

Every promise of TensorGame (palestra.games.game) that can be checked from outside is checked.

Letters: B worlds, R roles.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from palestra.config import ConfigErrorItem, cut, failure
from palestra.games.game import GameEnds, Moved, State, TensorGame, choose_worlds
from palestra.games.spaces import ActionSpace, Box, MultiDiscrete, Space
from palestra.games.tryout_calls import (
    CannotGoOn,
    CheckedCalls,
    are_same,
    copied,
    described,
    is_mapping_to,
    is_tuple_of,
    num_worlds_unlike,
)
from palestra.randomness import base_key, fold, random_floats, restored_global_states, world_keys
from palestra.runtime.scores import DeclaredScore, return_of
from palestra.runtime.statistics import Estimate, Share

MOST_IDLE_MOVES = 100  # moves in a row in which nobody decides in a world
ONCE_MORE = "each role that has decided to decide once more in a world that was cut off (truncated), which plays on"
WIDEST_BOUND = 10.0  # of random actions in a box without bounds


def try_game(game: TensorGame, num_moves: int) -> list[ConfigErrorItem]:
    """Return the faults of a game, each with the name of the method; [] for a game without faults.

    Every call is made twice, and once more for one of the worlds alone: the results must be the same. num_moves: how
    many moves are played. The global random state is restored afterwards.
    """
    if faults := faults_of_roles(game):
        return faults
    tryout = TryOut(game)
    with restored_global_states(), torch.no_grad(), suppress(CannotGoOn):
        tryout.play(num_moves)
    return [ConfigErrorItem(f"{type(game).__name__}.{method}", message) for method, message in tryout.faults.values()]


def faults_of_roles(game: TensorGame) -> list[ConfigErrorItem]:
    """Return the faults of a game's `roles`, which are needed before it is tried."""
    roles = getattr(game, "roles", None)
    if is_tuple_of(roles, str) and roles and len(set(roles)) == len(roles):
        return []
    return [ConfigErrorItem(f"{type(game).__name__}.roles", f"expected a tuple of different names, got {roles!r}")]


class TryOut(CheckedCalls):
    """One game, played to find its faults."""

    def __init__(self, game: TensorGame) -> None:
        super().__init__(game)
        self.game = game
        # of a state: dtype and shape of each entry, without the axis of worlds
        self.layout: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}

    # ---- playing ------------------------------------------------------------------------------------

    def play(self, num_moves: int) -> None:
        """Play so many moves, and more until somebody has decided."""
        self.check_attributes()
        game = self.game
        B, R = self.num_worlds(), len(game.roles)
        keys = world_keys(base_key(0, "game try-out"), B, game.device)
        first = torch.arange(B, device=game.device) == 0
        state = self.refill(self.new_state(fold(keys, 0)), first, fold(keys, 1))
        waiting = torch.zeros(B, R, dtype=torch.bool, device=game.device)  # roles that have decided in their game
        is_cut, idle = (torch.zeros(B, dtype=dtype, device=game.device) for dtype in (torch.bool, torch.int64))
        number = 0
        while number < num_moves or bool((idle >= number).all()):
            index = number % len(game.moves)
            move, is_last = game.moves[index], index + 1 == len(game.moves)
            move_keys = fold(keys, number + 2)
            step_keys = move_keys + (R + 1)
            masks, decides = self.look(state, move)
            self.check_waiting(decides, waiting, is_cut, move)
            plays_on = is_cut.unsqueeze(1)  # until every role that waits has decided once more
            idle = torch.where((decides & (waiting | ~plays_on)).any(dim=1), 0, idle + 1)
            waiting = torch.where(plays_on, waiting & ~decides, waiting | decides)
            if self.is_stuck(idle, is_cut):
                return
            actions = {
                role: random_action(game.action_spaces[role], legal, move_keys + (game.roles.index(role) + 1))
                for role, legal in masks.items()
            }
            new, rewards, terminated, truncated = self.transition(state, actions, decides, step_keys)
            self.check_ends(index, decides, rewards, terminated, truncated)
            is_over = terminated.all(dim=1)
            if bool(is_over.any()):
                no_role = ~(self.who_decides(new) & is_over.unsqueeze(1))
                self.require_everywhere("deciding", "no role to decide in a world that is over", no_role, "one")
            waiting &= ~terminated
            leaving = is_over | (truncated if R == 1 else is_cut & ~waiting.any(dim=1))
            if number < len(game.moves) and is_last:
                leaving = leaving | first  # one world at least begins anew
            is_cut = (is_cut | truncated) & ~leaving
            self.check_stepper(state, actions, step_keys, new, (rewards, terminated, truncated))
            state = self.refill(new, leaving, step_keys + 1)
            waiting &= ~leaving.unsqueeze(1)
            self.check_results()
            number += 1
        check_scores(self, game, state)
        check_board(self, game)

    def num_worlds(self) -> int:
        """Return a number of worlds that is no other size in the game."""
        game = self.game
        sizes = {len(game.roles)} | {space.num_flags for space in game.action_spaces.values()}
        by_role = (*game.spaces.values(), *game.critic_spaces.values())
        sizes |= {size for spaces in by_role for space in spaces.values() for size in space.shape}
        return num_worlds_unlike(sizes)

    def check_attributes(self) -> None:
        """Check that the attributes that must be set are there, and have the right types."""
        game, num = self.game, len(self.faults)
        roles = game.roles
        for name, kind, fits_role in (
            ("spaces", "Space, by name", lambda value: is_mapping_to(value, Space) and value),
            ("action_spaces", "Discrete, MultiDiscrete or Box", lambda value: isinstance(value, ActionSpace)),
        ):
            found = getattr(game, name, None)
            for role in roles:
                if not isinstance(found, Mapping) or role not in found:
                    self.fault(name, f"an entry for {role!r}", "none")
                elif not fits_role(found[role]):
                    self.fault(name, f"for {role!r} {kind}", repr(found[role]))
        self.check_critic_spaces()
        moves: Any = getattr(game, "moves", None)
        if not (is_tuple_of(moves, tuple) and {role for move in moves for role in move} == set(roles)):
            self.fault("moves", "a tuple of tuples of roles, in which every role stands", repr(moves))
        elif not set(game.quiet_moves) <= set(range(len(moves) - 1)):
            self.fault("quiet_moves", "a tuple of numbers of moves before the last, or ()", repr(game.quiet_moves))
        for name, expected, fits in (
            ("tallies", "a tuple of names", lambda value: is_tuple_of(value, str)),
            ("lockstep", "a bool", lambda value: isinstance(value, bool)),
            ("device", "a torch.device", lambda value: isinstance(value, torch.device)),
        ):
            if not fits(value := getattr(game, name, None)):
                self.fault(name, expected, repr(value))
        if len(self.faults) > num:
            raise CannotGoOn

    def check_critic_spaces(self) -> None:
        """Check that what critics alone are shown has other names than what their role observes."""
        found: Any = self.game.critic_spaces
        if not isinstance(found, Mapping) or not set(found) <= set(self.game.roles):
            got = ", ".join(map(repr, found)) if isinstance(found, Mapping) else repr(found)
            self.fault("critic_spaces", f"a mapping from some of the roles {', '.join(self.game.roles)}", got)
            return
        for role, spaces in found.items():
            if not is_mapping_to(spaces, Space):
                self.fault("critic_spaces", f"for {role!r} Space, by name", repr(spaces))
                continue
            own: Any = getattr(self.game, "spaces", {})
            twice = [name for name in spaces if name in own.get(role, {})] if isinstance(own, Mapping) else []
            if twice:
                got = ", ".join(map(repr, twice))
                self.fault("critic_spaces", f"for {role!r} other names than those of its `spaces`", got)

    # ---- the methods, one by one ---------------------------------------------------------------------------

    def new_state(self, keys: Tensor) -> State:
        state = self.call("reset", keys)
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            self.fault("reset", "a dict of tensors by name", described(state))
            raise CannotGoOn
        B = len(keys)
        is_sound = self.check_worlds("reset", state, B)
        for name in self.game.tallies:
            if name not in state:
                self.fault("reset", f"an entry for the tally {name!r}", "none")
                is_sound = False
            elif is_sound and state[name].shape != (B,):
                self.fault("reset", f"the tally {name!r} to be a number for each world, ({B},)", described(state[name]))
        if not is_sound:
            raise CannotGoOn
        self.layout = {name: (value.dtype, tuple(value.shape[1:])) for name, value in state.items()}
        return state

    def look(self, state: State, move: tuple[str, ...]) -> tuple[dict[str, Tensor], Tensor]:
        """Call what palestra calls before a move; return the legal actions by role, and who decides, bool (B, R)."""
        masks = {}
        for role in move:
            with suppress(CannotGoOn):
                self.observe("observe", state, role, self.game.spaces[role])
            with suppress(CannotGoOn):
                self.observe("observe_for_critics", state, role, self.game.critic_spaces.get(role, {}))
            with suppress(CannotGoOn):
                masks[role] = self.legal(state, role)
        decides = self.who_decides(state)
        if len(masks) < len(move):
            raise CannotGoOn
        decides = decides & torch.tensor([role in move for role in self.game.roles], device=self.game.device)
        for role, legal in masks.items():
            space, needed = self.game.action_spaces[role], decides[:, self.game.roles.index(role)]
            for number, flags in enumerate(() if isinstance(space, Box) else space.split(legal)):
                which = f" of choice {number}" if isinstance(space, MultiDiscrete) else ""
                expected = f"a legal action{which} for {role!r} wherever it decides"
                self.require_everywhere("legal", expected, flags.any(dim=1) | ~needed, "none")
            if self.game.always_legal:
                expected = f"every action of {role!r} to be legal (always_legal says so)"
                self.require_everywhere("legal", expected, legal.all(dim=1), "one that is not")
        return masks, decides

    def who_decides(self, state: State) -> Tensor:
        shape = (_num_rows(state), len(self.game.roles))
        found = self.call("deciding", state)
        if not self.check_tensor("deciding", "", found, torch.bool, shape):
            if not isinstance(found, Tensor) or found.shape != shape:
                raise CannotGoOn
            return found != 0
        return found

    def check_waiting(self, decides: Tensor, waiting: Tensor, is_cut: Tensor, move: tuple[str, ...]) -> None:
        """Check that a role that has decided decides at its next move, too, if the game promises that."""
        if not self.game.lockstep and len(self.game.roles) > 1:
            return
        why = "lockstep says so" if self.game.lockstep else "there is one role"
        expected = f"a role that has decided to decide at each of its moves, until its game is over ({why})"
        asked = torch.tensor([role in move for role in self.game.roles], device=self.game.device)
        is_kept, is_cut = decides | ~(waiting & asked), is_cut.unsqueeze(1)
        self.require_everywhere("deciding", ONCE_MORE, is_kept | ~is_cut, "none")
        self.require_everywhere("deciding", expected, is_kept | is_cut, "none")

    def is_stuck(self, idle: Tensor, is_cut: Tensor) -> bool:
        """Tell whether a world waits for a decision that does not come; idle: int64 (B,), the moves without one."""
        goes_on = idle < MOST_IDLE_MOVES
        expected = f"somebody to decide in every world at least once in {MOST_IDLE_MOVES} moves"
        self.require_everywhere("deciding", ONCE_MORE, goes_on | ~is_cut, "none")
        self.require_everywhere("deciding", expected, goes_on | is_cut, "nobody")
        return not bool(goes_on.all())

    def observe(self, method: str, state: State, role: str, spaces: Mapping[str, Space]) -> None:
        """Call what gives observations: `observe`, or `observe_for_critics` where critics are shown anything."""
        if not spaces:
            return
        found = self.call(method, state, role)
        where = "spaces" if method == "observe" else "critic_spaces"
        self.check_observation(method, role, found, spaces, where, _num_rows(state), state)

    def legal(self, state: State, role: str) -> Tensor:
        """Return the legal actions, corrected if their number or dtype is wrong, so that the game can go on."""
        shape = (_num_rows(state), self.game.action_spaces[role].num_flags)
        found = self.call("legal", state, role)
        if self.check_tensor("legal", f"for {role!r} ", found, torch.bool, shape):
            return found
        if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != shape[0]:
            raise CannotGoOn
        sound = torch.zeros(shape, dtype=torch.bool, device=self.game.device)
        sound[:, : found.shape[1]] = found[:, : shape[1]] != 0
        return sound

    def transition(self, state: State, actions: dict[str, Tensor], decides: Tensor, keys: Tensor) -> Moved:
        method, B, R = "transition", *decides.shape
        found = self.call(method, state, actions, keys)
        if not isinstance(found, tuple) or len(found) != 4:
            self.fault(method, "a tuple of state, rewards, terminated, truncated", described(found))
            raise CannotGoOn
        new, rewards, terminated, truncated = found
        is_sound = self.check_state(method, new, B)
        is_sound &= self.check_tensor(method, "the rewards (worlds, roles) to be ", rewards, torch.float32, (B, R))
        is_sound &= self.check_tensor(method, "terminated (worlds, roles) to be ", terminated, torch.bool, (B, R))
        is_sound &= self.check_tensor(method, "truncated (worlds) to be ", truncated, torch.bool, (B,))
        if not is_sound:
            raise CannotGoOn
        if not bool(decides.all()):
            idle = dict(zip(self.game.roles, (~decides).unbind(1), strict=True))
            others = {
                role: choose_worlds(idle[role], _other(action, self.game.action_spaces[role]), action)
                for role, action in actions.items()
            }
            if not are_same(found, self.attempt(method, copied(state), others, keys)):
                self.fault(method, "the actions of roles that do not decide to be ignored", "other results for others")
        has_own = type(self.game).transition_in_place is not TensorGame.transition_in_place
        if has_own and not are_same(found, self.attempt("transition_in_place", copied(state), copied(actions), keys)):
            self.fault("transition_in_place", "what transition gives", "something else")
        return found

    def check_ends(self, index: int, decides: Tensor, rewards: Tensor, terminated: Tensor, truncated: Tensor) -> None:
        """Check the values of rewards, terminated and truncated of a move."""
        method, is_over = "transition", terminated.all(dim=1)
        if not bool(torch.isfinite(rewards).all()):
            self.fault(method, "finite rewards", "nan or inf")
        self.require_everywhere(
            method, "truncated only in worlds that have not terminated", ~(truncated & is_over), "both"
        )
        if len(self.game.roles) == 1:
            idle = ~decides.any(dim=1)
            expected = "reward 0 and terminated in a world in which the only role does not decide"
            self.require_everywhere(method, expected, ~idle | (is_over & (rewards[:, 0] == 0)))
        if index in self.game.quiet_moves:
            expected = f"no rewards and no ends of running games in move {index}, one of quiet_moves"
            goes_on = ~truncated & ~(is_over & decides.any(dim=1))
            self.require_everywhere(method, expected, (rewards == 0).all(dim=1) & goes_on)

    def refill(self, state: State, where: Tensor, keys: Tensor) -> State:
        """Begin new worlds in a state, and check that the game's own `refill`, which may write to it, does the same."""
        if not bool(where.any()):
            return state
        fresh, before = self.new_state(keys), copied(state)
        expected = {name: choose_worlds(where, fresh[name], value) for name, value in before.items()}
        found = self.attempt("refill", state, where, keys)
        if not self.check_state("refill", found, len(where)):
            raise CannotGoOn
        if not are_same(expected, found, tolerance=1e-4):
            self.fault(
                "refill",
                "the worlds that begin anew as reset makes them, and the others as they were",
                "something else (tensors of a state may not share their memory, as expand and views do)",
            )
            raise CannotGoOn
        return expected

    def check_stepper(
        self, state: State, actions: dict[str, Tensor], keys: Tensor, new: State, outcome: tuple[Tensor, ...]
    ) -> None:
        """Check that the `stepper` of a game of one role returns the same as the other methods."""
        if len(self.game.roles) > 1 or type(self.game).stepper is TensorGame.stepper:
            return
        (role,), (rewards, terminated, truncated) = self.game.roles, outcome
        if (stepper := self.attempt("stepper", {name: value.clone() for name, value in state.items()})) is None:
            return
        try:
            found = stepper(actions[role].clone(), keys)
        except Exception as error:
            self.fault("stepper", "a step", failure(error))
            raise CannotGoOn from error
        ended, fresh = terminated[:, 0] | truncated, self.game.reset(keys + 1)
        begun = {name: choose_worlds(ended, fresh[name], value) for name, value in new.items()}
        seen = (self.game.observe(new, role), self.game.observe(begun, role))
        if not are_same((*seen, rewards[:, 0], terminated[:, 0], truncated), found, tolerance=1e-4):
            self.fault("stepper", "what transition, observe and reset give", "something else")

    # ---- checks -------------------------------------------------------------------------------------------

    def check_state(self, method: str, state: Any, B: int) -> bool:
        """Check that a state has the entries that reset has given, in the same dtypes and shapes."""
        if not isinstance(state, dict) or state.keys() != self.layout.keys():
            got = f"those of {', '.join(map(repr, state))}" if isinstance(state, dict) else described(state)
            self.fault(method, f"a state with the entries that reset gives: {', '.join(map(repr, self.layout))}", got)
            return False
        sound = [
            self.check_tensor(
                method, f"state entry {name!r}, as reset has made it, to be ", state[name], dtype, (B, *shape)
            )
            for name, (dtype, shape) in self.layout.items()
        ]
        return all(sound)


def _num_rows(state: State) -> int:
    return len(next(iter(state.values())))


# ---- random actions --------------------------------------------------------------------------------------


def random_action(space: ActionSpace, legal: Tensor, keys: Tensor) -> Tensor:
    """Draw a legal action in every world that has any; numbers within bounds, or WIDEST_BOUND where there are none."""
    if isinstance(space, Box):
        low, high = (
            torch.tensor(bound, device=keys.device).clamp(-WIDEST_BOUND, WIDEST_BOUND)
            for bound in (space.low, space.high)
        )
        return low + (high - low) * random_floats(keys, len(space.low))
    return space.draw(keys, legal)


def _other(action: Tensor, space: ActionSpace) -> Tensor:
    """Return other actions of the same space, if it has any."""
    if isinstance(space, Box):
        return action.new_tensor(space.low).clamp(-WIDEST_BOUND, WIDEST_BOUND).expand_as(action)
    nums = torch.tensor(space.nums, device=action.device)
    return (action + 1) % (nums if action.dim() > 1 else nums[0])


def fault_of_board(game: TensorGame, state: Any) -> tuple[str, str] | None:
    """Say what was expected of what `read_board` gave, and what is there; None if it is a state of one world."""
    like = {name: described(value) for name, value in game.reset(world_keys(0, 1, game.device)).items()}
    found = {name: described(value) for name, value in state.items()} if isinstance(state, dict) else described(state)
    return None if found == like else (f"a state of one world, {like}", str(found))


def check_board(calls: CheckedCalls, game: TensorGame) -> None:
    """Try the example that the error of `read_board` names for what is no board, if the game reads boards."""
    if type(game).read_board is TensorGame.read_board:
        return
    try:
        calls.attempt("read_board", "no board")
        return
    except CannotGoOn as failed:
        if not isinstance(failed.__cause__, ValueError):
            return
        del calls.faults["read_board", "raises"]
        example = re.search(r"such as (.+?)(, got|$)", str(failed.__cause__))
    if example is None:
        return
    text: Any = example[1]
    with suppress(ValueError):
        text = json.loads(text)
    if (fault := fault_of_board(game, calls.attempt("read_board", text))) is not None:
        calls.fault("read_board", *fault)


def faults_of_declared(game: TensorGame) -> list[ConfigErrorItem]:
    """Return the faults of a game's `declared_scores`, which are needed before it is tried. Its roles are sound."""
    place = f"{type(game).__name__}.declared_scores"
    return [ConfigErrorItem(place, fault) for fault in _declared_faults(game.declared_scores, game.roles)]


def _declared_faults(declared: Any, roles: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(declared, tuple) or not declared or not all(isinstance(one, DeclaredScore) for one in declared):
        yield f"expected a tuple of one DeclaredScore or more, got {cut(repr(declared), 200)}"
        return
    names = [score.name for score in declared]
    if len(set(names)) < len(names):
        yield f"expected different names, got {', '.join(names)}"
    for score in declared:
        for role in (*score.high_for, *score.low_for):
            if role not in roles:
                yield f"expected roles of the game ({', '.join(roles)}) that want {score.name!r}, got {role!r}"


def check_scores(tryout: CheckedCalls, game: TensorGame, state: State) -> None:
    """Let a game find the scores of some games, which lasted one round. state: how they ended."""
    if unknown := [name for name in game.outcome_entries if name not in state]:
        tryout.fault("outcome_entries", f"entries of the state ({', '.join(state)})", ", ".join(unknown))
        return
    num = len(next(iter(state.values())))
    ends = GameEnds(
        finished=torch.ones(num, dtype=torch.bool, device=game.device),
        lengths=torch.ones(num, dtype=torch.int64, device=game.device),
        returns={role: torch.zeros(num, device=game.device) for role in game.roles},
        outcomes={name: state[name] for name in game.outcome_entries},
        clusters=None,
    )
    declared = {score.name for score in game.declared_scores} - {return_of(role) for role in game.roles}
    found = tryout.attempt("scores", ends)
    if not isinstance(found, Mapping) or set(found) != declared:
        got = ", ".join(sorted(map(str, found))) if isinstance(found, Mapping) else type(found).__name__
        tryout.fault(
            "scores", f"the scores that it declares besides returns ({', '.join(sorted(declared))})", got or "none"
        )
    else:
        for name, score in found.items():
            if not isinstance(score, Share | Estimate | int | float | None):
                tryout.fault("scores", f"a number, None, a Share or an Estimate as {name!r}", type(score).__name__)
    wins = tryout.attempt("wins", ends)
    shapes = {role: getattr(won, "shape", None) for role, won in wins.items()} if isinstance(wins, Mapping) else None
    if shapes not in ({}, dict.fromkeys(game.roles, (num,))):
        expected = f"a tensor ({num},), a number for each game, of each of the roles {', '.join(game.roles)}, or none"
        tryout.fault("wins", expected, repr(wins))
