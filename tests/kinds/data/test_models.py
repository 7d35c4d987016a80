"""A model as its run left it: in Python, from the shell, and in files that run without palestra.

Covers palestra.run.export_files, palestra.kinds.data.export, palestra.commands.predict,
palestra.kinds.data.predictions, palestra.run.trained_models.
"""

import csv
import json
import shutil
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from pyarrow import parquet
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.commands.starting import starting_config
from palestra.config import ConfigError
from palestra.data.reading import DataFailed
from palestra.kinds.data.export import export_model
from palestra.kinds.data.models import PredictionFailed
from palestra.kinds.data.starting import starting_fit
from palestra.models.model import Model
from palestra.run.checkpoints import CheckpointError
from palestra.run.export_files import ExportError
from palestra.storage.disk import RunFolderError
from tests.fitted import CLASSIFIER, EVALUATION, MLP, PAIR, REGRESSOR, fit_config, fitted, working_in


def shell(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of three models."""
    path = tmp_path_factory.mktemp("fitted")
    with working_in(path):
        for name, model in {"sides": CLASSIFIER, "sums": REGRESSOR, "pairs": PAIR}.items():
            fitted(name, model, evaluations=[EVALUATION])
    return path


@pytest.fixture
def here(folder: Path) -> Iterator[Path]:
    with working_in(folder):
        yield folder


def test_predictions_are_those_of_the_model_in_the_order_of_the_items(here: Path) -> None:
    loaded = palestra.load_model("pairs")
    assert not loaded.model.training
    items = loaded.data_set("train")
    logits, best = loaded.predict(items, batch_size=7)
    assert not logits.requires_grad
    with torch.no_grad():
        expected = loaded.model(torch.utils.data.default_collate(items.items))
    assert torch.allclose(logits, expected[0])
    assert torch.allclose(best, expected[1])
    assert torch.allclose(loaded.predict(items.items[:3])[0], expected[0][:3])
    assert not loaded.model.layers[1].training  # batch norm took no batch for its statistics


def test_a_checkpoint_and_the_averaged_weights_are_what_was_asked_for(here: Path) -> None:
    trainer = palestra.kinds.data.trainer.FitTrainer.load("sides")
    trainer.fit()  # restores the end
    latest, averaged = (palestra.load_model("sides", weights=each).model for each in ("latest", "averaged"))
    names = [name for name, _ in latest.named_parameters()]
    for name in names:
        assert torch.equal(latest.state_dict()[name], trainer.model.state_dict()[name])
    with trainer.learner.averaged():
        for name in names:
            assert torch.equal(averaged.state_dict()[name], trainer.model.state_dict()[name])
    assert any(not torch.equal(latest.state_dict()[name], averaged.state_dict()[name]) for name in names)
    assert palestra.load_model("sides", "@3").opt_steps == 3


def test_a_model_is_not_loaded_where_torch_would_make_another_one(here: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match=r"^torch: expected torch\.set_default_dtype\(torch\.float32\)"):
            palestra.load_model("sides")
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.inference_mode():
        palestra.load_model("sides")


def test_a_model_needs_the_data_of_its_run_no_more(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fitted_parts.Points.__init__", None)
    item = {"observation": torch.ones(4)}
    assert palestra.load_model("sides").predict([item])["probability"].shape == (1, 2)


def test_a_table_has_index_label_and_outputs_of_every_item(here: Path) -> None:
    told = shell("predict", "sides", "test", "--out", "sides.csv", "--batch-size", "10")
    assert "23 items of data.test at opt step 8: sides.csv" in told
    with open("sides.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["index", "label", "class", "probability_0", "probability_1"]
    assert [int(row["index"]) for row in rows] == list(range(23))
    loaded = palestra.load_model("sides")
    items = [loaded.data_set("test")[index] for index in range(23)]
    found = loaded.predict(items)
    assert [int(row["label"]) for row in rows] == [int(item["label"]) for item in items]
    assert [int(row["class"]) for row in rows] == found["class"].tolist()
    assert np.allclose([float(row["probability_1"]) for row in rows], found["probability"][:, 1])
    shell("predict", "sums", "test", "--out", "sums.parquet", "data.test.num_items=5", "data.test.seed=1")
    table = parquet.read_table("sums.parquet")
    assert table.column_names == ["index", "label", "output"]
    expected = palestra.load_model("sums").predict(loaded.data_set("train").items[:5])
    assert np.allclose(table["output"].to_numpy(), expected[:, 0])
    shell("predict", "pairs", "train", "--out", "pairs.npz", "--checkpoint", "0", "--weights", "averaged")
    arrays = np.load("pairs.npz", allow_pickle=False)
    assert {name: array.shape for name, array in arrays.items()} == {
        "index": (40,),
        "label": (40,),
        "output_0": (40, 2),
        "output_1": (40,),
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("predict nowhere test --out a.csv", "nowhere is not a run: nowhere/config.yml is missing"),
        (
            "predict palestra:polyhedra test --out a.csv",
            "expected a run in which a model learns from data, got /",
        ),
        ("predict sides valid --out a.csv", "data.valid: expected one of the run's data sets (train, test), got "),
        ("predict sides test --out a.txt", "--out: expected a file that ends in .csv, .parquet, .npz, got a.txt"),
        ("predict sides test --out no/a.csv", "--out: expected a file in a folder that exists, got no/a.csv"),
        ("predict sides test --out a.csv --checkpoint 77", "there is no checkpoint 00000077 in sides/checkpoints; "),
        ("predict sides test --out a.csv --weights best", "weights: expected latest or averaged, got 'best'"),
        ("predict sides test --out a.csv learning.ema=null", "learning.ema: expected a change of data, evaluations, "),
        ("predict sides test --out a.csv data.test.num_items=99", "data.test.num_items: expected at most 25, as the "),
        (
            "predict sides test --out a.csv data.test.sede=9",
            "data.test.sede: no such key; did you mean 'data.test.see",
        ),
        ("predict sides test --out a.csv execution.device=cuda:9", "execution.device: expected a device of this mac"),
    ],
)
def test_what_cannot_be_predicted_is_told_in_one_line(here: Path, words: str, told: str) -> None:
    (line,) = shell(*words.split(), code=2).splitlines()
    assert line.startswith(told), line


def test_what_fails_while_it_predicts_names_the_items(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = palestra.load_model("sides")
    for wrong, got in (([], r"\[\]"), ({"observation": torch.ones(2, 4)}, r"{'observation': tensor\(.*"), (3, "3")):
        with pytest.raises(ValueError, match=rf"^items: expected .* one item or more, got {got}$"):
            loaded.predict(wrong)
    whole, short = {"observation": torch.ones(4)}, {"observation": torch.ones(3)}
    with pytest.raises(DataFailed, match=r"^items: item 1 is observation: float32 \(3,\), but item 0 is .*; batch 0"):
        loaded.predict([whole, short])
    with pytest.raises(PredictionFailed, match=r"^items: the model fails at batch 1 of epoch 0 \(items 1\): .*mat1"):
        loaded.predict([whole, short], batch_size=1)
    monkeypatch.setattr(type(loaded.model), "predict", lambda self, batch: self(batch).sum())
    with pytest.raises(PredictionFailed, match=r"a row for each of 1 items .* of Classifier, got a tensor of shape"):
        loaded.predict([whole])
    Path("broken.py").write_text(Path("fitted_parts.py").read_text().replace("self.items[index]", "1 // (index - 9)"))
    line = shell("predict", "sides", "test", "data.test.name=broken:Points", "--out", "a.csv", code=1).strip()
    assert line == (
        "data.test: item 9 cannot be read: ZeroDivisionError: integer division or modulo by zero; "
        "batch 0 of epoch 0 (items 0, 1, 2, 3, 4, 5, 6, 7, ...)"
    )


def test_evaluate_names_a_damaged_checkpoint_and_says_how_many_items_count(here: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree("sides", run)
    latest = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    (latest / "state.json").unlink()
    told = shell("evaluate", str(run))
    assert f"checkpoint {latest} is damaged: state.json cannot be read" in told
    assert "evaluation test, 23 items at opt step" in told


def test_a_damaged_or_changed_model_is_told(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    shutil.copytree("pairs", run)
    place = run / "checkpoints" / "00000001" / "tensors.safetensors"
    place.write_bytes(place.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"00000001.*tensors.safetensors differs from what was written"):
        palestra.load_model(run, "1")
    with monkeypatch.context() as patch:
        patch.setattr("fitted_parts.Pair.__init__", lambda self, config: Model.__init__(self, config))
        with pytest.raises(
            RunFolderError, match=r"expected a model Pair with the weights that .*run holds, got another"
        ):
            palestra.load_model(run)
    monkeypatch.delattr("fitted_parts.Pair")
    with pytest.raises(
        RunFolderError, match=r"model.name: expected a class of module 'fitted_parts' \(.*\), got 'Pair'"
    ):
        palestra.load_model(run)


# ---- exported --------------------------------------------------------------------------------------------


def test_an_exported_model_gives_its_outputs_without_palestra(here: Path) -> None:
    told = shell("export", "sides", "--onnx")
    place = here / "sides/export/model-8"
    assert "sides/export/model-8/model.pt2: gives the model's outputs for 40 items" in told
    assert f"model = torch.export.load('{place}/model.pt2').module()" in told
    assert "outputs = model({'observation': torch.zeros(1, 4)})" in told
    loaded = palestra.load_model("sides")
    said = json.loads((place / "model.json").read_text())
    assert said["inputs"] == {"observation": {"shape": ["batch", 4], "dtype": "float32"}}
    assert (said["outputs"]["output"]["shape"], said["weights"]) == (["batch", 2], "latest")
    program = torch.export.load(place / "model.pt2").module()
    points = torch.randn(5, 4)
    assert torch.allclose(program({"observation": points}), loaded.model({"observation": points}), atol=1e-6)
    session = onnxruntime.InferenceSession(str(place / "model.onnx"))
    (found,) = session.run(list(said["outputs"]), {said["onnx_names"]["observation"]: points.numpy()})
    assert np.allclose(found, loaded.model({"observation": points}), atol=1e-5)


def test_an_exported_model_of_rows_brings_along_how_the_cells_of_a_row_are_shown(here: Path) -> None:
    """The lines that are printed give the outputs for every row of the file, as a stranger's script would."""
    random = np.random.default_rng(0)
    table = {"size": random.normal(50, 9, 20), "code": np.array([*"abcb"] * 5), "pair": random.normal(3, 2, (20, 2))}
    arrays = table | {"bytes": random.integers(0, 256, (20, 2, 3), dtype=np.uint8), "kind": np.array([7, 9] * 10)}
    np.savez("mixed.npz", **arrays)  # type: ignore[arg-type]
    data = rows("class", "mixed.npz") | {"sees": ["pair", "size", "bytes", "code"], "categorical": ["code"]}
    fitted("mixed", data={"train": data | {"images": ["bytes"]}}, model=CLASSIFIER | {"net": MLP})
    told = shell("export", "mixed", "--onnx").splitlines()
    loaded = palestra.load_model("mixed")
    expected = loaded.model(loaded.data_set("train").entries)
    assert json.loads((here / "mixed/export/model-4/model.json").read_text())["rows"]["classes"] == [7, 9]
    for file in ("model.pt2", "model.onnx"):
        start = next(place for place, line in enumerate(told) if line.startswith("to use") and file in line) + 1
        lines = told[start : start + 7]
        for item in (0, 5, 11):
            row = {name: str(value[item]) if value.ndim == 1 else value[item] for name, value in arrays.items()}
            script = "\n".join(lines).replace('row = said["rows"]["first"]', "row = given")
            found: dict[str, Any] = {"given": row}
            exec(script, found)
            outputs = torch.as_tensor(found["outputs" if file == "model.pt2" else "output"])
            assert torch.allclose(outputs, expected[item : item + 1], atol=1e-5), file


def test_the_averaged_weights_are_exported_where_they_are_asked_for(here: Path) -> None:
    shell("export", "pairs", "--weights", "averaged")
    program = torch.export.load(here / "pairs/export/model-averaged-8/model.pt2").module()
    batch = {"observation": torch.randn(3, 4)}
    for one, other in zip(program(batch), palestra.load_model("pairs", weights="averaged").model(batch), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "export sums --role host",
            "--role: expected no such option, because sums is a run in which a model learns from data, got --role h",
        ),
        (
            "export palestra:polyhedra --weights latest",
            "--weights: expected no such option, because palestra:polyhedra is a run in which players play games",
        ),
        ("export sums --checkpoint 9", "there is no checkpoint 00000009 in sums/checkpoints; expected one of "),
        ("export sums --weights mean", "weights: expected latest or averaged, got 'mean'"),
    ],
)
def test_what_cannot_be_exported_is_told_in_one_line(here: Path, words: str, told: str) -> None:
    (line,) = shell(*words.split(), code=2).splitlines()
    assert line.startswith(told), line
    assert not Path("sums/export").exists()


