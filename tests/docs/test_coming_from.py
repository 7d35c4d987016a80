"""What docs/coming-from.md names on our side exists, and the configs that it translates train.

Covers palestra.config.other_names.
"""

import copy
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TINY_FIT
from jinja2 import Environment, meta

import palestra
from palestra.config import load_yaml
from palestra.config.other_names import OURS, ours_of
from palestra.kinds.data.config import FitConfig
from palestra.players import SCRIPTED
from palestra.run.kinds import read_config
from palestra.sweeps.config import read_sweep
from palestra.text.templates import COMMON, PARTS, SUFFIX
from tests.docs.known_names import FILES, is_command, is_in_python, is_key, variants

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from.md").read_text()
SOURCES = re.findall(r"^## (.+)$", PAGE, re.M)
TRANSLATED = dict(zip(("ppo-cartpole", "dqn-cartpole"), re.findall(r"```yaml\n(.*?)```", PAGE, re.S), strict=True))
OTHERS = {"l", "null", "checkpoints/best", "records.jsonl"}
CODE = re.compile("`([^`]+)`")
METRICS = {"return/agent", "env_steps_per_s", "opt_steps_per_s"}


def our_names() -> Iterator[str]:
    """The code of the last column of every table, and of the sentences on what is not there."""
    for line in PAGE.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            yield from re.findall(r"`([^`]+)`", re.sub(r"\]\([^)]*\)", "]", cells[-1]))


def is_known(name: str) -> bool:
    if name.startswith("palestra "):
        return is_command(name)
    if name.startswith("palestra."):
        return is_in_python(name)
    if name.startswith("{{"):
        return meta.find_undeclared_variables(Environment().parse(name)) <= {*COMMON, *chain(*PARTS.values())}
    if name.endswith(SUFFIX):
        return name.removesuffix(SUFFIX).split(".")[-1] in PARTS
    key, _, value = name.strip('"').partition("=")
    if value[:1] == value[-1:] == "'":
        return is_key(key)
    if value:
        return is_key(key) and (value in variants() or ":" in value or value.isdigit())
    return is_key(name) or name in variants() or name in SCRIPTED


def test_what_the_tables_name_exists() -> None:
    names = [*our_names()]
    assert len(names) > 120
    theirs = {"n_steps", "n_envs", "batch_size"}  # in the formula for PPO's minibatches
    assert [name for name in names if not is_known(name) and name not in OTHERS | METRICS | theirs] == []


@pytest.mark.parametrize(
    "name",
    ["palestra.Trainer.fitt", "palestra tran", "gama", "{{ sides }}", "herd.jinja", "target.name=sudden", "updates"],
)
def test_a_name_that_does_not_exist_is_found(name: str) -> None:
    assert not is_known(name)


def test_every_library_has_its_table_and_what_is_not_there() -> None:
    assert len(SOURCES) == 13
    for section in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        assert "| palestra |" in section
        assert "\nNot there: " in section


@pytest.mark.parametrize("base", TRANSLATED)
def test_a_translated_config_trains(base: str, tmp_path: Path) -> None:
    config: dict[str, Any] = load_yaml(ROOT / "configs" / f"{base}.yml") | yaml.safe_load(TRANSLATED[base])
    config |= {"stop": {"after": 20, "unit": "opt_steps"}, "evaluations": [], "best": None}
    config["output"] |= {"display": "quiet", "recorders": []}
    algorithm = config["players"]["agent"]["algorithm"]
    if "warmup_env_steps" in algorithm:
        algorithm["warmup_env_steps"] = 128
    trainer = palestra.Trainer(config, run=tmp_path / "run")
    before = [weight.detach().clone() for weight in trainer.agent_net.parameters()]
    trainer.fit()
    assert trainer.opt_steps == 20
    assert any((a != b).any() for a, b in zip(before, trainer.agent_net.parameters(), strict=True))


@pytest.mark.slow
def test_the_translated_ppo_solves_cartpole(tmp_path: Path) -> None:
    base = "ppo-cartpole"
    config: dict[str, Any] = load_yaml(ROOT / "configs" / f"{base}.yml") | yaml.safe_load(TRANSLATED[base])
    config["output"] |= {"display": "quiet", "recorders": []}
    palestra.Trainer(config, run=tmp_path / "run").fit()
    stored = palestra.StoredRun.open(tmp_path / "run")
    stored.load("best")
    _, record = stored.evaluate("main", 20)
    assert record["pairs"][0]["scores"]["return/agent"] > 400


