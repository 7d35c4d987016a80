"""Plays one dialogue in words in the terminal: a person in a role, or players alone while a person watches."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from palestra.config import ConfigError, ConfigErrorItem, admits, checking
from palestra.players.people import Left, Say, check_roles
from palestra.players.scripted import ScriptedPlayerConfig
from palestra.randomness import base_key, world_keys
from palestra.run.stored import failures_filed
from palestra.text.dialogue import Fault, TextDialogue, Turn
from palestra.text.game import TextGame
from palestra.text.models.model import Message
from palestra.text.players import TextPlayer
from palestra.text.rollouts import verdict_word
from palestra.text.scripts import SCRIPTS, TextScript, named_script
from palestra.text.waves import Waves, Writer

PERSON = "you"


class Person(TextScript):
    """A person in a role, who reads what the role reads, and types its answers.

    answers: the lines that they type.
    """

    def __init__(self, game: TextGame, answers: Iterator[str], say: Say, ask: Say) -> None:
        super().__init__(ScriptedPlayerConfig(scripted=PERSON), game)
        self.answers, self.say, self.ask = answers, say, ask
        self._read: tuple[Message, ...] = ()

    def answer(self, dialogue: TextDialogue, role: str, key: int) -> str:
        """Ask the person for an answer until it means something. Raises Left."""
        turn = dialogue.turns()[role]
        prompt = self.game.prompt(dialogue, role)
        news = prompt[len(self._read) :] if prompt[: len(self._read)] == self._read else prompt
        self._read = prompt
        self.say(f"\nround {dialogue.round}, {role} reads")
        read = (each.content for each in news if each.role != "assistant")  # the others they have typed themselves
        self.say("\n\n".join(map(_indented, read)))
        while True:
            self.say(self._possible(turn, dialogue.is_last_chance(role)))
            text = self._typed(role, is_long=len(turn.channels) > 1)
            found = self.game.read(turn, text)
            if not isinstance(found, Fault):
                return text
            self.say(f"{found.message} Please answer again.")

    def _possible(self, turn: Turn, is_last_chance: bool) -> str:
        """Say what may be answered now."""
        grammar = self.game.grammar.config
        decision = f"decide by {grammar.accept!r} or {grammar.reject!r}"
        message = "write a message of one line"
        if len(turn.channels) > 1:
            headers = ", ".join(repr(grammar.headers[each]) for each in turn.channels)
            message = f"write below each of the lines {headers}, and end with an empty line"
        ways = [decision] * turn.may_decide + [message] * bool(turn.channels)
        end = " (it is the last chance to decide)" if is_last_chance else ""
        return f"you may {', or '.join(ways)}{end}"

    def _typed(self, role: str, is_long: bool) -> str:
        """Return what the person types: a line, or lines up to an empty one; a decision is always one line."""
        lines: list[str] = []
        while True:
            self.ask(f"{role}: ")
            line = next(self.answers, None)
            if line is None:
                self.say("")  # else the next line would stand behind the question
            if line is None or line.strip() == "quit":
                raise Left
            line = line.rstrip("\r\n").encode(errors="replace").decode()
            if not is_long or (not lines and line.strip() in self.game.grammar.words):
                return line
            if not line.strip():
                return "\n".join(lines)
            lines.append(line)


def choose_seats(
    training: Any, person: str | None, against: str | None, pairing: Mapping[str, str]
) -> dict[str, Writer]:
    """Return who answers in each role, but for the person's.

    They are those of the run's config, or in their place those of `pairing`, or in every role `against`: players of the
    run or scripted ones. Raises ConfigError.
    """
    game = training.game
    check_roles(game, "--as", [person] if person is not None else [])
    check_roles(game, "--pairing", pairing)
    seats = {**training.config.roles, **pairing} if against is None else dict.fromkeys(game.roles, against)
    return {
        role: _writer(training, seats[role], "--against" if against else f"--pairing {role}")
        for role in game.roles
        if role != person
    }


def _writer(training: Any, name: str, option: str) -> Writer:
    seat = training.seats.get(name)
    if isinstance(seat, TextPlayer):
        return seat.writer()
    if seat is None and name not in SCRIPTS and ":" not in name:
        known = f"a player of the run ({', '.join(training.seats)}), a scripted one ({', '.join(SCRIPTS)})"
        raise ConfigError.at(option, f"expected {known} or a class of your own as 'package.module:Class', got {name!r}")
    try:
        if ":" in name:
            with checking():  # the person has typed it
                admits(name)
        return Writer(name, named_script(name, training.game, training.game.roles) if seat is None else seat)
    except ConfigError as error:
        raise ConfigError([ConfigErrorItem(option, each.message) for each in error.errors]) from error


def play_dialogue(
    stored: Any, seats: Mapping[str, Writer], person: tuple[str, Person] | None, seed: int, say: Say
) -> None:
    """Hold a dialogue on a held-out question to its end, or until the person leaves.

    stored: a StoredTraining of a run of text, whose checkpoint is loaded. person: a role, and who sits in it; None:
    somebody watches. Raises EvaluationFailed.
    """
    game: TextGame = stored.training.game
    key = base_key(seed, "play/text")
    questions = game.questions(world_keys(key, 1, torch.device("cpu")), held_out=True)
    writers = dict(seats) if person is None else {**seats, person[0]: Writer(PERSON, person[1])}
    writers = {role: writers[role] for role in game.roles}
    leave = "" if person is None else "; quit leaves"
    say(f"{', '.join(f'{role}: {writer.name}' for role, writer in writers.items())}{leave}")
    if person is None:
        say(f"the question: {game.scenario.describe(questions[0])}")
    servers = stored.training.servers
    kept = servers.calls.kept_in("play")
    try:
        with failures_filed(stored.results, stored.failures), stored.playing(), servers.opened(), kept:
            waves = Waves(game, writers, questions, 1, key, 0, 1)
            shown = _show_new(waves, 0, say) if person is None else 0
            while waves.play_batch():
                shown = _show_new(waves, shown, say) if person is None else 0
    except Left:
        say("left before the end")
        return
    _end(waves, person is not None, say)


def _show_new(waves: Waves, shown: int, say: Say) -> int:
    """Show the answers from a number on; return how many there are now."""
    rows = waves.tables[0].rows
    for row in rows[shown:]:
        said = " says" if row.verdict is None else f" decides: {verdict_word(row.verdict)}"
        say(f"\nround {row.round}, {row.role} ({row.player}){said}")
        if row.verdict is None:
            say(_indented(row.answer))
    return len(rows)


def _end(waves: Waves, shows_all: bool, say: Say) -> None:
    [table] = waves.tables
    if shows_all:
        say(f"\nthe dialogue is over; all of it, about {waves.game.scenario.describe(table.question)}:")
        _show_new(waves, 0, say)
    decided = {role: verdict for role, verdict in table.dialogue.verdicts.items() if verdict is not None}
    verdicts = ", ".join(f"{role} has decided {verdict_word(verdict)}" for role, verdict in decided.items())
    rewards = ", ".join(f"{role} {value:g}" for role, value in table.dialogue.returns.items())
    say(f"\n{verdicts or 'nobody has decided'}; right is {verdict_word(table.question.label)}; rewards: {rewards}")


def _indented(text: str) -> str:
    """Return a text with a mark before each line, so that no text passes for a line of the command."""
    return "\n".join(f"  | {line}" for line in text.split("\n"))
