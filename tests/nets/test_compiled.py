"""What a compiled function looks at, at every call."""

import torch
from torch import Tensor, nn

from palestra.nets.weights import compiled


def test_new_shapes_flags_and_modes_are_noticed_and_changed_values_too() -> None:
    norm = nn.BatchNorm1d(3).train()

    def function(rows: dict[str, Tensor], is_due: bool) -> dict[str, Tensor]:
        normed = norm(rows["x"])
        return {"normed": normed} | ({"sum": rows["x"].sum(1)} if is_due else {})

    fast = compiled(function, True)
    x = torch.arange(12.0).view(4, 3) ** 2
    assert fast({"x": x}, False).keys() == {"normed"}
    due = fast({"x": x}, True)
    assert torch.equal(due["sum"], x.sum(1))
    assert torch.equal(fast({"x": x + 1}, True)["sum"], (x + 1).sum(1))
    norm.eval()
    few = fast({"x": x[:3]}, False)["normed"]
    assert torch.allclose(few, norm(x[:3]))
    assert not torch.allclose(few, due["normed"][:3])
