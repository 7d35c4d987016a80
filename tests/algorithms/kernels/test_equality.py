"""Hand-written kernels give the numbers of the methods that they stand in for.

Covers palestra.algorithms.kernels.dqn, palestra.algorithms.kernels.ppo.
"""

import numpy as np
import pytest
import torch

from palestra.runtime.guard import find_edit
from tests.algorithms.kernels.ppo_variants import ACTIONS, make_ppo, ppo_by_hand, ppo_data
from tests.algorithms.kernels.table import OF_SETS, VARIANTS
from tests.algorithms.kernels.variants import Variant, without_kernels


@pytest.mark.parametrize("variant", VARIANTS + OF_SETS, ids=str)
def test_a_kernel_gives_the_numbers_of_the_methods(variant: Variant) -> None:
    """Gradients, metrics and priorities alike, under the same names."""
    owner = variant.make()
    assert find_edit(variant.kernel, owner) is None
    found = variant.by_hand(owner, variant.data())
    expected = variant.by_torch(without_kernels(variant.make()), variant.data())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        value, other = torch.as_tensor(value), torch.as_tensor(found[name], dtype=torch.as_tensor(value).dtype)
        assert torch.allclose(other, value, rtol=1e-4, atol=1e-5 * max(1.0, float(value.abs().max()))), name


@pytest.mark.parametrize("actions", ACTIONS)
def test_rows_that_do_not_count_leave_no_trace_in_ppo_s_gradient(actions: str) -> None:
    """Whatever they hold, also where no row of a minibatch counts."""
    ppo = make_ppo(actions=actions)
    experience, index = ppo_data(ppo)
    counts = experience.weight > 0
    observation = {name: value.clone() for name, value in experience.observation.items()}
    for value in observation.values():
        value[~counts] = torch.nan
    expected = ppo_by_hand(ppo, (experience, index))
    for rows in (index, index[counts[index]]):
        found = ppo_by_hand(ppo, (experience._replace(observation=observation), rows))
        for name, value in expected.items():
            assert np.array_equal(found[name], value), name
    none = ppo_by_hand(ppo, (experience, index[~counts[index]]))
    assert not any(np.asarray(value).any() for value in none.values())


def test_every_variant_of_a_kernel_has_a_name_of_its_own() -> None:
    assert len({str(variant) for variant in VARIANTS + OF_SETS}) == len(VARIANTS + OF_SETS)
