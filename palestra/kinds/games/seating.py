"""Who sits where in the worlds of learning players that meet others: blocks of worlds, past selves, and results.

Letters: B worlds, R roles.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from palestra.config import ConfigError, ConfigErrorItem
from palestra.games.policy import Policy
from palestra.kinds.games.meetings import Block, blocks_of
from palestra.kinds.games.parts import Parts
from palestra.players.past import PastPolicy
from palestra.randomness import base_key, fold_number, random_floats, seed_global_state
from palestra.rollouts.seated import Results, SeatedPolicy, Sitter
from palestra.scaling.replica import Replica
from palestra.storage.stored_files import StoredFile, copied, quoted_name, to_bytes

TALLIES = ("scores", "news")


class Met(NamedTuple):
    """Whom a learning player meets in a block. past: the opt steps of a past self in a role; None: nobody's past."""

    block: int
    role: str = ""
    past: int | None = None


Tally = dict[Met, np.ndarray]


def _misfits(parts: Parts) -> Iterator[ConfigErrorItem]:
    """Give a fault for each learning player that cannot sit where another one wants to meet it."""
    for learner in parts.learners:
        for number, each in enumerate(parts.config.meets_of(learner.name)):
            for role, name in each.pairing.items():
                player, why = parts.players[name], ""
                fits = player.fits(parts.game.spaces[role], parts.game.action_spaces[role])
                try:
                    if player.script is not None:
                        player.policy(explore=False, role=role)
                except ConfigError as error:
                    fits, why = False, f"; {error.errors[0].message}"
                if not fits:
                    place = f"players.{learner.name}.meets.{number}.pairing.{role}"
                    yield ConfigErrorItem(place, f"expected a player that can play as {role!r}, got {name!r}{why}")


def past_of(parts: Parts) -> dict[str, PastPolicy]:
    """Return the past selves of a run, by the name of their player."""
    scripts = {name: player.script for name, player in parts.players.items()}
    return {name: script for name, script in scripts.items() if isinstance(script, PastPolicy)}


