"""Sections on words: analyses of dialogues, and dialogues. Their texts are untrusted.

Analyses come from the files that `palestra analyse` has written: their means over epochs, and decisions with small and
large values. Of dialogues it shows of each label some that went best, in the middle and worst; they come from the
roll-outs that the run has written, so that nobody answers anew.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from palestra.config import under
from palestra.games.trace import Transcript, Utterance
from palestra.recording.results import estimate_text, names_of_pairing, score_text, thinned
from palestra.report.blocks import (
    Block,
    Cell,
    Drawn,
    Facts,
    FigureGrid,
    Heading,
    Legend,
    Note,
    Section,
    Table,
    Talks,
    count,
    number,
    section_of_first_runs,
)
from palestra.report.figures import MOST_POINTS, Figures, paint_curves
from palestra.report.groups import Curve, Group, Point
from palestra.report.reading import RunData
from palestra.storage.run_folder import RunFolder
from palestra.text.analyses.stored import JudgedDecision, JudgedDialogue, means_of, seat_of, stored_analyses
from palestra.text.rollouts import DecisionRow, read_rollouts, rollout_files, verdict_word
from palestra.text.servers.job_lines import JobEntry, read_jobs
from palestra.text.servers.ledger import PICO

NUM_EXAMPLES = 3  # of each end
MOST_CHARACTERS = 300  # of a message, and of what is said of it
MOST_SEATS = 8  # that have a curve: a role, or a player in a role


def analyses_section(groups: Sequence[Group], figures: Figures) -> list[Section]:
    """Make the section of analyses, of the first run of each group; none if there are no analyses."""
    blocks_of = partial(_analyses, figures=figures)
    return section_of_first_runs("analyses", "Analyses", groups, blocks_of, "No analysis can be shown")


def _analyses(run: RunData, figures: Figures) -> list[Block]:
    blocks: list[Block] = []
    for name, results in stored_analyses(RunFolder.open(run.path).root.below("analyses")):
        judged = [Judged(dialogue, each) for dialogue in results.dialogues for each in dialogue.judged]
        known = [each for each in judged if each.decision.value is not None]
        lines = f"{len(known):,} decisions of {len(results.dialogues):,} dialogues have a value"
        without = f", and {len(judged) - len(known):,} have none" if len(known) < len(judged) else ""
        blocks += [Heading(name), Note(f"{lines}{without}.")]
        if known:
            seats = sorted({seat_of(each.decision) for each in known})
            blocks += [
                Legend(list(enumerate(seats[:MOST_SEATS]))),
                FigureGrid(_figures(name, results.dialogues, seats, figures)),
                _examples(known),
            ]
    return blocks


# ---- means --------------------------------------------------------------------------------------------------


def _figures(name: str, dialogues: Sequence[JudgedDialogue], seats: Sequence[str], figures: Figures) -> list[Drawn]:
    found = []
    for evaluation, by_epoch in means_of(dialogues).items():
        where = "training" if evaluation is None else f"evaluation {evaluation}"
        numbered = [
            (place, of_seat)
            for place, seat in enumerate(seats[:MOST_SEATS])
            if (of_seat := {epoch: means[seat] for epoch, means in by_epoch.items() if seat in means})
        ]
        curves = [
            Curve(Group(seats[place], ()), tuple(Point(epoch, mean.score) for epoch, mean in of_seat.items()), ())
            for place, of_seat in numbered
        ]
        colours = [place for place, _ in numbered]
        title = f"{name}, {where}"
        told = "; ".join(
            f"{curve.group.label}: from {score_text(curve.points[0].score.value)} in epoch {curve.points[0].step:,} to "
            f"{score_text(curve.points[-1].score.value)} in epoch {curve.points[-1].step:,}"
            for curve in curves
        )
        paint = partial(paint_curves, curves=curves, colours=colours, levels=[], unit="epochs", y_label=name)
        rows = [
            [
                count(epoch),
                Cell(seats[place]),
                Cell(estimate_text(mean.score)),
                count(mean.num),
                count(mean.num_questions),
            ]
            for place, of_seat in numbered
            for epoch, mean in thinned(list(of_seat.items()), MOST_POINTS)
        ]
        head = ["epoch", "of", f"{name} [95% interval]", "decisions", "questions"]
        table = Table(f"{title}: means over epochs", head, rows)
        found.append(figures.draw(title, f"Mean of {name} over epochs. {told}.", paint, numbers=table))
    return found


# ---- examples -----------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """A decision that was judged, in its dialogue."""

    dialogue: JudgedDialogue
    decision: JudgedDecision


def _examples(known: Sequence[Judged]) -> Table:
    """Return a table of decisions of the last epoch: those with the smallest and those with the largest values."""
    last = max(each.dialogue.epoch for each in known)
    of_last = (each for each in known if each.dialogue.epoch == last)
    ranked = sorted(of_last, key=lambda each: each.decision.value or 0.0)
    chosen = ranked if len(ranked) <= 2 * NUM_EXAMPLES else [*ranked[:NUM_EXAMPLES], *ranked[-NUM_EXAMPLES:]]
    rows = [
        [
            Cell(_cut(each.dialogue.about, MOST_CHARACTERS)),
            Cell(f"{seat_of(each.decision)}, round {each.decision.round}"),
            Cell(_cut(each.decision.answer, MOST_CHARACTERS)),
            number(each.decision.value),
            Cell(_cut(each.decision.words or "-", MOST_CHARACTERS)),
        ]
        for each in chosen
    ]
    head = ["question", "who", "message", "value", "what is said of it"]
    return Table(f"Messages of epoch {last:,} with the smallest and the largest values.", head, rows)


def _cut(text: str, most: int) -> str:
    more = len(text) - most
    return text if more <= 0 else f"{text[:most]} ... and {more:,} more characters"


# ---- dialogues ------------------------------------------------------------------------------------------------


MOST_OF_ANSWER = 2000  # characters, and of a prompt
MOST_PAIRINGS = 4
Dialogue = list[DecisionRow]


def dialogues_section(groups: Sequence[Group], figures: Figures) -> list[Section]:
    """Make the section of dialogues, of the first run of each group; none without groups."""
    return section_of_first_runs("dialogues", "Dialogues", groups, _dialogues, "No dialogue can be shown")


def _dialogues(run: RunData) -> list[Block]:
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
    for rank, place in sorted(places.items()):
        about, said = _cut(ranked[rank][0].about, MOST_OF_ANSWER), tuple(map(_utterance, ranked[rank]))
        yield Transcript(f"{place}: {about}", "", roles, deciders, said, _end(ranked[rank]))


def _utterance(row: DecisionRow) -> Utterance:
    details = (
        f"player {row.player}" if row.player != row.role else "",
        f"{row.attempts} attempts" if row.attempts > 1 else "",
        f"cut off{f' after {len(row.answer_ids)} tokens' if row.prompt_ids else ''}" if row.stop == "length" else "",
    )
    prompt = "\n\n".join(f"{message.role}: {message.content}" for message in row.prompt)
    answer, asked = _cut(row.answer, MOST_OF_ANSWER), _cut(prompt, MOST_OF_ANSWER)
    told = ", ".join(filter(None, details))
    return Utterance(row.round, row.role, "", answer, row.verdict is not None, told, asked)


def _end(dialogue: Dialogue) -> str:
    decided = [f"{row.role}: {verdict_word(row.verdict)}" for row in dialogue if row.verdict is not None]
    rewards = [f"{role} {reward:g}" for role, reward in {row.role: row.reward for row in dialogue}.items()]
    return f"{', '.join(decided) or 'Nobody has decided'}. Rewards: {', '.join(rewards)}."


# ---- servers --------------------------------------------------------------------------------------


def servers_section(groups: Sequence[Group]) -> list[Section]:
    """Make the section, of the first run of each group; none if no run has asked a server."""
    return section_of_first_runs("servers", "Calls and jobs", groups, _servers, "Its jobs cannot be shown")


def _servers(run: RunData) -> list[Block]:
    told = next((each["calls"] for each in reversed(run.training) if isinstance(each.get("calls"), Mapping)), None)
    blocks: list[Block] = []
    if told is not None:
        texts = {
            str(name): f"{value:,.6g}" if isinstance(value, int | float) else str(value)[:MOST_CHARACTERS]
            for name, value in told.items()
        }
        blocks.append(Facts(list(texts.items())))
    folder = RunFolder.open(run.path)
    if jobs := read_jobs(folder.root):
        head = ["job", "epoch", "attempt", "state", "model, or what went wrong", "tokens", "money"]
        blocks.append(Table("Jobs, the oldest first.", head, [_row(each, folder.facts().id) for each in jobs.values()]))
    return blocks


def _row(job: JobEntry, run: str) -> list[Cell]:
    end = job.end or {}
    spent = end.get("spent") or job.worst.line()
    at_most = "" if job.end else "at most "
    came = str(end.get("model") or end.get("why") or "")[:MOST_CHARACTERS]
    tokens, money = int(spent["tokens"]), int(spent["money"]) / PICO
    return [
        Cell(job.player, detail=job.job or job.key),
        Cell(str(job.epoch)),
        Cell(str(job.attempt)),
        Cell(job.state, detail="" if job.run == run else "of the run that it branches off"),
        Cell(came),
        Cell(f"{at_most}{tokens:,}", tokens),
        Cell(f"{at_most}{money:,.4g}", money),
    ]
