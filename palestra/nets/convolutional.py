"""`nature_cnn` and `impala_cnn`: networks for images, which are uint8 of shape (C, H, W)."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from palestra.config import Config, ConfigError, ConfigErrorItem, PositiveInt
from palestra.games.spaces import Space
from palestra.nets.mlp import make_layers
from palestra.randomness import runs_on_cpu
from palestra.runtime.compiling import njit

Sizes = Annotated[list[PositiveInt], Field(min_length=1)]
STACK = 4  # frames, as Atari's are stacked


class NatureCNNConfig(Config):
    usual: ClassVar = {"channels": [32, 64, 64], "kernels": [8, 4, 3], "strides": [4, 2, 1], "hidden_widths": [512]}

    name: Literal["nature_cnn"]
    """convolutions one after another, for images"""
    channels: Sizes
    """output channels of every convolution; the paper's: [32, 64, 64]"""
    kernels: Sizes
    """pixels along a side of each convolution's window; the paper's: [8, 4, 3]"""
    strides: Sizes
    """pixels between the windows of each convolution; the paper's: [4, 2, 1]"""
    hidden_widths: list[PositiveInt]
    """widths of the layers after the convolutions; the paper's: [512]"""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        expected = f"expected {len(self.channels)} numbers, one for each of the channels"
        lengths = {"kernels": len(self.kernels), "strides": len(self.strides)}
        wrong = {key: length for key, length in lengths.items() if length != len(self.channels)}
        ConfigError.require_none(ConfigErrorItem(key, f"{expected}, got {wrong[key]}") for key in wrong)
        return self

    def build(self, spaces: dict[str, Space], num_outputs: int) -> "NatureCNN":
        return NatureCNN(self, spaces, num_outputs)


class ImpalaCNNConfig(Config):
    usual: ClassVar = {"channels": [16, 32, 32], "hidden_widths": [256]}

    name: Literal["impala_cnn"]
    """residual blocks of convolutions, for images"""
    channels: Sizes
    """output channels of every block, each of which halves the image; the paper's: [16, 32, 32]"""
    hidden_widths: list[PositiveInt]
    """widths of the layers after the blocks; the paper's: [256]"""

    def build(self, spaces: dict[str, Space], num_outputs: int) -> "ImpalaCNN":
        return ImpalaCNN(self, spaces, num_outputs)


class ImageNet(nn.Module):
    """The base of networks for images. Input: an observation whose one entry is an image. Output: (B, num_outputs)."""

    entry: str
    layers: nn.Sequential

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return self.layers(scale_pixels(observation[self.entry]))


class NatureCNN(ImageNet):
    """Convolutions with ReLU, then dense layers (Mnih et al. 2015, "Human-level control through deep RL").

    Raises ConfigError for other observations, and for an image smaller than what the convolutions need.
    """

    def __init__(self, config: NatureCNNConfig, spaces: dict[str, Space], num_outputs: int) -> None:
        super().__init__()
        self.entry, (channels, height, width) = find_image(config.name, spaces)
        layers: list[nn.Module] = []
        windows = zip(config.channels, config.kernels, config.strides, strict=True)
        for index, (out, kernel, stride) in enumerate(windows):
            if kernel > min(height, width):
                expected = f"expected a window of at most {height} x {width} pixels, the size of its input"
                raise ConfigError.at(f"kernels.{index}", f"{expected}, got {kernel} x {kernel}")
            layers += [nn.Conv2d(channels, out, kernel, stride), nn.ReLU(inplace=True)]
            channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        dense = make_layers(config.hidden_widths, "relu", channels * height * width, num_outputs)
        self.layers = nn.Sequential(*layers, nn.Flatten(), *dense)


class ImpalaCNN(ImageNet):
    """Blocks of a convolution, a pooling and two residual units, then dense layers (Espeholt et al. 2018, "IMPALA").

    It is the large network of the paper's Figure 3, without its LSTM.

    Raises ConfigError for other observations.
    """

    def __init__(self, config: ImpalaCNNConfig, spaces: dict[str, Space], num_outputs: int) -> None:
        super().__init__()
        self.entry, (channels, height, width) = find_image(config.name, spaces)
        layers: list[nn.Module] = []
        for out in config.channels:
            convolution = nn.Conv2d(channels, out, kernel_size=3, padding=1)
            layers += [convolution, nn.MaxPool2d(3, stride=2, padding=1), _ResidualUnit(out), _ResidualUnit(out)]
            channels, height, width = out, (height + 1) // 2, (width + 1) // 2
        dense = make_layers(config.hidden_widths, "relu", channels * height * width, num_outputs)
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), *dense)


class _ResidualUnit(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = (nn.Conv2d(channels, channels, kernel_size=3, padding=1) for _ in range(2))
        self.layers = nn.Sequential(nn.ReLU(), first, nn.ReLU(), second)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def find_image(net_name: str, spaces: dict[str, Space]) -> tuple[str, tuple[int, int, int]]:
    """Return the name and the shape (C, H, W) of an observation's one entry, an image.

    Raises ConfigError for other observations.
    """
    entry, space = next(iter(spaces.items()))
    if len(spaces) > 1:
        got = f"several entries ({', '.join(spaces)}); multi_input gives each of them a network"
    elif not space.is_image:
        got = f"{entry!r}, {space.dtype} of shape {space.shape}"
    else:
        channels, height, width = space.shape
        return entry, (channels, height, width)
    raise ConfigError.at("name", f"expected one image, uint8 of shape (C, H, W), for {net_name!r}, got {got}")


def scale_pixels(image: Tensor) -> Tensor:
    """Scale images, uint8 (B, C, H, W), to float32 in [0, 1].

    On a CPU the channels lie innermost in memory, because convolutions are up to twice as fast then. The division is
    done in place, because allocating a second tensor of that size takes longer than filling it.
    """
    if runs_on_cpu(image) and image.shape[1] == STACK:
        scaled = torch.empty(image.shape, memory_format=torch.channels_last)
        _scale_stacks(image.contiguous().flatten(2).numpy(), scaled.permute(0, 2, 3, 1).flatten(1).numpy())
        return scaled
    layout = torch.channels_last if image.device.type == "cpu" else torch.contiguous_format
    return image.to(torch.float32, memory_format=layout).div_(255.0)


@njit()
def _scale_stacks(images: np.ndarray, scaled: np.ndarray) -> None:
    """Scale stacks of four frames, four times as fast as torch does, which changes the layout byte by byte.

    The four bytes of a pixel become one word first. images: uint8 (B, 4, P). scaled: float32 (B, P * 4), to be filled.
    """
    words = np.empty(images.shape[2], np.uint32)
    octets = words.view(np.uint8)
    for image in range(len(images)):
        first, second, third, fourth = images[image, 0], images[image, 1], images[image, 2], images[image, 3]
        for pixel in range(len(words)):
            low = np.uint32(first[pixel]) | np.uint32(second[pixel]) << np.uint32(8)
            high = np.uint32(third[pixel]) | np.uint32(fourth[pixel]) << np.uint32(8)
            words[pixel] = low | high << np.uint32(16)
        for entry in range(len(octets)):
            scaled[image, entry] = np.float32(octets[entry]) / np.float32(255.0)
