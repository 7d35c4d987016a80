"""Dialogues, and trees of them, whose roles are behind a server: one call per prompt that begins to wait at once."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from palestra.randomness import base_key, world_keys
from palestra.storage.disk import Folder
from palestra.text.models.model import SamplingConfig
from palestra.text.servers.calls import Calls
from palestra.text.servers.config import ServerConfig
from palestra.text.servers.ledger import Cost
from palestra.text.servers.model import ServerModel
from palestra.text.waves import Waves, Writer
from tests.text.games import text_config
from tests.text.servers.fake import FakeServer, fake_server
from tests.text.servers.runs import at_server

GAME = text_config("nip").build()
SAMPLING = SamplingConfig(temperature=1.0, top_p=None, top_k=None, max_tokens=4)
NUM_ROLLOUTS = 3


def play(server: FakeServer, place: Path, num_continuations: int, stop: Callable[[int], bool], state: object) -> Waves:
    """Play on from a state, with journals in a folder, until a number of steps was made."""
    calls = Calls(lambda: False)
    config = ServerConfig(**at_server(server.url))
    with calls.opened(Folder(place, "calls"), "me", Cost(None, None), 5.0), calls.kept_in("0"):
        writers = {role: Writer(role, ServerModel(role, config, calls), SAMPLING, 1) for role in GAME.roles}
        questions = GAME.questions(world_keys(base_key(0, "questions"), 2, torch.device("cpu")), held_out=False)
        waves = Waves(GAME, writers, questions, NUM_ROLLOUTS, base_key(0, "key"), 0, 4, num_continuations)
        if isinstance(state, dict):
            waves.load_state_dict(state)
        steps = 0
        while not stop(steps) and waves.play_batch():
            steps += 1
    return waves


@pytest.mark.parametrize("num_continuations", [1, 2])
def test_calls_are_grouped_alike_after_a_stop_anywhere(num_continuations: int, tmp_path: Path) -> None:
    with fake_server() as server:
        (tmp_path / "whole").mkdir()
        server.plan.append("no_usage")
        whole = play(server, tmp_path / "whole", num_continuations, lambda _: False, None)
        expected = [(row.question, row.rollout, row.node, row.answer) for row in whole.rollouts().rows]
        asked, num_answers = +server.asked, Counter(json.loads(body)["n"] for body in server.asked)
        assert num_answers[NUM_ROLLOUTS * num_continuations] == 2, "one call for the first answers to each question"
        assert (num_answers[2] > 0) == (num_continuations == 2), "one call for the answers of continuations"
        assert max(asked.values()) == 1
        lines = [json.loads(line) for line in (tmp_path / "whole" / "calls" / "0.jsonl").read_text().splitlines()]
        written = [
            line["usage"]["output"] if line["usage"] else len(line["choices"]) * SAMPLING.max_tokens
            for line in lines
            if line["kind"] == "answered"
        ]
        assert whole.counts()["tokens"] == sum(written)
        server.asked.clear()
        (tmp_path / "stopped").mkdir()
        state: object = None
        for steps in (2, 3, 1, 4):
            waves = play(server, tmp_path / "stopped", num_continuations, lambda made, most=steps: made == most, state)
            state = waves.state_dict() if steps != 1 else state  # once nothing was saved
        found = play(server, tmp_path / "stopped", num_continuations, lambda _: False, state)
        assert [(row.question, row.rollout, row.node, row.answer) for row in found.rollouts().rows] == expected
        assert server.asked == asked
