"""The command line: what it prints, what it leaves, and its exit codes.

Covers palestra.__main__, palestra.commands.branch, palestra.commands.compare, palestra.commands.config,
palestra.commands.extend, palestra.commands.failures, palestra.commands.list, palestra.commands.plot,
palestra.commands.report, palestra.commands.resume, palestra.commands.shell, palestra.commands.table,
palestra.commands.train.
"""

import contextlib
import errno
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from conftest import TINY
from terminals import Terminal
from typer.testing import CliRunner, Result

from docs.website.commands import functions
from palestra.cli import app
from palestra.commands.list import catalogue
from palestra.config import load_yaml
from palestra.players import SCRIPTED
from palestra.storage.disk import Folder
from palestra.storage.lock import Lock, is_held
from palestra.storage.records_file import read_records
from palestra.storage.run_folder import RunFolder
from tests.forked import run as run_forked

MakeConfig = Callable[..., dict[str, Any]]

REPOSITORY = Path(__file__).parent.parent
PALESTRA = (sys.executable, "-c", "from palestra.cli import main; main()")
FUNCTIONS = functions()

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def palestra(*arguments: object, code: int = 0) -> Result:
    """Run a command in this process; it leaves with that code, and never with a traceback."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    if code == 2:
        assert result.stdout == ""
    return result


@pytest.fixture
def file(make_config: MakeConfig, in_tmp_path: Path) -> Path:
    """The tiny config as tiny.yml in the working directory (JSON is YAML too)."""
    path = in_tmp_path / "tiny.yml"
    path.write_text(json.dumps(make_config({"output.display": "plain"})))
    return path


def seed_of(run: Path) -> Any:
    return load_yaml(run / "config.yml")["seed"]


# ---- train ---------------------------------------------------------------------------------------------


def test_train_leaves_a_whole_run(file: Path, plots: None) -> None:
    result = palestra("train", "tiny.yml")
    run = Path("runs/tiny-1")
    files = {"config.yml", "run.json", "records.jsonl", "checkpoints", "scores.png"}
    assert {path.name for path in run.iterdir()} >= files
    assert (run / "checkpoints" / "latest").exists()
    assert (run / "checkpoints" / "best").exists()
    assert read_records(run / "records.jsonl")[-1]["opt_steps"] == 24
    assert "runs/tiny-1" in result.stdout


def test_the_summary_names_no_checkpoints_where_none_are_saved(file: Path) -> None:
    words = ["train", "tiny.yml", "evaluations=[]", "best=null", "stop.after=2", "output.display=plain"]
    assert "\n  checkpoints " in palestra(*words).stdout
    assert "\n  checkpoints " not in palestra(*words, "output.save=null").stdout


def test_runs_are_numbered(file: Path) -> None:
    for _ in range(2):
        palestra("train", "tiny.yml", "--quiet")
    assert sorted(path.name for path in Path("runs").iterdir()) == ["tiny-1", "tiny-2"]


def test_the_resolved_config_is_complete_and_says_what_was_overridden(file: Path) -> None:
    palestra("train", "tiny.yml", "players.host.algorithm.gamma=0.5", "seed=7", "--run", "here", "--quiet")
    written = load_yaml(Path("here/config.yml"))
    assert (written["players"]["host"]["algorithm"]["gamma"], written["seed"]) == (0.5, 7)
    palestra("check", "here/config.yml")


def test_a_folder_that_exists_is_refused(file: Path) -> None:
    Path("there").mkdir()
    Path("there/mine").touch()
    result = palestra("train", "tiny.yml", "--run", "there", code=2)
    expected = "there exists already; a new run needs a folder that does not exist, or an empty one\n"
    assert result.stderr == expected
    assert list(Path("there").iterdir()) == [Path("there/mine")]


def test_an_encoding_of_the_machine_changes_no_file_that_is_read(in_tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [*PALESTRA, "check", "ppo-cartpole"]
    result = subprocess.run(command, env=os.environ | ascii_only, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_what_a_kill_has_left_of_a_beginning_is_no_run_yet(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("checkpoints", "evaluations"):
        (Path("there") / folder).mkdir(parents=True)
    Path("there/.config.yml.7.tmp").write_text("see")
    lock = Lock.take(Folder(Path("there")), "lock")
    assert lock is not None
    palestra("train", "tiny.yml", "--run", "there", code=2)  # it begins in another process
    lock.free()
    (Path("there") / "mine").touch()
    palestra("train", "tiny.yml", "--run", "there", code=2)
    assert Path("there/.config.yml.7.tmp").exists()
    Path("there/mine").unlink()
    is_locked, write_facts = [], RunFolder.write_facts

    def look(folder: RunFolder, facts: Any) -> None:
        is_locked.append(is_held(folder.root, "lock"))
        write_facts(folder, facts)

    monkeypatch.setattr(RunFolder, "write_facts", look)
    palestra("train", "tiny.yml", "--run", "there", "--quiet")
    assert is_locked == [True]  # or another process would take the beginning for what a kill has left
    assert read_records(Path("there/records.jsonl"))[-1]["opt_steps"] == 24
    assert not Path("there/.config.yml.7.tmp").exists()


@pytest.mark.parametrize("words", [["-m", "palestra", "--help"], ["-u", "-m", "palestra", "--version"]], ids=" ".join)
def test_output_that_cannot_be_written_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        result = run_forked([sys.executable, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    told = "standard output cannot be written: No space left on device\n"
    assert (result.returncode, result.stderr) == (1, told)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EDQUOT])
def test_a_disk_that_is_gone_is_one_line(number: int, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), "there")

    monkeypatch.setattr(RunFolder, "open", refuse)
    told = palestra("table", "there", code=1).stderr
    assert told == f"the disk refuses: [Errno {number}] {os.strerror(number)}: 'there'\n"


@pytest.mark.parametrize(("given", "seeds"), [("0..1", [0, 1]), ("3,5", [3, 5])])
def test_several_seeds_make_several_runs_and_one_summary(given: str, seeds: list[int], file: Path) -> None:
    result = palestra("train", "tiny.yml", "--seeds", given, "--run", "many")
    assert sorted(path.name for path in Path("many").iterdir()) == [f"seed-{seed}" for seed in seeds]
    assert [seed_of(Path("many") / f"seed-{seed}") for seed in seeds] == seeds
    assert f"Over 2 seeds ({seeds[0]}, {seeds[1]})" in result.stdout


def test_a_run_that_was_quiet_is_not_quiet_when_it_is_resumed(file: Path) -> None:
    palestra("train", "tiny.yml", "output.display=auto", "--run", "a", "--quiet")
    assert load_yaml(Path("a/config.yml"))["output"]["display"] == "auto"
    assert palestra("resume", "a").output != ""


def test_several_seeds_without_a_folder_are_numbered_runs(file: Path) -> None:
    palestra("train", "tiny.yml", "--seeds", "0..1", "--quiet")
    assert [seed_of(Path("runs") / f"tiny-{n}") for n in (1, 2)] == [0, 1]


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        *((seeds, "seeds as 0..4 or 0,3,7") for seeds in ("a", "1,", "0..", "")),
        ("4..0", "the smaller seed first, 0..4"),
        ("1,2,1", "each seed once"),
    ],
)
def test_seeds_that_are_not_listed_well_are_refused(seeds: str, expected: str, file: Path) -> None:
    result = palestra("train", "tiny.yml", "--seeds", seeds, code=2)
    assert result.stderr == f"--seeds: expected {expected}, got {seeds!r}\n"


def test_quiet_prints_nothing(file: Path) -> None:
    assert palestra("train", "tiny.yml", "--quiet", "--run", "a").output == ""
    assert palestra("resume", "a", "--quiet").output == ""
    assert palestra("train", "tiny.yml", "--seeds", "0..1", "--quiet").output == ""


@pytest.mark.parametrize("display", ["auto", "plain"])
def test_without_a_terminal_there_are_plain_lines_and_no_control_codes(display: str, file: Path) -> None:
    output = palestra("train", "tiny.yml", f"output.display={display}").stdout
    assert len(output.splitlines()) > 5
    assert re.search(r"[\x00-\x09\x0b-\x1f]", output) is None


def on_a_terminal(terminal: Terminal, *arguments: str, **environment: str) -> list[str]:
    """All that a command shows there, from its first line to its last."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    run_forked(
        [*PALESTRA, *arguments],
        **dict.fromkeys(("stdin", "stdout", "stderr"), terminal.slave),
        env=inherited | {"TERM": "xterm-256color"} | environment,
        timeout=120,
        check=True,
    )
    terminal.settle()
    return terminal.all_lines()


