"""Dialogues as people read them: YAML in which an answer of several lines stands as it was written."""

from collections.abc import Iterator
from functools import cache

from palestra.config.rendering import scalar
from palestra.text.rollouts import DecisionRow, Rollouts

_name = cache(scalar)  # of few names
WORDS = ("reject", "accept")  # of labels and verdicts
ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def transcripts(rollouts: Rollouts, with_prompts: bool) -> str:
    """Return dialogues as YAML, one after the other, and of a tree all of its dialogues.

    with_prompts: whether they have what each role has read, too.
    """
    return "".join(f"{line}\n" for dialogue in rollouts.dialogues() for line in _lines(dialogue, with_prompts))


def verdict_word(verdict: int | None) -> str:
    return "none" if verdict is None else WORDS[verdict]


def _lines(dialogue: list[DecisionRow], with_prompts: bool) -> Iterator[str]:
    first, last = dialogue[0], dialogue[-1]
    yield f"- question: {first.question}"
    yield f"  rollout: {first.rollout}"
    if last.node >= len(dialogue):  # one of several dialogues in a tree, which its last decision tells from the others
        yield f"  node: {last.node}"
    yield f"  variant: {first.variant}"
    yield f"  about: {_text(first.about, 4)}"
    yield f"  label: {verdict_word(first.label)}"
    rewards = {_name(row.role): row.reward for row in dialogue}
    yield f"  rewards: {{{', '.join(f'{role}: {reward!r}' for role, reward in rewards.items())}}}"
    yield "  answers:"
    for row in dialogue:
        yield f"  - round: {row.round}"
        yield f"    role: {_name(row.role)}"
        yield f"    player: {_name(row.player)}"
        if with_prompts:
            yield "    prompt:"
            yield from (f"    - {each.role}: {_text(each.content, 8)}" for each in row.prompt)
        yield f"    answer: {_text(row.answer, 6)}"
        if row.verdict is not None:
            yield f"    verdict: {verdict_word(row.verdict)}"
        if row.attempts > 1:
            yield f"    attempts: {row.attempts}"
        if row.stop == "length":
            yield "    stop: length"


def _text(text: str, indent: int) -> str:
    """Return a text as a value of YAML: of several lines as a block that is indented so far, else in quotes."""
    lines = text.removesuffix("\n").split("\n")
    if "\n" not in text or not text.strip("\n") or not all(line.replace("\t", " ").isprintable() for line in lines):
        return f'"{"".join(map(_escaped, text))}"'
    indicator = 2 if text[0] in " \n\t" else ""  # else the first line says how far the block is indented
    end = "+" if text.endswith("\n") else "-"
    return "\n".join([f"|{indicator}{end}", *(" " * indent + line if line else "" for line in lines)])


@cache
def _escaped(character: str) -> str:
    if character in ESCAPED:
        return ESCAPED[character]
    code = ord(character)
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
