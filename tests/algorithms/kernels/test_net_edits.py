"""What one reads of networks is what runs: whatever is put into them, or in the place of their parts, is learned as
autograd learns it, and played, and a line at the start says so."""

from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from palestra.algorithms.dqn import DQN
from palestra.algorithms.parts.advantages import Experience
from palestra.algorithms.parts.distributions import Categorical
from palestra.algorithms.ppo import PPO
from palestra.nets.activations import Tanh
from palestra.nets.kernels.acting import ActingNet, acting_net
from palestra.nets.kernels.learning import learning_net
from palestra.nets.mlp import MLP
from palestra.nets.weights import flatten_weights
from tests.algorithms.kernels.ppo_variants import make_ppo, ppo_data, ppo_numbers
from tests.algorithms.kernels.test_edits import learned
from tests.algorithms.kernels.variants import PRIORITIZED, SETS, VECTOR, boards, make_dqn, make_flat
from tests.algorithms.test_sac import make_sac
from tests.nets.making import build, random_observations

Edit = Callable[[Any], Any]
NET = {"name": "mlp", "net_arch": [16, 16], "activation": "relu"}


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x


class OwnLayers(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x)


class OwnCall(MLP):
    def __call__(self, observation: Any) -> Any:
        return 2.0 * super().__call__(observation)


def assign_forward(net: MLP) -> None:
    stock = net.layers[2].forward
    net.layers[2].forward = lambda x: 2.0 * stock(x)