def frame_in(lines: list[str], top: str, bottom: str) -> list[str]:
    """The only one."""
    [first] = [index for index, line in enumerate(lines) if line.startswith(f"{top} palestra ")]
    last = next(index for index, line in enumerate(lines) if index > first and line.startswith(bottom))
    return lines[first : last + 1]


def test_on_a_terminal_of_80x24_there_is_one_frame_and_the_summary_below(file: Path) -> None:
    with Terminal(80, 24) as terminal:
        lines = on_a_terminal(terminal, "train", "tiny.yml", "output.display=auto", LC_ALL="C")
        screen = frame_in(lines, "+-", "+-")
        assert {len(line) for line in screen} == {80}
        assert len(screen) <= 23
        assert "\n".join(screen).isascii()
        assert all(words in "\n".join(screen) for words in ("finished", "100%", "opt steps 24"))
        assert any("evaluate again" in line for line in lines)
        assert terminal.shows_cursor()


def test_evaluating_on_a_terminal_shows_a_bar_with_games(file: Path) -> None:
    palestra("train", "tiny.yml", "--run", "a", "--quiet")
    with Terminal(80, 24) as terminal:
        lines = on_a_terminal(terminal, "evaluate", "a", LC_ALL="C.UTF-8")
        screen = frame_in(lines, "╭─", "╰─")
        assert any("━━━━" in line and "36 of 36 games" in line for line in screen)
        assert "3 pairings at opt step 24" in "".join(lines)


