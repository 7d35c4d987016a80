"""The rules of dialogues for CPUs: one loop over the worlds, compiled by numba, for each of their steps.

game.py does the same in plain torch, and documents states; `Rules` documents tables. Letters: B worlds, R roles, V
verifiers, T rounds, C channels, K variants, F flags of a role's actions, N tokens.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.games.dialogue.protocol import GO_ON, VERDICTS, Protocol
from palestra.games.game import State
from palestra.runtime.compiling import njit


class Rules:
    """The tensors of a protocol. Those by round have a last row, T, for a dialogue that is over.

    spoken: by role, the numbers of the channels in which it ever speaks. speaks: bool (T + 1, K, R, C). active,
    decides: bool (T + 1, K, V), whether a verifier has its turn, and whether a decision counts. legal_flags: by role,
    its legal actions, bool (T + 1, K, F). payoffs: float32 (K, 3^V, 2, R), by the verdicts as digits and the label.
    paid_for: by verifier, the numbers of the roles that get `go_on` when it goes on. sides: by prover who sees it, the
    verdict for which it argues, int64 (K,).
    """

    def __init__(
        self, protocol: Protocol, spoken: Mapping[str, list[int]], num_tokens: int, device: torch.device
    ) -> None:
        self.spoken = spoken
        roles, verifiers, channels = protocol.roles, protocol.verifiers, protocol.channels
        T, K, R, V = protocol.max_rounds, protocol.num_variants, len(roles), len(verifiers)
        self.speaks = torch.zeros(T + 1, K, R, len(channels), dtype=torch.bool, device=device)
        self.active, self.decides = (torch.zeros(T + 1, K, V, dtype=torch.bool, device=device) for _ in range(2))
        for t, k in protocol.moments():
            for (r, role), (c, channel) in product(enumerate(roles), enumerate(channels)):
                self.speaks[t, k, r, c] = protocol.speaks(role, channel, t, k)
            for v, verifier in enumerate(verifiers):
                self.active[t, k, v] = protocol.is_active(verifier, t, k)
                self.decides[t, k, v] = protocol.may_decide(verifier, t, k)
        self.payoffs = torch.zeros(K, 3**V, 2, R, device=device)
        for number, verdicts in enumerate(product(VERDICTS, repeat=V)):
            by_verifier = dict(zip(verifiers, verdicts, strict=True))
            for k, label, (r, role) in product(range(K), (0, 1), enumerate(roles)):
                self.payoffs[k, number, label, r] = protocol.reward(role, by_verifier, label, k)
        self.legal_flags = {role: self._legal_flags(role, roles, verifiers, num_tokens) for role in roles}
        self.paid_for = [[roles.index(role) for role in protocol.paid_for(verifier)] for verifier in verifiers]
        self.sides = {
            role: torch.tensor([protocol.side(role, k) for k in range(K)], device=device)
            for role in roles
            if protocol.sees_side(role)
        }

    def _legal_flags(self, role: str, roles: Sequence[str], verifiers: Sequence[str], num_tokens: int) -> Tensor:
        """Return the legal actions of a role in each round of each variant: bool (T + 1, K, F)."""
        says = self.speaks[:, :, roles.index(role), self.spoken[role]].unsqueeze(3)  # (T + 1, K, own, 1)
        choices = torch.cat([says.expand(-1, -1, -1, num_tokens), ~says], dim=3).flatten(2)
        if role not in verifiers:
            return choices
        may = self.decides[:, :, verifiers.index(role)].unsqueeze(2)
        return torch.cat([choices, may, may, torch.ones_like(may)], dim=2)


Array = np.ndarray[Any, Any]

CHANGING = ("round", "messages", "verdicts", "right", "undecided")  # what a round changes of a state

_compiled = njit()


class Loops:
    """The rules of one game, with its tables as arrays."""

    def __init__(self, protocol: Protocol, rules: Rules) -> None:
        verifiers, R, C = list(protocol.verifiers), len(protocol.roles), len(protocol.channels)
        self.roles, self.max_rounds = protocol.roles, protocol.max_rounds
        self.speaks, self.active, self.decides = rules.speaks.numpy(), rules.active.numpy(), rules.decides.numpy()
        self.payoffs, self.go_on = rules.payoffs.numpy(), np.float32(protocol.rewards.go_on)
        self.legal_flags = {role: flags.numpy() for role, flags in rules.legal_flags.items()}
        self.verifier_of = np.array([verifiers.index(role) if role in verifiers else -1 for role in self.roles])
        self.spoken = np.full((R, C), -1)
        for r, own in enumerate(rules.spoken.values()):
            self.spoken[r, own] = range(len(own))
        self.paid_for = np.zeros((len(verifiers), R), dtype=np.bool_)
        for v, paid in enumerate(rules.paid_for):
            self.paid_for[v, paid] = True

    def _when(self, state: State) -> tuple[Array, Array, Array]:
        """Return the rows of the tables that apply now, the variants, and the verdicts so far."""
        verdicts, rows = state["verdicts"].numpy(), np.empty(len(state["round"]), dtype=np.int64)
        find_rows(state["round"].numpy(), verdicts, self.max_rounds, rows)
        return rows, state["variant"].numpy(), verdicts

    def deciding(self, state: State) -> Tensor:
        deciding = np.empty((len(state["round"]), len(self.roles)), dtype=np.bool_)
        find_deciding(*self._when(state), self.speaks, self.active, self.verifier_of, deciding)
        return torch.from_numpy(deciding)

    def legal(self, state: State, role: str) -> Tensor:
        flags, verifier = self.legal_flags[role], self.verifier_of[self.roles.index(role)]
        legal = np.empty((len(state["round"]), flags.shape[2]), dtype=np.bool_)
        look_up_legal(*self._when(state), flags, verifier, legal)
        return torch.from_numpy(legal)

    def one_hot(self, numbers: Tensor, num: int) -> Tensor:
        """Encode numbers one-hot: float32 (*numbers.shape, num); -1 becomes zeros."""
        flags = np.empty((*numbers.shape, num), dtype=np.float32)
        write_one_hot(numbers.numpy().ravel(), flags.reshape(-1, num))
        return torch.from_numpy(flags)

    def play(self, state: State, actions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Play a round, written over `state`; return rewards (B, R), and whether the dialogue is over, bool (B, R)."""
        (rows, variant, verdicts), B, R = self._when(state), len(state["round"]), len(self.roles)
        rounds, messages = state["round"].numpy(), state["messages"].numpy()
        choices = tuple(np.ascontiguousarray(actions[role].numpy()).reshape(B, -1) for role in self.roles)
        tables = (self.spoken, self.speaks, self.decides, self.verifier_of)
        play_round(rows, variant, choices, *tables, rounds, messages, verdicts)
        rewards, over = np.empty((B, R), dtype=np.float32), np.empty((B, R), dtype=np.bool_)
        outcome = (state["right"].numpy(), state["undecided"].numpy(), rewards, over)
        prices = (self.decides, self.payoffs, self.go_on, self.paid_for)
        end_round(rows, variant, state["label"].numpy(), rounds, verdicts, *prices, *outcome)
        return torch.from_numpy(rewards), torch.from_numpy(over)


