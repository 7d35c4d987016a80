"""Dialogues as people read them, and what their messages tell of labels, for reports."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from palestra.games.dialogue.protocol import DECISIONS, GO_ON, Protocol
from palestra.games.dialogue.scenario import Scenario, instance_of
from palestra.games.dialogue.scores import mutual_information
from palestra.games.dialogue.turns import drawn_sides
from palestra.games.trace import Choice, ShareTable, Trace, Transcript, Utterance

MOST_TOKENS = 12  # rows of a table; the others count together


def transcript_of(
    protocol: Protocol, scenario: Scenario, spoken: Mapping[str, Sequence[str]], trace: Trace
) -> Transcript:
    """Write a recorded dialogue as people read it.

    spoken: by role the channels in which it ever speaks, in the order of its choices.
    """
    label, sides = int(trace.end["label"]), drawn_sides(protocol, protocol.roles, int(trace.end["variant"]))
    utterances = [each for choice in trace.choices for each in _utterances(protocol, scenario, spoken, choice)]
    verdicts = trace.end["verdicts"].tolist()
    ends = []
    for verifier, verdict in zip(protocol.verifiers, verdicts, strict=True):
        how = (
            "never decides"
            if verdict < 0
            else f"{DECISIONS[verdict]}s, which is {'right' if verdict == label else 'wrong'}"
        )
        ends.append(f"{verifier} {how}")
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
        information = mutual_information(tokens, label, scenario.num_tokens)
        if information is None:
            continue
        counts = torch.stack(
            [torch.bincount(tokens[(tokens >= 0) & (label == y)], minlength=scenario.num_tokens) for y in (0, 1)]
        )
        shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)  # (2, tokens)
        most = counts.sum(dim=0).argsort(descending=True, stable=True)[:MOST_TOKENS].sort().values.tolist()
        named = [token for token in most if counts[:, token].any()]
        rows = [(scenario.describe_token(token), shares[:, token].tolist()) for token in named]
        others = [1.0 - sum(row[1][y] for row in rows) for y in (0, 1)]
        if int(counts.sum()) > int(counts[:, named].sum()):
            rows.append(("others", others))
        was_said = counts.sum(dim=1).bool().tolist()
        where = f"round {t}" + (f", {channels[c]}" if len(channels) > 1 else "")
        yield ShareTable(
            title=f"{where}: {information:.2f} bits",
            corner="message",
            columns=("label 0", "label 1"),
            rows=tuple(name for name, _ in rows),
            shares=tuple(tuple(x if was_said[y] else None for y, x in enumerate(row)) for _, row in rows),
        )
