"""What people type into the site's search, and where it must lead; and the order in which Zensical's search finds."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cmp_to_key
from itertools import takewhile
from typing import NamedTuple

FINDS = {
    # words: the beginning of a place that must be among the first five results
    "resume after kill": "questions.html#the-run-was-killed-how-do-i-resume",
    "go on after kill -9": "questions.html#the-run-was-killed-how-do-i-resume",
    "kill a run": "questions.html#the-run-was-killed-how-do-i-resume",
    "palestra resume": "reference/commands.html#palestra-resume",
    "resume from s3": "storage.html",
    "disk full": "questions.html#the-disk-is-full",
    "checkpoint interval": "questions.html#how-often-are-checkpoints-saved",
    "gae_lambda": "reference/keys.html#gae_lambda",
    "gae lambda": "reference/keys.html#gae_lambda",
    "num_worlds": "reference/keys.html#num_worlds",
    "learning_rate": "reference/keys.html#learning_rate",
    "batch_size": "reference/keys.html#batch_size",
    "clip_range": "reference/keys.html#clip_range",
    "entropy coefficient": "reference/keys.html#entropy_coefficient",
    "replay buffer size": "replay.html",
    "prioritized replay": "replay.html",
    "learning rate schedule": "questions.html#how-do-i-schedule-the-learning-rate",
    "gradient clipping": "questions.html#the-loss-is-nan",
    "why does the first start compile": "time.html#why-the-first-start-compiles",
    "first run slow": "questions.html#the-first-run-is-slow-or-the-start-takes-long",
    "how long does training take": "questions.html#how-long-does-training-take",
    "OMP threads": "config.html#threads",
    "gpu": "questions.html#how-do-i-use-a-gpu",
    "cuda": "questions.html#how-do-i-use-a-gpu",
    "mixed precision bf16": "models.html#precision",
    "out of memory": "questions.html#out-of-memory",
    "there is not enough memory": "questions.html#out-of-memory",
    "loss is nan": "questions.html#the-loss-is-nan",
    "the loss is nan at opt step": "questions.html#the-loss-is-nan",
    "write a protocol": "dialogue.html#a-protocol-and-a-scenario-of-your-own",
    "prover verifier": "start-dialogue.html",
    "own environment": "gymnasium.html#an-environment-of-your-own",
    "custom environment": "gymnasium.html#an-environment-of-your-own",
    "vectorized environments": "gymnasium.html#vectorization",
    "environment hangs": "gymnasium.html#environments-that-hang",
    "no answer for 60 s from its process": "gymnasium.html#environments-that-hang",
    "frame stack atari": "gymnasium.html#atari",
    "reward shaping wrapper": "gymnasium.html#wrappers",
    "normalize observations": "gymnasium.html#normalisation",
    "own algorithm": "own-algorithm.html",
    "custom algorithm": "own-algorithm.html",
    "custom network": "nets.html#a-network-of-your-own",
    "lstm recurrent policy": "nets.html#memory",
    "continuous actions": "which-algorithm.html#by-the-actions",
    "self play": "questions.html#how-do-i-train-by-self-play-or-several-agents",
    "multi agent": "questions.html#how-do-i-train-by-self-play-or-several-agents",
    "freeze opponent": "questions.html#how-do-i-train-by-self-play-or-several-agents",
    "TensorGame": "reference/python/games.html#palestra.games.TensorGame",
    "load_player": "reference/python/palestra.html#palestra.load_player",
    "tensorboard": "recorders.html",
    "wandb": "reference/keys/recording.html#recording.services.WandbConfig",
    "add metric logging": "questions.html#how-do-i-add-or-log-a-metric-of-my-own",
    "record video": "questions.html#how-do-i-record-a-video",
    "evaluate checkpoint": "evaluation.html",
    "best model": "questions.html#which-checkpoint-is-the-best-model",
    "early stopping": "reference/keys/callbacks.html#callbacks.plateau.EarlyStoppingConfig",
    "stop training": "questions.html#how-do-i-stop-training-and-when-does-it-end",
    "tournament elo": "evaluation.html#tournaments",
    "compare two runs": "report.html#palestra-compare",
    "plot learning curves": "figures.html",
    "hyperparameter search optuna": "sweeps.html",
    "population based training": "populations.html",
    "torchrun": "questions.html#expected-1-in-a-program-that-torchrun-has-not-started",
    "multiple GPUs": "replicas.html",
    "distributed training": "replicas.html",
    "mean_over_replicas": "reference/python/palestra.html#palestra.Player.mean_over_replicas",
    "slurm": "questions.html#how-do-i-run-it-on-a-cluster-as-by-slurm",
    "openai api key": "servers.html#from-a-key-to-a-report",
    "budget": "servers.html#budgets",
    "lora": "reference/keys/text.html#text.models.sources.LoRAConfig",
    "fine-tune language model": "text.html",
    "export onnx": "exported-policies.html",
    "load a trained policy in python": "questions.html#how-do-i-load-a-trained-policy-in-python",
    "pretrain behaviour cloning": "trained-models.html#pretraining-of-players",
    "random seed": "questions.html#how-do-i-set-the-random-seed",
    "deterministic": "questions.html#how-do-i-set-the-random-seed",
    "reproducible": "questions.html#how-do-i-set-the-random-seed",
    "exit code": "questions.html#what-do-exit-codes-mean",
    "expected a discount between 0 and 1": "questions.html#a-key-is-missing-or-unknown",
    "unknown key": "questions.html#a-key-is-missing-or-unknown",
    "expected 1 in a program that torchrun has not started": "questions.html#expected-1-in-a-program-that-torchrun",
    "the run was written by another palestra": "continue.html#a-run-of-another-version",
    "install": "questions.html#how-do-i-install-palestra",
    "exists already; a new run needs a folder that does not exist": "questions.html#the-folder-exists-already",
    "is in use by process": "questions.html#the-run-is-in-use-by-a-process",
    "ModuleNotFoundError": "questions.html#a-module-is-missing-or-could-not-be-imported",
    "pip install extra": "questions.html#how-do-i-install-palestra",
    "is not trusted": "questions.html#a-class-or-module-is-not-trusted",
    "checkpoint is damaged": "questions.html#a-checkpoint-is-damaged-or-a-file-differs-from-what-was-written",
    "too many open files": "questions.html#too-many-open-files-or-no-c-compiler",
    "action masking": "questions.html#how-do-i-mask-illegal-actions",
    "confidence interval": "questions.html#how-do-i-get-confidence-intervals",
    "evaluation frequency": "questions.html#how-often-does-it-evaluate",
    "progress bar": "questions.html#how-do-i-turn-off-the-display-its-progress-bar-and-colours",
    "headless rendering": "questions.html#how-do-i-record-a-video",
    "imitation learning": "trained-models.html#pretraining-of-players",
    "dict observation space": "gymnasium.html#observations-and-actions",
    "weight decay": "reference/keys.html#weight_decay",
    "license": "questions.html#how-do-i-cite-palestra-and-what-is-its-license",
    "cite": "questions.html#how-do-i-cite-palestra",
    "stable baselines": "coming-from.html#stable-baselines3",
    "jupyter notebook": "quickstart.html",
    "auxiliary loss": "own-loss.html#an-auxiliary-loss",
    "features extractor": "questions.html#how-do-i-change-the-policys-network-or-its-features-extractor",
    "curriculum": "questions.html#how-do-i-train-by-a-curriculum",
    "max episode steps": "questions.html#how-do-i-limit-an-episodes-length",
    "reward threshold": "questions.html#how-do-i-limit-an-episodes-length-or-end-at-a-reward-threshold",
    "learning curve over seeds": "questions.html#how-do-i-plot-a-learning-curve-over-seeds",
    "keyboard": "questions.html#how-do-i-play-against-it-myself",
    "hyperparameter tuning": "questions.html#how-do-i-tune-hyperparameters",
    "custom policy network": "questions.html#how-do-i-change-the-policys-network",
    "running mean": "gymnasium.html#normalisation",
    "PPOLoss": "reference/python/algorithms.html#palestra.algorithms.losses.ppo.PPOLoss",
}
NUM_LOOKED_AT = 5
SEPARATOR = re.compile(r"""[\s\-_,:!=\[\]()"`/]+|\.(?!\d)|<[^>]*>""")
NEAR = 10


