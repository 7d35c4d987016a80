"""What a role reads before it answers: messages made of the parts of its prompts, and of what was said."""

from collections.abc import Generator, Sequence
from typing import Any

from palestra.games.dialogue.protocol import Protocol
from palestra.text.chat import Message, Prompt
from palestra.text.dialogue import TextDialogue
from palestra.text.grammar import Fault, Grammar
from palestra.text.sandbox import in_step
from palestra.text.scenarios.scenario import TextScenario
from palestra.text.templates import Part, Templates

Failed = Sequence[tuple[str, Fault]]  # answers of this turn that were asked for again, with the reasons


class Prompts:
    """Writes the prompts of a game.

    A prompt begins with the role's `system`, as a system message, and its `opening`, as a user message; a part that
    comes out blank is left out. Then come the role's own answers, as it has written them, as assistant messages, and
    between them, in one user message each, what the role has heard since. `last_chance` ends the prompt of a verifier
    that cannot decide later. After an answer that must be asked for again come this answer and `retry`.
    """

    def __init__(self, templates: Templates, protocol: Protocol, scenario: TextScenario, grammar: Grammar) -> None:
        self.templates, self.protocol, self.scenario, self.grammar = templates, protocol, scenario, grammar

    def write(self, turns: Sequence[tuple[TextDialogue, str, Failed]]) -> list[Prompt]:
        """Return what roles read at their turns.

        turns: each a dialogue, the role, and its answers so far in this round if it is asked again.
        """
        return in_step(self.templates.render, (self._write(*turn) for turn in turns))

    def _write(self, dialogue: TextDialogue, role: str, failed: Failed) -> Generator[Part, str, Prompt]:
        """Return a prompt. Yields the parts that are to be rendered."""
        values = self._values(dialogue, role)
        system = yield role, "system", values
        messages = [Message("system", system)] if system.strip() else []
        news = [(yield role, "opening", values)]
        for number, moves in enumerate(dialogue.rounds):
            if role in moves and (answer := moves[role].answer) is not None:
                messages += [_joined(news), Message("assistant", answer)]
                news = []
            for said in dialogue.heard(role, number):
                told = {"name": said.role, "channel": said.channel, "text": said.text, "round": number}
                news.append((yield role, "heard", values | told))
        if dialogue.is_last_chance(role):
            news.append((yield role, "last_chance", values | {"round": dialogue.round}))
        messages.append(_joined(news))
        for answer, fault in failed:
            told = {"fault": fault.message, "round": dialogue.round}
            messages += [Message("assistant", answer), _joined([(yield role, "retry", values | told)])]
        return tuple(messages)

    def _values(self, dialogue: TextDialogue, role: str) -> dict[str, Any]:
        """Return what every part of a role's prompts is told; its own names come before those of fields."""
        protocol, words = self.protocol, self.grammar.words
        fields = {name: dialogue.question.fields[name] for name in self.scenario.sees[role]}
        is_prover = role not in protocol.verifiers
        return fields | {
            "role": role,
            "roles": protocol.roles,
            "side": words[protocol.side(role, dialogue.variant)] if is_prover else "",
            "accept": self.grammar.config.accept,
            "reject": self.grammar.config.reject,
            "headers": self.grammar.config.headers,
            "fields": fields,
            "min_rounds": protocol.min_rounds,
            "max_rounds": protocol.max_rounds,
        }


def _joined(news: Sequence[str]) -> Message:
    """Join what a role has heard since its last answer to one message, without what is blank."""
    return Message("user", "\n".join(each for each in news if each.strip()))