# ---- what can be wrong ---------------------------------------------------------------------------------


def test_several_errors_of_a_file_are_told_at_once_one_per_line(make_config: MakeConfig) -> None:
    config = make_config({"players.host.algorithm.gamma": 1.2, "num_worlds": "many", "stop": ..., "game.dimensions": 3})
    Path("wrong.yml").write_text(json.dumps(config))
    lines = palestra("train", "wrong.yml", code=2).stderr.splitlines()
    assert sorted(line.split(":")[0] for line in lines) == [
        "game.dimensions",
        "num_worlds",
        "players.host.algorithm.gamma",
        "stop",
    ]
    assert palestra("check", "wrong.yml", code=2).stderr.splitlines() == lines
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("gama=1", "gama: no such key; did you mean "),
        ("players.host.algorithm.gama=0.9", "did you mean 'players.host.algorithm.gamma'?"),
        ("num_worlds", "num_worlds: expected an override of the form dotted.key=value, got no '='"),
        ("num_worlds=0", "num_worlds: expected an integer >= 1, got 0"),
        ("num_worlds=[1", "num_worlds: invalid YAML"),
        (
            "game.name=chess",
            "game.name: expected one of 'spaces', 'harvest', 'cartpole', 'polyhedra', 'tic_tac_toe', 'connect_four', "
            "'acrobot', 'dialogue', 'pendulum', 'gymnasium', 'mountain_car', 'nim', 'matrix', or a class of your own "
            "as 'package.module:Class', got 'chess'\n",
        ),
        (
            "players.host.algorithm.name=dpn",
            "players.host.algorithm.name: expected one of 'dqn', 'ppo', 'td3', 'td3_bc', 'on_policy', 'off_policy', "
            "'sac', or a class of your own as 'package.module:Class', got 'dpn'; did you mean 'dqn'?\n",
        ),
        (
            "players.host.algorithm.name=a2c",
            "players.host.algorithm.name: expected one of 'sac', 'td3_bc', 'on_policy', 'off_policy', 'dqn', 'ppo', "
            "'td3', or a class of your own as 'package.module:Class', got 'a2c'\n",
        ),
        (
            "players.host.algorithm.gamma=0,98",
            "gamma: expected a discount between 0 and 1, got the string '0,98'; write 0.98, with a decimal point\n",
        ),
        (
            "game=name:nim",
            "package.module:Class', got the string 'name:nim'; a key needs a space after its colon\n",
        ),
        (
            "players.host.algorithm.learning_rate={name: constant, value:0.1}",
            "expected a space after the colon of a key, got 'value:0.1' in line 1\n",
        ),
        ("game.name=nim", "; a config that fits: palestra config dqn nim > x.yml\n"),
        ("players.host.algorithm.name=ppo", "; a config that fits: palestra config ppo polyhedra > x.yml\n"),
        ("players.host.algorithm.name=nowhere:Nothing", "importing 'nowhere' failed"),
        (
            "roles.agent=nobody",
            "roles.agent: expected a player of this file (host, agent), got 'nobody'; a new one needs players.nobody\n",
        ),
        (
            "execution.device=gpu",
            "execution.device: expected cpu, cuda, mps or xpu, or one of several as cuda:1, got 'gpu'; GPUs of Nvidia "
            "and AMD are cuda, those of Apple mps, those of Intel xpu\n",
        ),
        (
            "evaluations.0.pairings.0.agent=rondom",
            f"evaluations.0.pairings.0.agent: expected a scripted player ({', '.join(SCRIPTED)}) or a class of your "
            "own as 'package.module:Class', got 'rondom'; players of this file: host, agent\n",
        ),
    ],
)
def test_an_override_that_is_wrong_is_told(override: str, expected: str, file: Path) -> None:
    assert expected in palestra("train", "tiny.yml", override, code=2).stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: [1, 2", "broken.yml: invalid YAML in line "),
        (b"a: 1\ngamma:0.9\nb: 2\n", "; line 2, 'gamma:0.9', needs a space after the colon\n"),
        (b"a: 1\na: 2\n", "a: expected each key once, got it in lines 1 and 2"),
        (b"", "broken.yml: expected a mapping of keys to values, got nothing"),
        (b"- 1\n", "broken.yml: expected a mapping of keys to values, got a list"),
        (b"\xff\xfe\x00", "broken.yml: "),
    ],
)
def test_a_file_that_is_broken_is_told_in_one_line(content: bytes, expected: str) -> None:
    Path("broken.yml").write_bytes(content)
    error = palestra("train", "broken.yml", code=2).stderr
    assert expected in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "nowhere.yml"),
        ("train", "."),
        ("resume", "nowhere"),
        ("evaluate", "nowhere"),
        ("check", "nowhere.yml"),
        ("config", "nothing"),
        ("config", "dqn", "chess"),
    ],
)
def test_what_is_not_there_is_one_line(arguments: tuple[str, ...]) -> None:
    assert palestra(*arguments, code=2).stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("walk",), "No such command 'walk'"),
        (("train",), "Missing argument"),
        (("train", "a.yml", "--sed", "0"), "No such option: --sed"),
        (("evaluate", "a", "--games", "0"), "Invalid value for '--games'"),
    ],
)
def test_a_command_that_cannot_be_is_refused(arguments: tuple[str, ...], fault: str) -> None:
    assert fault in palestra(*arguments, code=2).stderr


