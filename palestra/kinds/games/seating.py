"""Who sits where in the worlds of learning players that meet others: blocks of worlds, past selves, and results.

Letters: B worlds, R roles.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import torch

from palestra.config import ConfigError, ConfigErrorItem
from palestra.games.policy import Policy
from palestra.kinds.games.meetings import Block, blocks_of
from palestra.kinds.games.parts import Parts
from palestra.players.past import PastPolicy
from palestra.randomness import base_key, fold_number, random_floats
from palestra.rollouts.fused import FusedGame, Worlds
from palestra.rollouts.seated import Results, SeatedPolicy, Sitter
from palestra.storage.stored_files import StoredFile, copied, to_bytes

TALLIES = ("scores", "news")
Each = Callable[[str, Any], list[Any]]
"""gives a value of each replica, in their order (palestra.scaling.replica.Replica.each)"""


class Met(NamedTuple):
    """Whom a learning player meets in a block. past: the opt steps of a past self in a role; None: nobody's past."""

    block: int
    role: str = ""
    past: int | None = None


def _misfits(parts: Parts) -> Iterator[ConfigErrorItem]:
    """Give a fault for each learning player that cannot sit where another one wants to meet it."""
    for learner in parts.learners:
        for number, each in enumerate(parts.config.meets_of(learner.name)):
            for role, name in each.pairing.items():
                if not parts.players[name].fits(parts.game.spaces[role], parts.game.action_spaces[role]):
                    expected = f"expected a player that can play as {role!r}, got {name!r}"
                    place = f"players.{learner.name}.meets.{number}.pairing.{role}"
                    yield ConfigErrorItem(place, f"{expected}, which has other observations or actions")


def past_of(parts: Parts) -> dict[str, PastPolicy]:
    """Return the past selves of a run, by the name of their player."""
    scripts = {name: player.script for name, player in parts.players.items()}
    return {name: script for name, script in scripts.items() if isinstance(script, PastPolicy)}


