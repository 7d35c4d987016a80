"""Writes the model of a text player as a folder that transformers loads: weights, tokenizer and chat template.

An adapter is merged into the weights of its base, so that the folder needs neither palestra nor peft. The folder is
loaded again, and must give each token of some answers the probability that the player gives it.
"""

from itertools import cycle
from pathlib import Path

import torch

from palestra.config import trusting
from palestra.config.own_modules import using_nothing_outside
from palestra.run.checkpoints import Checkpoints
from palestra.run.export_files import ExportError, exporting
from palestra.run.kinds import read_stored_config
from palestra.storage.run_folder import RunFolder
from palestra.text.models.extra import library
from palestra.text.models.model import Answer, Request
from palestra.text.players import TextPlayer
from palestra.text.servers.model import ServerModel
from palestra.training.opening import named_classes

NUM_ANSWERS = 8  # that are compared
MOST_DIFFERENCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}  # of log-probabilities, by the type of the weights


def load_text_player(run: Path, name: str | None, checkpoint: str, trust: bool = False) -> TextPlayer:
    """Load a player of a run as a checkpoint has it, on the CPU.

    name: None: that of the only one that learns. Raises ExportError if there is no such player, RunFolderError,
    CheckpointError, UntrustedError.
    """
    with trusting(trust), using_nothing_outside():
        folder = RunFolder.open(run)
        config = read_stored_config(folder.config)
        folder.require_rebuildable()
        execution = config.execution.model_copy(update={"device": "cpu"})
        training = named_classes(config)[0](config.model_copy(update={"execution": execution}), run=folder)
    learned = config.learners()
    if name is None and len(learned) > 1:
        raise ExportError(
            f"expected a player that learned in {run} ({', '.join(learned)}), got none; name it by --player"
        )
    wanted = name or learned[0]
    if wanted not in training.players:
        known = ", ".join(training.players)
        raise ExportError(f"expected a player of {run} with a model ({known}), got {wanted!r}")
    model = training.players[wanted].model
    if isinstance(model, ServerModel):
        expected = f"expected a player with a model in this process, got {wanted!r}, whose model stands behind"
        raise ExportError(f"{expected} {model.config.url}, where its weights are")
    loaded = Checkpoints(folder, keep_last=1, keep_every=None).load(checkpoint, check_rows=False)
    with loaded.fitting():
        training.evaluating.evaluations.restore(loaded.state)
    player: TextPlayer = training.players[wanted]
    return player


def export_text_player(player: TextPlayer, folder: Path) -> int:
    """Write a player's model into a new folder; returns for how many tokens their probabilities were compared.

    Raises ExportError, also if the folder exists.
    """
    with exporting(folder, "player"):
        game = player.game
        first = game.a_long_dialogue(0)[0]
        prompts = cycle([game.prompt(first, role) for role in first.turns()])
        requests = [Request(prompt, key) for key, prompt in zip(range(NUM_ANSWERS), prompts, strict=False)]
        answers = player.model.sample(requests, player.config.sampling)
        player.model.export(folder)
        _compare(folder, answers, player.config.sampling.temperature)
    return sum(len(each.ids) for each in answers)


def _compare(folder: Path, answers: list[Answer], temperature: float) -> None:
    """Raise ExportError if the folder's model gives the tokens of answers other probabilities."""
    kind = library("transformers").AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype="auto", local_files_only=True, trust_remote_code=False)
    for answer in answers:
        ids = torch.tensor([[*answer.prompt_ids, *answer.ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(answer.prompt_ids) - 1 : -1]
        log_probs = torch.log_softmax(logits.float() / temperature, -1)
        found = log_probs.gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
        difference = float((found - torch.tensor(answer.log_probs)).abs().max())
        if not difference < MOST_DIFFERENCE.get(model.dtype, 0.2):
            message = f"expected a model in {folder} that gives tokens the probabilities of the player, got one whose"
            raise ExportError(f"{message} log-probabilities differ by {difference:.2g}")


def loading_lines(folder: Path) -> list[str]:
    """Return lines of Python that load the folder, and let the model answer."""
    path = str(folder.absolute())
    return [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        f"model, tokenizer = (auto.from_pretrained({path!r}) for auto in (AutoModelForCausalLM, AutoTokenizer))",
        'chat = [{"role": "user", "content": "..."}]',
        'ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)',
        'print(tokenizer.decode(model.generate(**ids)[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]
