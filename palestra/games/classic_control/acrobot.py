"""Acrobot: two links hang from a joint; a torque at the joint between them swings the tip above a line (Sutton 1996).

The physics of Gymnasium's Acrobot-v1: the equations of Sutton and Barto, "Reinforcement Learning: An Introduction"
(2018), one step of the fourth-order Runge-Kutta method at a time.
"""

import math
from typing import ClassVar, Literal

import torch

from palestra.games.classic_control.arithmetic import Flag, Number, clip, jitable, sin_cos, where, wrap
from palestra.games.classic_control.bodies import Body, BoundedStartConfig, ClassicControl, Rules, Settings, compiled
from palestra.games.game import Kernel
from palestra.games.spaces import Discrete

GRAVITY = 9.8
LENGTH = 1.0  # of the first link
CENTER = 0.5  # of mass, along either link
MASS, INERTIA = 1.0, 1.0  # of either link
STEP_S = 0.2
MAX_SPEED_1, MAX_SPEED_2 = 4 * math.pi, 9 * math.pi


class AcrobotConfig(BoundedStartConfig):
    name: Literal["acrobot"]
    """swing two links up by a torque between them; role: agent. Gymnasium's Acrobot-v1 starts between -0.1 and 0.1, has
    500 rounds"""

    usual: ClassVar = {"max_rounds": 500, "initial_low": -0.1, "initial_high": 0.1}

    def make(self, device: torch.device, kernel: Kernel) -> "Acrobot":
        return Acrobot(self, (), (self.initial_low,) * 4, (self.initial_high,) * 4, device, kernel)


@jitable
def derivative(body: Body, torque: Number) -> Body:
    """Compute how fast the two angles and the two speeds change."""
    angle_1, angle_2, speed_1, speed_2 = body
    sin_1, cos_1 = sin_cos(angle_1)
    sin_2, cos_2 = sin_cos(angle_2)
    d1 = MASS * CENTER**2 + MASS * (LENGTH**2 + CENTER**2 + 2 * LENGTH * CENTER * cos_2) + 2 * INERTIA
    d2 = MASS * (CENTER**2 + LENGTH * CENTER * cos_2) + INERTIA
    phi_2 = MASS * CENTER * GRAVITY * (sin_1 * cos_2 + cos_1 * sin_2)
    coupling = MASS * LENGTH * CENTER * sin_2
    phi_1 = -coupling * speed_2 * speed_2 - 2.0 * coupling * speed_2 * speed_1
    phi_1 = phi_1 + (MASS * CENTER + MASS * LENGTH) * GRAVITY * sin_1 + phi_2
    ratio = d2 / d1
    numerator = torque + ratio * phi_1 - coupling * speed_1 * speed_1 - phi_2
    acceleration_2 = numerator / (MASS * CENTER**2 + INERTIA - d2 * ratio)
    acceleration_1 = -(d2 * acceleration_2 + phi_1) / d1
    return speed_1, speed_2, acceleration_1, acceleration_2


@jitable
def later(body: Body, slope: Body, seconds: float) -> Body:
    (a, b, c, d), (da, db, dc, dd) = body, slope
    return a + seconds * da, b + seconds * db, c + seconds * dc, d + seconds * dd


@jitable
def mean_slope(first: Number, second: Number, third: Number, fourth: Number) -> Number:
    return (first + 2.0 * second + 2.0 * third + fourth) * (1.0 / 6.0)


@jitable
def is_over(body: Body, settings: Settings) -> Flag:
    """Tell whether the tip is higher than one link above the joint."""
    sin_1, cos_1 = sin_cos(body[0])
    sin_2, cos_2 = sin_cos(body[1])
    return -cos_1 - (cos_1 * cos_2 - sin_1 * sin_2) > 1.0


@jitable
def move(body: Body, action: Number, settings: Settings) -> tuple[Body, Number, Flag]:
    torque = action - 1.0
    k1 = derivative(body, torque)
    k2 = derivative(later(body, k1, STEP_S / 2), torque)
    k3 = derivative(later(body, k2, STEP_S / 2), torque)
    k4 = derivative(later(body, k3, STEP_S), torque)
    slope = (
        mean_slope(k1[0], k2[0], k3[0], k4[0]),
        mean_slope(k1[1], k2[1], k3[1], k4[1]),
        mean_slope(k1[2], k2[2], k3[2], k4[2]),
        mean_slope(k1[3], k2[3], k3[3], k4[3]),
    )
    angle_1, angle_2, speed_1, speed_2 = later(body, slope, STEP_S)
    new = (
        wrap(angle_1),
        wrap(angle_2),
        clip(speed_1, -MAX_SPEED_1, MAX_SPEED_1),
        clip(speed_2, -MAX_SPEED_2, MAX_SPEED_2),
    )
    has_ended = is_over(new, settings)
    return new, where(has_ended, 0.0, -1.0), has_ended


@jitable
def observe(body: Body) -> Body:
    angle_1, angle_2, speed_1, speed_2 = body
    sin_1, cos_1 = sin_cos(angle_1)
    sin_2, cos_2 = sin_cos(angle_2)
    return cos_1, sin_1, cos_2, sin_2, speed_1, speed_2


class Acrobot(ClassicControl):
    """Gymnasium's Acrobot.

    Variables: angle_1 (rad, 0 hangs down), angle_2 (rad, to the first link), speed_1, speed_2.

    Observed: cos and sin of both angles, the speeds. Actions: a torque of -1, 0, 1. Reward: -1, and 0 for the step that
    ends it. A game ends if -cos(angle_1) - cos(angle_1 + angle_2) > 1.
    """

    rules = Rules(move, is_over, observe)
    advance = compiled(rules)
    variables = ("angle_1", "angle_2", "speed_1", "speed_2")
    num_observed = 6
    actions = Discrete(3)
