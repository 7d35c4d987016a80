"""Reports: the numbers of the records, of any run that there may be, in a page that harms nobody.

Covers palestra.report.blocks, palestra.report.figures, palestra.report.evaluation_tables,
palestra.report.learning, palestra.report.page, palestra.report.overview, palestra.report.timings.
"""

import json
import math
import re
import shutil
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import DAMAGES, EXPLODED, Damage
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner, Result

import palestra
from palestra.cli import app
from palestra.recording import Image, Video
from palestra.report import page as media
from palestra.report.groups import group_runs
from palestra.report.page import render_page, write_report
from palestra.report.reading import read_runs
from palestra.storage.disk import RunFolderError
from palestra.storage.records_file import read_records
from tests.report.parsing import Parsed

MakeConfig = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny config."""
    from conftest import TINY

    run = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palestra.run.run.plot_scores", lambda *_: None)
        palestra.Trainer(TINY, run=run).fit()
    return run


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy of its own."""
    return Path(shutil.copytree(original, tmp_path / "tiny"))


def reported(*runs: Path, out: Path | None = None) -> Parsed:
    return Parsed(write_report(runs, out))


def evaluations(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_records(run / "records.jsonl") if record["kind"] == "evaluation"]


def palestra_report(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


# ---- the numbers are those of the records --------------------------------------------------------------


@pytest.mark.usefixtures("few_figures")
def test_the_last_evaluation_is_told_as_it_was_recorded(run: Path) -> None:
    page = reported(run)
    (table,) = (table for label, table in page.tables.items() if label.startswith("main, at opt step 24"))
    last = evaluations(run)[-1]["pairs"]
    assert [text for text, _ in table.column("pairing")] == ["host* vs random", "random vs agent*", "random vs random"]
    assert [value for _, value in table.column("rho")] == [pair["scores"]["rho"] for pair in last]
    assert [value for _, value in table.column("games")] == [pair["games"] for pair in last]
    assert [value for _, value in table.column("cut off")] == [pair["truncated"] for pair in last]
    lengths = [pair["statistics"]["episode_length"]["mean"] for pair in last]
    assert [value for _, value in table.column("length")] == lengths
    (rated,) = (table for label, table in page.tables.items() if "lead: what the first role gives" in label)
    named = zip(rated.column("player"), rated.column("role"), rated.column("rating"), strict=True)
    overall = evaluations(run)[-1]["overall_ratings"]
    both, lead = ({name: said["rating"] for name, said in overall[key].items()} for key in ("players", "roles"))
    shown = {(player, role): rating for (player, _), (role, _), (_, rating) in named if role in ("both", "lead")}
    assert shown == {(name, "both"): both[name] for name in both} | {(name, "lead"): lead[name] for name in lead}


@pytest.mark.usefixtures("few_figures")
def test_curves_have_tables_with_the_recorded_scores(run: Path) -> None:
    table = reported(run).tables["rho over opt steps"]
    last = [record["pairs"][1] for record in evaluations(run)]  # of two tables of that name the second pairing's
    assert [value for _, value in table.column("opt steps")] == [record["opt_steps"] for record in evaluations(run)]
    assert [value for _, value in table.column("rho")] == [pair["scores"]["rho"] for pair in last]
    assert f"[{last[-1]['intervals']['rho'][0]:.3f}".replace("0.", ".") in table.column("rho")[-1][0]


@pytest.mark.usefixtures("few_figures")
def test_times_are_the_sums_of_the_records(run: Path) -> None:
    (table,) = (table for label, table in reported(run).tables.items() if label.startswith("Time by phase"))
    records = [record for record in read_records(run / "records.jsonl") if record["kind"] == "training"]
    for phase in ("play", "update", "evaluation", "saving"):
        assert table.column(phase)[0][1] == math.fsum(record["clock"]["time"][phase] for record in records)


@pytest.mark.usefixtures("few_figures")
def test_the_checkpoints_are_those_that_are_there(run: Path) -> None:
    (table,) = (table for label, table in reported(run).tables.items() if label.startswith("The checkpoints"))
    there = sorted(path.name for path in (run / "checkpoints").glob("0*"))
    assert [text for text, _ in table.column("checkpoint")] == there
    marks = dict(zip(there, [text for text, _ in table.column("marked")], strict=True))
    assert "latest" in marks[(run / "checkpoints" / "latest").read_text().strip()]
    assert "best" in marks[(run / "checkpoints" / "best").read_text().strip()]


@pytest.mark.usefixtures("few_figures")
def test_config_versions_machine_and_command_are_told(run: Path) -> None:
    page = reported(run)
    assert (run / "config.yml").read_text().strip() in page.text
    facts = json.loads((run / "run.json").read_text())
    assert f"torch {facts['versions']['torch']}" in page.text
    assert facts["machine"]["processor"] in page.text


# ---- the page ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_figures")
def test_the_page_needs_nothing_but_itself(run: Path) -> None:
    page = reported(run)
    assert not [tag for tag, _ in page.tags if tag in ("script", "iframe", "object", "embed", "form")]
    links = [value for _, found in page.tags for key, value in found.items() if key in ("src", "href", "xlink:href")]
    assert [link for link in links if not str(link).startswith(("#", "data:"))] == []
    (policy,) = (found["content"] for tag, found in page.tags if found.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none'")
    assert not re.search(r"@import|url\((?!#)", page.html)


def test_the_page_can_be_read_without_eyes(run: Path) -> None:
    page = reported(run)
    assert len(set(page.ids)) == len(page.ids)
    assert ("html", {"lang": "en"}) in page.tags
    for landmark in ("header", "nav", "main", "footer"):
        assert [tag for tag, _ in page.tags].count(landmark) == 1
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for tag, found in page.tags:
        if tag == "svg":
            assert {found["aria-labelledby"], found["aria-describedby"]} <= set(page.ids)
        targets = [str(value) for key, value in found.items() if key in ("href", "xlink:href") and value != "data:,"]
        assert all(target.removeprefix("#") in page.ids for target in targets)


HOSTILE = '</title><script>alert(1)</script>$\\frac{1}$ &amp; " id="x" \x07'


@pytest.mark.usefixtures("few_figures")
def test_hostile_names_are_shown_and_do_nothing(run: Path) -> None:
    lines = [json.dumps(rename(json.loads(line))) for line in (run / "records.jsonl").read_text().splitlines()]
    (run / "records.jsonl").write_text("\n".join(lines) + "\n")
    (run / "config.yml").write_text((run / "config.yml").read_text() + f"\n# {HOSTILE[:-1]}\n")
    hostile = Path(shutil.move(run, run.with_name("<b onclick=x>")))
    page = reported(hostile)
    assert not [tag for tag, found in page.tags if tag in ("script", "b") or "onclick" in found]
    assert HOSTILE[:-1] in page.text
    assert "\x07" not in page.html


def rename(value: Any) -> Any:
    if isinstance(value, dict):
        return {HOSTILE if key == "loss" else key: rename(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rename(inner) for inner in value]
    return HOSTILE if value == "random" else value


# ---- runs that are not whole ---------------------------------------------------------------------------


def without(*names: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        for name in names:
            shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()

    return damage


def keep_records(keep: Callable[[dict[str, Any]], bool], most: int = 1000) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        kept = [record for record in read_records(run / "records.jsonl") if keep(record)][:most]
        (run / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))

    return damage


def change_lines(change: Callable[[str], str]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        lines = (run / "records.jsonl").read_text().splitlines()
        (run / "records.jsonl").write_text("".join(change(line) + "\n" for line in lines))

    return damage


PARTIAL: dict[str, tuple[Callable[[Path], None], str]] = {
    "no records": (without("records.jsonl"), "There is no training record yet."),
    "no evaluation": (keep_records(lambda r: r["kind"] == "training"), "There is no evaluation"),
    "one record": (keep_records(lambda r: True, 1), "There is no training record yet."),
    "one training record": (keep_records(lambda r: r["kind"] == "training", 1), "stopped at"),
    "half of it": (keep_records(lambda r: True, 6), "stopped at"),
    "no checkpoint": (without("checkpoints"), "There is no checkpoint."),
    "nothing but a config": (without("records.jsonl", "run.json", "checkpoints", "evaluations"), "run.json is missing"),
    "a config that cannot be read": (lambda run: (run / "config.yml").write_bytes(b"\xff{") and None, "config.yml"),
    "a damaged line": (lambda run: append(run / "records.jsonl", "{]\n{}\n"), "left out"),
    "half a line": (lambda run: append(run / "records.jsonl", '{"kind": "tra'), "complete"),
    "null metrics": (change_lines(lambda line: re.sub(r'"loss": [-.\de]+', '"loss": null', line)), "host/loss is null"),
    "null scores": (
        change_lines(lambda line: re.sub(r'"(rho|low|high)": [-.\de]+', r'"\1": null', line)),
        "Evaluations",
    ),
    "scores that are no numbers": (
        change_lines(lambda line: re.sub(r'"rho": [-.\de]+', '"rho": "a"', line)),
        "left out",
    ),
    "pairs that are no list": (change_lines(lambda line: line.replace('"pairs": [', '"pairs": [7, ')), "left out"),
    "no clock": (change_lines(lambda line: line.replace('"clock"', '"watch"')), "The records hold no times."),
    "strange values": (
        change_lines(lambda line: re.sub(r'"(players|clock|opt_steps)": ', r'"\1": [], "\1_": ', line)),
        "There is no evaluation",
    ),
    "a damaged checkpoint": (lambda run: append(run / "checkpoints/00000001/manifest.json", "x"), "cannot be used"),
    "a damaged evaluation": (lambda run: append(run / "evaluations/main-opt-step-1.json", "{"), "cannot be read"),
}


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize("name", ["config.yml", "run.json", "records.jsonl", "evaluations/main-opt-step-24.json"])
def test_a_file_of_the_run_that_is_a_link_is_not_shown(name: str, run: Path, tmp_path: Path) -> None:
    secret = {"command": "the secret", "stop": "the secret", "kind": "the secret"}
    (tmp_path / "secret").write_text(json.dumps(secret) + "\n")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "secret")
    try:
        text = reported(run).text
    except RunFolderError as error:
        text = str(error)
    assert f"{Path(name).name} is a symbolic link" in text
    assert "the secret" not in text


@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize("kind", PARTIAL)
def test_a_run_that_is_not_whole_is_reported_and_what_lacks_is_said(kind: str, run: Path) -> None:
    damage, said = PARTIAL[kind]
    damage(run)
    assert said in reported(run).text


@pytest.mark.slow
@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize(
    "name", ["records.jsonl", "config.yml", "run.json", "checkpoints/latest", "evaluations/a.json"]
)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(damage=DAMAGES)
def test_whatever_happens_to_a_file_there_is_a_report_or_one_clear_error(
    name: str, damage: Damage, original: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = Path(shutil.copytree(original, tmp_path_factory.mktemp("damaged") / "tiny"))
    shutil.copy(run / "records.jsonl", run / "evaluations" / "a.json")
    damage(run / name)
    with suppress(RunFolderError):
        reported(run)
    assert not EXPLODED.exists()


@pytest.mark.usefixtures("few_figures")
def test_a_run_that_trains_is_reported_and_not_disturbed(run: Path) -> None:
    from palestra.storage.run_folder import RunFolder

    folder = RunFolder.open(run)
    keep_records(lambda record: True, 6)(run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != "lock"}
    with folder.lock():
        assert "running, at" in reported(run, out=run.parent / "report.html").text
    assert "stopped at" in reported(run, out=run.parent / "report.html").text
    after = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != "lock"}
    assert before == after


# ---- the command ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_figures")
def test_the_command_writes_into_the_run(run: Path) -> None:
    told = palestra_report(run)
    assert Path(told.stdout.strip()) == run / "report.html"
    Parsed(run / "report.html")


def test_what_is_no_run_is_one_clear_line(tmp_path: Path) -> None:
    told = palestra_report(tmp_path, code=2)
    assert told.stderr == f"{tmp_path} is not a run: {tmp_path / 'config.yml'} is missing\n"


@pytest.mark.usefixtures("few_figures")
def test_a_place_that_cannot_be_written_is_one_clear_line(run: Path) -> None:
    told = palestra_report(run, "--out", run / "nowhere" / "page.html", code=2)
    assert told.stderr == f"{run / 'nowhere' / 'page.html'} cannot be written: No such file or directory\n"


# ---- recorded media ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_figures")
def test_recorded_media_are_in_the_page(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last four of each name; not those that are too large, damaged, or links to elsewhere."""
    assert "Recorded media" not in render_page(group_runs(read_runs([run])))
    board, film = Image(np.arange(30, dtype=np.uint8).reshape(5, 6)), Video(np.zeros((2, 4, 6, 3), np.uint8), 5)
    files = {f"board-{step}.png": board.to_bytes() for step in range(5)} | {"film.gif": film.to_bytes()}
    files |= {"huge.png": b"\x89PNG" + bytes(5000), "text.png": b"<script>"}
    (run / "media").mkdir()
    for name, content in files.items():
        (run / "media" / name).write_bytes(content)
    (run / "media" / "link.png").symlink_to(run / "config.yml")
    lines = (run / "records.jsonl").read_text().splitlines()
    noted = [index for index, line in enumerate(lines) if json.loads(line)["kind"] == "training"]
    assert len(noted) >= 2
    for step in range(5):
        record = json.loads(lines[noted[-1]])
        record["notes"] = {"<b>board": {"image": f"media/board-{step}.png"}}
        lines.append(json.dumps(record))
    record["notes"] = {name.split(".")[0]: {"image": f"media/{name}"} for name in ("huge.png", "text.png", "link.png")}
    record["notes"]["film"] = {"video": "media/film.gif"}
    (run / "records.jsonl").write_text("\n".join([*lines, json.dumps(record), ""]))
    monkeypatch.setattr(media, "MOST_BYTES", 5000)
    page = render_page(group_runs(read_runs([run])))
    shown = re.findall(r'<img src="data:(image/[a-z]+);base64,([^"]+)" alt="([^"]+)">', page)
    assert [kind for kind, *_ in shown] == ["image/png"] * 4 + ["image/gif"]
    assert [b64decode(content) for _, content, _ in shown] == [board.to_bytes()] * 4 + [film.to_bytes()]
    assert all(alt.startswith("notes/&lt;b&gt;board, opt step") for *_, alt in shown[:4])
    assert "notes/&lt;b&gt;board, the last 4 of 5" in page
    assert page.count("is not shown: it is larger than") == 2
    assert "link.png" not in page
