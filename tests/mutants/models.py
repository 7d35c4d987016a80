"""Mistakes in models that learn from data: scores, metrics, pieces of batches, and what becomes of trained ones."""

from tests.mutants.mutant import mutants

USE = "kinds/data/test_models.py"
STARTS = "run/test_warm_starts.py"
SEATS = "kinds/games/test_copied_models.py"
REPLICAS = "kinds/data/test_model_replicas.py"

MODELS = [
    *mutants(
        "models/scoring.py",
        "models/test_scoring.py",
        ("if bool(((values == 0) | (values == 1)).all()):", "if False:"),
        ("float(weight.sum()) ** 2 / squares", "len(weight)"),
        ("min(found.high, 1.0)", "found.high"),
    ),
    *mutants(
        "models/gradients.py",
        "models/test_learning.py",
        ("if type(part) is list and not is_batch:", "if type(part) is list:"),
        ("if type(part) is list and not is_batch:", "if False:"),
    ),
    *mutants(
        "models/learning.py",
        f"{REPLICAS} models/test_means.py",
        ("found.total if self.num_items else 0.0)", "float(self.num_items))"),
        ("found.total if self.num_items else 0.0)", "found.total)"),
        ("divisor, {}, self.num_items)", "divisor, {}, 1.0)"),
    ),
    *mutants(
        "models/learning.py",
        "models/test_means.py",
        ("    with restored_torch_states():\n", "    if True:\n"),
        ("        vector.unreached = [next(are_unreached) for _ in vector.parameters]\n", ""),
    ),
    *mutants(
        "models/model.py",
        REPLICAS,
        ('return self.__dict__ | {"learner": None}', "return self.__dict__"),
    ),
    *mutants(
        "kinds/data/trainer.py",
        REPLICAS,
        ("self.replica.mean(changes, own, self.learner.num_items)", "self.replica.mean(changes, own)"),
        ("torch.where(now == before, 0.0, now - before)", "now - before"),
        ("if self.replica.num_means == self._num_means:", "if False:"),
        ("first = next((each for is_finite, each in of_all if not is_finite), key)", "first = key"),
    ),
    *mutants(
        "kinds/data/trainer.py",
        REPLICAS,
        ("self.num_batches + self.replica.index)", "self.opt_steps + self.replica.index)"),
        ("        self.lockstep.agree_on_end()\n", ""),
        ("LockstepError, ReplicaFailed, RankLost):", "LockstepError, RankLost):"),
        ("LockstepError, ReplicaFailed, RankLost):", "LockstepError, ReplicaFailed):"),
        ("        self.lockstep.handed_over[SEAT], self._is_given = copied, True\n", "        self._is_given = True\n"),
        ('            "num_batches": self.num_batches,\n', '            "num_batches": 0,\n'),
    ),
    *mutants(
        "data/loading.py",
        REPLICAS,
        ("        if start % num:\n            return\n", ""),
    ),
    *mutants(
        "models/metrics.py",
        "models/test_metrics.py",
        ("len(table) == len(table[0]) or not is_library", "True"),
        ("label.long() * num + outputs.argmax(dim=1)", "outputs.argmax(dim=1) * num + label.long()"),
        ("below + (num + 1) / 2", "below + 1"),
    ),
    *mutants(
        "kinds/data/judging.py",
        "kinds/data/test_trainer.py::test_metrics_are_tried_before_there_is_a_folder",
        ("                except NotComputed:\n", "                except ():\n"),
    ),
    *mutants(
        "kinds/data/predictions.py",
        USE,
        ("np.arange(num)", "np.arange(num) + 1"),
        ("for each in (LABEL, \"class\") if each in columns", "for each in (LABEL,) if each in columns"),
    ),
    *mutants(
        "kinds/data/export.py",
        USE,
        ("if not torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):", "if False:"),
        ("    _require_tensors(found, \"what forward returns\", \"outputs\")\n", ""),
        ("if each == SIZES else", "if False else"),
    ),
    *mutants(
        "kinds/data/models.py",
        STARTS,
        ("if config.take == \"body\" else dict(weights))", "if False else dict(weights))"),
    ),
    *mutants(
        "kinds/games/warm_starts.py",
        STARTS,
        ("if body and not is_inside and shapes ==", "if not found and body and shapes =="),
        ("if game.observations().normalize is not None:", "if False:"),
    ),
    *mutants(
        "kinds/games/imported_players.py",
        SEATS,
        ("if (copied := find_copy(copies, name, _origin(config))) is None:", "if (copied := None) is None:"),
    ),
    *mutants(
        "models/labelled.py",
        SEATS,
        ("logits.masked_fill(~(legal | ~legal.any(dim=1, keepdim=True)), -torch.inf)", "logits"),
        ("best_choice(self(observation), legal)", "self(observation).argmax(dim=1)"),
    ),
]  # fmt: skip
