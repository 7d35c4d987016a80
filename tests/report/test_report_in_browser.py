"""Reports in a headless Chromium: no complaint, no request, nothing wider than a phone, the right numbers, contrast."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TINY
from optuna.trial import TrialState

import palestra
from palestra.report.page import write_report
from palestra.report.sweep_page import write_sweep_report
from palestra.storage.records_file import read_records
from tests.report.browser import CHROMIUM, Page, browser
from tests.report.dialogues import train_dialogue
from tests.report.sweeps import KEY, RATE, MadeSweep

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

# Of every text that is shown, the contrast with what lies behind it (WCAG 2.2, 1.4.3), and the text.
LEAST_CONTRASTS = """(() => {
  const context = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const rgba = colour => {
    context.clearRect(0, 0, 1, 1); context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = rgba(getComputedStyle(node).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll('body *')) {
    const text = [...node.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
    if (!text || !node.checkVisibility() || ['style', 'title', 'desc'].includes(node.localName)) continue;
    const style = getComputedStyle(node);
    const [a, b] = [rgba(node instanceof SVGElement ? style.fill : style.color), behind(node)].map(luminance);
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text]);
  }
  return found.sort((x, y) => x[0] - y[0]).slice(0, 5);
})()"""

LONG = ["long_network", "wide_network", "a", "b"]  # names, of which the first two stand side by side
NUMBERS = """[...document.querySelectorAll('#evaluations tbody tr')].map(
  row => [...row.querySelectorAll('data')].map(cell => Number(cell.value)))"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds, the second one's name a long word with what HTML would take for a tag."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palestra.run.run.plot_scores", lambda *_: None)
        for seed, name in enumerate(("tiny", "<i>" + "w" * 120)):
            palestra.Trainer(TINY | {"seed": seed}, run=folder / name).fit()
    return sorted(folder.iterdir(), reverse=True)


@pytest.fixture(scope="module")
def reports(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of one run, of both, of a dialogue of three in which one is frozen at times, of a sweep, and of one with many
    labels; with some of the metrics."""
    frozen = "players.prover1.updates={name: alternating_periodic, period: 2, phase: 1}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palestra.report.learning.MOST_FIGURES", 3)
        patch.setattr("palestra.run.run.plot_scores", lambda *_: None)
        debate = train_dialogue(tmp_path_factory.mktemp("debate") / "debate", "debate", [frozen])
        of_runs = [
            write_report(runs[:1], None),
            write_report(runs, runs[0] / "both.html"),
            write_report([debate], None),
        ]
    sweep = MadeSweep(tmp_path_factory.mktemp("sweep") / "sweep", base=["ppo-cartpole", "dqn-cartpole"])
    for number in range(30):
        sweep.add(float(number), values={"0": float(number)})
        sweep.add(None, TrialState.PRUNED, reported=[0.1 * number, 0.2 * number])
        sweep.add(None, TrialState.FAIL, failure="seed 0: " + "w" * 120)
    labels = {"num_worlds": {"name": "choice", "values": [1, 20, 300, 4000, 50000, 600000, 7000000, 80000000]}}
    labels |= {RATE: {"name": "log", "low": 3e-6, "high": 0.35}, KEY + ".net": {"name": "choice", "values": LONG}}
    labels |= {KEY + ".rollout_length": {"name": "integer", "low": 1, "high": 2048, "step": 1, "log": True}}
    wide = MadeSweep(tmp_path_factory.mktemp("wide") / "sweep", space=labels)
    for number in range(12):
        wide.add(float(number), values={"0": float(number)})
    return [*of_runs, *(write_sweep_report(each.end(0), None) for each in (sweep, wide))]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_report_is_whole_in_a_browser(page: Page, reports: list[Path], number: int, width: int, scheme: str) -> None:
    page.open(reports[number], width, scheme)
    page.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.ask("document.documentElement.scrollWidth") <= width
    assert page.ask("document.documentElement.scrollHeight") > 2000
    contrast, text = page.ask(LEAST_CONTRASTS)[0]
    assert contrast >= 4.5, text
    background = page.ask("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 22, 26)") == (scheme == "dark")
    assert page.complaints == []


# Of labels of one figure that are not turned, those whose boxes meet, or nearly do.
MEETING_LABELS = """[...document.querySelectorAll('.figures svg')].flatMap(svg => {
  const isFlat = node => !(node.getAttribute('transform') || '').match(/rotate\\((?!-?0[ )])/);
  const boxes = [...svg.querySelectorAll('text')].filter(isFlat).map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], i) => boxes.slice(0, i)
    .filter(([_, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > -2
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2.5)
    .map(([other]) => [svg.querySelector('title').textContent, text, other]));
})"""

# Of each table of a section whether the column of the first number is inside of the frame.
IS_FIRST_NUMBER_SEEN = """name => [...document.querySelectorAll(`#${name} .table`)].map(frame => {
  const first = frame.querySelector('tbody data');  // the best trial's, in a table of trials
  return first.parentElement.getBoundingClientRect().right <= frame.getBoundingClientRect().right;
})"""


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
def test_a_phone_shows_the_scores_and_says_which_figures_it_cuts(page: Page, reports: list[Path], number: int) -> None:
    page.open(reports[number], 390, "light")
    names = ["runs", "evaluations", "comparison", "trials"]
    seen = [each for name in names for each in page.ask(f"({IS_FIRST_NUMBER_SEEN})('{name}')")]
    assert seen
    assert all(seen)
    hints = "[...document.querySelectorAll('.wider')].filter(each => each.checkVisibility()).length"
    frames = (
        "[...document.querySelectorAll('.scroll, .strip')].filter(each => each.scrollWidth > each.clientWidth).length"
    )
    num_cut = page.ask(frames)
    assert page.ask(hints) == num_cut > 0
    assert page.ask(MEETING_LABELS) == []
    page.open(reports[number], 1280, "light")
    assert page.ask(hints) == 0
    assert page.ask(MEETING_LABELS) == []


def test_the_numbers_on_the_screen_are_those_of_the_records(page: Page, runs: list[Path], reports: list[Path]) -> None:
    page.open(reports[0], 1280, "light")
    shown = page.ask(NUMBERS)
    last = [record for record in read_records(runs[0] / "records.jsonl") if record["kind"] == "evaluation"][-1]
    for row, pair in zip(shown, last["pairs"], strict=False):
        assert {pair["scores"]["rho"], pair["games"], pair["truncated"]} <= set(row)
