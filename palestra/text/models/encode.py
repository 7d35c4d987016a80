"""Prompts as tokens: by the model's own chat template, from which alone the special tokens come.

A tokenizer turns the text `<|end|>` into the special token wherever it stands, also in a message. So the template
renders the messages with stand-ins (characters that stand nowhere else) for those of their characters that occur in
special tokens: the special tokens that it then contains are the template's. They get names that nobody can write, the
stand-ins become what they stand for, and a tokenizer that knows the special tokens by these names alone does the rest.
"""

import json
import re
import secrets
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, Literal

from palestra.text.models.extra import library
from palestra.text.models.model import ChatTemplateError, Prompt
from palestra.text.sandbox import MOST_TOGETHER, Confined, Limits, Sandbox, SandboxError

LIMITS = Limits(seconds=10, num_bytes=768 << 20, characters=16 << 20)


class TokenizerError(ValueError):
    """A tokenizer has no tokens for a text, or no text for tokens."""


class Isolated:
    """Strangers' tokenizers in a process of their own: in compiled code they may run on and on, or fill the memory.

    sources: each as JSON. Several threads may call it.
    """

    def __init__(self, sources: Sequence[str], limits: Limits = LIMITS) -> None:
        self._definition = json.dumps({"kind": "tokenizers", "sources": sources})
        self.process = Confined(limits)

    def __call__(self, name: Literal["encode", "decode"], place: int, given: str | list[int]) -> Any:
        """Let the tokenizer of that place "encode" a text, or "decode" tokens. Raises TokenizerError."""
        reply = self.process.ask("tokenizers", self._definition, [json.dumps((name, {"place": place, "given": given}))])
        if isinstance(reply, int):
            seconds, num_bytes, _ = self.process.limits
            limit = f"{seconds} s" if reply == -signal.SIGXCPU else f"{num_bytes >> 20} MiB"
            raise TokenizerError(f"the tokenizer needs more than {limit}")
        if reply["fault"] is not None:
            raise TokenizerError(reply["fault"]["told"])
        return reply["done"][0]


Messages = list[dict[str, str]]
STAND_INS = range(0xF0000, 0xFFFFE)  # of private use
A_MESSAGE = chr(STAND_INS[-1])