# ---- the loops -------------------------------------------------------------------------------------------


@_compiled
def find_rows(rounds: Array, verdicts: Array, max_rounds: int, rows: Array) -> None:
    """Write into `rows`, int64 (B,), the row of the tables for each world: its round, T if its dialogue is over."""
    for world in range(len(rounds)):
        is_open = False
        for v in range(verdicts.shape[1]):
            is_open |= verdicts[world, v] < 0
        rows[world] = rounds[world] if is_open and rounds[world] < max_rounds else max_rounds


@_compiled
def find_deciding(
    rows: Array, variant: Array, verdicts: Array, speaks: Array, active: Array, verifier_of: Array, deciding: Array
) -> None:
    """Write into `deciding`, bool (B, R), which roles decide.

    verifier_of: int64 (R,), the number of the verifier in each role, -1 of a prover.
    """
    for world in range(len(rows)):
        t, k = rows[world], variant[world]
        for r in range(deciding.shape[1]):
            has_turn, v = False, verifier_of[r]
            for c in range(speaks.shape[3]):
                has_turn |= speaks[t, k, r, c]
            if v >= 0:
                has_turn = (has_turn | active[t, k, v]) and verdicts[world, v] < 0
            deciding[world, r] = has_turn


@_compiled
def look_up_legal(rows: Array, variant: Array, verdicts: Array, flags: Array, verifier: int, legal: Array) -> None:
    """Write a role's legal actions into `legal`, bool (B, F).

    flags: those of every row and variant, bool (T + 1, K, F). verifier: the number of the role's verifier, -1 of a
    prover.
    """
    for world in range(len(rows)):
        t = rows[world]
        if verifier >= 0 and verdicts[world, verifier] >= 0:
            t = len(flags) - 1
        for flag in range(flags.shape[2]):
            legal[world, flag] = flags[t, variant[world], flag]


