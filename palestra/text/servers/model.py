"""A model behind a server: its answers are calls."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from torch import Tensor

from palestra.config import below
from palestra.text.models.extra import library
from palestra.text.models.model import Answer, Job, Prompt, PromptRefused, Request, SamplingConfig, TextModel, Tuning
from palestra.text.servers.calls import Call, Calls, Reply
from palestra.text.servers.client import Background, Client
from palestra.text.servers.config import ServerConfig
from palestra.text.servers.ledger import worst_of_call

MOST_SEED = 2**31  # what servers take as a seed


class ServerModel(TextModel):
    """A model that is asked by calls, of which many may be out at a time.

    model: its name at the server, which a job changes. base: the name with which the run began. calls: makes the calls.
    """

    def __init__(self, player: str, config: ServerConfig, calls: Calls) -> None:
        """Make the model; nothing is sent. player: who has it. Raises MissingExtra."""
        library("openai")
        self.player, self.config, self.calls = player, config, calls
        self.base = self.model = config.model

    # ---- answers -----------------------------------------------------------------------------------------

    def ask(self, prompt: Prompt, key: int, decisions: Sequence[Sequence[int | str]], sampling: SamplingConfig) -> int:
        """Ask for an answer for each decision, by one call, and return the ticket by which `Calls.take` gives them.

        Raises PromptRefused. key: as of a Request; a server that goes by seeds gives equal answers to equal calls.
        """
        _require_readable(prompt, 0)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": each.role, "content": each.content} for each in prompt],
            "temperature": sampling.temperature,
            "max_completion_tokens": sampling.max_tokens,
            "n": len(decisions),
            "seed": key % MOST_SEED,
        }
        body |= {name: value for name in ("top_p", "top_k") if (value := getattr(sampling, name)) is not None}
        prices = self.config.exact_prices()
        worst, alone = (worst_of_call(prompt, num, sampling.max_tokens, prices) for num in (len(decisions), 1))
        return self.calls.ask(self.calls.client(self.config), Call(decisions, self.player, body, worst, alone, prices))

    def sample(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[Answer]:
        """Answer all requests, each by a call of its own, and wait for them.

        Raises PromptRefused, before anything is sent; CallFailed, BudgetReached and RunFolderError, as Calls.take does.
        """
        for index, each in enumerate(requests):
            _require_readable(each.prompt, index)
        tickets = [self.ask(each.prompt, each.key, [[each.key]], sampling) for each in requests]
        found: dict[int, Reply] = {}
        while len(found) < len(tickets):
            found |= self.calls.take(frozenset(tickets), 0.5)
        return [answers_of(found[ticket])[0] for ticket in tickets]

    def written(self, prompt: Prompt, text: str) -> Answer:
        return Answer(text, (), (), (), "stop")

    def answer_ids(self, text: str, num_read: int) -> tuple[int, ...]:
        return ()

    # ---- learning ----------------------------------------------------------------------------------------

    def check_tuning(self, config: Any) -> None:
        pass

    def tuning(self, job: Job, config: Any, key: int) -> Tuning:
        raise NotImplementedError("a model behind a server is tuned by its jobs there")

    def keep_reference(self) -> None:
        pass

    def begin_with(self, base: str, weights: Mapping[str, Tensor]) -> None:
        self.base = self.model = base

    def export(self, folder: Path) -> None:
        raise NotImplementedError("the weights of a model behind a server lie there")

    def state_dict(self) -> dict[str, Any]:
        """Return the name of the model at the server as `base`."""
        return {"base": self.model, "weights": {}, "reference": None, "optimizer": None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model = state["base"]


def check_servers(models: Mapping[str, ServerModel], with_network: bool) -> None:
    """Raise ConfigError, with paths of a run's config, for a key whose variable is not set.

    models: by player. with_network: also for a server that cannot be reached, and for a model that it does not have.
    """
    with closing(Background()) as background:
        for config, (name, model) in {model.config: (name, model) for name, model in models.items()}.items():
            with below(f"players.{name}.model"):
                client = Client(config, background)
                if with_network:
                    with closing(client):
                        client.start(client.require_model(model.model)).result()


def answers_of(reply: Reply) -> list[Answer]:
    """Return the answers of a call, whose tokens nobody knows here."""
    return [Answer(text, (), (), (), stop) for text, stop in reply.texts]


def _require_readable(prompt: Prompt, index: int) -> None:
    """Raise PromptRefused for a prompt that JSON cannot hold: with half of a character. index: of its request."""
    try:
        "".join(each.content for each in prompt).encode()
    except UnicodeEncodeError as error:
        raise PromptRefused(f"no server can read the prompt: {error}", index) from error
