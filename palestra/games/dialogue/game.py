"""`dialogue`: a protocol and a scenario joined into a TensorGame. The rules of the protocol become tables.

Letters: B worlds, R roles, V verifiers, T rounds, C channels, K variants, F flags of a role's actions.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import one_hot

from palestra.config import ByName, ConfigErrorItem, UnreadConfig, UserConfig, below
from palestra.config.places import place_of
from palestra.config.usual import completed
from palestra.data.columns import require_same_files
from palestra.games.config import GameConfig, TensorGameConfig
from palestra.games.dialogue.loops import CHANGING, Loops, Rules
from palestra.games.dialogue.protocol import (
    DECISIONS,
    GO_ON,
    VERDICTS,
    Protocol,
    drawn_sides,
    sights_in_words,
    turns_in_words,
)
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.games.dialogue.rows import RowsConfig
from palestra.games.dialogue.scenario import INSTANCE, Scenario, instance_of
from palestra.games.dialogue.scores import declared_scores, message_slots, mutual_information, verdict_scores
from palestra.games.dialogue.tryout import first_protocol, make_protocol, make_scenario
from palestra.games.dialogue.witness import WitnessConfig
from palestra.games.game import GameEnds, Kernel, Moved, Observation, State, TensorGame
from palestra.games.spaces import Discrete, MultiDiscrete, Space
from palestra.games.trace import Choice, ShareTable, Trace, Transcript, Utterance
from palestra.games.world import EnvironmentFailed
from palestra.randomness import fold, random_integers, runs_on_cpu
from palestra.runtime.scores import DeclaredScore
from palestra.runtime.statistics import Share

CRITIC = "critic/"  # before the names of what critics alone are shown

AnyScenarioConfig = Annotated[WitnessConfig | RowsConfig | UserConfig, ByName(user_class=Scenario)]


class DialogueConfig(TensorGameConfig):
    name: Literal["dialogue"]
    """provers and verifiers talk about labelled instances: any protocol with any scenario"""
    protocol: AnyProtocolConfig
    """who speaks when, who decides, and what they get for it"""
    scenario: AnyScenarioConfig
    """the instances, the tokens of which messages are made, and what each role sees"""

    usual_run: ClassVar = {"trainer": "together"}

    @classmethod
    def usual(cls, said: Mapping[str, Any], about: Any) -> dict[str, Any]:
        usual, made = {"protocol": "nip", "scenario": "witness"}, first_protocol(said)
        with below("scenario"):
            return usual | {"scenario": completed(said.get("scenario", "witness"), place_of(AnyScenarioConfig), made)}

    @model_validator(mode="after")
    def _check_protocol(self) -> Self:
        if not isinstance(self.protocol, UnreadConfig):
            with below("protocol"):
                make_protocol(self.protocol)
        return self

    def make(self, device: torch.device, kernel: Kernel) -> "DialogueGame":
        with below("game.scenario"):
            return DialogueGame(self, device, kernel)

    def declared_roles(self) -> tuple[str, ...]:
        return self.protocol.build().roles

    def declared_scores(self) -> tuple[DeclaredScore, ...]:
        return scores_of(self.protocol.build())

    def misfit(self, other: GameConfig) -> ConfigErrorItem | None:
        fault = None
        if isinstance(self.scenario, RowsConfig) and isinstance(other, DialogueConfig):
            fault = self.scenario.misfit(other.scenario)
        return super().misfit(other) if fault is None else replace(fault, path=f"scenario.{fault.path}")

    def describe_turns(self) -> list[str]:
        return turns_in_words(self.protocol.name, self.protocol.build()) + sights_in_words(self.scenario)


def scores_of(protocol: Protocol) -> tuple[DeclaredScore, ...]:
    return declared_scores(protocol, [name for name, _, _ in message_slots(protocol)])


class DialogueGame(TensorGame):
    """A dialogue by the rules of a protocol about the instances of a scenario.

    State: the instance's tensors as instance.NAME; label, round, variant int64 (B,); messages int64 (B, T, C), -1
    where nothing was said; verdicts int64 (B, V), -1 before a decision; right, undecided bool (B,).

    A role's action has a choice for each channel in which it ever speaks, a token or silence (the last one), and of a
    verifier one more: reject, accept or go on. A role with a single choice has a Discrete action. Where a role has no
    turn, silence and going on are all that is legal; where it speaks, silence is not. The dialogue is over when every
    verifier has decided, or out of time.

    A role observes what the scenario shows it, `messages`, float32 (T, its channels, tokens), one-hot and 0 where
    nothing was said, and `round`, one-hot; a prover whose side the variant decides also `side`, one-hot. Nobody
    observes who sent a message. Critics of every role are shown the same beside that: critic/label, float32 (1,);
    critic/variant, one-hot; critic/messages, of all channels; and, as critic/ROLE/NAME, what the scenario shows the
    roles.

    The kernel ("numba" on CPUs, "torch" anywhere) changes speed, never a result.
    """

    tallies = ("right", "undecided")
    lockstep = False

    def __init__(self, config: DialogueConfig, device: torch.device, kernel: Kernel) -> None:
        self.config, self.device = config, device
        self.protocol: Protocol = config.protocol.build()
        self.scenario = make_scenario(config.scenario, self.protocol, device)
        protocol = self.protocol
        self.roles, self.moves = protocol.roles, (protocol.roles,)
        self.held_out_instances = False
        self.labels_are_checked = isinstance(config.scenario, UserConfig) and device.type == "cpu"  # a GPU would wait
        self.outcome_entries = ("verdicts", "label", "messages")
        self.channels = list(protocol.channels)
        self.seen_channels = {
            role: [index for index, name in enumerate(self.channels) if role in protocol.channels[name]]
            for role in self.roles
        }
        self.spoken_channels = {
            role: [index for index, name in enumerate(self.channels) if role in protocol.speakers(name)]
            for role in self.roles
        }
        self.action_spaces = {}
        for role in self.roles:
            decides = [len(DECISIONS)] if role in protocol.verifiers else []
            nums = (*[self.scenario.num_tokens + 1] * len(self.spoken_channels[role]), *decides)
            self.action_spaces[role] = Discrete(nums[0]) if len(nums) == 1 else MultiDiscrete(nums)
        self.spaces = {role: self._spaces_of(role) for role in self.roles}
        self.critic_spaces = dict.fromkeys(self.roles, self._spaces_of_critics())
        self.rules = Rules(protocol, self.spoken_channels, self.scenario.num_tokens, device)
        self.loops = Loops(protocol, self.rules) if kernel == "numba" and device.type == "cpu" else None

    def _spaces_of(self, role: str) -> dict[str, Space]:
        spaces = dict(self.scenario.spaces(role))
        num_channels, rounds = len(self.seen_channels[role]), self.protocol.max_rounds
        if num_channels:
            spaces["messages"] = Space((rounds, num_channels, self.scenario.num_tokens), torch.float32, padded=False)
        numbers = {"round": rounds, "side": 2} if self.protocol.sees_side(role) else {"round": rounds}
        return spaces | {name: Space((num,), torch.float32, padded=False) for name, num in numbers.items()}

    def _spaces_of_critics(self) -> dict[str, Space]:
        protocol, num_tokens = self.protocol, self.scenario.num_tokens
        shapes: dict[str, tuple[int, ...]] = {"label": (1,), "variant": (protocol.num_variants,)}
        if self.channels:
            shapes["messages"] = (protocol.max_rounds, len(self.channels), num_tokens)
        spaces = {CRITIC + name: Space(shape, torch.float32, padded=False) for name, shape in shapes.items()}
        for role in self.roles:
            spaces |= {f"{CRITIC}{role}/{name}": space for name, space in self.scenario.spaces(role).items()}
        return spaces

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"files": dict(self.scenario.files)} if self.scenario.files else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state; raises ConfigError if a file that instances come from has changed since."""
        with below("game.scenario"):  # the game of an evaluation may read other files
            require_same_files(state.get("files", {}), self.scenario.files)
        super().load_state_dict({name: value for name, value in state.items() if name != "files"})

    # ---- the rules -----------------------------------------------------------------------------------------

    def held_out(self) -> "DialogueGame":
        game = copy(self)
        game.held_out_instances = True
        return game

    def reset(self, keys: Tensor) -> State:
        instances, label = self.scenario.draw(fold(keys, 0), self.held_out_instances)
        # labels other than 0 and 1 may be too rare for a try-out to find
        if self.labels_are_checked and len(wrong := label[(label != 0) & (label != 1)]):
            place = f"game.scenario: {type(self.scenario).__name__}.draw"
            raise EnvironmentFailed(f"expected the labels to be 0 or 1, got {int(wrong[0])}", place=place)
        B, T, C = len(keys), self.protocol.max_rounds, len(self.channels)
        none = torch.zeros(B, dtype=torch.bool, device=self.device)
        return {
            **{INSTANCE + name: value for name, value in instances.items()},
            "label": label,
            "round": torch.zeros_like(label),
            "variant": random_integers(fold(keys, 1), 1, self.protocol.num_variants).squeeze(1),
            "messages": torch.full((B, T, C), -1, device=self.device),
            "verdicts": torch.full((B, len(self.protocol.verifiers)), -1, device=self.device),
            "right": none,
            "undecided": none.clone(),
        }

    def start_of(self, state: State) -> State:
        return instance_of(state)

    def _is_running(self, state: State) -> Tensor:
        return (state["round"] < self.protocol.max_rounds) & (state["verdicts"] < 0).any(dim=1)

    def _time(self, state: State) -> tuple[Tensor, Tensor]:
        """Return round and variant as the tables count them: the round is T where the dialogue is over."""
        return torch.where(self._is_running(state), state["round"], self.protocol.max_rounds), state["variant"]

    def _loops(self, tensor: Tensor) -> Loops | None:
        """Return the loops, which compute the same faster, if they may be used now; else None."""
        return self.loops if runs_on_cpu(tensor) else None

    def deciding(self, state: State) -> Tensor:
        if (loops := self._loops(state["round"])) is not None:
            return loops.deciding(state)
        time = self._time(state)
        has_turn = self.rules.speaks[time].any(dim=2)
        active = self.rules.active[time]
        columns = list(has_turn.unbind(1))
        for v, verifier in enumerate(self.protocol.verifiers):
            r = self.roles.index(verifier)
            columns[r] = (columns[r] | active[:, v]) & (state["verdicts"][:, v] < 0)
        return torch.stack(columns, dim=1)

    def observe(self, state: State, role: str) -> Observation:
        seen = self._view(state, role)
        if self.seen_channels[role]:
            messages = state["messages"][:, :, self.seen_channels[role]]
            seen["messages"] = self._one_hot(messages, self.scenario.num_tokens)
        rounds = self.protocol.max_rounds
        seen["round"] = self._one_hot(state["round"].clamp(max=rounds - 1), rounds)
        if role in self.rules.sides:
            seen["side"] = self._one_hot(self.rules.sides[role][state["variant"]], 2)
        return seen

    def _one_hot(self, numbers: Tensor, num: int) -> Tensor:
        """Encode numbers one-hot: float32 (*numbers.shape, num); -1, which stands for nothing, becomes zeros."""
        if (loops := self._loops(numbers)) is not None:
            return loops.one_hot(numbers, num)
        return one_hot(numbers + 1, num + 1)[..., 1:].float()  # -1 becomes the first column, which is cut off

    def observe_for_critics(self, state: State, role: str) -> Observation:
        shown = {
            "label": state["label"].unsqueeze(1).float(),
            "variant": self._one_hot(state["variant"], self.protocol.num_variants),
        }
        if self.channels:
            shown["messages"] = self._one_hot(state["messages"], self.scenario.num_tokens)
        for each in self.roles:
            shown |= {f"{each}/{name}": value for name, value in self._view(state, each).items()}
        return {CRITIC + name: value for name, value in shown.items()}

    def _view(self, state: State, role: str) -> dict[str, Tensor]:
        """Return what the scenario shows a role."""
        return dict(self.scenario.view(instance_of(state), role, state["messages"][:, :, self.seen_channels[role]]))

    def legal(self, state: State, role: str) -> Tensor:
        if (loops := self._loops(state["round"])) is not None:
            return loops.legal(state, role)
        if role not in self.protocol.verifiers:
            return self.rules.legal_flags[role][self._time(state)]
        v, (time, variant) = self.protocol.verifiers.index(role), self._time(state)
        over = self.protocol.max_rounds
        return self.rules.legal_flags[role][torch.where(state["verdicts"][:, v] < 0, time, over), variant]

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        if self._loops(state["round"]) is not None:
            return self.transition_in_place(state | {name: state[name].clone() for name in CHANGING}, actions, keys)
        running, time = self._is_running(state), self._time(state)
        before, said, decided = state["verdicts"], state["messages"], []
        row = (torch.arange(self.protocol.max_rounds, device=self.device) == time[0].unsqueeze(1)).unsqueeze(2)
        for r, role in enumerate(self.roles):
            choices = actions[role] if actions[role].dim() > 1 else actions[role].unsqueeze(1)
            own, speaks = self.spoken_channels[role], self.rules.speaks[time][:, r]
            if role in self.protocol.verifiers:
                v = self.protocol.verifiers.index(role)
                speaks = speaks & (before[:, v] < 0).unsqueeze(1)
                decision = choices[:, -1]
                counts = self.rules.decides[time][:, v] & (before[:, v] < 0) & (decision != GO_ON)
                decided.append(torch.where(counts, decision, before[:, v]))
            if own:
                token = torch.zeros_like(said[:, 0])
                token[:, own] = choices[:, : len(own)]
                said = torch.where(row & speaks.unsqueeze(1), token.unsqueeze(1), said)
        verdicts = torch.stack(decided, dim=1)
        new = state | {"round": state["round"] + running, "messages": said, "verdicts": verdicts}
        over = ~self._is_running(new)
        right = (verdicts[:, 0] == state["label"]) & over
        new |= {"right": right, "undecided": (verdicts[:, 0] < 0) & over}
        rewards = self._rewards(new, time, running, over)
        return new, rewards, over.unsqueeze(1).expand(-1, len(self.roles)), torch.zeros_like(over)

    def transition_in_place(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        if (loops := self._loops(state["round"])) is None:
            return self.transition(state, actions, keys)
        rewards, over = loops.play(state, actions)
        return state, rewards, over, torch.zeros(len(over), dtype=torch.bool)

    def _rewards(self, new: State, time: tuple[Tensor, Tensor], running: Tensor, over: Tensor) -> Tensor:
        """Return the rewards (B, R) of the move that led to `new`. time: round and variant of that move."""
        verdicts = new["verdicts"]
        digits = torch.where(verdicts < 0, len(VERDICTS) - 1, verdicts)
        places = 3 ** torch.arange(len(self.protocol.verifiers) - 1, -1, -1, device=self.device)
        rewards = self.rules.payoffs[time[1], (digits * places).sum(dim=1), new["label"]] * over.unsqueeze(1)
        goes_on = self.rules.decides[time] & (verdicts < 0) & ~over.unsqueeze(1)
        for v, paid in enumerate(self.rules.paid_for):
            for r in paid:
                rewards[:, r] += self.protocol.rewards.go_on * goes_on[:, v]
        return rewards * running.unsqueeze(1)

    @property
    def declared_scores(self) -> tuple[DeclaredScore, ...]:
        return scores_of(self.protocol)

    def scores(self, ends: GameEnds) -> dict[str, float | Share | None]:
        """Compute how often the first verifier is right, and what each message tells of the label, in bits."""
        label, messages = ends.outcomes["label"], ends.outcomes["messages"]
        found = verdict_scores(ends.outcomes["verdicts"][:, 0], label, ends.clusters)
        for name, t, c in message_slots(self.protocol):
            found[name] = mutual_information(messages[:, t, c], label, self.scenario.num_tokens)
        return found

    # ---- as people read it ---------------------------------------------------------------------------------

    @cached_property
    def words(self) -> "dict[str, ActionWords]":
        """How people read and type the actions of each role."""
        named = [self.scenario.describe_token(token) for token in range(self.scenario.num_tokens)]
        return {
            role: ActionWords(role, [self.channels[c] for c in own], named, role in self.protocol.verifiers)
            for role, own in self.spoken_channels.items()
        }

    def describe_action(self, role: str, action: Tensor) -> str:
        return self.words[role].describe(action.flatten().tolist())

    def describe_flags(self, role: str) -> list[str]:
        return [word for words in self.words[role].choices for word in words]

    def read_action(self, role: str, text: str) -> Tensor:
        return torch.tensor(self.words[role].read(text), device=self.device).view(self.action_spaces[role].shape)

    def describe_seen(self, state: State, role: str) -> str:
        seen, messages = self.seen_channels[role], state["messages"].unsqueeze(0)
        instances = {name: value.unsqueeze(0) for name, value in instance_of(state).items()}
        view = self.scenario.describe_view(instances, role, messages[:, :, seen])
        side = drawn_sides(self.protocol, (role,), int(state["variant"]))
        return "\n".join([f"{view}; round {int(state['round'])}{side}", *self._said(state, seen)])

    def describe_board(self, state: State) -> str:
        head = f"{self.scenario.describe(instance_of(state))}; label {int(state['label'])}; round {int(state['round'])}"
        head += drawn_sides(self.protocol, self.roles, int(state["variant"]))
        decided = [
            f"{verifier} decides: {DECISIONS[verdict]}"
            for verifier, verdict in zip(self.protocol.verifiers, state["verdicts"].tolist(), strict=True)
            if verdict >= 0
        ]
        return "\n".join([head, *self._said(state, range(len(self.channels))), *decided])

    def _said(self, state: State, channels: Sequence[int]) -> list[str]:
        """List the messages in some channels so far, a line each; nobody is told who sent them."""
        return [
            f"round {t}, {self.channels[c]}: {self.scenario.describe_token(int(state['messages'][t, c]))}"
            for t, c in state["messages"].ge(0).nonzero().tolist()
            if c in channels
        ]

    def transcript(self, trace: Trace) -> Transcript:
        spoken = {role: [self.channels[c] for c in own] for role, own in self.spoken_channels.items()}
        return transcript_of(self.protocol, self.scenario, spoken, trace)

    def tables(self, outcomes: State) -> list[ShareTable]:
        slots = message_slots(self.protocol)
        return list(message_tables(self.scenario, slots, self.channels, outcomes["label"], outcomes["messages"]))


MOST_TOKENS = 12  # rows of a table; the others count together


def transcript_of(
    protocol: Protocol, scenario: Scenario, spoken: Mapping[str, Sequence[str]], trace: Trace
) -> Transcript:
    """Write a recorded dialogue as people read it.

    spoken: by role the channels in which it ever speaks, in the order of its choices.
    """
    label, sides = int(trace.end["label"]), drawn_sides(protocol, protocol.roles, int(trace.end["variant"]))
    utterances = [each for choice in trace.choices for each in _utterances(protocol, scenario, spoken, choice)]
    ends = []
    for verifier, verdict in zip(protocol.verifiers, trace.end["verdicts"].tolist(), strict=True):
        decided = f"{DECISIONS[verdict]}s, which is {'right' if verdict == label else 'wrong'}"
        ends.append(f"{verifier} {'never decides' if verdict < 0 else decided}")
    returns = ", ".join(f"{role} {value:+g}" for role, value in trace.returns.items())
    return Transcript(
        title=f"{scenario.describe(instance_of(trace.end))}; label {label}{sides}",
        kind=f"label {label}",
        roles=protocol.roles,
        deciders=protocol.verifiers,
        utterances=tuple(utterances),
        end=f"{'; '.join(ends)}. Returns: {returns}.",
    )


def _utterances(
    protocol: Protocol, scenario: Scenario, spoken: Mapping[str, Sequence[str]], choice: Choice
) -> Iterator[Utterance]:
    number, role, choices = int(choice.state["round"]), choice.role, choice.action.flatten().tolist()
    said = [(channel, t) for channel, t in zip(spoken[role], choices, strict=False) if t < scenario.num_tokens]
    for channel, token in said:
        where = channel if len(protocol.channels) > 1 else ""
        yield Utterance(number, role, where, scenario.describe_token(token), is_decision=False)
    if role in protocol.verifiers and (choices[-1] != GO_ON or not said):
        is_decision = choices[-1] != GO_ON
        yield Utterance(number, role, "", f"{DECISIONS[choices[-1]]}{'s' * is_decision}", is_decision)


def message_tables(
    scenario: Scenario, slots: Sequence[tuple[str, int, int]], channels: Sequence[str], label: Tensor, messages: Tensor
) -> Iterator[ShareTable]:
    """Tabulate for each place where messages stand how often each token was said, by label.

    slots: round and channel of each, as `message_slots` gives them. label: (B,). messages: (B, T, C), -1 where nothing
    was said.
    """
    for _, t, c in sorted(slots, key=lambda slot: slot[1:]):
        tokens = messages[:, t, c]
        if (information := mutual_information(tokens, label, scenario.num_tokens)) is None:
            continue
        counts = torch.stack(
            [torch.bincount(tokens[(tokens >= 0) & (label == y)], minlength=scenario.num_tokens) for y in (0, 1)]
        )
        shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)  # (2, tokens)
        most = counts.sum(dim=0).argsort(descending=True, stable=True)[:MOST_TOKENS].sort().values.tolist()
        named = [token for token in most if counts[:, token].any()]
        rows = [(scenario.describe_token(token), shares[:, token].tolist()) for token in named]
        if int(counts.sum()) > int(counts[:, named].sum()):
            rows.append(("others", [1.0 - sum(row[1][y] for row in rows) for y in (0, 1)]))
        was_said = counts.sum(dim=1).bool().tolist()
        where = f"round {t}" + (f", {channels[c]}" if len(channels) > 1 else "")
        yield ShareTable(
            title=f"{where}: {information:.2f} bits",
            corner="message",
            columns=("label 0", "label 1"),
            rows=tuple(name for name, _ in rows),
            shares=tuple(tuple(x if was_said[y] else None for y, x in enumerate(row)) for _, row in rows),
        )


