"""What a run of text players leaves on the disk: roll-outs, transcripts, prompts, and a model that others load.

Covers palestra.kinds.text.export.
"""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import yaml
from pyarrow import parquet
from resuming import assert_same_bits, records
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from palestra import make_trainer
from palestra.cli import app
from palestra.config import ConfigError
from palestra.kinds.text.export import export_text_player, load_text_player
from palestra.kinds.text.rollout_files import RolloutFiles
from palestra.kinds.text.trainer import TextTrainer
from palestra.recording.recorders import without_clock
from palestra.run.checkpoints import Checkpoints
from palestra.run.export_files import ExportError
from palestra.storage.manifest import Manifest
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError
from palestra.text.algorithms.algorithm import Example
from palestra.text.rollouts import Rollouts
from palestra.text.templates import PARTS
from palestra.training import workers
from palestra.training.stored_training import StoredRun
from palestra.training.worker import evaluator, serve
from tests.kinds.text.test_trainer import CONFIG, EXPERT, MAIN, OUTPUT, PLAYER, SEATS
from tests.text.games import text_config
from tests.text.rows import row as made_row

SAVED = OUTPUT | {"save": {"every": 1, "unit": "stages"}, "keep_every": 1}


def prompts_in(folder: Path, opening: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    short = {"system": "", "opening": opening, "heard": "{{ text }}", "last_chance": "!", "retry": "?"}
    for part, text in short.items():
        (folder / f"{part}.jinja").write_text(text)
    return text_config("nip", prompts={"name": "folder", "path": str(folder)}).model_dump()


class EvaluatorHere:
    """What a process that evaluates does, without the process."""

    def __init__(self, run: Path, log: Any, terms: Any) -> None:
        self.known = set[str]()
        _, self.play = evaluator(run)

    def answer(self, request: bytes, told: Any) -> tuple[Any, bytes]:
        answers = io.BytesIO()
        serve(self.play, io.BytesIO(f"{len(request)}\n".encode() + request), answers)
        return json.loads(answers.getvalue().splitlines()[-1]), b""

    def kill(self) -> None: ...

    def end(self) -> None: ...


@pytest.fixture(scope="module", autouse=True)
def evaluators_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "Process", EvaluatorHere)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TextTrainer:
    """A run with prompts of its own, whose folder has changed since, which other processes evaluate."""
    place = tmp_path_factory.mktemp("files")
    config = CONFIG | {
        "game": prompts_in(place / "mine", "{{ letter }} in {{ fields.string }}?"),
        "players": dict.fromkeys(SEATS, PLAYER | {"imitate": None, "algorithm": EXPERT}),
        "evaluators": {
            "num_processes": 1,
            "results": {"after": 1, "unit": "stages"},
            "timeout_s": 120.0,
            "max_restarts": 0,
        },
        "output": SAVED
        | {
            "mirror": {
                "url": f"file://{place}/mirror",
                "options": {},
                "attempts": 1,
                "first_wait_s": 0.0,
                "end_wait_s": 60.0,
            }
        },
    }
    trainer = make_trainer(config, place / "run")
    trainer.fit()
    (place / "mine" / "opening.jinja").write_text("{{ nobody }}")
    assert isinstance(trainer, TextTrainer)
    return trainer


def once_of(run: Path, number: int) -> dict[str, set[str]]:
    folder = RunFolder(run).checkpoints.below(f"{number:08d}")
    return {name: set(files) for name, files in Manifest.read(folder).once.items()}


def test_finished_dialogues_are_files_that_checkpoints_name(whole: TextTrainer) -> None:
    run = whole.run.folder.path
    names = {"0", "1", "main-0", "main-1", "main-2"}
    assert {each.stem for each in (run / "rollouts").iterdir()} == names
    last = once_of(run, max(whole.checkpoints.stored.numbers()))
    assert last["rollouts"] == {f"{name}.parquet" for name in names}
    assert last["transcripts"] == {f"{name}.yml" for name in names}
    assert last["learned"] == {"0.parquet", "1.parquet"}
    assert "rollouts" not in once_of(run, 0)
    rows = Rollouts.from_parquet((run / "rollouts" / "1.parquet").read_bytes())
    assert {row.epoch for row in rows.rows} == {1}
    assert len(list(rows.dialogues())) == 4 * 2
    assert all(row.about and row.prompt and row.prompt_ids and row.answer_ids for row in rows.rows)
    told = yaml.load((run / "transcripts" / "1.yml").read_text(), yaml.CSafeLoader)
    said = [answer["answer"] for dialogue in told for answer in dialogue["answers"]]
    assert said == [row.answer for row in rows.rows]
    assert told[0]["answers"][0]["prompt"] == [{"user": rows.rows[0].prompt[0].content}]