def test_sizes_in_which_batches_differ_may_be_any(here: Path) -> None:
    data = {"train": {"name": "fitted_parts:Sequences", "num": 20, "seed": 1, "num_items": None}}
    fitted("sequences", PAIR | {"name": "fitted_parts:Sums"}, data=data)
    assert "outputs = model(torch.zeros(1, " in shell("export", "sequences")
    place = here / "sequences/export/model-4"
    assert json.loads((place / "model.json").read_text())["inputs"]["input"]["shape"] == ["batch", "any"]
    batch, program = torch.rand(2, 9), torch.export.load(place / "model.pt2").module()
    assert torch.allclose(program(batch), palestra.load_model("sequences").model(batch), atol=1e-6)


def test_a_model_that_learned_from_a_loader_is_exported_by_the_items_of_another_set(here: Path) -> None:
    Path("one_loader.py").write_text(
        "import torch\ndef make():\n    return [{'observation': torch.ones(3, 4), 'label': torch.tensor([0, 1, 0])}]\n"
    )
    train = {"loader": "one_loader:make", "num_batches": 1}
    learning = fit_config()["learning"] | {"order": None, "batch_size": None, "last_batch": None}
    for name, others in (("alone", {}), ("beside", {"test": fit_config()["data"]["test"]})):
        fitted(name, data={"train": train, **others}, learning=learning)
    assert shell("export", "alone", code=2).startswith("expected a data set in `data`, of whose items batches are made")
    assert "model.pt2: gives the model's outputs" in shell("export", "beside")