def test_a_failed_run_is_one_line_and_exit_code_1(file: Path) -> None:
    schedule = "players.host.algorithm.learning_rate={name: constant, value: 1e38}"
    result = palestra("train", "tiny.yml", schedule, "--run", "failed", "--quiet", code=1)
    assert re.fullmatch(
        r"player 'host', opt step \d+: .*; a resumed run would fail again; to change the config: "
        r"palestra branch failed/checkpoints/\d{8} KEY=VALUE\n",
        result.stderr,
    )
    palestra("evaluate", "failed")


def test_a_folder_that_may_not_be_made_is_one_line(file: Path) -> None:
    Path("blocked").write_text("")
    error = palestra("train", "tiny.yml", "--run", "blocked/sub/run", code=2).stderr
    assert error == "blocked/sub/run cannot be made: Not a directory\n"


# ---- resume and evaluate -------------------------------------------------------------------------------


def test_resume_of_a_finished_run_says_so(file: Path) -> None:
    palestra("train", "tiny.yml", "--run", "a", "--quiet")
    before = Path("a/records.jsonl").read_bytes()
    assert "it is finished; to go on: palestra extend a stop.after=48\n" in palestra("resume", "a").stdout
    assert Path("a/records.jsonl").read_bytes() == before


def test_evaluate_writes_a_file_and_shows_it(file: Path) -> None:
    palestra("train", "tiny.yml", "--run", "a", "--quiet")
    before = Path("a/records.jsonl").read_bytes()
    result = palestra("evaluate", "a", "--games", 10)
    assert "3 pairings at opt step 24: a/evaluations/main-opt-step-24.json" in result.stdout
    record = json.loads(Path("a/evaluations/main-opt-step-24.json").read_text())
    assert [pair["games"] + pair["started_over"] for pair in record["pairs"]] == [10, 10, 10]
    assert Path("a/records.jsonl").read_bytes() == before