class Seating:
    """Who sits in the worlds of learning players, and the copies of past players.

    blocks: of the learning players that say whom they meet, by their names. seated: by learning player, block and role,
    the past selves that sit there, in the order of their shares. files: by past player, the file of each copy. scores:
    of contests with past selves that are kept, how many there were, and how many were won. news: of games since the
    last record, their number, contests, contests won, and the sum of returns. Both are those of this replica.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts, self.past = parts, past_of(parts)
        config, self.blocks = parts.config, dict[str, list[Block]]()
        ConfigError.require_none(_misfits(parts))
        for player in parts.learners:
            if meets := config.meets_of(player.name):
                self.blocks[player.name] = blocks_of(player.name, meets, player.num_worlds, config.players)
        self.is_used = bool(self.blocks or self.past)
        self.seated = {name: [dict[str, list[int]]() for _ in blocks] for name, blocks in self.blocks.items()}
        self.files: dict[str, dict[int, str]] = {name: {} for name in self.past}
        self.num_copied = dict.fromkeys(self.past, 0)
        self.scores: dict[str, Tally] = {name: {} for name in self.blocks}
        self.news: dict[str, Tally] = {name: {} for name in self.blocks}

    # ---- who plays ---------------------------------------------------------------------------------------

    def seat(self, game: Any, learner: str, worlds: Any, first: int) -> None:
        """Let those play in worlds of a learning player whom it meets there; else those whom `roles` names.

        learner: its name; "" for worlds that several share. first: the number of the first world.
        """
        roles, players = self.parts.game.roles, self.parts.players
        if learner not in self.blocks:
            sitters = {role: players[self.parts.config.roles[role]] for role in roles}
            game.policies = {role: sitter.policy(sitter.learning, role) for role, sitter in sitters.items()}
            return
        num, device, own = len(worlds.keys), worlds.keys.device, players[learner]
        first %= own.num_worlds  # in a replica
        past_selves, game.policies = torch.full((num, len(roles)), -1, device=device), {}
        if worlds.results is None:
            sums = torch.zeros(num, 1 + 2 * len(roles), dtype=torch.float64, device=device)
            worlds.results = Results(sums, past_selves.clone())
        for index, role in enumerate(roles):
            places: dict[Any, list[range]] = {learner: []} if role in own.roles else {}
            policies: dict[Any, Policy] = {}
            for number, (block, seated) in enumerate(zip(self.blocks[learner], self.seated[learner], strict=True)):
                name = block.pairing[role]
                if role not in block.shares:
                    places.setdefault(name, []).append(_within(block.worlds, first, num))
                    continue
                if role not in seated:
                    expected = f"expected fit, which copies past selves as {name!r} at its begin, before anybody plays"
                    raise ValueError(f"{expected}, got none that could sit as {role!r} beside {learner!r}")
                script: Any = players[name].policy(False, role)
                for share, past in zip(block.shares[role], seated[role], strict=True):
                    here = _within(share, first, num)
                    past_selves[here.start : here.stop, index] = past
                    places[number, share], policies[number, share] = [here], script.past_self(past)
            for name in places.keys() - policies.keys():
                policies[name] = players[name].policy(players[name].learning, role)
            numbers = {who: torch.tensor([*chain(*those)], dtype=torch.int64) for who, those in places.items()}
            sitting = [Sitter(those.to(device), policies[who]) for who, those in numbers.items()]
            game.policies[role] = SeatedPolicy(sitting, num, device)
        game.seat(worlds, past_selves)

    # ---- past selves -------------------------------------------------------------------------------------

    def due(self) -> list[str]:
        """Return the past players of which a copy is due."""
        configs: dict[str, Any] = {name: self.parts.config.players[name] for name in self.past}
        opt_steps = {name: self.parts.players[config.past_of].opt_steps for name, config in configs.items()}
        return [name for name, each in configs.items() if self.num_copied[name] <= opt_steps[name] // each.interval]

    def copy(self, names: Sequence[str], counters: Mapping[str, int], replica: Replica) -> dict[str, bytes]:
        """Copy players as they are now, and draw anew which past selves sit. Called by all replicas.

        counters: of the run. Returns the content of each new file.
        """
        self.add_results()
        opt_steps, new = counters["opt_steps"], dict[str, bytes]()
        for name in names:
            config: Any = self.parts.config.players[name]
            player, kept = self.parts.players[config.past_of], self.past[name].kept
            state = {"player": player.acting_state(), "game": self.parts.game.state_dict(), "counters": dict(counters)}
            kept[opt_steps] = replica.of_leader("a past self", copied(state))
            self.num_copied[name] = player.opt_steps // config.interval + 1
            content = to_bytes(kept[opt_steps])
            place = f"{quoted_name(name)}-{opt_steps}"
            file = self.files[name][opt_steps] = f"{place}-{StoredFile.of(content).sha256[:8]}.state"
            new[file] = content
            for oldest in list(kept)[: -config.num_kept]:
                del kept[oldest], self.files[name][oldest]
        for learner, blocks in self.blocks.items():
            for met in [*self.scores[learner]]:
                if not met.role or met.past not in self._met(learner, met).kept:
                    del self.scores[learner][met]
            scores = _summed(replica.each("results against past selves", _plain(self.scores[learner])))
            for number, (block, seated) in enumerate(zip(blocks, self.seated[learner], strict=True)):
                for role, shares in block.shares.items():
                    if block.pairing[role] in names:
                        seated[role] = self.drawn(learner, Met(number, role), len(shares), scores)
        return new

    def _met(self, learner: str, met: Met) -> PastPolicy:
        return self.past[self.blocks[learner][met.block].pairing[met.role]]

    def drawn(self, learner: str, met: Met, num: int, scores: Tally) -> list[int]:
        """Draw past selves from all that are kept, each independently of the others."""
        config, script = self.parts.config, self._met(learner, met)
        kept = list(script.kept)
        contests, won = np.array([scores.get(met._replace(past=past), (0.0, 0.0)) for past in kept]).T
        weights = script.config.choice.weights(contests, won)
        key = fold_number(base_key(config.seed, f"player/{learner}/meets/{met.block}/{met.role}"), kept[-1])
        drawn = random_floats(torch.tensor(key), num).double().numpy()
        return [kept[place] for place in np.searchsorted(weights.cumsum() / weights.sum(), drawn, side="right")]

    # ---- results -----------------------------------------------------------------------------------------

    def add_results(self) -> None:
        """Add the results of games that have ended since the last call. Waits for the device."""
        for learner in self.blocks:
            worlds, first = self.parts.players[learner].worlds, 0
            for share in getattr(worlds, "shares", [worlds]):
                if share.results is not None:
                    self._add(learner, share.results, first)
                first += len(share.keys)

    def _add(self, learner: str, results: Results, first: int) -> None:
        roles, sums, sitters = self.parts.game.roles, results.take().numpy(), results.sitters.cpu().numpy()
        for number, block in enumerate(self.blocks[learner]):
            own = [block.pairing[role] == learner for role in roles]
            places = [("", block.worlds), *((it, each) for it, shares in block.shares.items() for each in shares)]
            for role, place in places:
                here = _within(place, first, len(sums))
                games, *others = sums[here.start : here.stop].sum(axis=0).tolist()
                if games:
                    met = Met(number, role, int(sitters[here.start, roles.index(role)]) if role else None)
                    won, mean = others[len(roles) :], np.compress(own, others[: len(roles)]).mean()
                    new = np.array([games, sum(won), np.compress(own, won).sum(), mean])
                    _add(self.news[learner], met, new)
                    _add(self.scores[learner], met, new[1:3])

    def take(self, learner: str, replica: Replica) -> dict[str, Any]:
        """Return the results since the last record of all replicas, by whom the learning player has met.

        Games, the mean return of the player, and the share of contests that it has won, also for each past self. Where
        there are no contests, and where the player sits in all roles, there is no share.
        """
        self.add_results()
        news = _summed(replica.each("results of pairings", _plain(self.news[learner])))
        self.news[learner], found = {}, dict[str, Any]()
        for met in sorted(news, key=lambda met: (met.block, met.role, met.past or 0)):
            (games, contests, won, returns), block = news[met].tolist(), self.blocks[learner][met.block]
            told = {"games": games, "return": returns / games}
            if contests and set(block.pairing.values()) != {learner}:
                told["won"] = won / contests
            if met.past is None:
                found[block.name] = told
            else:
                of_past = {"player": block.pairing[met.role], "opt_steps": met.past, **told}
                found[block.name].setdefault("past_selves", []).append(of_past)
        return found

    # ---- state -------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return who sits where, and the copies of those that do."""
        kept: dict[str, dict[int, Any]] = {name: {} for name in self.past}
        for learner, blocks in self.blocks.items():
            for block, seated in zip(blocks, self.seated[learner], strict=True):
                for role, who in seated.items():
                    script = self.past[block.pairing[role]]
                    kept[block.pairing[role]] |= {past: script.kept[past] for past in who}
        return {"seated": copied(self.seated), "kept": kept}

    def load_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        self.seated = snapshot["seated"]
        for name, kept in snapshot["kept"].items():
            _exchange(self.past[name].kept, kept)

    def state_dict(self) -> dict[str, Any]:
        tallies = {name: {learner: _plain(own) for learner, own in getattr(self, name).items()} for name in TALLIES}
        seating = tallies | {"seated": copied(self.seated), "num_copied": dict(self.num_copied)}
        return {"seating": seating, "past": {name: dict(files) for name, files in self.files.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` has returned, with `copies`, what is in each file."""
        before = state["seating"]
        for learner, blocks in self.blocks.items():  # in a branch, others may sit in place of past selves
            for name in TALLIES:
                tally = _summed([before[name][learner]])
                kept = {met: own for met, own in tally.items() if not met.role or met.role in blocks[met.block].shares}
                getattr(self, name)[learner] = kept
            for block, own, seated in zip(blocks, self.seated[learner], before["seated"][learner], strict=True):
                own.update({role: list(who) for role, who in seated.items() if role in block.shares})
        self.num_copied = {name: before["num_copied"].get(name, 0) for name in self.past}
        self.files = {name: dict(state["past"].get(name, {})) for name in self.past}
        copies = {file: dict(own) for file, own in state.get("copies", {}).items()}  # read now: files may go later
        load_kept(self.past, state | {"copies": copies})


def play_stream(player: str) -> str:
    """Return the stream of random numbers of a learning player's worlds."""
    return f"player/{player}/play"


def seed_play(seed: int, who: str, first: int, worlds: Any) -> None:
    """Seed torch's global generators, from which networks may draw, for a roll-out, in an actor as without actors.

    who: the player whose worlds these are, or a role, if players share them. first: the number of the first world.
    """
    seed_global_state(base_key(seed, f"torch/{who}/{first}/{getattr(worlds, 'num_moves', 0)}"))


def load_kept(past: Mapping[str, PastPolicy], state: Mapping[str, Any]) -> None:
    """Let past players keep the copies that a checkpoint names, whose content is in its entry `copies`."""
    files, copies = state.get("past", {}), state.get("copies", {})
    for name, script in past.items():  # a branch may have others
        _exchange(script.kept, {opt_steps: copies[file] for opt_steps, file in files.get(name, {}).items()})


def _exchange(kept: dict[int, Any], new: Mapping[int, Any]) -> None:
    kept.clear()
    kept.update(sorted(new.items()))


def _within(worlds: range, first: int, num: int) -> range:
    """Return which of `num` worlds from the number `first` on are among `worlds`, counted from `first`."""
    start, stop = max(worlds.start - first, 0), min(worlds.stop - first, num)
    return range(start, max(start, stop))


def _add(tally: Tally, met: Met, new: np.ndarray) -> None:
    tally[met] = tally.get(met, 0.0) + new


def _plain(tally: Tally) -> list[Any]:
    return [[*met, values.tolist()] for met, values in tally.items()]


def _summed(states: Sequence[Any]) -> Tally:
    """Return the sums of tallies as `_plain` has written them."""
    found: Tally = {}
    for *met, values in chain(*states):
        _add(found, Met(*met), np.array(values))
    return found
