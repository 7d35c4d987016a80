"""Dialogues in words on a page: which are shown, and that their texts stay texts."""

from pathlib import Path

import pytest

from palestra.kinds.text.report import dialogues_section
from palestra.report.figures import Figures
from palestra.report.groups import group_runs
from palestra.report.page import render_sections
from palestra.report.reading import RunData
from palestra.text.rollouts import Rollouts
from tests.text.rows import row

RULES = """trainer: {name: text}
roles: {prover: honest, verifier: verifier}
players: {verifier: {algorithm: {name: supervised}}}
evaluations: [{name: main}]
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yml").write_text(RULES)
    (tmp_path / "rollouts").mkdir()
    return tmp_path


def page(run: Path) -> str:
    [group] = group_runs([RunData.read(run)])
    return render_sections("run", [], dialogues_section([group], Figures()))


def write(
    run: Path, name: str, rewards: dict[int, float], epoch: int = 0, rollout: int = 0, answer: str = "yes"
) -> None:
    rows = [
        row(epoch=epoch, question=q, rollout=rollout, about=f"q{q}", answer=answer, reward=r)
        for q, r in rewards.items()
    ]
    (run / "rollouts" / f"{name}.parquet").write_bytes(Rollouts(rows).to_parquet())


def test_the_best_the_middle_and_the_worst_of_the_newest_evaluation_are_shown(run: Path) -> None:
    write(run, "7", {0: 1.0}, epoch=7)
    write(run, "main-9", {1: 1.0}, epoch=9)
    assert "epoch 9" in page(run)
    write(run, "main-10", {1: 0.1, 2: -0.5, 3: 0.9, 4: 0.0, 5: 0.2}, epoch=10)
    found = page(run)
    assert "Dialogues of evaluation main, epoch 10" in found
    assert [found.count(f"<h4>{each}") for each in ("best: q3", "middle: q1", "worst: q2", "best: q1")] == [1, 1, 1, 0]
    assert "verifier*: accept is right" in found
    assert "reject is right" not in found


def test_texts_are_untrusted_and_prompts_are_folded(run: Path) -> None:
    write(run, "0", {0: 1.0}, answer="<script>alert(1)</script>\n  second\x1b[31m " + "long " * 900)
    found = page(run)
    assert "<script" not in found
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\n  second?[31m" in found
    assert "more characters" in found
    assert (
        '<details><summary>prompt</summary><pre tabindex="0">system: k in {{ qwkr }}?\n\nuser: é</pre></details>'
        in found
    )


def test_what_retries_and_the_limit_of_tokens_did_is_told(run: Path) -> None:
    rows = [row(attempts=3), row(node=1, stop="length", role="prover", player="honest", verdict=None)]
    (run / "rollouts" / "0.parquet").write_bytes(Rollouts(rows).to_parquet())
    found = page(run)
    assert "round 0, verifier, 3 attempts</small>" in found
    assert "round 0, prover, player honest, cut off after 2 tokens</small>" in found


def test_a_damaged_file_is_a_note(run: Path) -> None:
    assert "There are no roll-outs yet." in page(run)
    (run / "rollouts" / "0.parquet").write_bytes(b"PAR1")
    assert "0.parquet is damaged: expected a Parquet file" in page(run)