class Seating:
    """Who sits in the worlds of the learning players that say whom they meet, and the copies of past players.

    blocks: by learning player. seated: by learning player, block and role, the past selves that sit there, in the order
    of their shares. files: by past player, the file of each copy. scores: of contests with past selves that are kept,
    how many there were, and how many were won. news: of games since the last record, their number, contests, contests
    won, and the sum of returns. Both are those of this replica.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts, self.past = parts, past_of(parts)
        config, self.blocks = parts.config, dict[str, list[Block]]()
        ConfigError.require_none(_misfits(parts))
        for player in parts.learners:
            if meets := config.meets_of(player.name):
                self.blocks[player.name] = blocks_of(player.name, meets, player.num_worlds, config.players)
        self.seated: dict[str, list[dict[str, list[int]]]] = {
            name: [{} for _ in blocks] for name, blocks in self.blocks.items()
        }
        self.files: dict[str, dict[int, str]] = {name: {} for name in self.past}
        self.num_copied = dict.fromkeys(self.past, 0)
        self.scores: dict[str, dict[Met, list[float]]] = {name: {} for name in self.blocks}
        self.news: dict[str, dict[Met, list[float]]] = {name: {} for name in self.blocks}

    # ---- who plays ---------------------------------------------------------------------------------------

    def seat(self, game: FusedGame, learner: str, worlds: Worlds, first: int) -> None:
        """Let those play in some worlds of a learning player who sit there. first: the number of the first of them."""
        num, roles, device = len(worlds.keys), self.parts.game.roles, worlds.keys.device
        own, players = self.parts.players[learner], self.parts.players
        first %= own.num_worlds  # in a replica
        worlds.results = worlds.results or Results.begin(num, len(roles), device)
        past_selves, policies = torch.full((num, len(roles)), -1), dict[str, SeatedPolicy]()
        for index, role in enumerate(roles):
            places: dict[Any, list[range]] = {learner: []} if role in own.roles else {}
            sitting: dict[Any, Policy] = {}
            for number, (block, seated) in enumerate(zip(self.blocks[learner], self.seated[learner], strict=True)):
                name = block.pairing[role]
                if role not in block.shares:
                    places.setdefault(name, []).append(_within(block.worlds, first, num))
                    continue
                script = players[name].policy(False, role)
                assert isinstance(script, PastPolicy)
                for share, past in zip(block.shares[role], seated[role], strict=True):
                    here = _within(share, first, num)
                    past_selves[here.start : here.stop, index] = past
                    places[number, share] = [here]
                    sitting[number, share] = script.past_self(past)
            for who in places:
                if isinstance(who, str):
                    sitting[who] = players[who].policy(players[who].learning, role)
            numbers = {who: torch.tensor([*chain(*those)], dtype=torch.int64) for who, those in places.items()}
            sitters = [Sitter(those.to(device), sitting[who]) for who, those in numbers.items()]
            policies[role] = SeatedPolicy(sitters, num, device, is_held=role in own.roles)
        game.policies = {**policies}
        game.seat(worlds, past_selves.to(device))

    # ---- past selves -------------------------------------------------------------------------------------

    def due(self) -> list[str]:
        """Return the past players of which a copy is due."""
        players, found = self.parts.config.players, []
        for name in self.past:
            config: Any = players[name]
            if self.num_copied[name] <= self.parts.players[config.past_of].opt_steps // config.interval:
                found.append(name)
        return found

    def copy(
        self, name: str, counters: Mapping[str, int], of_leader: Callable[[str, Any], Any]
    ) -> tuple[str, bytes, list[str]]:
        """Keep a copy of a player as it is now. Returns a file of it, its content, and the files that are kept no more.

        counters: of the run. of_leader: gives the value of the first replica.
        """
        config: Any = self.parts.config.players[name]
        player, kept = self.parts.players[config.past_of], self.past[name].kept
        opt_steps = counters["opt_steps"]
        state = {"player": player.acting_state(), "game": self.parts.game.state_dict(), "counters": dict(counters)}
        kept[opt_steps] = of_leader("a past self", copied(state))
        self.num_copied[name] = player.opt_steps // config.interval + 1
        content = to_bytes(kept[opt_steps])
        file = f"{quote(name, safe='').replace('.', '%2E')}-{opt_steps}-{StoredFile.of(content).sha256[:8]}.state"
        self.files[name][opt_steps] = file
        gone = list(kept)[: -config.num_kept]
        for each in gone:
            del kept[each]
        for scores in self.scores.values():
            for met in [met for met in scores if met.past in gone and self._past_in(met, scores) == name]:
                del scores[met]
        return file, content, [self.files[name].pop(each) for each in gone]

    def draw(self, names: Sequence[str], each: Each) -> None:
        """Draw anew who sits in the worlds of pairings with these past players, from all that are kept."""
        config = self.parts.config
        for learner, blocks in self.blocks.items():
            of_all = each("results against past selves", _plain(self.scores[learner]))
            scores = _summed(_read(state) for state in of_all)
            for number, (block, seated) in enumerate(zip(blocks, self.seated[learner], strict=True)):
                for role in block.shares:
                    if (name := block.pairing[role]) not in names:
                        continue
                    choice, kept = config.players[name].choice, list(self.past[name].kept)  # type: ignore[union-attr]
                    met = [scores.get(Met(number, role, past), [0.0, 0.0]) for past in kept]
                    weights = np.array([choice.weight((num, won)) for num, won in met])
                    key = fold_number(base_key(config.seed, f"player/{learner}/meets/{number}/{role}"), kept[-1])
                    drawn = random_floats(torch.tensor(key), len(block.shares[role])).double().numpy()
                    places = np.searchsorted(weights.cumsum() / weights.sum(), drawn, side="right")
                    seated[role] = [kept[place] for place in places]

    # ---- results -----------------------------------------------------------------------------------------

    def add_results(self, learner: str, worlds: Worlds, first: int) -> None:
        """Add the results of games in some worlds of a learning player. Waits for the device."""
        if worlds.results is None:
            return
        roles = self.parts.game.roles
        sums, sitters = worlds.results.take().numpy(), worlds.results.sitters.cpu().numpy()
        for number, block in enumerate(self.blocks[learner]):
            own = [block.pairing[role] == learner for role in roles]
            places = [("", block.worlds), *((role, share) for role, shares in block.shares.items() for share in shares)]
            for role, share in places:
                here = _within(share, first, len(sums))
                if not len(here):
                    continue
                games, *others = sums[here.start : here.stop].sum(axis=0).tolist()
                if not games:
                    continue
                returns, won = others[: len(roles)], others[len(roles) :]
                met = Met(number, role, int(sitters[here.start, roles.index(role)]) if role else None)
                new = [games, sum(won), sum(np.compress(own, won)), sum(np.compress(own, returns)) / sum(own)]
                _add(self.news[learner], met, new)
                if role:
                    _add(self.scores[learner], met, new[1:3])

    def take(self, learner: str, each: Each) -> dict[str, Any]:
        """Return the results since the last record of all replicas, by whom the learning player has met.

        Games, the mean return of the player, and the share of contests that it has won, also for each past self. Where
        there are no contests, and where the player sits in all roles, there is no share.
        """
        found: dict[str, Any] = {}
        news = _summed(_read(state) for state in each("results of pairings", _plain(self.news[learner])))
        self.news[learner] = {}
        for met, values in sorted(news.items(), key=lambda item: (item[0].block, item[0].role, item[0].past or 0)):
            block = self.blocks[learner][met.block]
            told = _told(values, has_opponent=set(block.pairing.values()) != {learner})
            if met.past is None:
                found[block.name] = told
            else:
                of_past = {"player": block.pairing[met.role], "opt_steps": met.past, **told}
                found[block.name].setdefault("past_selves", []).append(of_past)
        return found

    def _past_in(self, met: Met, scores: Mapping[Met, Any]) -> str:
        learner = next(name for name, own in self.scores.items() if own is scores)
        return self.blocks[learner][met.block].pairing[met.role]

    # ---- state -------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return who sits where, and the copies of those that do."""
        labels = {name: set[int]() for name in self.past}
        for learner, blocks in self.blocks.items():
            for block, seated in zip(blocks, self.seated[learner], strict=True):
                for role, who in seated.items():
                    labels[block.pairing[role]].update(who)
        kept = {name: {past: self.past[name].kept[past] for past in sorted(labels[name])} for name in self.past}
        return {"seated": copied(self.seated), "kept": kept}

    def load_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        self.seated = snapshot["seated"]
        for name, kept in snapshot["kept"].items():
            _exchange(self.past[name].kept, kept)

    def state_dict(self) -> dict[str, Any]:
        tallies = {name: {learner: _plain(own) for learner, own in getattr(self, name).items()} for name in TALLIES}
        return tallies | {"seated": copied(self.seated), "num_copied": dict(self.num_copied)}

    def load_state_dict(self, state: Mapping[str, Any], files: Mapping[str, Any], copies: Mapping[str, Any]) -> None:
        """Load what `state_dict` has returned. files: by past player and opt steps. copies: what is in each file."""
        for name in TALLIES:
            setattr(self, name, {learner: _read(own) for learner, own in state[name].items()})
        self.seated = copied(state["seated"])
        self.num_copied = {name: state["num_copied"].get(name, 0) for name in self.past}
        self.files = {name: dict(files.get(name, {})) for name in self.past}
        load_kept(self.past, files, copies)


