"""A report shows who learned in which epochs, as the records count."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.report import timings
from palestra.report.page import write_report
from palestra.storage.records_file import read_records
from tests.report.dialogues import train_dialogue
from tests.report.parsing import Parsed

TABLE = "Epochs in which each player learned and was frozen, and its opt steps at the last training record."
ALTERNATING = [
    f"players.{player}.updates={{name: alternating_periodic, period: 5, phase: {phase}}}"
    for phase, player in enumerate(("prover", "verifier"))
]

pytestmark = pytest.mark.usefixtures("few_figures")


def test_the_epochs_of_each_player_are_those_in_which_it_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_dialogue(tmp_path / "nip", "nip", ALTERNATING)
    drawn: dict[str, Any] = {}
    paint = timings._paint

    def spy(figure: Any, run: Any, learned: dict[str, Any]) -> None:
        drawn.update({name: epochs.tolist() for name, epochs in learned.items()})
        paint(figure, run, learned)

    monkeypatch.setattr(timings, "_paint", spy)
    page = Parsed(write_report([run], None))
    assert drawn == {
        "prover": [True] * 5 + [False] * 5 + [True] * 2,
        "verifier": [False] * 5 + [True] * 5 + [False] * 2,
    }
    records = [record for record in read_records(run / "records.jsonl") if record["kind"] == "training"]
    for name, epochs in drawn.items():  # two epochs a record
        shares = [record["players"][name]["learns"] for record in records]
        assert shares == [sum(epochs[at : at + 2]) / 2 for at in range(0, 12, 2)]
    table = page.tables[TABLE]
    assert table.column("player") == [("prover", None), ("verifier", None)]
    assert table.column("updates")[1][0] == "alternating periodic, period 5, phase 1"
    assert [value for _, value in table.column("learned")] == [7, 5]
    assert [value for _, value in table.column("frozen")] == [5, 7]
    opt_steps = [records[-1]["players"][name]["opt_steps"] for name in drawn]
    assert [value for _, value in table.column("opt steps")] == opt_steps
    assert "prover learned in 7 of 12 epochs; verifier learned in 5 of 12 epochs." in page.text


def test_where_all_learn_all_the_time_nothing_is_shown(tmp_path: Path) -> None:
    page = Parsed(write_report([train_dialogue(tmp_path / "adp", "adp")], None))
    assert "updates" not in page.ids
    assert TABLE not in page.tables


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 30))
def test_stripes_cover_the_epochs_in_which_a_player_learned(learned: list[bool], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timings, "MOST_STRIPES", most)
        stripes = list(timings._stripes(np.array(learned)))
    covered = np.zeros(len(learned))
    for start, end, share in stripes:
        assert share > 0
        assert 0 <= start < end <= len(learned)
        assert not covered[start:end].any()
        covered[start:end] = share
        assert share == pytest.approx(np.mean(learned[start:end])) or len(learned) > most
    assert covered.sum() == pytest.approx(sum(learned))
    if len(learned) <= most:
        assert covered.tolist() == [float(each) for each in learned]
