"""MountainCar: a car too weak for the hill before it gathers speed on the hill behind it (Moore 1990).

The physics of Gymnasium's MountainCar-v0.
"""

from typing import ClassVar, Literal

import torch

from palestra.games.classic_control.arithmetic import Flag, Number, clip, jitable, sin_cos, where
from palestra.games.classic_control.bodies import Body, BoundedStartConfig, ClassicControl, Rules, Settings, compiled
from palestra.games.game import Kernel
from palestra.games.spaces import Discrete

MIN_X, MAX_X = -1.2, 0.6
GOAL_X = 0.5
MAX_SPEED = 0.07
FORCE, GRAVITY = 0.001, 0.0025


class MountainCarConfig(BoundedStartConfig):
    name: Literal["mountain_car"]
    """drive a weak car up a hill; role: agent. Gymnasium's MountainCar-v0 starts between -0.6 and -0.4, has goal speed
    0 and 200 rounds"""
    goal_speed: float
    """least speed at which the goal is reached"""

    usual: ClassVar = {"max_rounds": 200, "initial_low": -0.6, "initial_high": -0.4, "goal_speed": 0.0}

    def make(self, device: torch.device, kernel: Kernel) -> "MountainCar":
        low, high = (self.initial_low, 0.0), (self.initial_high, 0.0)
        return MountainCar(self, (self.goal_speed,), low, high, device, kernel)


@jitable
def is_over(body: Body, settings: Settings) -> Flag:
    (goal_speed,) = settings
    return (body[0] >= GOAL_X) & (body[1] >= goal_speed)


@jitable
def move(body: Body, action: Number, settings: Settings) -> tuple[Body, Number, Flag]:
    x, speed = body
    _, cos = sin_cos(3.0 * x)
    speed = clip(speed + ((action - 1.0) * FORCE - cos * GRAVITY), -MAX_SPEED, MAX_SPEED)
    x = clip(x + speed, MIN_X, MAX_X)
    speed = where((x == MIN_X) & (speed < 0.0), 0.0, speed)
    new = (x, speed)
    return new, -1.0, is_over(new, settings)


@jitable
def observe(body: Body) -> Body:
    return body


class MountainCar(ClassicControl):
    """Gymnasium's MountainCar.

    Variables: x, speed; both are observed.

    Actions: 0 pushes to the left, 1 not at all, 2 to the right. Reward: -1 for every step. A game ends if x >= 0.5 at
    `goal_speed` or more; a wall stands at -1.2. The start's bounds are those of x, its speed is 0.
    """

    rules = Rules(move, is_over, observe)
    advance = compiled(rules)
    variables = ("x", "speed")
    num_observed = 2
    actions = Discrete(3)
