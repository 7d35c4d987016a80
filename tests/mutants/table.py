"""All mutants."""

from tests.mutants.of_algorithms import ALGORITHMS
from tests.mutants.of_buffers import BUFFERS
from tests.mutants.of_evaluation import EVALUATION
from tests.mutants.of_learning import LEARNING
from tests.mutants.of_losses import LOSSES
from tests.mutants.of_parts import PARTS
from tests.mutants.of_rollouts import ROLLOUTS
from tests.mutants.of_storage import STORAGE
from tests.mutants.of_sweeps import SWEEPS
from tests.mutants.of_training import TRAINING

MUTANTS = [*ALGORITHMS, *LOSSES, *LEARNING, *BUFFERS, *ROLLOUTS, *STORAGE, *EVALUATION, *PARTS, *SWEEPS, *TRAINING]