class Encoder:
    """Encodes prompts and answers, and decodes answers.

    tokenizer: a fast one of transformers, with a chat template. special: the texts that are no text where the template
    writes them: the special tokens, and other added tokens that the template itself contains. end: what the template
    puts after an assistant's message up to the first of them, and this one; None: it puts none there. stops: the tokens
    that end an answer: that of `end`, and those of the argument. Raises ChatTemplateError for a chat template that is
    no program, ValueError for a tokenizer whose special tokens cannot be told from text.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self._source = source = tokenizer.get_chat_template()
        self.template = ChatTemplate(source, tokenizer.special_tokens_map)
        added = tokenizer.added_tokens_decoder.values()
        is_special = (token.special or (token.content in source and not token.content.isspace()) for token in added)
        self.special = sorted({t.content for t, is_one in zip(added, is_special, strict=True) if is_one and t.content})
        self.special.sort(key=len, reverse=True)
        self._marks = set("".join(self.special))
        self._any_special = re.compile("|".join(map(re.escape, self.special)) or "(?!)")  # or nothing at all
        backend = tokenizer.backend_tokenizer
        nonce = secrets.token_hex(16)
        self._names = {token: f"\U0010fffd{nonce}.{place}\U0010fffd" for place, token in enumerate(self.special)}
        self._textual = _renamed(backend.to_str(), self._names)
        self._isolated: Isolated | None = None
        for token, name in self._names.items():
            if self._textual.token_to_id(name) != backend.token_to_id(token):
                raise ValueError(f"expected a tokenizer in which {token!r} can be told from text, got another")
        self.end = self._end_of_turn()
        first = [] if self.end is None else [backend.token_to_id(self.end[1])]
        self.stops = tuple(dict.fromkeys([*first, *stops]))

    def _end_of_turn(self) -> tuple[str, str] | None:
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": A_MESSAGE}]
        try:
            [text] = self.template([messages], add_generation_prompt=False)
        except ChatTemplateError:
            return None
        _, message, rest = text.rpartition(A_MESSAGE)
        found = self._any_special.search(rest) if message else None
        return None if found is None else (rest[: found.start()], found[0])

    def isolate(self) -> None:
        """Let a process of its own tokenize, as for a stranger's tokenizer, whose time and memory nobody knows."""
        self._isolated = Isolated([self._textual.to_str(), self.tokenizer.backend_tokenizer.to_str()])

    # ---- prompts -----------------------------------------------------------------------------------------

    def encode(self, prompts: Sequence[Prompt]) -> Iterator[list[int]]:
        """Yield the tokens of each prompt in turn, with those that begin an answer.

        Raises ChatTemplateError, UnicodeEncodeError, TokenizerError, where it comes to a prompt that has no tokens.
        """
        together = MOST_TOGETHER // 2  # each is rendered twice
        for first in range(0, len(prompts), together):
            some = prompts[first : first + together]
            try:
                yield from self._encode(some)
            except (ChatTemplateError, UnicodeEncodeError, TokenizerError):
                for prompt in some:  # up to the one that it was
                    yield from self._encode([prompt])

    def _encode(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Return the tokens of prompts."""
        chats = [[{"role": each.role, "content": each.content} for each in prompt] for prompt in prompts]
        ways = [_stand_ins([self._source, *(each["content"] for each in chat)], self._marks) for chat in chats]
        hidden = [_changed(chat, methodcaller("translate", way[0])) for chat, way in zip(chats, ways, strict=True)]
        texts, found = self.template([*chats, *hidden]), []
        for chat, way, plain, marked in zip(chats, ways, texts, texts[len(chats) :], strict=False):
            back = way[1]
            if marked.translate(back) != plain:  # the template looks into messages: hide no more than must be
                there, back = _stand_ins([plain, *(each["content"] for each in chat)], self._marks)
                [marked] = self.template([_changed(chat, partial(self._hide, stand_ins=there))])
            pieces, end = [], 0
            for token in self._any_special.finditer(marked):  # from left to right; of several at one place the longest
                pieces += [marked[end : token.start()].translate(back), self._names[token[0]]]
                end = token.end()
            found.append(self._ids("".join([*pieces, marked[end:].translate(back)])))
        return found

    def _hide(self, text: str, stand_ins: dict[int, str]) -> str:
        """Put a stand-in for the first character of each special token in a text, in upper or lower case."""
        characters, folded = list(text), text.lower()
        has_same_places = len(folded) == len(text)  # no letter has become two
        for token in self.special:
            read, wanted, start = (folded, token.lower(), 0) if has_same_places else (text, token, 0)
            while (at := read.find(wanted, start)) >= 0:
                characters[at] = text[at].translate(stand_ins)
                start = at + 1
        return "".join(characters)

    # ---- answers -----------------------------------------------------------------------------------------

    def encode_answer(self, text: str) -> list[int]:
        """Return the tokens of an answer that somebody else has written, with the one that ends it.

        Raises UnicodeEncodeError, TokenizerError.
        """
        return [*self._ids(text if self.end is None else text + self.end[0]), self.stops[0]]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of an answer, without what ends it. Raises TokenizerError."""
        is_ended = bool(ids) and ids[-1] in self.stops
        own = list(ids[:-1] if is_ended else ids)
        if self._isolated is None:
            text = self.tokenizer.backend_tokenizer.decode(own, skip_special_tokens=False)
        else:
            text = self._isolated("decode", 1, own)
        return text.removesuffix(self.end[0]) if is_ended and self.end is not None else text

    def _ids(self, text: str) -> list[int]:
        text.encode()  # raises UnicodeEncodeError for half of a pair, which the tokenizer would not name
        if self._isolated is None:
            return self._textual.encode(text, add_special_tokens=False).ids
        return self._isolated("encode", 0, text)


def _changed(messages: Messages, change: Callable[[str], str]) -> Messages:
    return [{**message, "content": change(message["content"])} for message in messages]


def _stand_ins(texts: Sequence[str], characters: Iterable[str]) -> tuple[dict[int, str], dict[int, str]]:
    """Return what stands for each of some characters, none of which occurs in any of the texts, and the way back.

    White space stands for itself, because templates trim it.
    """
    used = set().union(*texts)
    free = (chr(code) for code in STAND_INS if chr(code) not in used)
    pairs = [(each, next(free)) for each in sorted(characters) if not each.isspace()]
    return {ord(a): b for a, b in pairs}, {ord(b): a for a, b in pairs}


def _renamed(source: str, names: dict[str, str]) -> Any:
    """Return a tokenizer, given as JSON, in which some tokens have other names, by which alone they are found."""
    data = json.loads(source)
    for token in data["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = data["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    data |= {"truncation": None, "padding": None}
    data["post_processor"] = None  # it adds the special tokens that begin and end a text, and knows them by name
    return library("tokenizers").Tokenizer.from_str(json.dumps(data))


NAME = "chat_template"


class ChatTemplate:
    """A chat template that renders as transformers' `apply_chat_template` does, within limits of time and size.

    It differs in one respect: today is always 26 July 2024. tokens: the texts of special tokens by their names.
    Raises ChatTemplateError for a template that is no program.
    """

    def __init__(self, source: str, tokens: Mapping[str, Any]) -> None:
        self._sandbox = Sandbox("chat", {NAME: source}, {**tokens, "tools": None, "documents": None})
        self._render([None])

    def __call__(self, chats: Sequence[Sequence[Mapping[str, str]]], add_generation_prompt: bool = True) -> list[str]:
        """Render the messages of each chat. Raises ChatTemplateError.

        add_generation_prompt: with what begins an answer.
        """
        adds = {"add_generation_prompt": add_generation_prompt}
        return self._render([{"messages": messages, **adds} for messages in chats])

    def _render(self, values: Sequence[Mapping[str, Any] | None]) -> list[str]:
        try:
            return self._sandbox.render([(NAME, each) for each in values])
        except SandboxError as error:
            raise ChatTemplateError(str(error)) from error