def test_a_single_game_has_no_interval(file: Path) -> None:
    palestra("train", "tiny.yml", "--run", "a", "--quiet")
    palestra("evaluate", "a", "--games", 1)
    record = json.loads(Path("a/evaluations/main-opt-step-24.json").read_text())
    played = [pair["intervals"] for pair in record["pairs"] if pair["games"]]
    assert [[each["return/host"], each["return/agent"]] for each in played] == [[[None, None]] * 2] * len(played)


def test_evaluate_takes_a_checkpoint_by_number_and_the_final_number_of_games(file: Path) -> None:
    palestra("train", "tiny.yml", "--run", "a", "--quiet")
    palestra("evaluate", "a", "--checkpoint", "0")
    record = json.loads(Path("a/evaluations/main-opt-step-0.json").read_text())
    assert [pair["games"] + pair["started_over"] for pair in record["pairs"]] == [12, 12, 12]


def test_evaluate_gives_the_figures_of_the_run_s_last_evaluation(file: Path) -> None:
    palestra("train", "tiny.yml", "--run", "a", "--quiet")
    palestra("evaluate", "a")
    record = json.loads(Path("a/evaluations/main-opt-step-24.json").read_text())
    last = [record for record in read_records(Path("a/records.jsonl")) if record["kind"] == "evaluation"][-1]
    assert record["pairs"] == last["pairs"]