def test_a_forward_pass_that_cannot_be_exported_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, batch: Any) -> Any:
        return batch["observation"] if batch["observation"].sum() > 0 else -batch["observation"]

    monkeypatch.setattr("fitted_parts.Pair.forward", forward)
    (line,) = shell("export", "pairs", code=2).splitlines()
    assert line.startswith("Pair cannot be exported: ")
    assert not Path("pairs/export/model-8").exists()


def test_a_file_that_gives_other_outputs_is_removed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = palestra.load_model("pairs")
    near = lambda batch: tuple(each + 0.01 for each in loaded.model(batch))  # noqa: E731
    monkeypatch.setattr("palestra.kinds.data.export.write_program", lambda *arguments: (None, near))
    with pytest.raises(ExportError, match=r"model.pt2: expected the model's outputs, got others, up to 0.01"):
        export_model(loaded, Path("other"), onnx=False)
    assert not Path("other").exists()


def test_what_no_file_can_hold_is_left_out_unless_the_model_reads_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collate(self: Any, items: list[Any]) -> Any:
        batch = {"observation": torch.stack([item["observation"] for item in items]), "text": ["a"] * len(items)}
        return UserDict(batch)  # a mapping that is no dict, as a BatchEncoding of transformers

    told = "expected tensors alone in what forward returns, because no file can hold anything else, got null as outputs"
    with monkeypatch.context() as patch:
        patch.setattr("fitted_parts.Pair.forward", lambda self, batch: (batch["observation"], {"said": None}))
        assert shell("export", "pairs", code=2) == f"{told}[1]['said']\n"
    monkeypatch.setattr("fitted_parts.Points.collate", collate, raising=False)
    assert "outputs = model({'observation': torch.zeros(1, 4)})" in shell("export", "pairs")
    shutil.rmtree("pairs/export")
    monkeypatch.setattr(
        "fitted_parts.Pair.forward", lambda self, batch: self.layers(batch["observation"] + len(batch["text"]))
    )
    told = "expected tensors alone in a batch of the training data, because no file can hold anything else, got the "
    assert shell("export", "pairs", code=2) == f"{told}string 'a' as batch['text'][0]\n"
    assert not Path("pairs/export/model-8").exists()


