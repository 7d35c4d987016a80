"""What a job computes: a tuning of a model on the examples of a file. Equal jobs give equal bits, wherever they run."""

from typing import Any, Literal

from palestra.config import check
from palestra.randomness import base_key
from palestra.storage.facts import Count, Entry
from palestra.text.models.local import LocalModel
from palestra.text.models.losses import PreferenceConfig, SupervisedConfig
from palestra.text.models.model import Job
from palestra.text.models.tuning import LocalTuning, TuningConfig
from palestra.text.servers.job_files import preference_examples, supervised_examples

LEARNING_RATE = 0.001  # of the multiplier 1
ADAM = {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}


class Method(Entry):
    """How a model is tuned: the parameters of a job that change its bits.

    beta: of a preference loss; None for a supervised one. seed: of which the order of the examples is drawn.
    """

    name: Literal["supervised", "dpo"]
    n_epochs: Count
    batch_size: Count
    learning_rate_multiplier: float
    beta: float | None
    seed: int

    def config(self) -> TuningConfig:
        """Return the opt steps that these parameters stand for."""
        rate = LEARNING_RATE * self.learning_rate_multiplier
        group: dict[str, Any] = {
            "weights": "*",
            "learning_rate": {"name": "constant", "value": rate},
            "optimizer": ADAM,
        }
        data = {"num_passes": self.n_epochs, "batch_size": self.batch_size, "num_microbatches": 1, "groups": [group]}
        return check(data | {"max_grad_norm": 1.0, "precision": "float32"}, TuningConfig)

    def begin(self, model: LocalModel, content: bytes) -> LocalTuning:
        """Prepare the tuning of a model on the examples of a file. Raises JobFileError, which names the line."""
        if self.beta is None:
            supervised = SupervisedConfig(name="supervised", per="token")
            job = Job(supervised_examples(model, content), supervised, "before", 1.0)
        else:
            preference = PreferenceConfig(name="preference", beta=self.beta)
            job = Job(preference_examples(model, content), preference, "before", 1.0)
        return LocalTuning(model, job, self.config(), base_key(self.seed, "fine_tuning"))
