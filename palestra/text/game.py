"""`text_dialogue`: a protocol and a scenario joined into dialogues in words, with prompts and a grammar."""

from collections.abc import Generator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import model_validator

from palestra.config import ByName, Config, ConfigError, UnreadConfig, UserConfig, below, cut
from palestra.config.places import place_of
from palestra.config.usual import completed
from palestra.games.dialogue.protocol import VERDICTS, Protocol, sights_in_words, turns_in_words
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.games.dialogue.rows import faults_of_roles
from palestra.games.dialogue.tryout import first_protocol, make_protocol
from palestra.randomness import base_key, random_integers, world_keys
from palestra.text.dialogue import SILENT, Fault, Grammar, GrammarConfig, Move, Question, TextDialogue, Turn
from palestra.text.models.model import Message, Prompt
from palestra.text.sandbox import in_step
from palestra.text.scenarios.claims import ClaimsConfig
from palestra.text.scenarios.code_validation import CodeValidationConfig
from palestra.text.scenarios.rows import TextRowsConfig
from palestra.text.scenarios.scenario import TextScenario, make_text_scenario
from palestra.text.templates import AnyPromptsConfig, Part, Templates

Failed = Sequence[tuple[str, Fault]]  # answers of this turn that were asked for again, with the reasons


def _joined(news: Sequence[str]) -> Message:
    """Join what a role has heard since its last answer to one message, without what is blank."""
    return Message("user", "\n".join(each for each in news if each.strip()))


AnyTextScenarioConfig = Annotated[
    ClaimsConfig | TextRowsConfig | CodeValidationConfig | UserConfig, ByName(user_class=TextScenario)
]


class TextDialogueConfig(Config):
    name: Literal["text_dialogue"]
    """provers and verifiers talk in words about labelled questions: any protocol with any scenario"""
    protocol: AnyProtocolConfig
    """who speaks when, who decides, and what they get for it"""
    scenario: AnyTextScenarioConfig
    """the questions, and what each role sees of them"""
    prompts: AnyPromptsConfig
    """what roles are told, and how"""
    grammar: GrammarConfig
    """how an answer decides, and how it speaks in several channels"""

    @classmethod
    def usual(cls, said: Mapping[str, Any], about: Any) -> dict[str, Any]:
        found, made = {"protocol": "nip", "prompts": "shipped"}, first_protocol(said)
        for key, usual, kind in (("scenario", "claims", AnyTextScenarioConfig), ("grammar", {}, GrammarConfig)):
            with below(key):
                found[key] = completed(said.get(key, usual), place_of(kind), made)
        return found

    @model_validator(mode="after")
    def _check_protocol(self) -> Self:
        if not isinstance(self.protocol, UnreadConfig):
            with below("protocol"):
                made = make_protocol(self.protocol)
            with below("grammar"):
                Grammar(self.grammar, made)
            if not isinstance(self.scenario, UserConfig):
                with below("scenario"):
                    ConfigError.require_none(faults_of_roles(self.scenario.sees, made))
        return self

    def build(self, copied: Mapping[str, str] | None = None) -> "TextGame":
        """Make the game. Raises ConfigError, with paths relative to this config, for all that does not fit.

        copied: the files of prompts that a run has copied, by name; None: those that `prompts` names.
        """
        return TextGame(self, copied)

    def declared_roles(self) -> tuple[str, ...]:
        return self.protocol.build().roles

    def describe_turns(self) -> list[str]:
        return turns_in_words(self.protocol.name, self.protocol.build()) + sights_in_words(self.scenario)


