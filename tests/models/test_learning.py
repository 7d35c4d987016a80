"""Opt steps of a model are those of a bare loop of torch, whatever the number of microbatches.

Covers palestra.models.gradients, palestra.models.groups, palestra.models.model.
"""

import copy
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from palestra.config import ConfigError, check
from palestra.data.items import joined_items, moved
from palestra.models.gradients import TermsError, added, find_gradient, num_items, pieces
from palestra.models.groups import Vector
from palestra.models.learning import Learner, LearningConfig, LossScale
from palestra.models.model import Model, Terms


class Net(Model):
    """Two layers, the second of which is tied to a third; a frozen weight; one that no term reaches."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 3)
        self.tied = self.second
        self.scale = nn.Parameter(torch.full((3,), 2.0), requires_grad=False)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.tied(torch.tanh(self.first(batch["x"]))) * self.scale

    def loss(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Terms:
        entropy = cross_entropy(outputs, batch["label"], reduction="none")
        size = 0.01 * outputs.square().sum(dim=1)
        right = (outputs.argmax(dim=1) == batch["label"]).float()
        return {"loss_label": entropy, "loss_size": size, "accuracy": right, "weight": batch["tokens"]}


def learning(groups: list[dict[str, Any]], **keys: Any) -> LearningConfig:
    said = {
        "order": {"name": "shuffled"},
        "batch_size": 13,
        "last_batch": "keep",
        "seeding": None,
        "num_microbatches": 1,
        "groups": groups,
        "max_grad_norm": None,
        "ema": None,
        "precision": "float32",
    }
    return check(said | keys, LearningConfig)


def sgd(weights: str, rate: float) -> dict[str, Any]:
    return {
        "weights": weights,
        "optimizer": {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0},
        "learning_rate": {"name": "linear", "initial": rate, "final": 0.0, "num_steps": 20},
    }


def adamw(weights: str, rate: float, decay: float) -> dict[str, Any]:
    arguments = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": decay, "amsgrad": False, "maximize": False}
    return {
        "weights": weights,
        "optimizer": {"name": "torch.optim:AdamW", "arguments": arguments},
        "learning_rate": {"name": "constant", "value": rate},
    }


def net(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(3)
    return Net({}).to(dtype)


def batch(number: int, size: int = 13, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(number)
    return {
        "x": torch.randn(size, 5, generator=drawn).to(dtype),
        "label": torch.randint(3, (size,), generator=drawn),
        "tokens": torch.randint(1, 9, (size,), generator=drawn).to(dtype),
    }


def loss_of(model: Net, rows: dict[str, Tensor]) -> Tensor:
    """As whoever knows torch writes it."""
    terms = model.loss(model(rows), rows)
    return ((terms["loss_label"] + terms["loss_size"]) * rows["tokens"]).sum() / rows["tokens"].sum()


@pytest.mark.parametrize("num_microbatches", [1, 2, 4])
@pytest.mark.parametrize("kind", ["sgd", "adamw in two groups"])
def test_opt_steps_are_those_of_a_bare_loop(kind: str, num_microbatches: int) -> None:
    bare, ours = net(), net()
    if kind == "sgd":
        groups = [sgd("*", 0.5)]
        optimizer: torch.optim.Optimizer = torch.optim.SGD([p for p in bare.parameters() if p.requires_grad], lr=0.5)
    else:
        groups = [adamw("*weight", 0.01, 0.1), adamw("*bias", 0.02, 0.0)]
        named = {n: p for n, p in bare.named_parameters() if p.requires_grad}
        optimizer = torch.optim.AdamW(
            [
                {"params": [p for n, p in named.items() if n.endswith("weight")], "lr": 0.01, "weight_decay": 0.1},
                {"params": [p for n, p in named.items() if n.endswith("bias")], "lr": 0.02, "weight_decay": 0.0},
            ]
        )
    learner = Learner(ours, learning(groups, num_microbatches=num_microbatches, max_grad_norm=0.7))
    for number in range(10):
        rows = batch(number)
        if kind == "sgd":
            optimizer.param_groups[0]["lr"] = 0.5 * (1 - number / 20)
        optimizer.zero_grad()
        loss = loss_of(bare, rows)
        loss.backward()
        norm = nn.utils.clip_grad_norm_([p for p in bare.parameters() if p.requires_grad], 0.7)
        optimizer.step()
        metrics = opt_step(learner, rows)
        torch.testing.assert_close(metrics["loss"], loss.detach(), rtol=0, atol=1e-6)
        torch.testing.assert_close(metrics["grad_norm"], norm, rtol=0, atol=1e-6)
    for one, other in zip(bare.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert torch.equal(ours.scale, torch.full((3,), 2.0))


def opt_step(learner: Learner, rows: dict[str, Tensor]) -> Terms:
    metrics = learner.opt_step(rows)
    learner.opt_steps += 1  # as a trainer counts
    return metrics


def gradient(num_microbatches: int, rows: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    model = net(dtype)
    weights = [p for p in model.parameters() if p.requires_grad]
    found = find_gradient(model, rows, num_microbatches, weights, torch.enable_grad)
    return [each / found.total for each in found.sums if each is not None]


def test_microbatches_change_rounding_alone() -> None:
    rows = batch(0)
    whole = gradient(1, rows)
    for num in (2, 4, 13):
        for one, other in zip(whole, gradient(num, rows), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        again = gradient(num, rows)
        assert all(torch.equal(one, other) for one, other in zip(gradient(num, rows), again, strict=True))


@pytest.mark.parametrize("lengths", [(2, 2), (1, 3)])
def test_lists_have_an_entry_for_each_item_and_tuples_have_parts(lengths: tuple[int, int]) -> None:
    x = torch.arange(2)
    ragged = [torch.ones(length) for length in lengths]  # with two rows each they might be taken for tensors of items
    texts = ["a", "b"]
    found = list(pieces({"text": texts, "names": ("c", "d"), "ids": ragged, "inputs": (x, x + 2), "all": "ab"}, 2))
    for at, text in enumerate(texts):
        assert (found[at]["text"], found[at]["names"], found[at]["all"]) == ([text], (["c", "d"][at],), "ab")
        assert [len(each) for each in found[at]["ids"]] == [lengths[at]]
        assert [each.tolist() for each in found[at]["inputs"]] == [[at], [at + 2]]
    assert list(map(num_items, found)) == [1, 1]
    # What torch makes of pairs is a list, too, but the batch itself.
    assert [(names, rows.tolist()) for names, rows in pieces([("a", "b"), x], 2)] == [(("a",), [0]), (("b",), [1])]
    assert list(pieces(texts, 2)) == [["a"], ["b"]]
    assert list(pieces({"ids": ragged[:1]}, 2)) == [{"ids": ragged[:1]}]


@pytest.mark.parametrize(
    ("batch", "num"),
    [
        ({"ids": [torch.ones(4), torch.ones(2), torch.ones(5)], "label": torch.ones(3)}, 3),
        ({"ids": [torch.ones(4), torch.ones(2), torch.ones(5)]}, 3),
        ({"text": ["a", "b"], "image": torch.ones(())}, 2),
        ([torch.ones(4), torch.ones(4)], 4),
    ],
)
def test_items_are_counted_by_the_first_tensor_else_by_the_first_list(batch: Any, num: int) -> None:
    assert num_items(batch) == num


def test_a_mapping_that_is_no_dict_is_a_batch() -> None:
    """As a BatchEncoding of transformers, which has its entries as attributes, too."""
    batch = UserDict({"text": ["a", "b", "c"], "ids": torch.arange(3), "inner": UserDict({"x": torch.arange(3.0)})})
    assert num_items(UserDict({"inner": batch})) == 3
    found = list(pieces(batch, 2))
    assert [each.data["inner"]["x"].tolist() for each in found] == [[0.0], [1.0, 2.0]]
    assert [each["text"] for each in found] == [["a"], ["b", "c"]]
    there = moved(batch, torch.device("meta"))
    assert (there["ids"].is_meta, there["inner"]["x"].is_meta, there["text"]) == (True, True, ["a", "b", "c"])
    assert not batch["inner"]["x"].is_meta


def test_pairs_in_items_are_tuples_in_batches() -> None:
    x = torch.arange(2)
    found = joined_items([{"pair": (one, [one, "text"]), "text": "b"} for one in x])
    assert found["text"] == ["b", "b"]
    assert [each["pair"][0].tolist() for each in pieces(found, 2)] == [[0], [1]]
    assert [each["pair"][1][1] for each in pieces(found, 2)] == [("text",), ("text",)]


def test_gradients_are_added_in_one_tree() -> None:
    """As brackets: of five pieces ((01)(23))4."""
    order: list[str] = []

    class Named(str):
        def __add__(self, other: str) -> "Named":
            order.append(f"({self}{other})")
            return Named(order[-1])

    pieces: Any = ([Named(number)] for number in range(5))
    assert added(pieces) == ["(((01)(23))4)"]


def test_an_average_of_the_weights_follows_them() -> None:
    model = net()
    learner = Learner(model, learning([sgd("*", 0.5)], ema={"decay": 0.75}))
    average = [p.detach().clone() for p in model.parameters()]
    for number in range(5):
        opt_step(learner, batch(number))
        average = [0.75 * a + 0.25 * p.detach() for a, p in zip(average, model.parameters(), strict=True)]
    now = [p.detach().clone() for p in model.parameters()]
    with learner.averaged():
        for one, other in zip(average, model.parameters(), strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=0, atol=1e-6)
    assert all(torch.equal(one, other) for one, other in zip(now, model.parameters(), strict=True))


@pytest.mark.parametrize("ema", [None, {"decay": 0.9}])
def test_a_learner_goes_on_to_the_same_bits(ema: dict[str, float] | None) -> None:
    keys: dict[str, Any] = {"ema": ema, "precision": "bfloat16", "num_microbatches": 2}
    config = learning([adamw("*weight", 0.01, 0.1), adamw("*bias", 0.02, 0.0)], **keys)
    whole, begun, resumed = net(), net(), net()
    one, two, three = Learner(whole, config), Learner(begun, config), Learner(resumed, config)
    for number in range(6):
        opt_step(one, batch(number))
    for number in range(3):
        opt_step(two, batch(number))
    resumed.load_state_dict(begun.state_dict())
    three.load_state_dict(two.state_dict())
    for number in range(3, 6):
        opt_step(three, batch(number))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one.averages, three.averages, strict=True))


def test_a_model_has_its_state_with_and_without_optimizers() -> None:
    model, other = net(), Net({})
    with pytest.raises(RuntimeError, match="expected a model of a trainer, which has optimizers, got one without"):
        model.state_dict(optimizers=True)
    learners = [Learner(each, learning([adamw("*", 0.01, 0.1)])) for each in (model, other)]
    opt_step(learners[0], batch(0))
    assert list(model.state_dict()) == list(nn.Module.state_dict(model))
    other.load(model.state_dict(optimizers=True))
    for learner in learners:
        opt_step(learner, batch(1))
    assert all(torch.equal(*each) for each in zip(model.parameters(), other.parameters(), strict=True))
    other.load(net().state_dict())
    assert torch.equal(other.first.weight, net().first.weight)
    assert learners[1].opt_steps == 2


def test_types_and_memory_formats_may_be_mixed() -> None:
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    parameters = [conv.weight, nn.Parameter(torch.randn(2, 3).T), nn.Parameter(torch.randn(()))]
    before = [each.detach().clone() for each in parameters]
    strides = [each.stride() for each in parameters]
    vector = Vector(parameters)
    assert [each.stride() for each in parameters] == strides
    assert all(torch.equal(one, other) for one, other in zip(before, parameters, strict=True))
    vector.take([torch.ones_like(each) * place for place, each in enumerate(parameters)])
    with torch.no_grad():
        vector.weights += vector.gradient
    for place, (one, other) in enumerate(zip(before, parameters, strict=True)):
        assert torch.equal(one + place, other)


class Mixed(Model):
    """Weights of two types and memory formats, of which some are added to each other, and one is reached now and then.

    Autograd gives one tensor as the gradient of `left` and `right`, and one without memory of its own for `sum`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.wide = nn.Linear(3, 2).double()
        self.left, self.right = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        self.sum = nn.Parameter(torch.ones(4))
        self.rare = nn.Parameter(torch.ones(2))

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        found = self.conv(batch["image"]).mean(dim=(2, 3)) * (self.left + self.right)
        outputs: Tensor = self.wide(found.double()) + self.sum.sum()
        return outputs + self.rare if batch["image"].shape[0] > 4 else outputs

    def loss(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Terms:
        return {"loss_label": cross_entropy(outputs, batch["label"], reduction="none")}


def test_weights_of_any_type_and_format_step_as_in_a_bare_loop() -> None:
    """Those that no term of a batch reaches stay as they are, also with weight decay."""
    torch.manual_seed(0)
    bare, ours = Mixed({}), Mixed({})
    ours.load_state_dict(bare.state_dict())
    optimizer = torch.optim.AdamW(bare.parameters(), lr=0.01, weight_decay=0.1)
    learner = Learner(ours, learning([adamw("*", 0.01, 0.1)], num_microbatches=2))
    unreached = []
    for size in (4, 6, 3, 5):
        rows = {"image": torch.randn(size, 2, 4, 4), "label": torch.randint(2, (size,))}
        optimizer.zero_grad()
        halves = [{name: rows[name][part] for name in rows} for part in (slice(size // 2), slice(size // 2, None))]
        sum(bare.loss(bare(half), half)["loss_label"].sum() / size for half in halves).backward()  # type: ignore[union-attr]
        optimizer.step()
        opt_step(learner, rows)
        unreached.append(learner.unreached())
    assert unreached == [["rare"]] * 4
    for one, other in zip(bare.parameters(), ours.parameters(), strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert ours.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(ours.rare, torch.ones(2))


@pytest.mark.parametrize("num_microbatches", [1, 3])
def test_a_batch_whose_items_count_nothing_leaves_everything_as_it_is(num_microbatches: int) -> None:
    """Also weights that momentum or decay would move; the next batch is learned from as if there had been none."""
    ours, bare = net(), net()
    learners = [
        Learner(each, learning([adamw("*", 0.01, 0.1)], num_microbatches=num_microbatches)) for each in (ours, bare)
    ]
    for number in range(2):
        for each in learners:
            opt_step(each, batch(number))
        terms = opt_step(learners[0], batch(7) | {"tokens": torch.zeros(13)})
        assert terms.keys() == {"grad_norm"}
        assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), bare.parameters(), strict=True))


def test_a_batch_whose_weights_add_up_to_less_than_0_is_told() -> None:
    """Its mean would turn the loss around."""
    rows = batch(7) | {"tokens": torch.full((13,), -1.0)}
    with pytest.raises(TermsError, match=r"^expected a sum above 0 of the term 'weight' over a batch, got -13$"):
        opt_step(Learner(net(), learning([sgd("*", 0.5)])), rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_are_the_rounded_ones_of_float32_that_the_optimizer_moves(dtype: torch.dtype) -> None:
    """Steps that are too small for one of 16 bits add up, also across a checkpoint, and what others change stays."""

    class Sum(Model):
        def __init__(self) -> None:
            super().__init__({})
            self.weight = nn.Parameter(torch.ones(4, dtype=dtype))

        def forward(self, batch: Tensor) -> Tensor:
            return (batch.to(dtype) * self.weight).sum(dim=1)

        def loss(self, outputs: Tensor, batch: Tensor) -> Terms:
            return {"loss_sum": outputs}

    group = sgd("*", 1e-4) | {"learning_rate": {"name": "constant", "value": 1e-4}}
    rows, config = torch.ones(2, 4), learning([group], ema={"decay": 0.5})
    model = Sum()
    learner = Learner(model, config)
    for number in range(100):
        if number == 50:
            state, weights = copy.deepcopy(learner.state_dict()), copy.deepcopy(model.state_dict())
            model = Sum()
            learner = Learner(model, config)
            model.load_state_dict(weights)
            learner.load_state_dict(state)
        opt_step(learner, rows)
        assert torch.equal(model.weight, learner.vectors[0].weights.to(dtype))
    torch.testing.assert_close(learner.vectors[0].weights.data, torch.full((4,), 0.99))
    with learner.averaged():
        torch.testing.assert_close(learner.vectors[0].weights.data, torch.full((4,), 0.9901))
    torch.testing.assert_close(learner.vectors[0].weights.data, torch.full((4,), 0.99))
    with torch.no_grad():
        model.weight[0] = 3.0
    opt_step(learner, rows)
    torch.testing.assert_close(learner.vectors[0].weights.data, torch.tensor([2.9999, *[0.9899] * 3]))


def test_a_group_takes_several_patterns() -> None:
    model = net()
    learner = Learner(model, learning([sgd("*weight", 0.1), sgd("x", 0.1) | {"weights": ["first.b*", "second.bias"]}]))
    assert [len(group.vectors[0][0].parameters) for group in learner.groups] == [2, 2]
    loss = model.loss(model(batch(0)), batch(0))["loss_label"].mean()
    learner.step(loss, ["first.b*", "second.bias"])
    with pytest.raises(ConfigError, match=r"^1.weights: expected weights among .*, got 'third.*'"):
        Learner(net(), learning([sgd("*weight", 0.1), sgd("x", 0.1) | {"weights": ["*.bias", "third.*"]}]))


def test_a_loss_of_ones_own_steps_with_one_group_alone() -> None:
    model = net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    learner = Learner(model, learning([sgd("first.*", 0.1), sgd("second.*", 0.1)], ema={"decay": 0.5}))
    first, second = (model.loss(model(batch(number)), batch(number))["loss_label"].mean() for number in (0, 1))
    third = model.loss(model(batch(2)), batch(2))["loss_label"].mean()
    learner.step(first, "first.*")
    assert not torch.equal(before["first.weight"], model.first.weight)
    assert torch.equal(before["second.weight"], model.second.weight)
    was = torch.cat([before[f"first.{name}"].flatten() for name in ("weight", "bias")])
    torch.testing.assert_close(learner.averages[0], (learner.vectors[0].weights.detach() + was) / 2)
    learner.step(second, "second.*")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        learner.step(third, "first.*")
    with pytest.raises(
        ValueError, match=r"^step: expected the pattern of a group \('first\.\*', 'second\.\*'\), got 'one'"
    ):
        learner.step(first, "one")


def test_callbacks_freeze_weights_and_change_schedules_of_a_model() -> None:
    model = net()
    learner = Learner(model, learning([adamw("*weight", 0.01, 0.1), adamw("*bias", 0.02, 0.0)]))
    names = [name for name, _ in model.named_parameters()]
    frozen = ["first.weight", "second.bias"]
    mask = torch.cat([torch.full((p.numel(),), name in frozen) for name, p in model.named_parameters()])
    learner.freeze(mask)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    norm = opt_step(learner, batch(0))["grad_norm"]
    still = [name for name, p in model.named_parameters() if torch.equal(before[name], p)]
    assert still == [name for name in names if name in (*frozen, "scale")]
    whole = Learner(net(), learner.config).opt_step(batch(0))["grad_norm"]
    assert norm < whole
    learner.thaw(mask)
    learner.change_schedule("groups.1.learning_rate", learner.groups[1].learning_rate.scaled(0.5))
    assert learner.rates() == {"learning_rate/0": 0.01, "learning_rate/1": 0.01}
    opt_step(learner, batch(1))
    assert not torch.equal(before["first.weight"], model.first.weight)
    other = Learner(net(), learner.config)
    other.load_state_dict(learner.state_dict())
    assert (other.opt_steps, other.rates()) == (2, learner.rates())


def test_a_loss_scale_leaves_out_steps_that_overflow() -> None:
    model = net()
    learner = Learner(model, learning([adamw("*", 0.01, 0.1)], precision="float16"))
    scale = learner.scale
    assert isinstance(scale, LossScale)
    scale.growth_interval = 3
    opt_step(learner, batch(0))
    before, state = [p.detach().clone() for p in model.parameters()], str(learner.optimizers["model"].state_dict())
    rows = batch(1)
    scale.value.fill_(1e38)
    metrics = opt_step(learner, rows | {"x": 100 * rows["x"]})
    assert (metrics["loss_scale"], metrics["skipped_steps"]) == (pytest.approx(1e38), 1.0)
    assert "grad_norm" not in metrics
    assert float(scale.value) == pytest.approx(0.5e38)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    assert str(learner.groups[0].vectors[0][1].state_dict()) in state
    scale.value.fill_(2.0**10)
    for number in range(3):
        assert opt_step(learner, batch(number))["skipped_steps"] == 0.0
    assert float(scale.value) == 2.0**11
    other = Learner(net(), learner.config)
    other.load_state_dict(learner.state_dict())
    assert other.scale is not None
    assert other.scale.state_dict() == {"value": 2.0**11, "num_steps": 0}


def test_float16_steps_as_torchs_own_scaler_does() -> None:
    """On a GPU if there is one: it leaves out the same steps, finds the same scales, and clips the same gradients."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = net().to(device)
    bare = copy.deepcopy(model)
    learner = Learner(model, learning([sgd("*", 0.1)], precision="float16", max_grad_norm=0.5))
    assert learner.scale is not None
    learner.scale.growth_interval = 2
    scaler = torch.amp.GradScaler(device, init_scale=2.0**16, growth_interval=2)
    weights = [each for each in bare.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    num_skipped = 0
    for number in range(16):
        rows = {name: value.to(device) for name, value in batch(number, size=16).items()}
        rows["tokens"] = torch.ones(16, device=device)  # a batch whose mean divides without rounding
        metrics = learner.opt_step(rows)
        learner.opt_steps += 1
        num_skipped += int(metrics["skipped_steps"])
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - number / 20)
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16):
            loss = loss_of(bare, rows)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(weights, 0.5)
        scaler.step(optimizer)
        scaler.update()
        assert float(learner.scale.value) == scaler.get_scale()
        if "grad_norm" in metrics:
            torch.testing.assert_close(metrics["grad_norm"], norm, rtol=2e-3, atol=0)
    assert 0 < num_skipped < 16
    for one, other in zip(model.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ([sgd("*weight", 0.1)], "expected the weight 'first.bias' in one group, got it in none"),
        ([sgd("*", 0.1), sgd("first.*", 0.1)], r"the weight 'first.bias' in one group, got it in 2 \(\*, first\.\*\)"),
        (
            [sgd("*", 0.1), sgd("third.*", 0.1)],
            r"^1.weights: expected weights among .*second.*, got 'third\.\*'",
        ),
    ],
)
def test_every_weight_is_in_one_group(groups: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Learner(net(), learning(groups))


def item_terms(terms: Callable[[int], Any]) -> Net:
    model = net()
    model.training_step = lambda rows: terms(len(rows["x"]))  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    ("terms", "num", "told"),
    [
        (lambda size: {"accuracy": torch.ones(size)}, 1, "expected at least one term named loss_.*, got accuracy"),
        (
            lambda size: {"loss_a": torch.ones(size, 2)},
            1,
            r"one number per item, \(13,\), as the term 'loss_a', got \(13, 2\)$",
        ),
        (lambda size: {"loss_a": torch.ones(())}, 2, "got \\(\\); a term of the whole batch needs learning.num_micro"),
        (lambda size: {"loss_a": 3.0}, 1, "expected a tensor as the term 'loss_a', got the float 3.0"),
        (lambda size: torch.ones(size), 1, "expected a dict of tensors as the loss, got Tensor"),
    ],
)
def test_terms_that_cannot_be_learned_are_told(terms: Callable[[int], Any], num: int, told: str) -> None:
    model = item_terms(terms)
    with pytest.raises(TermsError, match=told):
        find_gradient(model, batch(0), num, [model.first.weight], torch.enable_grad)
