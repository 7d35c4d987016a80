"""The section of dialogues in words: of each label some that went best, in the middle and worst.

They come from the roll-outs that the run has written, so that nobody answers anew. Their texts are untrusted.
"""

from collections.abc import Iterator, Mapping, Sequence

from palestra.config import under
from palestra.games.trace import Transcript, Utterance
from palestra.recording.results import names_of_pairing
from palestra.report.blocks import Block, Heading, Legend, Note, Section, Talks
from palestra.report.figures import Figures
from palestra.report.groups import Group
from palestra.report.reading import RunData
from palestra.storage.run_folder import RunFolder
from palestra.text.rollouts import DecisionRow, read_rollouts, rollout_files
from palestra.text.transcripts import verdict_word

MOST_CHARACTERS = 2000  # of an answer, and of a prompt
MOST_PAIRINGS = 4
Dialogue = list[DecisionRow]


def dialogues_section(groups: Sequence[Group], figures: Figures) -> list[Section]:
    """Make the section of dialogues, of the first run of each group; none without groups."""
    section = Section("dialogues", "Dialogues")
    for group in groups:
        run = group.runs[0]
        section.blocks += [Heading(run.name)] if len(groups) > 1 or len(group.runs) > 1 else []
        try:
            section.blocks += _of_run(run)
        except Exception as error:  # a damaged file, a missing extra, or anything else
            section.blocks.append(Note(f"No dialogue can be shown: {error}"))
    return [section] if groups else []


def _of_run(run: RunData) -> list[Block]:
    place = RunFolder.open(run.path).rollouts
    if (found := _newest(run, place.names())) is None:
        return [Note("There are no roll-outs yet.")]
    file, evaluation = found
    rollouts = read_rollouts(place.read(file), str(place.path / file))
    learned = {name for name, player in run.players.items() if under(player, "algorithm") is not None}
    by_pairing: dict[int, list[Dialogue]] = {}
    for dialogue in rollouts.dialogues():
        by_pairing.setdefault(dialogue[0].rollout if evaluation else 0, []).append(dialogue)
    seated = under(run.config, "roles")
    roles = tuple(seated) if isinstance(seated, Mapping) else tuple(sorted({row.role for row in rollouts.rows}))
    deciders = tuple(sorted({row.role for row in rollouts.rows if row.verdict is not None}))
    epoch = rollouts.rows[0].epoch if rollouts.rows else 0
    what = f"evaluation {evaluation}, epoch {epoch}" if evaluation else f"training, epoch {epoch}"
    intro = "of each label the one in which the players that learn got most, one in the middle, and the one with least"
    blocks: list[Block] = [Note(f"Dialogues of {what}: {intro}."), Legend(list(enumerate(roles)))]
    for dialogues in list(by_pairing.values())[:MOST_PAIRINGS]:
        seats = {row.role: row.player for dialogue in dialogues for row in dialogue}
        players = [seats[role] for role in roles if role in seats]
        if learned.isdisjoint(players):
            continue
        pairing = names_of_pairing(f"{name}{'*' * (name in learned)}" for name in players)
        for label in (0, 1):
            if told := list(_told([each for each in dialogues if each[0].label == label], learned, roles, deciders)):
                blocks.append(Talks(f"{pairing}: {verdict_word(label)} is right", told))
    return blocks


def _newest(run: RunData, files: Sequence[str]) -> tuple[str, str] | None:
    """Return the newest file of the first evaluation that has one, else of training, and that evaluation or ""."""
    evaluations = under(run.config, "evaluations")
    names = [str(under(each, "name")) for each in evaluations] if isinstance(evaluations, list) else []
    found = {each.evaluation: each.file for each in rollout_files(files, names)}  # the newest one comes last
    return next(((found[name], name or "") for name in (*names, None) if name in found), None)


def _told(
    dialogues: Sequence[Dialogue], learned: set[str], roles: tuple[str, ...], deciders: tuple[str, ...]
) -> Iterator[Transcript]:
    """Yield the best, the middle and the worst of some dialogues."""

    def reward(dialogue: Dialogue) -> float:
        return sum({row.role: row.reward for row in dialogue if row.player in learned}.values())

    ranked = sorted(dialogues, key=reward, reverse=True)
    places = {len(ranked) - 1: "worst", len(ranked) // 2: "middle", 0: "best"} if ranked else {}
    for number, place in sorted(places.items()):
        first, said = ranked[number][0], tuple(map(_utterance, ranked[number]))
        yield Transcript(f"{place}: {_cut(first.about)}", "", roles, deciders, said, _end(ranked[number]))


def _utterance(row: DecisionRow) -> Utterance:
    details = [f"player {row.player}"] if row.player != row.role else []
    details += [f"{row.attempts} attempts"] if row.attempts > 1 else []
    details += [f"cut off after {len(row.answer_ids)} tokens"] if row.stop == "length" else []
    prompt = "\n\n".join(f"{message.role}: {message.content}" for message in row.prompt)
    is_decision = row.verdict is not None
    return Utterance(row.round, row.role, "", _cut(row.answer), is_decision, ", ".join(details), _cut(prompt))


def _end(dialogue: Dialogue) -> str:
    decided = [f"{row.role}: {verdict_word(row.verdict)}" for row in dialogue if row.verdict is not None]
    rewards = [f"{role} {reward:g}" for role, reward in {row.role: row.reward for row in dialogue}.items()]
    return f"{', '.join(decided) or 'Nobody has decided'}. Rewards: {', '.join(rewards)}."


def _cut(text: str) -> str:
    more = len(text) - MOST_CHARACTERS
    return text if more <= 0 else f"{text[:MOST_CHARACTERS]} ... and {more:,} more characters"