@pytest.mark.parametrize("checkpoint", ["99", "newest"])
def test_evaluate_names_a_checkpoint_that_is_not_there(checkpoint: str, file: Path) -> None:
    palestra("train", "tiny.yml", "--run", "a", "--quiet")
    error = palestra("evaluate", "a", "--checkpoint", checkpoint, code=2).stderr
    assert error.startswith("there is no checkpoint ")
    assert error.count("\n") == 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has three checkpoints, and a damaged one: 1."""
    folder = tmp_path_factory.mktemp("trained")
    with contextlib.chdir(folder):
        Path("tiny.yml").write_text(json.dumps(TINY))
        palestra("train", "tiny.yml", "--run", "a", "--quiet")
    (folder / "a/checkpoints/00000001/manifest.json").write_text("{}")
    return folder / "a"


ASKING = {
    "evaluate": ("evaluate", "{run}", "--checkpoint", "{name}"),
    "export": ("export", "{run}", "--checkpoint", "{name}", "--player", "host"),
    "verify": ("verify", "{run}", "--from", "{name}"),
    "compare": ("compare", "{run}", "--checkpoint", "{name}"),
    "compare anew": ("compare", "{run}", "--checkpoint", "{name}", "--games", "4"),
    "compare a path": ("compare", "{run}/checkpoints/{name:0>8}"),
    "branch": ("branch", "{run}/checkpoints/{name:0>8}", "--run", "branch"),
}


def is_missing(result: Result, command: str) -> bool:
    """Whether a command says that there is no such checkpoint."""
    if not command.startswith("compare"):
        return "there is no checkpoint " in result.stderr
    return re.search(r": expected the checkpoint best, latest or one of 0 \(@0\), .*, got ", result.stderr) is not None


@pytest.mark.parametrize("command", ["evaluate", "export", "compare", "compare a path", "branch"])
def test_a_checkpoint_is_named_by_its_opt_step(command: str, trained: Path, in_tmp_path: Path) -> None:
    shutil.copytree(trained, "run")
    asked = [word.replace(":0>8", "").format(run="run", name="@0") for word in ASKING[command]]
    shown = palestra(*asked, *(["stop.after=4"] if command == "branch" else [])).stdout
    expected = {"evaluate": "run/evaluations/main-opt-step-0.json", "export": "run/export/host-0", "branch": "branch"}
    assert command not in expected or Path(expected[command]).exists()
    assert not command.startswith("compare") or "opt step 0" in shown


@pytest.mark.parametrize(("name", "code"), [("9999", 2), ("1", 1)], ids=["missing", "damaged"])
@pytest.mark.parametrize("command", ASKING)
def test_a_checkpoint_that_is_not_there_is_bad_input_and_a_damaged_one_a_failure(
    command: str, name: str, code: int, trained: Path, in_tmp_path: Path
) -> None:
    result = palestra(*(part.format(run=trained, name=name) for part in ASKING[command]), code=code)
    if code == 2:
        assert is_missing(result, command)
    else:
        assert "manifest.json" in result.stderr
    assert "Traceback" not in result.output
    assert len(result.stderr.splitlines()) <= 2  # compare says first what it plays
    assert not Path("branch").exists()


@pytest.mark.parametrize("name", ["²", "9" * 5000, "-1", "\0"])
@pytest.mark.parametrize("command", ["evaluate", "export", "verify", "compare"])
def test_a_checkpoint_that_cannot_be_is_bad_input(command: str, name: str, trained: Path) -> None:
    arguments = (part.format(run=trained, name=name) for part in ASKING[command])
    assert is_missing(palestra(*arguments, code=2), command)


@pytest.mark.parametrize("pointer", ["latest", "best"])
def test_latest_and_best_are_paths_of_checkpoints(pointer: str, trained: Path, in_tmp_path: Path) -> None:
    path = trained / "checkpoints" / pointer
    number = path.read_text().strip()
    palestra("compare", str(path), "--json", "compared.json")
    moment = "the latest checkpoint" if pointer == "latest" else "the best checkpoint"
    assert moment in Path("compared.json").read_text()
    palestra("evaluate", str(trained), "--checkpoint", str(path))
    palestra("branch", str(path), "stop.after=25", "--run", "branch", "--quiet")
    assert json.loads(Path("branch/run.json").read_text())["branched_from"] == str(path.with_name(number))


def test_a_branch_fills_seats_anew(trained: Path, in_tmp_path: Path) -> None:
    seats = ("--freeze", "agent", "--replace", "host=zeillinger")
    origin = str(trained / "checkpoints/latest")
    assert "expected at least one" in palestra("branch", origin, "best=null", *seats, code=2).stderr
    palestra("branch", origin, "best=null", "stop.after=40", *seats[2:], "--run", "against", "--quiet")
    palestra("branch", origin, "best=null", "stop.after=40", *seats[:2], "--run", "alone", "--quiet")
    assert "scripted: zeillinger" in Path("against/config.yml").read_text()
    assert "from_run: " in Path("alone/config.yml").read_text()
    told = palestra("branch", origin, "--replace", "host", code=2).stderr
    assert told == "--replace: expected PLAYER=SCRIPTED, got 'host'\n"


def test_evaluate_without_pairings_is_told(file: Path) -> None:
    palestra("train", "tiny.yml", "evaluations=[]", "best=null", "--run", "a", "--quiet")
    expected = "evaluations: expected at least one in the run's config, got []; --pairing host=host,agent=agent plays"
    assert palestra("evaluate", "a", code=2).stderr == f"{expected} one\n"


# ---- check, config, list, help -------------------------------------------------------------------------


def test_check_accepts_a_sound_file(file: Path) -> None:
    title, train, test = palestra("check", "tiny.yml").stdout.splitlines()
    assert (title, train[:14], test) == (
        "tiny.yml: complete and consistent",
        "train: 24 opt ",
        "test: 36 games, evaluation main: 3 pairings of 12 games each",
    )


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*.yml")), ids=lambda path: path.stem)
def test_config_prints_the_shipped_file_with_a_comment_for_every_key(path: Path) -> None:
    printed = palestra("config", path.stem).stdout
    assert load_yaml(printed) == load_yaml(path)
    Path("printed.yml").write_text(printed)
    palestra("check", "printed.yml")
    assert "  # all random numbers of the run are derived from it\n" in printed


def test_list_names_everything_there_is_with_one_whole_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = iter(palestra("list").stdout.splitlines())
    for kind, entries in catalogue().items():
        assert next(lines) == kind
        for name, line in entries.items():
            assert re.fullmatch(rf"  {re.escape(name)} {{2,}}{re.escape(' '.join(line.split()))}", next(lines)), name
            assert line, name
    assert list(lines) == []


@pytest.mark.parametrize("command", [("list",), ("config", "dqn-nim"), ("table", "{run}")], ids=lambda words: words[0])
def test_a_command_whose_reader_leaves_ends_quietly(command: tuple[str, ...], trained: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [word.format(run=trained) for word in command]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = run_forked([*PALESTRA, *words], stdout=writing, stderr=subprocess.PIPE, env=environment, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_list_has_one_line_for_all_optimizers_of_torch() -> None:
    (line,) = [line for line in palestra("list").stdout.splitlines() if "torch.optim" in line]
    assert re.match(r"  torch.optim:Class +torch's optimizer of that name: ASGD, .*RMSprop, Rprop, SGD$", line)


@pytest.mark.parametrize("command", FUNCTIONS)
def test_every_command_explains_itself(command: str) -> None:
    explained = palestra(*command.split(), "--help").stdout
    assert "Usage" in explained
    assert palestra(*command.split(), "-h").stdout == explained


@pytest.mark.parametrize(("command", "function"), FUNCTIONS.items())
def test_help_shows_every_word_of_its_texts_also_those_in_brackets(command: str, function: Any) -> None:
    shown = "".join(CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "1000"}).stdout.split())
    hints = get_type_hints(function, include_extras=True).values()
    texts = [each.help for hint in hints for each in getattr(hint, "__metadata__", ())]
    for text in (function.__doc__, *texts):
        for paragraph in (text or "").split("\n\n"):
            assert "".join(paragraph.split()) in shown


def test_the_version_is_that_of_the_package() -> None:
    assert palestra("--version").stdout == f"palestra {importlib.metadata.version('palestra')}\n"


def test_help_names_every_command() -> None:
    output = palestra("--help").stdout
    assert palestra("-h").stdout == output
    assert all(command.split()[0] in output for command in FUNCTIONS)
