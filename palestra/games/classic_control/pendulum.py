"""Pendulum: a torque swings a pendulum up, which it is too weak to lift at once, and holds it there.

The physics of Gymnasium's Pendulum-v1, in semi-implicit Euler steps.
"""

import math
from typing import ClassVar, Literal

import torch

from palestra.config import NonNegativeFloat
from palestra.games.classic_control.arithmetic import Flag, Number, clip, jitable, sin_cos, wrap
from palestra.games.classic_control.bodies import Body, ClassicControl, ClassicControlConfig, Rules, Settings, compiled
from palestra.games.game import Kernel
from palestra.games.spaces import Box

MASS, LENGTH = 1.0, 1.0
MAX_SPEED, MAX_TORQUE = 8.0, 2.0
STEP_S = 0.05

PUSH_PER_TORQUE = 3.0 / (MASS * LENGTH**2)


class PendulumConfig(ClassicControlConfig):
    name: Literal["pendulum"]
    """swing a pendulum up by a torque; role: agent. Gymnasium's Pendulum-v1 has g 10, starts within pi and 1, has 200
    rounds"""
    g: float
    """acceleration of gravity"""
    initial_angle: NonNegativeFloat
    """a game starts with an angle between minus this and this; pi is the highest"""
    initial_speed: NonNegativeFloat
    """a game starts with a speed between minus this and this"""

    usual: ClassVar = {"max_rounds": 200, "g": 10.0, "initial_angle": math.pi, "initial_speed": 1.0}

    def make(self, device: torch.device, kernel: Kernel) -> "Pendulum":
        high = (self.initial_angle, self.initial_speed)
        return Pendulum(self, (self.g,), (-self.initial_angle, -self.initial_speed), high, device, kernel)


@jitable
def is_over(body: Body, settings: Settings) -> Flag:
    return body[0] < -math.inf  # never


@jitable
def move(body: Body, action: Number, settings: Settings) -> tuple[Body, Number, Flag]:
    theta, speed = body
    (g,) = settings
    sin, _ = sin_cos(theta)
    torque = clip(action, -MAX_TORQUE, MAX_TORQUE)
    upright = wrap(theta)
    cost = upright * upright + 0.1 * (speed * speed) + 0.001 * (torque * torque)
    push = (1.5 * g / LENGTH) * sin + PUSH_PER_TORQUE * torque
    new_speed = clip(speed + push * STEP_S, -MAX_SPEED, MAX_SPEED)
    return (theta + new_speed * STEP_S, new_speed), -cost, is_over(body, settings)


@jitable
def observe(body: Body) -> Body:
    theta, speed = body
    sin, cos = sin_cos(theta)
    return cos, sin, speed


class Pendulum(ClassicControl):
    """Gymnasium's Pendulum.

    Variables: theta (rad, 0 is upright, any number of turns), speed (rad/s, at most 8).

    Observed: cos theta, sin theta, speed. Action: a torque from -2 to 2. Reward: -(theta^2 + 0.1 speed^2 + 0.001
    torque^2) before the step, theta between -pi and pi. It never ends.
    """

    rules = Rules(move, is_over, observe)
    advance = compiled(rules)
    variables = ("theta", "speed")
    num_observed = 3
    actions = Box((-MAX_TORQUE,), (MAX_TORQUE,))