def play_stream(player: str) -> str:
    """Return the stream of random numbers of a learning player's worlds."""
    return f"player/{player}/play"


def seat_players(game: Any, parts: Parts, seating: Seating | None, learner: str, worlds: Any, first: int) -> None:
    """Let those play in worlds of a learning player whom it meets there; else those whom the config's `roles` names.

    learner: its name; any other word where several share the worlds. first: the number of the first world.
    """
    if seating is not None and learner in seating.blocks:
        seating.seat(game, learner, worlds, first)
        return
    sitters = {role: parts.players[parts.config.roles[role]] for role in parts.game.roles}
    game.policies = {role: sitter.policy(sitter.learning, role) for role, sitter in sitters.items()}


def load_kept(past: Mapping[str, PastPolicy], files: Mapping[str, Any], copies: Mapping[str, Any]) -> None:
    """Let past players keep the copies that a checkpoint names."""
    for name, script in past.items():  # a branch may have others
        _exchange(script.kept, {opt_steps: copies[file] for opt_steps, file in files.get(name, {}).items()})


def _exchange(kept: dict[int, Any], new: Mapping[int, Any]) -> None:
    kept.clear()
    kept.update(sorted(new.items()))


def _within(worlds: range, first: int, num: int) -> range:
    """Return which of `num` worlds from the number `first` on are among `worlds`, counted from `first`."""
    start, stop = max(worlds.start - first, 0), min(worlds.stop - first, num)
    return range(start, max(start, stop))


def _add(tally: dict[Met, list[float]], met: Met, new: Sequence[float]) -> None:
    tally[met] = [before + more for before, more in zip(tally.get(met, [0.0] * len(new)), new, strict=True)]


def _summed(tallies: Iterator[dict[Met, list[float]]]) -> dict[Met, list[float]]:
    found: dict[Met, list[float]] = {}
    for tally in tallies:
        for met, new in tally.items():
            _add(found, met, new)
    return found


def _told(values: Sequence[float], has_opponent: bool) -> dict[str, float]:
    games, contests, won, returns = values
    share = {"won": won / contests} if contests and has_opponent else {}
    return {"games": games, "return": returns / games, **share}


def _plain(tally: Mapping[Met, list[float]]) -> list[Any]:
    return [[*met, values] for met, values in tally.items()]


def _read(state: Sequence[Any]) -> dict[Met, list[float]]:
    return {Met(*met): list(values) for *met, values in state}