def test_files_name_the_decisions_that_players_learned_from(whole: TextTrainer) -> None:
    place = whole.run.folder.path / "rollouts"
    rows = [row for name in ("0", "1") for row in Rollouts.from_parquet((place / f"{name}.parquet").read_bytes()).rows]
    found = parquet.read_table(place.with_name("learned") / "1.parquet").to_pylist()
    named = {(each["player"], each["epoch"], each["question"], each["rollout"], each["node"]) for each in found}
    assert len(named) == len(found)
    assert named == {(row.player, row.epoch, row.question, row.rollout, row.node) for row in rows if row.reward >= -1.0}


def test_a_pair_that_was_learned_from_is_named_by_both_of_its_decisions() -> None:
    files: dict[str, bytes] = {}
    checkpoints = cast(
        "Any", SimpleNamespace(write_once=lambda folder, name, content: files.update({f"{folder}/{name}": content}))
    )
    better, worse = made_row(epoch=3, question=5, rollout=1, node=7), made_row(epoch=3, question=5, rollout=1, node=9)
    RolloutFiles(cast("Any", None), checkpoints).write_learned(
        3, {"judge": [Example(better, 0.5, worse=worse), Example(worse, 1.0, "y")]}
    )
    where = {"epoch": 3, "question": 5, "rollout": 1, "node": 7, "worse": 9}
    found = parquet.read_table(io.BytesIO(files.pop("learned/3.parquet"))).to_pylist()
    assert found[0] == {"player": "judge", **where, "weight": 0.5, "answer": None}
    assert found[1] == {"player": "judge", **where, "node": 9, "weight": 1.0, "answer": "y", "worse": None}
    RolloutFiles(cast("Any", None), checkpoints).write_learned(3, {})
    assert not files


def test_evaluations_of_other_processes_have_files_and_records_do_not_hold_them(whole: TextTrainer) -> None:
    run = whole.run.folder.path
    found = [each for each in records(run) if each["kind"] == "evaluation"]
    assert [each["epochs"] for each in found] == [0, 1, 2]
    assert not any("played" in each for each in found)
    rows = Rollouts.from_parquet((run / "rollouts" / "main-2.parquet").read_bytes())
    assert {row.epoch for row in rows.rows} == {2}
    assert {(row.rollout, row.player) for row in rows.rows if row.role == "prover"} == {(0, "prover"), (1, "honest")}
    assert len(list(rows.dialogues())) == 2 * MAIN["final_num_games"]
    filed = {each.name for each in (run / "evaluations" / "async").iterdir()}
    assert filed >= {f"main-stage-{each['stages']}-opt-step-{each['opt_steps']}.json" for each in found}


def test_checkpoints_at_one_opt_step_have_names_of_their_own(whole: TextTrainer) -> None:
    stored = StoredRun.open(whole.run.folder.path)
    found = {}
    for stage in range(3 * 2 + 1):
        stored.load(f"@{stage}")
        found[stage] = stored.counters["opt_steps"]
        assert stored.counters["stages"] == stage
    assert found[1] == found[2] == 0 < found[3] == found[4] == found[5] < found[6]
    assert stored.file_name("main") == f"main-stage-6-opt-step-{found[6]}.json"


def test_a_checkpoint_holds_no_rows_of_finished_epochs(whole: TextTrainer) -> None:
    folder = whole.run.folder.checkpoints.path
    state = (folder / "00000005" / "state.json").read_text()
    assert '"filed": [\n  0,\n  1\n ]' in state
    assert not any(row.answer in state for row in whole.rollouts.rows if len(row.answer) > 3)


def test_a_run_reads_its_own_copy_of_the_prompts(whole: TextTrainer, tmp_path: Path) -> None:
    run = whole.run.folder.path
    assert {each.name for each in (run / "prompts").iterdir()} == {f"{part}.jinja" for part in PARTS}
    assert not (run / "buffers").exists()
    stored = StoredRun.open(run)
    stored.load("latest")
    path, _ = stored.evaluate("main", None)
    trained = [each for each in records(run) if each["kind"] == "evaluation"][-1]
    assert without_clock(json.loads(path.read_bytes())) == without_clock(trained)
    branch = TextTrainer.branch(run / "checkpoints" / "@4", ["stop.after=2"], tmp_path / "branch")
    branch.fit()
    assert branch.game.templates.files == whole.game.templates.files
    own, origin = (each / "rollouts" / "1.parquet" for each in (tmp_path / "branch", run))
    assert own.read_bytes() == origin.read_bytes()
    names = {each.stem for each in (tmp_path / "branch" / "rollouts").iterdir()}
    assert names == {"0", "1", "main-0", "main-1", "main-1-2", "main-2"}  # it evaluates once more at its start
    with pytest.raises(ConfigError, match="unknown field 'nobody'"):
        make_trainer(whole.config, tmp_path / "new")