# ---- judged again ------------------------------------------------------------------------------------------


def test_a_run_is_evaluated_with_other_data_or_weights_beside_its_own_results(here: Path) -> None:
    def score(*overrides: str) -> tuple[str, dict[str, Any]]:
        path = shell("evaluate", "sides", *overrides).split()[-1]
        return path, json.loads(Path(path).read_text())

    own, record = score()
    assert "changes" not in record
    (other, found), (averaged, _) = score("data.test.seed=9"), score("evaluations.0.weights=averaged")
    assert len({own, other, averaged}) == 3
    assert found["changes"] == ["data.test.seed=9"]
    (pair,), (before,) = found["pairs"], record["pairs"]
    assert pair["scores"] != before["scores"]
    loaded = palestra.load_model("sides", overrides=("data.test.seed=9",))
    items = loaded.data_set("test").items[:23]
    right = loaded.predict(items)["class"] == torch.stack([item["label"] for item in items])
    assert pair["scores"]["accuracy"] == pytest.approx(right.float().mean().item())
    assert score("execution.loading.num_workers=1")[0] == own
    (line,) = shell("evaluate", "sides", "learning.batch_size=3", code=2).splitlines()
    assert line.startswith("learning.batch_size: expected a change of data, evaluations, execution, learning.precision")