class TextGame:
    """Begins dialogues, and says what their roles read and what their answers mean. It has no state.

    roles: those of the protocol. files: the SHA-256 of each file that questions come from, and of those of the prompts.
    """

    def __init__(self, config: TextDialogueConfig, copied: Mapping[str, str] | None = None) -> None:
        self.config = config
        self.protocol: Protocol = make_protocol(config.protocol)
        self.roles = self.protocol.roles
        with below("grammar"):
            self.grammar = Grammar(config.grammar, self.protocol)
        with below("scenario"):
            self.scenario = make_text_scenario(config.scenario, self.protocol)
            dialogues = self.long_dialogues()
        names, fields = (config.protocol.name, config.scenario.name), self.scenario.fields
        with below("prompts"):
            self.templates = Templates(config.prompts, *names, self.roles, fields, copied)
            failed = [("?", Fault("empty", "The answer is empty."))]
            self.write_prompts([(dialogue, role, failed) for dialogue in dialogues for role in dialogue.turns()])
        self.files = {**self.scenario.files, **self.templates.hashes()}

    def questions(self, keys: torch.Tensor, held_out: bool, first: int = 0) -> list[Question]:
        """Draw a question per key, numbered from `first` on. keys: int64 (B,), on the CPU."""
        drawn = self.scenario.draw(keys, held_out)
        return [Question(number, fields, label) for number, (fields, label) in enumerate(drawn, start=first)]

    def begin(self, question: Question, key: int) -> TextDialogue:
        """Begin a dialogue. key: int64, by which the variant of the protocol is drawn."""
        return self.begin_all([question], [key])[0]

    def begin_all(self, questions: Sequence[Question], keys: Sequence[int]) -> list[TextDialogue]:
        """Begin a dialogue on each question, as `begin` does, in less time."""
        variants = random_integers(torch.tensor(keys, dtype=torch.int64), 1, self.protocol.num_variants)[:, 0]
        pairs = zip(questions, variants.tolist(), strict=True)
        return [TextDialogue(self.protocol, question, variant) for question, variant in pairs]

    def prompt(self, dialogue: TextDialogue, role: str, failed: Failed = ()) -> Prompt:
        """Return what a role reads at its turn. failed: its answers of this turn that must be asked for again."""
        return self.write_prompts([(dialogue, role, failed)])[0]

    def write_prompts(self, turns: Sequence[tuple[TextDialogue, str, Failed]]) -> list[Prompt]:
        """Return what roles read at their turns.

        turns: each a dialogue, the role, and its answers so far in this round if it is asked again.

        A prompt begins with the role's `system`, as a system message, and its `opening`, as a user message; a part that
        comes out blank is left out. Then come the role's own answers, as it has written them, as assistant messages,
        and between them, in one user message each, what the role has heard since. `last_chance` ends the prompt of a
        verifier that cannot decide later. After an answer that must be asked for again come this answer and `retry`.
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
            for told in dialogue.heard(role, number):
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

    def read(self, turn: Turn, answer: str) -> Move | Fault:
        """Say what an answer means in a turn, or why it must be asked for again."""
        return self.grammar.read(answer, turn)

    def a_long_dialogue(self, variant: int) -> Sequence[TextDialogue]:
        """Play a dialogue of a variant in which verifiers decide as late as they can; return it before each round."""
        [question] = self.questions(world_keys(base_key(0, "text/example"), 1, torch.device("cpu")), held_out=False)
        found = [TextDialogue(self.protocol, question, variant)]
        while not found[-1].is_over:
            moves = {role: self._said(found[-1], role, turn) for role, turn in found[-1].turns().items()}
            found.append(found[-1].after(moves))
        return found

    def _said(self, dialogue: TextDialogue, role: str, turn: Turn) -> Move:
        question = dialogue.question
        if dialogue.is_last_chance(role):
            return Move(self.grammar.words[question.label], VERDICTS[question.label], {})
        if not turn.channels:
            return SILENT
        verdict = question.label if role in self.protocol.verifiers else self.protocol.side(role, dialogue.variant)
        text = "Why?" if role in self.protocol.verifiers else self.scenario.argue(question, verdict)
        move = self.read(turn, self.grammar.write(dict.fromkeys(turn.channels, text)))
        if isinstance(move, Move) and move.decision is None:
            return move
        raise ConfigError.at("", f"expected a message from `argue` for the verdict {verdict}, got {cut(repr(text))}")

    def long_dialogues(self) -> list[TextDialogue]:
        """Return a long dialogue of every variant before each of its rounds."""
        return [each for variant in range(self.protocol.num_variants) for each in self.a_long_dialogue(variant)]

    def prompts_in_words(self) -> list[str]:
        """Write what each role reads in one dialogue, at its last turn, for people to read."""
        lines: list[str] = []
        dialogues = self.long_dialogues()
        for role in self.roles:
            last = max((d for d in dialogues if role in d.turns()), key=lambda d: (-d.variant, d.round), default=None)
            if last is None:
                lines.append(f"{role} never has a turn")
                continue
            lines.append(f"{role} reads in round {last.round}:")
            for message in self.prompt(last, role):
                first, *others = message.content.split("\n")
                lines += [f"  {message.role + ':':<10} {first}", *(f"  {'':<10} {line}" for line in others)]
        return lines
