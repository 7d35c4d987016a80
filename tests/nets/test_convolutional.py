from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palestra.config import ConfigError
from palestra.games.spaces import Space
from palestra.nets.convolutional import scale_pixels
from tests.nets.making import build, observe, space

NATURE = {
    "name": "nature_cnn",
    "channels": [32, 64, 64],
    "kernels": [8, 4, 3],
    "strides": [4, 2, 1],
    "hidden_widths": [512],
}
IMPALA = {"name": "impala_cnn", "channels": [16, 32, 32], "hidden_widths": [256]}
ATARI = {"screen": space((4, 84, 84), torch.uint8)}
SMALL = {"screen": space((3, 12, 10), torch.uint8)}
SMALL_NATURE = NATURE | {"channels": [4, 5], "kernels": [4, 2], "strides": [2, 1], "hidden_widths": [6]}
SMALL_IMPALA = {"name": "impala_cnn", "channels": [4, 5], "hidden_widths": [6]}


def num_weights(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def test_nature_cnn_is_the_network_of_the_paper() -> None:
    convolutions = (4 * 8 * 8 + 1) * 32 + (32 * 4 * 4 + 1) * 64 + (64 * 3 * 3 + 1) * 64
    assert num_weights(build(NATURE, ATARI, num_outputs=6)) == convolutions + (64 * 7 * 7 + 1) * 512 + 513 * 6


def test_impala_cnn_is_the_network_of_the_paper() -> None:
    """15 convolutions, and one dense layer of 256 on 11 x 11 pixels of 32 channels."""
    net = build(IMPALA, ATARI, num_outputs=6)
    blocks = [(4, 16), (16, 32), (32, 32)]
    convolutions = sum((9 * a + 1) * b + 4 * (9 * b + 1) * b for a, b in blocks)
    assert num_weights(net) == convolutions + (32 * 11 * 11 + 1) * 256 + 257 * 6
    assert sum(isinstance(module, nn.Conv2d) for module in net.modules()) == 15


@pytest.mark.parametrize("data", [SMALL_NATURE, SMALL_IMPALA])
def test_pixels_are_scaled_to_one_whatever_their_layout_in_memory(data: dict[str, Any]) -> None:
    net, seen = build(data, SMALL), observe(SMALL, 5)
    screen = seen["screen"]
    expected: Tensor = net.layers((screen.double() / 255.0).float())  # type: ignore[operator]
    outputs = net(seen)
    assert outputs.shape == (5, 4)
    assert torch.allclose(outputs, expected, atol=1e-6)
    innermost = screen.to(memory_format=torch.channels_last)
    assert torch.allclose(net({"screen": innermost}), expected, atol=1e-6)


@pytest.mark.parametrize("num_channels", [1, 3, 4])
def test_the_channels_of_scaled_pixels_are_innermost_in_memory(num_channels: int) -> None:
    """Of one channel too, where torch takes either layout for the other: convolutions look at the strides."""
    image = torch.arange(2 * num_channels * 5 * 7, dtype=torch.uint8).view(2, num_channels, 5, 7)
    scaled = scale_pixels(image)
    assert scaled.stride() == (num_channels * 5 * 7, 1, num_channels * 7, num_channels)
    assert torch.equal(scaled, image.float() / 255.0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_stacks_of_frames_are_scaled_to_the_same_bits(layout: torch.memory_format) -> None:
    """Their kernel's, of all bytes in all four places."""
    image = torch.stack([torch.arange(256).roll(17 * frame) for frame in range(4)]).to(torch.uint8)
    image = torch.stack([image, image.flip(1)]).view(2, 4, 16, 16).contiguous(memory_format=layout)
    scaled = scale_pixels(image)
    assert torch.equal(scaled, image.float() / 255.0)
    assert scaled.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("data", [SMALL_NATURE, SMALL_IMPALA])
def test_every_pixel_that_a_window_covers_reaches_the_output(data: dict[str, Any]) -> None:
    net, seen = build(data, SMALL), observe(SMALL, 1)
    pixels = (seen["screen"] / 255.0).requires_grad_()
    net.layers(pixels).square().sum().backward()  # type: ignore[operator]
    assert pixels.grad is not None
    assert pixels.grad.any(dim=1).float().mean() > 0.9


@pytest.mark.parametrize("data", [NATURE, IMPALA])
@pytest.mark.parametrize(
    ("spaces", "told"),
    [
        ({"seen": space((4,))}, r"'seen', torch.float32 of shape \(4,\)"),
        ({"seen": space((4, 84, 84))}, "'seen', torch.float32"),
        ({"seen": space((84, 84), torch.uint8)}, r"'seen', torch.uint8 of shape \(84, 84\)"),
        (ATARI | {"speed": space((2,))}, r"several entries \(screen, speed\)"),
    ],
)
def test_what_is_no_image_is_refused(data: dict[str, Any], spaces: dict[str, Space], told: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^name: expected one image, uint8 of shape \(C, H, W\), for '{data['name']}', got .*{told}"
    ):
        build(data, spaces)


def test_an_image_too_small_for_its_windows_is_refused_at_the_window() -> None:
    with pytest.raises(
        ConfigError, match=r"^kernels.1: expected a window of at most 3 x 2 pixels, the size of its input, got 4 x 4$"
    ):
        build(NATURE, {"screen": space((4, 16, 12), torch.uint8)})


def test_images_of_any_size_fit_into_impala_cnn() -> None:
    spaces = {"screen": space((1, 1, 3), torch.uint8)}
    assert build(IMPALA, spaces)(observe(spaces, 2)).shape == (2, 4)


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        build(NATURE | {"kernels": [8, 4], "strides": [4]}, ATARI)
    assert str(caught.value).splitlines() == [
        "net.kernels: expected 3 numbers, one for each of the channels, got 2",
        "net.strides: expected 3 numbers, one for each of the channels, got 1",
    ]


def test_a_list_without_channels_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^net.channels"):
        build(IMPALA | {"channels": []}, ATARI)
