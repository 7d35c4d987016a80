import torch

from palestra.config import PositiveInt
from palestra.nets import UserNetConfig
from palestra.nets.inputs import flat_size, flatten_observation


class Wide(torch.nn.Module):
    """One hidden layer, with sines."""

    class Config(UserNetConfig):
        width: PositiveInt
        """of the hidden layer"""

    def __init__(self, config, spaces, num_outputs):
        super().__init__()
        self.spaces = spaces
        self.hidden = torch.nn.Linear(flat_size(spaces), config.width)
        self.output = torch.nn.Linear(config.width, num_outputs)

    def forward(self, observation):
        return self.output(self.hidden(flatten_observation(observation, self.spaces)).sin())