SILENCE = "says nothing"


class ActionWords:
    """Writes and reads the actions of one role.

    channels: those in which it speaks, in the order of its choices. tokens: of which messages are made. decides:
    whether its last choice is a decision.
    """

    def __init__(self, role: str, channels: Sequence[str], tokens: Sequence[str], decides: bool) -> None:
        self.role, self.channels, self.num_tokens = role, channels, len(tokens)
        says = [[f"{channel}: {what}" for what in (*tokens, SILENCE)] for channel in channels]
        self.choices = [*says, *([list(DECISIONS)] if decides else [])]
        self.nothing = [len(tokens)] * len(says) + [GO_ON] * decides

    def describe(self, action: Sequence[int]) -> str:
        is_said = [k >= len(self.channels) or choice < self.num_tokens for k, choice in enumerate(action)]
        return ", ".join(self.choices[k][choice] for k, choice in enumerate(action) if is_said[k]) or SILENCE

    def read(self, text: str) -> list[int]:
        """Return the action that somebody has typed as `describe` writes it.

        They may leave out the channel, where the role speaks in one alone, silence, and "go on". Raises ValueError.
        """
        places = {word: (k, choice) for k, words in enumerate(self.choices) for choice, word in enumerate(words)}
        if len(self.channels) == 1:
            places |= {word.removeprefix(f"{self.channels[0]}: "): place for word, place in places.items()}
        action, given, rest = list(self.nothing), set[int](), text.strip()
        while rest or not given:
            word = max((word for word in places if f"{rest},".startswith(f"{word},")), key=len, default=None)
            if rest == SILENCE and not given:
                break
            if word is None or places[word][0] in given:
                example = self.describe([0] * len(action))
                raise ValueError(f"expected a move of {self.role!r}, such as {example!r}, got {text!r}")
            k, action[k] = places[word]
            given.add(k)
            rest = rest[len(word) :].lstrip(", ")
        return action
