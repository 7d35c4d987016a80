"""What players do in single games.

The players of a checkpoint play on the CPU, and the report shows the boards or moves of one game, or what was said in
some. The run may come from another person: of the modules that it names those are imported that the user trusts, and no
environment is built. Runs that need others, or an environment, have no sample games.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch

from palestra.config import Config, admits, importing_no_others, under
from palestra.evaluation.evaluations import Evaluations, typical
from palestra.evaluation.evaluator import play_games
from palestra.games.config import GameConfig
from palestra.games.game import TensorGame
from palestra.games.trace import PictureStyle, Scene, Storyboard, Trace
from palestra.kinds.games.seating import past_of
from palestra.kinds.games.stored import StoredGames
from palestra.recording.results import as_float, names_of_pairing, thinned
from palestra.report.blocks import (
    Block,
    Cell,
    Legend,
    Note,
    Picture,
    Section,
    Strip,
    Table,
    Tables,
    Talks,
    section_of_first_runs,
)
from palestra.report.evaluation_tables import heat_cell
from palestra.report.figures import FONT_SIZE, INK, SERIES, Figures
from palestra.report.groups import Group, step_unit
from palestra.report.learning import legend, metric_grids
from palestra.report.reading import RunData, count_in
from palestra.run.kinds import read_stored_config
from palestra.storage.run_folder import RunFolder

MOST_PICTURES = 8
MOST_MOVES = 12
MOST_PAIRINGS = 6
MOST_OF_A_KIND = 2
MOST_GAMES = 2000  # of which tables are made
PICTURE_SIZE = (2.5, 2.3)  # inches
STYLE = PictureStyle(INK, SERIES, FONT_SIZE)
MOST_MOMENTS = 10
MOST_PAST_SELVES = 20  # rows of a table
MOST_IN_CROSS_TABLE = 5
NUM_CROSS_GAMES = 100
MOST_NUMBERS = 32  # of an entry of a state that is told


def data_section(groups: Sequence[Group]) -> list[Section]:
    """Make the section on the recorded play from which players learned; there is none without."""
    rows = [
        [
            Cell(run.name),
            *map(Cell, (each["player"], each["file"])),
            *(Cell(f"{each[name]:,}", each[name]) for name in ("num_rows", "num_episodes", "num_left_out")),
            *(Cell(_spread(each[name]), each[name]["mean"]) for name in ("returns", "lengths")),
            Cell(each["sha256"][:12]),
        ]
        for group in groups
        for run in group.runs
        for each in run.recorded
    ]
    head = ["run", "player", "file", "rows", "episodes", "left out", "returns", "lengths", "SHA-256"]
    caption = "The recorded play from which players learned: returns and lengths of its episodes, mean (from, to)."
    return [Section("data", "Recorded play", [Table(caption, head, rows)])] if rows else []


def _spread(described: Mapping[str, Any]) -> str:
    return f"{described['mean']:.4g} ({described['min']:.4g}, {described['max']:.4g})"


# ---- who meets whom --------------------------------------------------------------------------------------


def meetings_section(groups: Sequence[Group], figures: Figures) -> list[Section]:
    """Make the section on whom players have met: the shares they have won, past selves, and these among themselves.

    There is none where nobody says whom it meets.
    """
    runs, unit = [run for group in groups for run in group.runs], step_unit(groups)
    names = dict.fromkeys(name for run in runs for name in run.metrics if "/meets/" in name and name.endswith("/won"))
    blocks = [*legend(groups), *metric_grids(groups, [*names], figures)] if names else []
    for run in runs:
        for player in run.players:
            blocks += [*_past_selves_met(run, player, unit)]
    found = [Section("meetings", "Who met whom", blocks)] if blocks else []
    with_past = [each for each in groups if any("past_of" in dict(it) for it in each.runs[0].players.values())]

    def games_of(run: RunData) -> list[Block]:
        with importing_no_others():
            return [*_past_selves_among_themselves(run)]

    return found + section_of_first_runs("past", "Past selves", with_past, games_of, "They cannot play")


def _past_selves_met(run: RunData, player: str, unit: str) -> Iterator[Table]:
    """For each pairing with past selves a table of those that sat in it at some moments, with the share won."""
    met: dict[str, dict[int, dict[str, Any]]] = {}
    for record in run.training:
        for block, told in (under(record, "players", player, "meets") or {}).items():
            for each in told.get("past_selves", ()):
                who = f"{each['player']} @{each['opt_steps']}"
                met.setdefault(block, {}).setdefault(count_in(record, unit), {})[who] = each
    for block, moments in met.items():
        steps = thinned(sorted(moments), MOST_MOMENTS)
        seated = {who: each for step in steps for who, each in moments[step].items()}
        rows = [
            [Cell(who), *(heat_cell(as_float(under(moments[step], who, "won")), 0.0, 1.0) for step in steps)]
            for who in sorted(seated, key=lambda who: seated[who]["opt_steps"])[-MOST_PAST_SELVES:]
        ]
        caption = f"{run.name}, {player} with {block}: who sat there, and the share of contests that {player} won."
        yield Table(caption, ["past self", *(f"{step:,}" for step in steps)], rows, is_heat=True)


def _past_selves_among_themselves(run: RunData) -> Iterator[Table]:
    """Tables of games between past selves that the latest checkpoint keeps; of many, some.

    They are of one player, among themselves; those of one that sits in one role alone meet those in the other role.
    """
    stored = _opened(run)
    if not isinstance(stored, StoredGames) or not (past := past_of(stored.parts)) or len(stored.game.roles) != 2:
        return
    stored.load("latest")
    game, (first, second) = stored.game, stored.game.roles
    assert isinstance(game, TensorGame)
    roles = {name: stored.players[each.config.past_of].roles for name, each in past.items()}
    firsts, seconds = ([name for name in past if role in roles[name]] for role in game.roles)
    pairs = [each for each in product(firsts, seconds) if len({*each}) == 1 or not {*each} <= {*firsts} & {*seconds}]
    for name, other in pairs:
        seats = {first: past[name].for_seat(game, first), second: past[other].for_seat(game, second)}
        row, column = (thinned(sorted(each.kept), MOST_IN_CROSS_TABLE) for each in seats.values())
        rows = [[Cell(f"@{at}")] for at in row]
        for (number, at), met in product(enumerate(row), column):
            policies = {first: seats[first].past_self(at), second: seats[second].past_self(met)}
            wins = play_games(game, policies, NUM_CROSS_GAMES, stored.config.game.usual_rounds(), 0).wins
            share = float(wins[first].sum() / torch.stack([*wins.values()]).sum()) if wins else math.nan
            rows[number].append(heat_cell(share, 0.0, 1.0))
        whom = "among themselves" if name == other else f"against those of {other}"
        caption = f"{run.name}: past selves of {name} {whom}, the share won by the row's one as {first}; "
        head = [f"{first} \\ {second}", *(f"@{at}" for at in column)]
        yield Table(f"{caption}{NUM_CROSS_GAMES} games each.", head, rows, is_heat=True)


def samples_section(groups: Sequence[Group], figures: Figures) -> list[Section]:
    """Make the section of sample games: of the first run of each group one game, or, if they are in words, some.

    The game is of the pairing that `best` names, or else the first one with a learner; games in words are of all
    pairings. There is none without groups.
    """

    def blocks_of(run: RunData) -> list[Block]:
        with importing_no_others():
            return _samples(run, figures)

    return section_of_first_runs("samples", "Sample games", groups, blocks_of, "No game can be shown")


def _samples(run: RunData, figures: Figures) -> list[Block]:
    stored = _opened(run)
    if isinstance(stored, Note):
        return [stored]
    if not (wanted := _wanted(stored.config, stored.evaluations)):
        return [Note("The config names no evaluation of a learning player.")]
    which = "best" if any("best" in each.marks for each in run.checkpoints) else "latest"
    stored.load(which)
    name, pairing = wanted
    game = stored.evaluations.games[name]
    if (trace := typical(stored.evaluations.traces(name, pairing))) is None:
        return [Note("The games of the evaluation are over at their start.")]
    assert isinstance(game, TensorGame)  # no environment is played here
    moment = f"evaluation {name}, from the {which} checkpoint, at opt step {stored.counters['opt_steps']:,}"
    if game.transcript(trace) is not None:
        return list(_talks(stored, game, name, pairing, moment))
    end = "to its end" if trace.is_finished else "until it was cut off"
    length = f"A game of middle length: {trace.length} round{'' if trace.length == 1 else 's'}, {end}."
    title = f"{names_of_pairing(pairing.values())} in {moment}. {length}"
    storyboard = game.storyboard(trace)
    return [_moves_table(title, trace) if storyboard is None else _strip(title, storyboard, figures)]


def _opened(run: RunData) -> StoredGames | Note:
    """Open a run to play on the CPU, or say why that cannot be."""
    if not any(stored.fault is None for stored in run.checkpoints):
        return Note("There is no checkpoint to play from.")
    if not run.config:
        return Note("No game can be shown: the config cannot be read.")
    folder = RunFolder.open(run.path)
    folder.require_rebuildable()
    config = read_stored_config(folder.config)
    if missing := [f"{path} is {what}" for path, what in _left_out(config, "")]:
        way = folder.ways_on().to_evaluate(config.pairing(), bool(config.evaluations))
        remedy = "" if way is None else f" To play: {way}, with --video to film an environment."
        return Note(f"No game is shown: {'; '.join(missing)}.{remedy}")
    execution = config.execution.model_copy(update={"device": "cpu", "compile": False})
    return StoredGames(folder, config.model_copy(update={"execution": execution}))


def _left_out(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield what keeps a report from playing this run: the path of a game or player in the config, and what it is."""
    if isinstance(value, Config) and (names := [name for name in value.user_names() if not admits(name)]):
        what = "of a module that is not here or that you do not trust (palestra evaluate --trust trusts it)"
        yield path, f"{', '.join(dict.fromkeys(names))}, {what}"
        return
    if isinstance(value, GameConfig) and (environment := value.environment_id()):
        yield path, f"the environment {environment}, which a report does not build"
    entries: Any = enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, Config | dict):
        entries = dict(value).items()
    for key, inner in entries:
        if path or key in ("game", "players", "evaluations"):
            yield from _left_out(inner, f"{path}.{key}" if path else str(key))