# ---- rows of a file ------------------------------------------------------------------------------------------


def rows(kind: str, file: str = "train.csv", label: str | None = "kind") -> dict[str, Any]:
    return {
        "name": "rows",
        "file": file,
        "label": label,
        "label_kind": kind,
        "sees": ["length", "colour"],
        "categorical": ["colour"],
        "images": [],
        "held_out": None,
        "part": "all",
        "standardize": True,
        "num_items": None,
    }


HELD_OUT = ["data.test.part=held_out", "data.test.held_out={name: fraction, fraction: 0.5, seed: 0}"]


def test_rows_without_labels_are_predicted_as_the_training_rows_say(here: Path) -> None:
    lengths, colours = torch.linspace(-3, 5, 40).tolist(), ["red", "blue"] * 20
    kinds = ["oak" if length > 1 else "ash" for length in lengths]
    lines = [f"{x:.6f},{colour},{kind}" for x, colour, kind in zip(lengths, colours, kinds, strict=True)]
    Path("train.csv").write_text("\n".join(["length,colour,kind", *lines]))
    swapped = [",".join(reversed(line.split(",")[:2])) for line in lines]
    Path("new.csv").write_text("\n".join(["colour,length", *swapped]))
    model = CLASSIFIER | {"net": MLP | {"net_arch": []}}
    fitted("trees", model, data={"train": rows("class"), "test": rows("class")}, stop={"after": 20, "unit": "epochs"})
    shell("predict", "trees", "train", "--out", "known.csv")
    told = shell("predict", "trees", "new", "data.new.file=new.csv", "data.new.label=null", "--out", "new_out.csv")
    assert "40 items of data.new" in told
    known, new = (list(csv.DictReader(Path(name).read_text().splitlines())) for name in ("known.csv", "new_out.csv"))
    assert [row["label"] for row in known] == kinds
    assert {row["class"] for row in known} == {"oak", "ash"}
    shell("predict", "trees", "test", "--out", "some.csv", "data.test.num_items=5", *HELD_OUT)
    some = list(csv.DictReader(Path("some.csv").read_text().splitlines()))
    assert [row["index"] for row in some] == list("01234")
    assert [row["label"] for row in some] == [kinds[int(row["row"])] for row in some]
    assert [row["row"] for row in some] != list("01234"), "they are held out at random"
    assert "label" not in new[0]
    assert [{**row, "label": kind} for row, kind in zip(new, kinds, strict=True)] == [
        {name: row[name] for name in (*new[0], "label")} for row in known
    ]


def test_classes_are_predicted_as_they_are_written_and_shared_rows_are_told(here: Path) -> None:
    for name, kinds in {"codes": ["01", "1", "001", "1e0"], "ids": [2**53 + 1, 2**53, 7, 2**53 + 2]}.items():
        Path("codes.csv").write_text("\n".join(["length,colour,kind", *(f"{x},red,{kinds[x % 4]}" for x in range(40))]))
        data = {"train": rows("class", "codes.csv"), "test": rows("class", "codes.csv")}
        model = CLASSIFIER | {"num_classes": 4, "net": MLP | {"net_arch": []}}
        told = "40 rows or instances of data.test are also in data.train, from which the model learns"
        Path("codes.yml").write_text(yaml.safe_dump(fit_config(model, data=data)))
        words = ["stop.after=1", "stop.unit=opt_steps", "output.display=plain"]
        assert name != "codes" or told in shell("check", "codes.yml")
        assert told in " ".join(shell("train", "codes.yml", *words, "--run", name).split())
        shell("predict", name, "train", "--out", "codes.csv.csv")
        shell("predict", name, "train", "--out", "codes.npz")
        with open("codes.csv.csv", newline="") as file:
            table = list(csv.DictReader(file))
        arrays = np.load("codes.npz")
        wanted = [kinds[x % 4] for x in range(40)]
        assert [row["label"] for row in table] == list(map(str, wanted))
        assert arrays["label"].tolist() == wanted
        assert {row["class"] for row in table} <= set(map(str, kinds))
        assert set(arrays["class"].tolist()) <= set(kinds)