NO_KEYS = {  # names of methods, of results and of files
    *("action_mask", "agent_selection", "apply_action", "connect_four_v3", "current_player", "legal_actions_mask"),
    *("new_initial_state", "observation_tensor", "observe", "reset", "returns", "rewards", "step", "tictactoe_v3"),
    *("after_epoch", "after_step", "after_train", "attach_progress_bar", "before_epoch", "before_step", "before_train"),
    *("capture_video", "compute_episodic_return", "compute_loss", "count_actions", "criterion", "data_collator"),
    *(
        "eval_reward",
        "evaluate_rho",
        "fit",
        "fit_online",
        "follow_up",
        "fps",
        "fused_game",
        "get_minari",
        "host_er_scheduler",
        "host_lr_scheduler",
    ),
    *("host_net", "host_optimizer", "host_replay_buffer", "load", "opt_steps_per_sec", "predict", "predict_proba"),
    *("predict_step", "prover_accurate_quotation", "prover_role_conformance", "register_trainer"),
    *("resume_from_checkpoint", "save", "set_description", "set_logger", "set_model", "set_training"),
    *("supervisor_message", "test", "trainer_state", "training_step", "use_sde", "validation_step"),
}


def rows() -> Iterator[tuple[list[str], str]]:
    """The names in the first columns of each row of a table, and its last column."""
    for line in PAGE.splitlines():
        if line.startswith("|"):
            *cells, last = line.strip("|").split("|")
            yield [code.removeprefix("--").replace("-", "_") for cell in cells for code in CODE.findall(cell)], last


def test_every_key_of_the_page_is_in_the_table_of_the_errors() -> None:
    for theirs, last in rows():
        keys = {name.rpartition(".")[2] for name in theirs if re.fullmatch(r"[a-z][\w.]*", name)}
        same = {name.partition("=")[0].rpartition(".")[2] for name in CODE.findall(last)}
        assert keys <= {*OURS, *NO_KEYS, *same}, theirs


@pytest.mark.parametrize("name", OURS)
def test_a_name_of_another_library_leads_to_ours_as_on_the_page(name: str) -> None:
    places = [last for theirs, last in rows() if any(re.search(rf"\b{name}\b", code) for code in theirs)]
    for ours in OURS[name]:
        assert is_command(ours) if " " in ours else is_key(ours)
        assert any(re.search(rf"`{re.escape(ours)}[`=]", last) for last in places), ours
    assert any(ours_of(f"x.{name}", kind) == OURS[name] for kind in FILES)


def test_an_override_by_a_name_of_another_library_is_told_ours() -> None:
    for base, name, ours in (
        ("dqn-cartpole", "save_interval", "'output.save.every'"),
        ("dqn-cartpole", "num-train-steps", "'stop.after'"),
        ("dqn-cartpole", "layerwise_logging", "'output.layer_norms'"),
        ("dqn-cartpole", "model_dir", "palestra train run.yml --run, as it is called here"),
        ("expert_iteration-claims", "weighted_sampling", "select.name"),
        ("expert_iteration-claims", "rollouts_per_iteration", "num_questions"),
        ("expert_iteration-claims", "shared_model_group", "roles"),
    ):
        with pytest.raises(palestra.ConfigError, match=ours):
            read_config(ROOT / "configs" / f"{base}.yml", [f"{name}=1"])
    sweep = load_yaml(ROOT / "benchmarks/sweeps/ppo-cartpole.yml")
    with pytest.raises(palestra.ConfigError, match=r"search\.quantile"):
        read_sweep(sweep, ["search.quantile_fraction=0.25"])


def test_an_unknown_key_of_a_file_is_told_by_its_name_here() -> None:
    data = load_yaml(ROOT / "configs" / "ppo-cartpole.yml")
    algorithm = data["players"]["agent"]["algorithm"]
    algorithm["lr"], algorithm["vf_coef"] = algorithm.pop("learning_rate"), 0.5
    with pytest.raises(palestra.ConfigError) as caught:
        palestra.Trainer(data)
    told = {error.path.rpartition(".")[2]: error.message for error in caught.value.errors}
    assert told["lr"].startswith("unknown key; did you mean 'learning_rate', which is missing (")
    assert told["vf_coef"] == "unknown key; the nearest known key is 'value_coefficient'"


def test_a_name_of_another_library_means_keys_that_the_kind_of_run_has() -> None:
    data = copy.deepcopy(TINY_FIT)
    data["learning"]["accumulate_grad_batches"] = data["learning"].pop("num_microbatches")
    data |= {"batch_size": 3}  # of PPO elsewhere, that is num_minibatches here
    with pytest.raises(palestra.ConfigError) as caught:
        read_config(data)
    assert str(caught.value).splitlines() == [
        "learning.accumulate_grad_batches: unknown key; did you mean 'num_microbatches', which is missing "
        "(expected an integer >= 1)?",
        f"batch_size: unknown key; known keys: {', '.join(FitConfig.model_fields)}",
    ]