def _wanted(config: Any, evaluations: Evaluations) -> tuple[str, dict[str, str]] | None:
    """Return the name of an evaluation and the pairing that `best` names, or the first in which a player learns."""
    if config.best is not None and config.best.pairing is not None:
        return config.best.evaluation, evaluations.configs[config.best.evaluation].pairings[config.best.pairing]
    played = {name: each for name, each in evaluations.configs.items() if each.own_scores is None}
    learned = ((name, pairing) for name, each in played.items() for pairing in each.pairings)
    return next((found for found in learned if found[1] in evaluations.pairings(found[0], False)), None)


# ---- games that draw themselves ------------------------------------------------------------------------


def _strip(title: str, storyboard: Storyboard, figures: Figures) -> Strip:
    """Draw some of the scenes, with the first and the last."""
    *scenes, last = storyboard.scenes
    shown = thinned(scenes, MOST_PICTURES - 1)
    return Strip(f"{title} {storyboard.legend}", [_picture(scene, figures) for scene in (*shown, last)])


def _picture(scene: Scene, figures: Figures) -> Picture:
    drawn = figures.draw(scene.title, scene.description, lambda figure: scene.paint(figure, STYLE), PICTURE_SIZE)
    return Picture(drawn.svg, scene.caption)


# ---- what was said -------------------------------------------------------------------------------------