def test_a_first_file_for_a_model_that_a_program_hands_over(here: Path) -> None:
    Path("given.csv").write_text("\n".join(["x,y", *(f"{x},{'ab'[x % 2]}" for x in range(10))]))
    Path("given.yml").write_text(
        shell("config", "fit", "null", "rows", "data.train.file=given.csv", "data.train.label=y")
    )
    assert yaml.safe_load(Path("given.yml").read_text())["model"] is None
    told = shell("check", "given.yml")
    assert "complete and consistent" in told
    assert "model: only a program can train this, which hands a model over by FitTrainer(config).set_model(" in told
    assert "expected a model by name" in shell("train", "given.yml", "--run", "given", code=2)


def test_of_another_file_all_rows_are_judged(here: Path) -> None:
    """Also of one that a set of a new name has, which has the other keys of `train`."""
    held_out = rows("class") | {"held_out": {"name": "fraction", "fraction": 0.2, "seed": 0}}
    data = {"train": held_out | {"part": "train"}, "test": held_out | {"part": "held_out", "num_items": 3}}
    fitted("shares", CLASSIFIER, data=data, evaluations=[EVALUATION], stop={"after": 1, "unit": "opt_steps"})
    Path("more.csv").write_text("\n".join(Path("train.csv").read_text().splitlines()[:21]))
    note = "file is another file than the run's: all of its rows are taken"
    for words, num in (
        ("data.test.num_items=2", "2 items"),
        ("test.file=more.csv", f"data.test.{note} (data.test.part=all)"),
        ("test.file=more.csv", "20 items"),
        ("data.test.file=more.csv data.test.part=held_out", "3 items"),
        ("data.test.file=./train.csv", "3 items"),
        ("data.new.file=more.csv evaluations.0.data=new", "20 items"),
    ):
        assert num in shell("evaluate", "shares", *words.split())
    started = starting_fit("classifier", {"name": "rows"}, [
        *("data.train.file=train.csv", "data.train.label=kind", "data.test.file=more.csv"),
    ])  # fmt: skip
    (train, test) = started.sets().values()
    assert (train.part, test.part, test.held_out, test.label) == ("train", "all", None, "kind")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "evaluate judged data.new.file=new.csv",
            "data.new: expected a set by which an evaluation judges (test), got 'new'; one does",
        ),
        (
            "predict trees train data.train.file=new.csv",
            "data.train.file: expected no change, because its training rows",
        ),
        (
            "predict trees test data.test.file=new.csv",
            "data.test.label: expected a column of new.csv (colour, length), got 'kind'",
        ),
        (
            "predict trees test data.test.file=other.csv",
            "data.test.label: expected one of the classes in the file of dat",
        ),
        (
            "evaluate judged data.test.label=null",
            "data.test: item 0 has no entry 'label' that is a number",
        ),
    ],
)
def test_rows_that_do_not_fit_are_told_in_one_line(here: Path, words: str, told: str) -> None:
    if not Path("other.csv").exists():
        Path("other.csv").write_text(Path("train.csv").read_text().replace("oak", "elm"))
        data = {"train": rows("class"), "test": rows("class")}
        fitted("judged", CLASSIFIER, data=data, evaluations=[EVALUATION])
    command = [*words.split(), *(["--out", "a.csv"] if "predict" in words else [])]
    *_, line = shell(*command, code=2).splitlines()
    assert line.startswith(told), line


def test_a_model_does_not_learn_from_rows_without_labels(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data.train.label: expected a column, because the model learns from these"):
        fitted("unlabelled", CLASSIFIER, data={"train": rows("class", label=None)})


def test_a_first_file_of_a_loader_has_no_data_to_judge_by(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("streams.py").write_text(
        "from palestra.config import PositiveInt\nfrom palestra.data.own_loaders import LoaderConfig\n"
        "class Keys(LoaderConfig):\n    size: PositiveInt\n"
        "def make(config):\n    return [None]\n"
        "make.Config = Keys\n"
    )
    monkeypatch.syspath_prepend(".")
    config: Any = starting_config("fit", ["null", "streams:make", "data.train.size=16"])
    assert config.data["train"].model_dump() == {"loader": "streams:make", "num_batches": None, "size": 16}
    assert (config.evaluations, config.best, config.learning.order, config.learning.batch_size) == (
        [],
        None,
        None,
        None,
    )
    with pytest.raises(ConfigError, match=r"^data.train.size: expected an integer >= 1, but the key is missing"):
        starting_config("fit", ["null", "streams:make"])