@njit(boundscheck=True)
def write_one_hot(numbers: Array, one_hot: Array) -> None:
    """Write into `one_hot`, float32 (M, N), 1 at the numbers, int64 (M,), and zeros where these are below 0.

    Raises IndexError for a number beyond N.
    """
    one_hot[:] = 0.0
    for m in range(len(numbers)):
        if numbers[m] >= 0:
            one_hot[m, numbers[m]] = 1.0


@_compiled
def play_round(
    rows: Array,
    variant: Array,
    choices: tuple[Array, ...],
    spoken: Array,
    speaks: Array,
    decides: Array,
    verifier_of: Array,
    rounds: Array,
    messages: Array,
    verdicts: Array,
) -> None:
    """Write what is said and decided in a round into the last three arguments.

    choices: by role, int64 (B, its choices). spoken: int64 (R, C), which choice of the role is the token in a channel,
    -1 where it never speaks.
    """
    max_rounds = messages.shape[1]
    for world in range(len(rows)):
        t, k = rows[world], variant[world]
        if t == max_rounds:
            continue
        for r in range(len(choices)):
            v = verifier_of[r]
            if v >= 0 and verdicts[world, v] >= 0:
                continue
            for c in range(spoken.shape[1]):
                if speaks[t, k, r, c]:
                    messages[world, t, c] = choices[r][world, spoken[r, c]]
            if v >= 0 and decides[t, k, v]:
                decision = choices[r][world, -1]
                if decision != GO_ON:
                    verdicts[world, v] = decision
        rounds[world] += 1


@njit(boundscheck=True)
def end_round(
    rows: Array,
    variant: Array,
    label: Array,
    rounds: Array,
    verdicts: Array,
    decides: Array,
    payoffs: Array,
    go_on: np.float32,
    paid_for: Array,
    right: Array,
    undecided: Array,
    rewards: Array,
    over: Array,
) -> None:
    """Write what a round has led to into the last four arguments.

    rows: of the round that was played. payoffs: float32 (K, 3^V, 2, R). paid_for: bool (V, R), which roles get `go_on`
    when a verifier goes on. Raises IndexError for a verdict that is none.
    """
    max_rounds, num_verifiers = len(decides) - 1, verdicts.shape[1]
    for world in range(len(rows)):
        is_open, number = False, 0
        for v in range(num_verifiers):
            verdict = verdicts[world, v]
            is_open |= verdict < 0
            number = 3 * number + (2 if verdict < 0 else verdict)
        is_over = not (is_open and rounds[world] < max_rounds)
        right[world] = is_over and verdicts[world, 0] == label[world]
        undecided[world] = is_over and verdicts[world, 0] < 0
        ran = np.float32(rows[world] < max_rounds)
        for r in range(rewards.shape[1]):
            reward = payoffs[variant[world], number, label[world], r] * np.float32(is_over)
            for v in range(num_verifiers):
                if paid_for[v, r]:
                    goes_on = decides[rows[world], variant[world], v] and verdicts[world, v] < 0 and not is_over
                    reward += go_on * np.float32(goes_on)
            rewards[world, r] = reward * ran
            over[world, r] = is_over
