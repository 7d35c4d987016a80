"""The models of runs; those of folders are served in test_serving.py."""

from pathlib import Path
from typing import Any

import pytest
import torch

from palestra.config import ConfigError
from palestra.kinds.text.players import find_text_player
from palestra.players import FromRunConfig
from palestra.serving.computing import compute
from palestra.serving.engine import MOST_LOADED, Models
from palestra.serving.jobs import Jobs, Method
from palestra.serving.source import ServerFacts, Source, facts_of, fill, find_source, keep_source
from palestra.storage.disk import Folder, RunFolderError
from palestra.text.models.model import Message, Request, SamplingConfig
from palestra.text.servers.calls import Calls
from palestra.text.servers.job_files import Decision, supervised_file
from tests.resuming import fit
from tests.text.runs import EXPERT, PLAYER, adapted, made_folder, text_run

CPU = torch.device("cpu")
GREEDY = SamplingConfig(temperature=1.0, top_p=None, top_k=1, max_tokens=4)
REQUEST = Request((Message("user", "hi"),), 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a new model and an adapter, both of which have learned."""
    place = tmp_path_factory.mktemp("runs")
    players = {
        "prover": PLAYER | {"model": adapted(made_folder(place)), "imitate": None, "algorithm": EXPERT},
        "verifier": PLAYER | {"algorithm": None},
    }
    fit(place / "run", text_run("nip", players, evaluations=[], best=None, stop={"after": 1, "unit": "epochs"}))
    return place / "run"


def begin(facts: ServerFacts, folder: Folder) -> Source:
    """Begin to serve a model from a folder."""
    source = find_source(facts, folder)
    keep_source(source, folder)
    return source


@pytest.mark.parametrize("player", ["prover", "verifier"])
def test_a_player_of_a_run_is_served_as_it_is_there_also_when_the_run_has_gone_on(
    run: Path, player: str, tmp_path: Path
) -> None:
    source = begin(facts_of(run, player, None), Folder(tmp_path))
    trained = find_text_player("x", FromRunConfig(from_run=str(run), player=player, checkpoint="latest"), None)
    expected = trained.build(CPU, Calls(lambda: False))
    served = source.build(CPU)
    assert source.facts.name == f"run:{player}"
    for name, each in expected.state_dict()["weights"].items():
        assert torch.equal(served.state_dict()["weights"][name], each)
    assert served.sample([REQUEST], GREEDY) == expected.sample([REQUEST], GREEDY)
    (run / "checkpoints").rename(run / "gone")
    try:
        again = begin(facts_of(run, player, "latest"), Folder(tmp_path)).build(CPU)
    finally:
        (run / "gone").rename(run / "checkpoints")
    assert again.sample([REQUEST], GREEDY) == served.sample([REQUEST], GREEDY)


def test_what_a_run_does_not_have_is_refused(run: Path, tmp_path: Path) -> None:
    for player in (None, "nobody"):
        expected = (
            rf"--player: expected a player with a model of its own in .* \(prover, verifier\), got {player or 'none'}"
        )
        with pytest.raises(ConfigError, match=expected):
            begin(facts_of(run, player, None), Folder(tmp_path))
    assert list(tmp_path.iterdir()) == []
    begin(facts_of(run, "prover", "1"), Folder(tmp_path))
    with pytest.raises(RunFolderError, match=r"belongs to a server of 'prover' at the checkpoint 1 of"):
        begin(facts_of(run, "prover", "latest"), Folder(tmp_path))


def test_a_model_is_served_and_tuned_in_the_type_of_weights_that_is_asked_for(run: Path, tmp_path: Path) -> None:
    model, served = made_folder(tmp_path), Folder(tmp_path, "served").make()
    source = begin(facts_of(model, None, None, "bfloat16"), served)
    assert {each.dtype for each in source.build(CPU).state_dict()["weights"].values()} == {torch.bfloat16}
    method = Method(name="supervised", n_epochs=2, batch_size=2, learning_rate_multiplier=10.0, beta=None, seed=3)
    content = supervised_file([Decision((Message("user", "?"),), "yes")])
    jobs = Jobs(served.below("jobs"))
    said: dict[str, Any] = {"model": "base", "begins_with": None, "suffix": None, "metadata": None, "method": method}
    job = jobs.add(content, training_file="file-x", **said)
    compute(served, job.id, lambda message: None)
    jobs.succeed(job.id, source.facts.name, 1)
    [made] = jobs.made()
    assert {each.dtype for each in jobs.weights(made).values()} == {torch.bfloat16}
    with pytest.raises(RunFolderError, match=r"belongs to a server of .* in bfloat16; give this one another --folder"):
        begin(facts_of(model, None, None), served)
    with pytest.raises(ConfigError, match="--dtype: expected float32 or bfloat16, got 'float16'"):
        facts_of(model, None, None, "float16")
    with pytest.raises(ConfigError, match=r"--dtype: expected no such option, because the run .* says it"):
        facts_of(run, "prover", None, "bfloat16")


def test_the_folder_of_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"got an adapter .*; merge it into its model first"):
        facts_of(tmp_path, None, None)


def test_tuned_models_take_turns_in_a_bounded_memory(run: Path, tmp_path: Path) -> None:
    """Those of an adapter share its base, which gets no more adapters."""
    source = begin(facts_of(run, "prover", None), Folder(tmp_path))
    first = source.build(CPU)
    made = {
        f"m{number}": {name: each * number for name, each in first.state_dict()["weights"].items()}
        for number in range(MOST_LOADED + 2)
    }
    read: list[str] = []

    class Tuned:
        def weights(self, model: str) -> dict[str, torch.Tensor]:
            read.append(model)
            return made[model]

    models = Models(source, CPU, Tuned(), source.build(CPU))
    for name in ("m0", "m1", "m2", "m0", "m3", "m4", "m0", "m1"):
        found = models.get(name)
        fill(first, made[name])
        assert found.sample([REQUEST], GREEDY) == first.sample([REQUEST], GREEDY)
    assert read == ["m0", "m1", "m2", "m3", "m4", "m1"]
    assert models.get(source.facts.name) is models.first
    assert len({id(models.get(name)) for name in made}) == MOST_LOADED
