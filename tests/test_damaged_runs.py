"""Whatever happens to the files of a run: it goes on to what it recorded, or one error of ours says why not."""

import copy
import hashlib
import io
import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, TINY_FIT
from damage import DAMAGES, EXPLODED, HARMFUL, Damage
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from resuming import fit, records, stopping_at
from rich.console import Console

from palestra.cli import main
from palestra.commands.replay import verify
from palestra.commands.side_by_side import _evaluations as seeds_evaluations
from palestra.config import ConfigError
from palestra.kinds.games.trainer import Trainer
from palestra.recording.results import Evaluation
from palestra.report.reading import RunData
from palestra.run.checkpoints import Checkpoints
from palestra.storage.disk import RunFolderError, write_bytes
from palestra.storage.records_file import Measure, beginning_of
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError, StoredFile, to_json

Told = (ConfigError, RunFolderError, CheckpointError)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped on its way, with changes.jsonl and several checkpoints."""
    run, config = tmp_path_factory.mktemp("runs") / "run", copy.deepcopy(TINY)
    config["output"] |= {"save": {"every": 4, "unit": "opt_steps"}, "keep_last": 3}
    with stopping_at(30):
        fit(run, config)
    write_bytes(run / "changes.jsonl", b'{"key": "seed", "before": 1, "after": 0, "counters": {"opt_steps": 0}}\n')
    return run


@pytest.fixture
def stopped(original: Path, tmp_path: Path) -> Path:
    """One of one's own."""
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def resume_a_little(run: Path, console: Console | None = None) -> Trainer:
    with stopping_at(4):
        trainer = Trainer.load(run, console=console)
        trainer.fit()
    return trainer


