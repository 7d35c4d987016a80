"""All kernels, and what they are compared with. `make kernels` traces the same variants, to learn which functions the
methods call."""

from collections.abc import Iterator
from itertools import product

from tests.algorithms.kernels.ppo_variants import advantages_variants, draw_variants, ppo_variant, ppo_variants
from tests.algorithms.kernels.variants import (
    SET_NETS,
    SETS,
    Variant,
    dqn_variant,
    dqn_variants,
    greedy_variants,
    mlp_variants,
    sets_variants,
)


def of_sets_variants() -> Iterator[Variant]:
    """Not traced: these networks have a guard of their own, and to edit them is no reason to do without kernels for
    others."""
    for (name, spaces), net in product(SETS.items(), SET_NETS):
        yield dqn_variant(f"{name}, {net['name']}", (), spaces, net=net)
        bodies = {"name": "separate", "policy": net, "value": net}, {"name": "shared", "net": net}
        for body in bodies:
            yield ppo_variant(f"{name}, {net['name']}, {body['name']}", spaces=spaces, body=body)


OF_SETS = [*of_sets_variants()]
OF_PPO = [*ppo_variants(), *advantages_variants(), *draw_variants()]
VARIANTS = [*mlp_variants(), *sets_variants(), *dqn_variants(), *greedy_variants(), *OF_PPO]
KERNELS = list(dict.fromkeys(variant.kernel for variant in VARIANTS))
