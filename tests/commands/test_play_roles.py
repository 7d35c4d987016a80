"""A person who plays in a role sees what the role observes, and moves in the words of the game.

Covers palestra.kinds.games.play.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from palestra.commands.starting import starting_config
from palestra.games.dialogue.game import DialogueGame
from palestra.games.game import Observation, State, TensorGame
from palestra.games.spaces import MultiDiscrete
from palestra.kinds.games.play import Person, choose_seats, new_match, play, seat
from palestra.kinds.games.stored import StoredGames
from palestra.players.scripted import ScriptedPolicy
from palestra.randomness import base_key, fold, world_keys
from palestra.storage.run_folder import RunFolder
from tests.games.dialogue.test_game import PROTOCOLS, dialogue, random_actions

SEED = 3
ROLES = [
    *((name, role) for name in ("nip", "adp") for role in ("prover", "verifier")),
    *((name, role) for name in ("debate", "mnip", "merlin_arthur") for role in ("prover0", "prover1", "verifier")),
    ("solo_verifier", "verifier"),
]


class Seer(ScriptedPolicy):
    """Acts by the whole state."""

    observes = "state"

    def choose(self, view: Any, legal: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return legal.to(torch.int8).argmax(dim=1)


def write_rows() -> str:
    lines = ["age,ward,sick", *(f"{20 + i},{'red' if i % 3 else 'blue'},{i % 2}" for i in range(20))]
    Path("rows.csv").write_text("\n".join(lines))
    return "rows.csv"


def untrained(algorithm: str, *words: str) -> StoredGames:
    config = starting_config(algorithm, [*words, "evaluations=[]", "best=null"])
    return StoredGames(RunFolder(Path("run")), config)


def sit(stored: StoredGames, role: str, typed: list[str], seed: int = SEED) -> str:
    """What a person is shown who types these lines."""
    said: list[str] = []
    match = new_match(stored, None, seed)
    names = choose_seats(stored, role, None, {})
    seats: dict[str, Any] = {other: seat(stored, name, other) for other, name in names.items()}
    seats[role] = Person(match, stored, iter(typed), said.append, said.append)
    play(match, seats, said.append)
    return "\n".join(said)


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---- what is shown -------------------------------------------------------------------------------------


def played(game: TensorGame, num_worlds: int, num_moves: int) -> State:
    keys = world_keys(base_key(SEED, "test"), num_worlds, game.device)
    state = game.reset(keys)
    for number in range(num_moves):
        state = game.transition(state, random_actions(game, state, fold(keys, number)), fold(keys, -number - 1))[0]  # type: ignore[arg-type]
    return state


def flat(seen: Observation, world: int) -> tuple[float, ...]:
    return tuple(number for value in seen.values() for number in value[world].double().flatten().tolist())


def assert_shows_what_is_observed(game: TensorGame, state: State, role: str, num_worlds: int) -> None:
    """Equal observations are shown as equal texts, unequal ones as unequal texts."""
    seen, texts = game.observe(state, role), {}
    for world in range(num_worlds):
        text = game.describe_seen({name: value[world] for name, value in state.items()}, role)
        assert texts.setdefault(flat(seen, world), text) == text
    assert len(set(texts.values())) == len(texts)
    assert len(texts) < num_worlds  # else nothing was compared


@pytest.mark.parametrize("num_moves", [0, 1, 2])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_role_of_a_dialogue_is_shown_what_it_observes_and_no_more(name: str, num_moves: int) -> None:
    game = dialogue(PROTOCOLS[name], num_bits=2)
    state = played(game, 150, num_moves)
    for role in game.roles:
        assert_shows_what_is_observed(game, state, role, 150)


def test_a_farmer_is_shown_its_own_weather_alone() -> None:
    game = untrained("ppo", "harvest").game
    assert isinstance(game, TensorGame)
    assert_shows_what_is_observed(game, played(game, 60, 1), "farmer_1", 60)


def test_of_a_row_a_role_is_shown_its_own_columns_and_no_category_that_training_lacks() -> None:
    words = ["adp", "rows", f"game.scenario.file={write_rows()}", "game.scenario.label=sick"]
    game = untrained("ppo", *words, "game.scenario.sees={prover: [age], verifier: [ward]}").game
    assert isinstance(game, DialogueGame)
    state = {name: value[0] for name, value in played(game, 1, 0).items()}
    row = int(state["instance.row"])
    ward = "red" if row % 3 else "blue"
    assert game.describe_seen(state, "prover") == f"age {20 + row}; round 0"
    assert game.describe_seen(state, "verifier") == f"ward {ward}; round 0"
    game.scenario.table[row] = 0.0  # type: ignore[attr-defined]  # as of a category that only held-out rows have
    assert game.describe_seen(state, "verifier") == "ward ?; round 0"


# ---- whole games ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "protocol", "role"),
    [*(("witness", *each) for each in ROLES), *(("rows", *each) for each in ROLES[:4])],
)
def test_a_person_plays_every_role_of_every_dialogue_and_learns_the_label_at_the_end(
    scenario: str, protocol: str, role: str
) -> None:
    of_rows = [f"game.scenario.file={write_rows()}", "game.scenario.label=sick"] if scenario == "rows" else []
    has_rounds = protocol in ("nip", "debate", "mnip")
    rounds = ["game.protocol.max_rounds=4", "game.protocol.min_rounds=3"] * has_rounds
    stored = untrained("ppo", protocol, scenario, *of_rows, *rounds)
    game = stored.game
    assert isinstance(game, DialogueGame)
    state = {name: value[:1] for name, value in new_match(stored, None, SEED).state.items()}
    while not game.deciding(state)[0, game.roles.index(role)]:  # until it is the person's turn
        actions = random_actions(game, state, torch.zeros(1, dtype=torch.int64))
        state = game.transition(state, actions, torch.zeros(1, dtype=torch.int64))[0]
        if state["round"] >= game.protocol.max_rounds:
            break  # the other one of Merlin and Arthur speaks
    space = game.action_spaces[role]
    legal = game.legal(state, role)[0].split(list(space.nums) if isinstance(space, MultiDiscrete) else space.num_flags)
    move = game.describe_action(role, torch.stack([flags.to(torch.int8).argmax() for flags in legal]))
    shown = sit(stored, role, ["hint", "nonsense", *[move] * 4])
    during, _, end = shown.partition("the whole game")
    assert "label" not in during
    assert end.count("label") == 1
    assert end.splitlines()[-1].startswith("the game is over after")
    for other in game.roles:
        assert other == role or f"{other} ({other}) chooses" not in shown
    if "your move" in during:
        assert f"{role} (you) chooses {move}" in during
        assert f"{role}: {role} (ppo, 0 opt steps) chooses" in during
        assert ("witness_optimal" in during) == (scenario == "witness")
        table = during.partition("chosen by")[2].partition(f"{role}, your move")[0].splitlines()[1:]
        words = {line.strip().partition("  ")[0] for line in table if line.strip()}
        assert words <= set(game.describe_flags(role))
        assert not any("choice " in word for word in words)


def test_a_scripted_player_of_ones_own_that_sees_the_whole_state_gives_no_hint() -> None:
    stored = untrained("ppo", "harvest", 'players.farmer_0={"scripted": "tests.commands.test_play_roles:Seer"}')
    shown = sit(stored, "farmer_0", ["hint"])
    assert "farmer_0 sees more than farmer_0 observes, and gives no hint" in shown
    assert "chosen by" not in shown


# ---- words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_move_is_typed_as_it_is_told(name: str) -> None:
    game = dialogue(PROTOCOLS[name])
    for number in range(20):
        state = played(game, 1, number % 3)
        keys = world_keys(base_key(number, "moves"), 1, game.device)
        for role, action in random_actions(game, state, keys).items():
            assert torch.equal(game.read_action(role, game.describe_action(role, action[0])), action[0])


@pytest.mark.parametrize(
    ("protocol", "role", "text", "action"),
    [
        ("nip", "prover", "bit 2", 2),
        ("nip", "prover", "says nothing", 4),
        ("nip", "verifier", "bit 3, accept", [3, 1]),
        ("nip", "verifier", "main: bit 3", [3, 2]),
        ("nip", "verifier", " reject,main: bit 0 ", [0, 0]),
        ("debate", "verifier", "prover1: bit 1, reject", [4, 1, 0]),
        ("solo_verifier", "verifier", "accept", 1),
    ],
)
def test_what_goes_without_saying_may_be_left_out(protocol: str, role: str, text: str, action: Any) -> None:
    assert dialogue(PROTOCOLS[protocol]).read_action(role, text).tolist() == action


@pytest.mark.parametrize("text", ["", "bit 9", "bit 1, bit 2", "accept, reject", "[1, 2]", "bit"])
def test_what_is_no_move_is_told_with_an_example(text: str) -> None:
    expected = f"expected a move of 'verifier', such as 'main: bit 0, reject', got {text!r}"
    with pytest.raises(ValueError, match="expected a move") as told:
        dialogue(PROTOCOLS["nip"]).read_action("verifier", text)
    assert str(told.value) == expected