@pytest.fixture(scope="module")
def original_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model that was stopped on its way."""
    run = tmp_path_factory.mktemp("runs") / "model"
    with stopping_at(9):
        fit(run, TINY_FIT)
    return run


DAMAGING: Any = {"deadline": None, "phases": [Phase.generate]}
DAMAGING["suppress_health_check"] = [HealthCheck.function_scoped_fixture]


@settings(max_examples=20, **DAMAGING)
@given(data=st.data(), damage=DAMAGES)
def test_any_damage_to_any_file_of_a_run_is_told_or_harmless(
    original: Path, data: st.DataObject, damage: Damage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_damage_is_told_or_harmless(original, data, damage, tmp_path_factory)


@settings(max_examples=6, **DAMAGING)
@given(data=st.data(), damage=DAMAGES)
def test_any_damage_to_a_run_of_a_model_is_told_or_harmless(
    original_model: Path, data: st.DataObject, damage: Damage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_damage_is_told_or_harmless(original_model, data, damage, tmp_path_factory)


def assert_damage_is_told_or_harmless(
    original: Path, data: st.DataObject, damage: Damage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = records(original)
    files = sorted(str(path.relative_to(original)) for path in original.rglob("*") if path.is_file())
    ends = [file for file in files if "/" not in file]
    file = data.draw(st.one_of(st.sampled_from(ends), st.sampled_from(files)))
    run = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(original, run)
    damage(run / file)
    with suppress(*Told):
        verify(run, None)
    with suppress(*Told):
        resume_a_little(run)
        if file not in ("records.jsonl", "config.yml"):  # a damaged line is told, and stays
            after = records(run)
            assert after[: len(before)] == before[: len(after)]
    assert not EXPLODED.exists()
    shutil.rmtree(run.parent)


@pytest.mark.parametrize("file", ["config.yml", "run.json"])
@pytest.mark.parametrize("harm", ["a pickle", "an absurd header", "null", "nothing"])
def test_a_harmful_file_is_named_and_never_run(stopped: Path, file: str, harm: str) -> None:
    (stopped / file).write_bytes(HARMFUL[harm] + b"\n")
    with pytest.raises(Told, match=re.escape(file)):
        resume_a_little(stopped)
    assert not EXPLODED.exists()


@pytest.mark.parametrize("harm", ["a pickle", "an absurd header", "null", "nothing"])
def test_harmful_records_are_named_and_never_run(stopped: Path, harm: str) -> None:
    (stopped / "records.jsonl").write_bytes(HARMFUL[harm] + b"\n")
    shown = io.StringIO()
    resume_a_little(stopped, Console(file=shown, width=1000))
    assert "records.jsonl is damaged" in shown.getvalue()
    assert not EXPLODED.exists()


def test_a_folder_in_the_place_of_the_records_is_told(stopped: Path) -> None:
    (stopped / "records.jsonl").unlink()
    (stopped / "records.jsonl").mkdir()
    with pytest.raises(RunFolderError, match=r"records\.jsonl: expected a file of the run, got a folder"):
        resume_a_little(stopped)
    with pytest.raises(RunFolderError, match=r"records\.jsonl is a folder"):
        verify(stopped, None)


def test_a_damaged_record_is_named_by_its_line(stopped: Path) -> None:
    path = stopped / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0].replace(b"{", b"[", 1), *lines[1:]]))
    shown = io.StringIO()
    resume_a_little(stopped, Console(file=shown, width=1000))
    assert len(re.findall(r"records\.jsonl, line 1: .*; the run goes on without that line", shown.getvalue())) == 1
    with pytest.raises(RunFolderError, match=r"records\.jsonl, line 1: .*damaged"):
        verify(stopped, "beginning")


@pytest.mark.parametrize("new", [b"{}", b'{"longer": "than it was, by far"}', b"no JSON", b""], ids=str)
@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_line_of_the_records_that_was_changed_costs_that_line_alone(stopped: Path, place: int, new: bytes) -> None:
    path = stopped / "records.jsonl"
    number = Checkpoints(RunFolder(stopped), 1, None).load("latest").records.num_lines
    lines = path.read_bytes().splitlines(keepends=True)[:number]
    changed = list(lines)
    changed[place] = new + b"\n"
    path.write_bytes(b"".join([*changed, b'{"kind": "of a future that was given up"}\n']))
    shown = io.StringIO()
    resume_a_little(stopped, Console(file=shown, width=1000))
    assert path.read_bytes().splitlines(keepends=True)[:number] == changed
    assert b"given up" not in path.read_bytes()
    assert "records.jsonl is damaged" in shown.getvalue()
    assert ("the run goes on without that line" in shown.getvalue()) == (not new.startswith(b"{"))


def test_records_of_other_types_cost_their_lines_in_all_that_reads_them(stopped: Path, capfd: Any) -> None:
    path = stopped / "records.jsonl"
    before = [json.loads(line) for line in path.read_bytes().splitlines()]
    [evaluation, *_] = [record for record in before if record["kind"] == "evaluation"]
    [pair, *_] = evaluation["pairs"]
    wrong: list[Any] = [[1], 3, None, {"env_steps": "x"}, {"clock": 3}, {"kind": "training", "players": {"host": 3}}]
    wrong += [evaluation | change for change in ({"evaluation": ["main"]}, {"pairs": 3}, {"opt_steps": 10**400})]
    for change in ({"players": {"host": ["a"], "agent": "b"}}, {"learned": [["host"]]}, {"scores": {}}):
        wrong.append(evaluation | {"pairs": [pair | change]})
    path.write_text("".join(f"{json.dumps(record)}\n" for record in [*wrong, *before]))
    shown = io.StringIO()
    trainer = resume_a_little(stopped, Console(file=shown, width=1000))
    assert trainer.opt_steps > before[-1]["opt_steps"]
    told = re.findall(r"records\.jsonl, line (\d+): .*; the run goes on without that line", shown.getvalue())
    assert told == [str(number + 1) for number in range(len(wrong))]
    assert next(each.record for each in RunData.read(stopped).evaluated) == evaluation
    assert seeds_evaluations(stopped, Console(file=shown))[0] == Evaluation.from_record(evaluation)
    (stopped / "evaluations/main-opt-step-1.json").write_text(json.dumps(wrong[6]))
    for command in (["report", str(stopped)], ["table", str(stopped)]):
        with suppress(SystemExit):
            main(command)
    assert "Traceback" not in capfd.readouterr().err


def test_a_line_that_is_gone_or_came_in_between_moves_no_other(stopped: Path) -> None:
    path = stopped / "records.jsonl"
    number = Checkpoints(RunFolder(stopped), 1, None).load("latest").records.num_lines
    lines = path.read_bytes().splitlines(keepends=True)[:number]
    for changed in ([*lines[:1], *lines[2:]], [lines[0], lines[0], *lines[1:]]):
        path.write_bytes(b"".join(changed))
        with RunFolder(stopped).root.reading("records.jsonl") as file:
            part = beginning_of(file, Measure([b"".join(lines)]).then())
        assert part.length == len(b"".join(changed))
        assert (part.is_intact, part.num_lost) == (False, 0)


@pytest.mark.parametrize("changed", ["# ", "seeds: 1\nseed"])
def test_a_run_of_another_palestra_with_other_keys_says_so(stopped: Path, changed: str) -> None:
    config, facts = stopped / "config.yml", stopped / "run.json"
    config.write_text(re.sub("^seed", changed, config.read_text(), flags=re.MULTILINE))
    with pytest.raises(RunFolderError, match=r"config\.yml differs from what was written:\n"):
        Trainer.load(stopped)
    found = json.loads(facts.read_text()) | {"commit": "0123456789abcdef"}
    facts.write_text(json.dumps(found | {"versions": found["versions"] | {"palestra": "0.0.7"}}))
    first = (
        r"config\.yml was written by another palestra, 0\.0\.7, commit 0123456789ab, which had other keys than this "
    )
    with pytest.raises(RunFolderError, match=rf"{first}one, .*; use that one:\nseeds?: .*key"):
        Trainer.load(stopped)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"set_in_python": 5}, "set_in_python"),
        ({"set_in_python": [3]}, "set_in_python.0"),
        ({"mirror": "memory://nowhere/run"}, "expected no mirror, as in config.yml, got memory://nowhere/run"),
        ({"mirror": {}}, "mirror"),
        ({"id": "../../x"}, "id"),
        ({"branched_from": 7}, "branched_from"),
        ({"ended": []}, "ended"),
        ({"user_classes": ["os:system"]}, "user_classes"),
        ({"machine": None}, "machine"),
        ({"checkpoint_folder": True}, "checkpoint_folder"),
        ({"another": 1}, "another"),
    ],
    ids=lambda value: str(value),
)
@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize("command", ["resume", "verify", "evaluate", "report"])
def test_a_forged_run_json_is_one_line(
    stopped: Path, change: dict[str, Any], fault: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stopped / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    code = 0
    try:
        main([command, str(stopped)])
    except SystemExit as left:
        code = int(left.code or 0)
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    if "mirror, as in config.yml" in fault:
        assert (code == 2) == (command == "resume")  # who only reads a run needs no mirror
    else:
        assert code == 2
    if code == 2:
        assert re.search(rf"run\.json is damaged: .*{re.escape(fault)}", told.err.replace("\n", " "))


def test_a_bit_of_the_records_that_has_flipped_is_told_by_its_lines(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stopped / "records.jsonl"
    content = bytearray(path.read_bytes())
    place = content.index(b'"train_seconds": ', content.index(b"\n")) + len(b'"train_seconds": ')
    content[place] ^= 1  # one digit is another, in what no comparison of records looks at
    path.write_bytes(content)
    line = content[:place].count(b"\n") + 1
    with pytest.raises(SystemExit) as left:
        main(["verify", str(stopped)])
    assert left.value.code == 1
    told = capsys.readouterr().err
    assert (
        found := re.search(r"records\.jsonl is damaged: a line from (\d+) to (\d+) differs from what was written", told)
    )
    assert int(found[1]) <= line <= int(found[2])
    shown = io.StringIO()
    config = stopped / "config.yml"
    config.write_text(config.read_text().replace("display: quiet", "display: plain"))
    resume_a_little(stopped, Console(file=shown, width=1000))
    assert re.search(r"records\.jsonl is damaged: a line from \d+ to \d+ differs from", shown.getvalue())


FORGED: list[tuple[str, Any]] = [
    ("is_best", None),
    ("config", 3),
    ("end_reason", None),
    ("counters", {"opt_steps": 8}),
    ("checked", []),
    ("players", {"host": {}}),
    ("players", None),
    ("game", {"$tensor": "nowhere"}),
    ("game", None),
    ("callbacks", {"a": 1}),
]


@pytest.mark.parametrize(("key", "value"), FORGED, ids=str)
def test_a_signed_state_that_does_not_fit_is_one_error_in_every_command(
    stopped: Path, key: str, value: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stopped.parent)
    for folder in (stopped / "checkpoints").glob("0*"):
        state = json.loads((folder / "state.json").read_text())
        if value is None:
            del state[key]
        else:
            state[key] = value
        manifest = json.loads((folder / "manifest.json").read_text())
        del manifest["sha256"]
        (folder / "state.json").write_text(to_json(state))
        manifest["files"]["state.json"] = StoredFile.of((folder / "state.json").read_bytes()).model_dump()
        digest = hashlib.sha256(to_json(manifest).encode()).hexdigest()
        (folder / "manifest.json").write_text(to_json(manifest | {"sha256": digest}))
    checkpoint = next((stopped / "checkpoints").glob("0*"))
    commands = {
        "resume": ["resume", str(stopped)],
        "verify": ["verify", str(stopped)],
        "branch": ["branch", str(checkpoint), "seed=7", "--run", "new"],
        "extend": ["extend", str(stopped), "stop.after=1000"],
        "evaluate": ["evaluate", str(stopped), "--games", "2"],
    }
    for name, command in commands.items():
        with pytest.raises(SystemExit) as left:
            main(command)
        assert left.value.code in (1, 2) or (left.value.code == 0 and name != "resume"), name  # not all need every key
        assert "Traceback" not in capsys.readouterr().err


def test_records_that_are_lost_are_told_and_the_run_goes_on(stopped: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = stopped / "config.yml"
    config.write_text(config.read_text().replace("display: quiet", "display: plain"))
    (stopped / "records.jsonl").unlink()
    assert fit(stopped).finished
    said = capfd.readouterr()
    assert re.search(
        r"records\.jsonl is damaged: it lacks the last (\d+) of the \1 lines", (said.out + said.err).replace("\n", "")
    )


def test_a_checkpoint_of_another_config_says_which_keys_differ(stopped: Path) -> None:
    config = stopped / "config.yml"
    config.write_text(config.read_text().replace("gamma: 0.95", "gamma: 0.9").replace("seed: 0", "seed: 3"))
    with pytest.raises(CheckpointError) as caught:
        Trainer.load(stopped).fit()
    for line in ("seed was 0, is 3", "players.host.algorithm.gamma was 0.95, is 0.9", "palestra branch"):
        assert line in str(caught.value)


def test_another_execution_is_told_and_the_run_goes_on(stopped: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = stopped / "config.yml"
    text = config.read_text().replace("display: quiet", "display: plain").replace("num_threads: 1", "num_threads: 2")
    config.write_text(text)
    assert fit(stopped).finished
    line = "execution.num_threads was 1, is 2; equal bits are not promised"
    assert line in capfd.readouterr().out.replace("\n", "")
