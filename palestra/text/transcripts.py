"""Dialogues as people read them: YAML in which an answer of several lines stands as it was written."""

from collections.abc import Iterator, Mapping
from functools import cache

from palestra.config.rendering import scalar
from palestra.text.rollouts import DecisionRow, Rollouts, is_tree, rounds_by_parent

_name = cache(scalar)  # of few names
WORDS = ("reject", "accept")  # of labels and verdicts
ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def transcripts(rollouts: Rollouts, with_prompts: bool) -> str:
    """Return dialogues as YAML, one after the other; in a tree of them, what goes on from a round stands below it.

    with_prompts: whether they have what each role has read, too.
    """
    return "".join(f"{line}\n" for rows in rollouts.each() for line in _lines(rows, with_prompts))


def verdict_word(verdict: int | None) -> str:
    return "none" if verdict is None else WORDS[verdict]


def _lines(rows: list[DecisionRow], with_prompts: bool) -> Iterator[str]:
    first = rows[0]
    yield from (
        f"- question: {first.question}",
        f"  rollout: {first.rollout}",
        f"  variant: {first.variant}",
        f"  about: {_text(first.about, 4)}",
        f"  label: {verdict_word(first.label)}",
    )
    if is_tree(rows):
        yield "  tree:"
        yield from _tree(rounds_by_parent(rows), None, with_prompts, "  ")
        return
    yield f"  rewards: {_rewards({row.role: row.reward for row in rows})}"
    yield "  answers:"
    for row in rows:
        yield from _answer(row, with_prompts, "  ")


def _tree(
    rounds: Mapping[int | None, list[list[DecisionRow]]], parent: int | None, with_prompts: bool, margin: str
) -> Iterator[str]:
    """Write what goes on from a decision: the rounds, and below each what goes on from there."""
    for rows in rounds[parent]:
        yield f"{margin}- answers:"
        for row in rows:
            yield from _answer(row, with_prompts, f"{margin}  ", in_tree=True)
        last = rows[-1]
        if last.returns is not None:
            yield f"{margin}  rewards: {_rewards(last.returns)}"
        if last.node in rounds:
            yield f"{margin}  then:"
            yield from _tree(rounds, last.node, with_prompts, f"{margin}  ")


def _answer(row: DecisionRow, with_prompts: bool, margin: str, in_tree: bool = False) -> Iterator[str]:
    yield f"{margin}- round: {row.round}"
    if in_tree:
        yield f"{margin}  node: {row.node}"
    yield f"{margin}  role: {_name(row.role)}"
    yield f"{margin}  player: {_name(row.player)}"
    if with_prompts:
        yield f"{margin}  prompt:"
        yield from (f"{margin}  - {each.role}: {_text(each.content, len(margin) + 6)}" for each in row.prompt)
    yield f"{margin}  answer: {_text(row.answer, len(margin) + 4)}"
    if row.verdict is not None:
        yield f"{margin}  verdict: {verdict_word(row.verdict)}"
    if row.attempts > 1:
        yield f"{margin}  attempts: {row.attempts}"
    if row.stop == "length":
        yield f"{margin}  stop: length"
    if in_tree:
        yield f"{margin}  reward: {row.reward!r}"


def _rewards(rewards: Mapping[str, float]) -> str:
    return f"{{{', '.join(f'{_name(role)}: {reward!r}' for role, reward in rewards.items())}}}"


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
