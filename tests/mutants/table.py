"""All mutants."""

from tests.mutants.algorithms import ALGORITHMS
from tests.mutants.buffers import BUFFERS
from tests.mutants.data import DATA
from tests.mutants.evaluation import EVALUATION
from tests.mutants.learning import LEARNING
from tests.mutants.losses import LOSSES
from tests.mutants.models import MODELS
from tests.mutants.parts import PARTS
from tests.mutants.rollouts import ROLLOUTS
from tests.mutants.self_play import SELF_PLAY
from tests.mutants.serving import SERVING_MUTANTS
from tests.mutants.storage import STORAGE
from tests.mutants.sweeps import SWEEPS
from tests.mutants.text import TEXT
from tests.mutants.training import TRAINING

MUTANTS = [
    *ALGORITHMS,
    *LOSSES,
    *LEARNING,
    *BUFFERS,
    *ROLLOUTS,
    *STORAGE,
    *EVALUATION,
    *PARTS,
    *SWEEPS,
    *TRAINING,
    *DATA,
    *TEXT,
    *MODELS,
    *SELF_PLAY,
    *SERVING_MUTANTS,
]
