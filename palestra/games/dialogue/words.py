"""The actions of a dialogue as people read and type them: "main: bit 3, go on"."""

from collections.abc import Sequence

from palestra.games.dialogue.protocol import DECISIONS, GO_ON

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
        words = [
            self.choices[k][choice]
            for k, choice in enumerate(action)
            if k >= len(self.channels) or choice < self.num_tokens
        ]
        return ", ".join(words) or SILENCE

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