EDITS: dict[str, tuple[Edit, str]] = {
    "a hook": (lambda net: net.register_forward_hook(lambda _, __, outputs: 2.0 * outputs), "MLP has hooks"),
    "a hook on a layer": (
        lambda net: net.layers[0].register_forward_pre_hook(lambda _, inputs: (2.0 * inputs[0],)),
        "Linear has hooks",
    ),
    "a hook on weights": (
        lambda net: net.layers[0].weight.register_hook(lambda gradient: 2.0 * gradient),
        "Linear has hooks on its weights",
    ),
    "forward of a layer": (assign_forward, "Linear is called otherwise"),
    "own layers": (lambda net: setattr(net, "layers", OwnLayers(*net.layers)), "OwnLayers is another layer"),
    "another activation": (lambda net: setattr(net.layers, "1", Tanh()), "MLP has other layers than"),
    "an activation more": (lambda net: net.layers.append(nn.ReLU()), "MLP has other layers than"),
    "another class": (lambda net: setattr(net, "__class__", OwnCall), "OwnCall is called otherwise"),
    "parametrized": (
        lambda net: register_parametrization(net.layers[0], "weight", Halved()),
        "ParametrizedLinear is another layer",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_network_is_learned_and_played(edit: str) -> None:
    change, said = EDITS[edit]
    seen, keys = random_observations(VECTOR, torch.arange(9)), torch.arange(9)
    dqns = [make_dqn(by_hand=by_hand, net=NET, replay_buffer=PRIORITIZED) for by_hand in (True, False)]
    lines = []
    for dqn in dqns:
        change(dqn.online.net)
        lines.append(dqn.begin_run())
    assert all(len(each) == 1 and each[0].startswith(said) and "torch computes mlps" in each[0] for each in lines)
    assert dqns[0].gradient_kernel is None
    one, other = map(learned, dqns)
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)
    stock = learned(make_dqn(net=NET, replay_buffer=PRIORITIZED))
    assert not torch.allclose(one["gradient"], stock["gradient"], atol=1e-4)
    with torch.no_grad():
        q_values = dqns[0].online.net(seen)
        assert torch.allclose(dqns[0].values(seen), q_values, atol=1e-6)
    played = dqns[0].policy(explore=False).act(seen, torch.ones(9, 4, dtype=torch.bool), keys, {}).action
    assert torch.equal(played, q_values.argmax(dim=1))


class Shifted(MLP):
    """With a weight before those of the layers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.first = nn.Parameter(torch.zeros(3))


def without_bias(net: MLP) -> None:
    net.layers = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 4))


def tied(net: MLP) -> None:
    layer = nn.Linear(3, 3)
    net.layers = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(3, 4))


def with_a_weight_more(net: MLP) -> None:
    net.more = nn.Parameter(torch.zeros(3))


def frozen(net: MLP) -> None:
    net.layers[0].requires_grad_(False)


@pytest.mark.parametrize("change", [without_bias, tied, with_a_weight_more, frozen])
def test_networks_with_other_weights_have_no_learning_kernel(change: Callable[[MLP], None]) -> None:
    net: Any = build(NET, VECTOR)
    flatten_weights(net)
    assert learning_net(net) is not None
    change(net)
    flatten_weights(net)
    assert learning_net(net) is None
    assert isinstance(acting_net(net), ActingNet) == (change is frozen)


def test_norms_that_differ_have_no_kernel() -> None:
    net: Any = make_flat(VECTOR, name="mlp", net_arch=[8, "b", 8, "b"], activation="relu")
    net.layers[1].eps = 0.1
    assert not isinstance(acting_net(net), ActingNet)


def test_an_edited_network_of_sets_is_named() -> None:
    spaces = SETS["a board"]
    dqn = make_dqn(spaces=spaces, net={"name": "deep_sets", "point_widths": [8], "head_widths": [5]})
    assert dqn.begin_run() == []
    dqn.online.net.register_forward_hook(lambda _, __, outputs: 2.0 * outputs)
    (line,) = dqn.begin_run()
    assert line.startswith("DeepSets has hooks: torch computes sets")
    seen = boards(spaces, 9)
    assert torch.allclose(dqn.values(seen), dqn.online.net(seen))


# ---- PPO's network and its head ----------------------------------------------------------------------------------


class Sharper:
    """As a Categorical, of which it is none."""

    def __init__(self, family: Categorical) -> None:
        self.family, self.nums, self.is_single = family, family.nums, family.is_single

    def distribution(self, logits: Tensor, legal: Tensor) -> Any:
        return self.family.distribution(3.0 * logits, legal)

    def sample(self, logits: Tensor, legal: Tensor, keys: Tensor) -> Any:
        return self.family.sample(3.0 * logits, legal, keys)


class OwnHead(nn.Module):
    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head, self.family, self.draw = [head], head.family, head.draw

    def distribution(self, outputs: Tensor, legal: Tensor) -> Any:
        return self.head[0].distribution(3.0 * outputs, legal)


OF_PPO: dict[str, tuple[str, Edit]] = {
    "a hook on all": (
        "discrete",
        lambda net: net.register_forward_hook(lambda _, __, out: out | {"policy": 3.0 * out["policy"]}),
    ),
    "a family": ("discrete", lambda net: setattr(net.head, "family", Sharper(net.head.family))),
    "a head": ("discrete", lambda net: setattr(net, "head", OwnHead(net.head))),
    "a hook on the deviation": ("clipped box", lambda net: net.head.log_std.register_hook(lambda each: 3.0 * each)),
    "a parametrized deviation": ("clipped box", lambda net: register_parametrization(net.head, "log_std", Halved())),
}


@pytest.mark.parametrize("edit", OF_PPO)
def test_an_edited_actor_critic_is_learned(edit: str) -> None:
    actions, change = OF_PPO[edit]
    gradients = []
    for changed, by_hand in ((False, True), (True, True), (True, False)):
        ppo = make_ppo(actions=actions, by_hand=by_hand)
        experience, index = ppo_data(ppo)
        if changed:
            change(ppo.net)
        says = [line for line in ppo.begin_run() if "autograd finds the gradients" in line]
        assert len(says) == (changed and by_hand)
        arrays = None if ppo.gradient_kernel is None else ppo.gradient_kernel.read(experience)
        gradients.append(ppo.find_gradient(experience, index, ppo_numbers(ppo), arrays)[0].clone())
    stock, one, other = gradients
    assert torch.allclose(one, other, atol=1e-6)
    assert not torch.allclose(one, stock, atol=1e-4)


def test_experience_of_another_class_is_learned_by_its_methods() -> None:
    class Own(Experience):
        def normalized(self, normalize_advantages: bool) -> Experience:
            raise NotImplementedError("mine")

        def minibatch(self, index: Tensor) -> Experience:
            return Own(*super().minibatch(index))

    ppo = make_ppo()
    ppo.passes.experience = Own(*ppo_data(ppo)[0])
    with pytest.raises(NotImplementedError, match="mine"):
        ppo.make_pass()


# ---- later ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [DQN, PPO])
def test_a_method_that_is_assigned_to_the_class_counts_from_begin_run_on(
    cls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner: Any = make_dqn() if cls is DQN else make_ppo()
    kernel, stock = owner.gradient_kernel, cls.loss
    monkeypatch.setattr(cls, "loss", lambda *arguments, **named: stock(*arguments, **named))
    assert owner.gradient_kernel is kernel is not None
    owner.begin_run()
    assert owner.gradient_kernel is None
    monkeypatch.undo()
    owner.begin_run()
    assert owner.gradient_kernel is not None


def test_a_class_or_config_that_is_assigned_counts_from_begin_run_on() -> None:
    dqn: Any = make_dqn()
    assert dqn.gradient_kernel is not None
    dqn.__class__ = type("Own", (DQN,), {"loss": lambda *_: {}})
    dqn.begin_run()
    assert dqn.gradient_kernel is None
    dqn.__class__ = DQN
    value = type("OwnValue", (type(dqn.config.value),), {"losses": lambda *_: 0.0})(name="expected", huber_delta=1.0)
    dqn.config = dqn.config.model_copy(update={"value": value})
    dqn.begin_run()
    assert dqn.gradient_kernel is None


def test_a_method_of_another_object_is_learned() -> None:
    dqn: Any = make_dqn()
    dqn.loss = MethodType(DQN.loss, make_dqn(gamma=0.1))
    assert dqn.gradient_kernel is None


def test_an_update_that_is_assigned_is_what_runs() -> None:
    sac: Any = make_sac()
    assert sac.update_fast == sac.update
    sac.update = own = Halved()
    sac.begin_run()
    assert sac.update_fast is own
