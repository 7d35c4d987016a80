"""The config of dialogues in words: what it says, what a first file says, and what does not fit."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from palestra.config import ConfigError, trusting
from tests.complete_models import find_defaults, find_undescribed
from tests.games.dialogue.test_game import PROTOCOLS
from tests.text.games import QUESTION, OneTextGame, first_config, keys, text_config, text_game


def test_every_key_is_described_and_has_no_default() -> None:
    assert list(find_undescribed(OneTextGame)) == []
    assert list(find_defaults(OneTextGame)) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_first_file_of_any_protocol_can_be_built(protocol: str) -> None:
    config = text_config(protocol)
    assert config.build().roles == config.declared_roles()
    several = {"prover0", "prover1"} if protocol.startswith(("debate", "mnip")) else set()
    assert config.grammar.headers.keys() == several
    assert config.describe_turns()[0].startswith(f"dialogue {config.protocol.name}: ")


def test_the_variant_is_drawn_by_the_key() -> None:
    game = text_game("merlin_arthur")
    drawn = [game.begin(QUESTION, key).variant for key in keys(400).tolist()]
    assert drawn == [game.begin(QUESTION, key).variant for key in keys(400).tolist()]
    counts = Counter(drawn)
    assert len(counts) == 2
    assert min(counts.values()) > 150


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            {"protocol": "nip", "scenario": {"name": "claims", "sees": {"prover": ["text"]}}},
            "game.scenario.sees.prover.0: expected one of 'letter', 'string', got 'text'",
        ),
        (
            {"protocol": "nip", "grammar": {"accept": "a", "reject": "a"}},
            "game.grammar.reject: expected another text than that of accept, got 'a'",
        ),
        (
            {"protocol": "adp", "grammar": {"accept": "nowhere", "reject": "letter 1"}},
            "scenario: expected a message from `argue` for the verdict 1, got 'letter 1'",
        ),
        (
            {"protocol": "nip", "grammar": {"headers": {"side": "x"}}},
            "game.grammar.headers.side: unknown key; the channels of the protocol are main",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(said: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        text_game(**said)  # type: ignore[arg-type]
    assert str(caught.value) == line


def test_a_protocol_of_ones_own_gets_plain_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[2] / "docs" / "examples" / "telegram.py", "telegram.py")
    Path("data.csv").write_text("text,label\n" + "".join(f"{n},{n % 2}\n" for n in range(20)))
    said = {"protocol": "telegram:Telegram", "scenario": {"name": "rows", "file": "data.csv"}}
    with trusting():
        words = "\n".join(first_config(**said).build().prompts_in_words())
    assert "You are prover in a dialogue of at most 3 rounds between prover, verifier." in words
    assert "You argue for accept." in words