class Item(NamedTuple):
    """A section: what the search finds. path: the titles of the navigation above it."""

    place: str
    title: str
    text: str
    path: str


def words(text: str) -> list[str]:
    return [word.lower() for word in SEPARATOR.split(text) if word]


class Search:
    """Finds items that have all words of a query, as beginnings of their words; misspelt words it does not find.

    The order is that of Zensical 0.0.73: titles first, then paths, then texts. Of two, that comes first which has more
    of the words near each other, then the one where they are nearer, then the one where they come earlier.
    """

    def __init__(self, items: Iterable[Item]) -> None:
        self.items = [
            (item.place, [(words(item.title), 3), (words(item.path), 2), (words(item.text), 1)]) for item in items
        ]
        self._having: dict[str, set[int]] = defaultdict(set)
        for number, (_, fields) in enumerate(self.items):
            for word in {word for field, _ in fields for word in field}:
                self._having[word].add(number)
        self._vocabulary = sorted(self._having)

    def find(self, query: str) -> list[str]:
        """The places, best first."""
        asked = words(query)
        having = [set().union(*(self._having[word] for word in self._beginning(start))) for start in asked]
        numbers = sorted(set.intersection(*having))
        found = [(self._keys(self.items[number][1], asked), self.items[number][0]) for number in numbers]
        return [place for _, place in sorted(found, key=cmp_to_key(lambda one, other: _compare(one[0], other[0])))]

    def _beginning(self, start: str) -> list[str]:
        first = bisect_left(self._vocabulary, start)
        return list(takewhile(lambda word: word.startswith(start), self._vocabulary[first:]))

    @staticmethod
    def _keys(fields: Sequence[tuple[list[str], int]], asked: Sequence[str]) -> list[tuple[int, ...]]:
        """What decides on the order, a tuple for each field that has one of the words."""
        keys = []
        for field, weight in fields:
            hits = [
                (at, [n for n, start in enumerate(asked) if word.startswith(start)]) for at, word in enumerate(field)
            ]
            hits = [(at, which) for at, which in hits if which]
            if hits:
                run = list(_first_run([(at, which[0]) for at, which in hits]))
                keys.append((-weight, -len(run), 1 + run[-1] - run[0] if len(run) > 1 else NEAR, run[0]))
        return keys


def _first_run(hits: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Where different words of a query stand near each other for the first time."""
    seen: set[int] = set()
    last = hits[0][0]
    for at, which in hits:
        if at - last > NEAR or which in seen:
            return
        seen.add(which)
        last = at
        yield at


def _compare(one: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> int:
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return -1 if mine < theirs else 1
    return len(other) - len(one)