def _talks(stored: StoredGames, game: TensorGame, name: str, wanted: dict[str, str], moment: str) -> Iterator[Block]:
    """Yield some games of every pairing in which a player learns, and tables on many games of the wanted one."""
    yield Note(f"Games of {moment}: of every pairing some of the first, which begin alike for all of them.")
    yield Legend(list(enumerate(game.roles)))
    pairings = stored.evaluations.pairings(name, with_scripted=False)
    distinct = [pairing for pairing in pairings if stored.evaluations.same_as(name, pairing) is None]
    for pairing in distinct[:MOST_PAIRINGS]:
        told = [each for trace in stored.evaluations.traces(name, pairing) if (each := game.transcript(trace))]
        by_kind = [[each for each in told if each.kind == kind] for kind in sorted({each.kind for each in told})]
        shown = [each for alike in by_kind for each in alike[:MOST_OF_A_KIND]]
        yield Talks(_pairing_text(stored, pairing), shown)
    num_games = min(stored.evaluations.configs[name].final_num_games, MOST_GAMES)
    tables = []
    for shared in game.tables(stored.evaluations.outcomes(name, wanted, num_games)):
        rows = [
            [Cell(row), *(Cell("-") if x is None else Cell(f"{x:.0%}", x, heat=x) for x in shares)]
            for row, shares in zip(shared.rows, shared.shares, strict=True)
        ]
        tables.append(Table(shared.title, [shared.corner, *shared.columns], rows, is_heat=True))
    if tables:
        what = "How often each message was said in games with each label, and what it tells of the label"
        yield Tables(f"{what}; {_pairing_text(stored, wanted)}, {num_games:,} games.", tables)


def _pairing_text(stored: StoredGames, pairing: dict[str, str]) -> str:
    learned = {name for name, player in stored.players.items() if player.learning}
    return names_of_pairing(f"{name}{'*' * (name in learned)}" for name in pairing.values())


# ---- moves of other games ------------------------------------------------------------------------------


def _moves_table(title: str, trace: Trace) -> Table:
    """Make a table of the choices, each with the small entries of the state before it."""
    names = [name for name, value in trace.end.items() if value.numel() <= MOST_NUMBERS]
    rows = [
        [
            Cell(str(number + 1)),
            Cell(choice.role),
            Cell(_numbers_text(choice.action)),
            *(Cell(_numbers_text(choice.state[name])) for name in names),
        ]
        for number, choice in thinned(list(enumerate(trace.choices)), MOST_MOVES)
    ]
    rows.append([Cell("end"), Cell("-"), Cell("-"), *(Cell(_numbers_text(trace.end[name])) for name in names)])
    return Table(title, ["move", "role", "action", *names], rows)


def _numbers_text(tensor: Any) -> str:
    values = tensor.flatten().tolist()
    return " ".join(str(value) if isinstance(value, int | bool) else f"{value:.4g}" for value in values)