def test_a_changed_prompt_of_a_run_and_damaged_rollouts_are_told_in_a_line(whole: TextTrainer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole.run.folder.path, run)
    kept = (run / "prompts" / "opening.jinja").read_bytes()
    (run / "prompts" / "opening.jinja").write_bytes(b"{{ letter }}")
    found = CliRunner().invoke(app, ["evaluate", str(run)])
    assert found.exit_code == 2
    assert "game: expected 'prompts/opening.jinja' as it was when the run began" in found.output
    with pytest.raises(CheckpointError) as caught:
        TextTrainer.load(run).fit()
    remedy = "every checkpoint needs it: put that file back as it was, or begin a new run"
    assert str(caught.value) == f"{run / 'prompts' / 'opening.jinja'} differs from what was written; {remedy}"
    (run / "prompts" / "opening.jinja").write_bytes(kept)
    (run / "rollouts" / "1.parquet").write_bytes(b"PAR1")
    [line] = Checkpoints(RunFolder(run), 1, None).load("latest").warnings
    assert line == f"{run / 'rollouts' / '1.parquet'} differs from what was written"
    TextTrainer.load(run).fit()  # from the checkpoint before
    whole_run = whole.run.folder.path
    assert (run / "rollouts" / "1.parquet").read_bytes() == (whole_run / "rollouts" / "1.parquet").read_bytes()
    assert_same_bits(run, whole_run)


def test_a_mirror_has_the_files_and_verify_plays_the_dialogues_again(whole: TextTrainer, tmp_path: Path) -> None:
    run, back = whole.run.folder.path, tmp_path / "back"
    found = CliRunner().invoke(app, ["verify", str(run), "--from", "3"])
    assert found.exit_code == 0, found.output
    TextTrainer.load(f"file://{run.parent}/mirror/run", into=back)
    for folder in ("prompts", "rollouts", "transcripts"):
        assert {p.name: p.read_bytes() for p in (back / folder).iterdir()} == {
            p.name: p.read_bytes() for p in (run / folder).iterdir()
        }


def test_an_exported_player_gives_sampled_tokens_their_probabilities(whole: TextTrainer, tmp_path: Path) -> None:
    run = whole.run.folder.path
    said = CliRunner().invoke(app, ["export", str(run), "--player", "verifier"])
    assert said.exit_code == 0, said.output
    folder = run / "export" / f"verifier-{whole.players['verifier'].opt_steps}"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = Rollouts.from_parquet((run / "rollouts" / "main-2.parquet").read_bytes()).of("verifier")
    plain = [row for row in rows if not any("<|" in each.content for each in row.prompt)]  # else it is text here alone
    assert len(plain) >= MAIN["final_num_games"]
    for row in plain:
        messages = [{"role": each.role, "content": each.content} for each in row.prompt]
        read = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert tuple(read) == row.prompt_ids
        logits = model(torch.tensor([[*row.prompt_ids, *row.answer_ids]])).logits[0, len(read) - 1 : -1]
        found = torch.log_softmax(logits, -1).gather(1, torch.tensor(row.answer_ids)[:, None])[:, 0]
        assert torch.allclose(found, torch.tensor(row.log_probs), atol=1e-5)
    said = CliRunner().invoke(app, ["export", str(run)])
    assert (said.exit_code, "name it by --player" in said.output) == (2, True)


def test_an_export_with_other_probabilities_is_refused(whole: TextTrainer, tmp_path: Path) -> None:
    player = load_text_player(whole.run.folder.path, "prover", "latest")

    class Another:
        sample, export = player.model.sample, load_text_player(whole.run.folder.path, "prover", "0").model.export

    player.model = Another()  # type: ignore[assignment]
    with pytest.raises(ExportError, match="log-probabilities differ by"):
        export_text_player(player, tmp_path / "out")
    assert not (tmp_path / "out").exists()
