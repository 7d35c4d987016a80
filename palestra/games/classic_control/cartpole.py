"""CartPole: a pole hangs upright on a cart that is pushed to the left or to the right (Barto, Sutton, Anderson 1983).

The physics of Gymnasium's CartPole-v1: the equations of Florian (2007), "Correct equations for the dynamics of the
cart-pole system", in Euler steps.
"""

import math
from typing import ClassVar, Literal

import torch

from palestra.games.classic_control.arithmetic import Flag, Number, jitable, sin_cos, where
from palestra.games.classic_control.bodies import Body, BoundedStartConfig, ClassicControl, Rules, Settings, compiled
from palestra.games.game import Kernel
from palestra.games.spaces import Discrete

GRAVITY = 9.8
CART_MASS, POLE_MASS = 1.0, 0.1
HALF_LENGTH = 0.5  # of the pole
FORCE = 10.0
STEP_S = 0.02
MAX_X, MAX_THETA = 2.4, math.radians(12)

PER_MASS = 1.0 / (CART_MASS + POLE_MASS)


class CartPoleConfig(BoundedStartConfig):
    name: Literal["cartpole"]
    """balance a pole on a cart; role: agent. Gymnasium's CartPole-v1 starts between -0.05 and 0.05, has 500 rounds"""
    sutton_barto_reward: bool
    """true: -1 when the pole falls, else 0; false: 1 for every step"""

    usual: ClassVar = {"max_rounds": 500, "initial_low": -0.05, "initial_high": 0.05, "sutton_barto_reward": False}

    def make(self, device: torch.device, kernel: Kernel) -> "CartPole":
        rewards = (0.0, -1.0) if self.sutton_barto_reward else (1.0, 1.0)
        return CartPole(self, rewards, (self.initial_low,) * 4, (self.initial_high,) * 4, device, kernel)


@jitable
def is_over(body: Body, settings: Settings) -> Flag:
    x, _, theta, _ = body
    return (x < -MAX_X) | (x > MAX_X) | (theta < -MAX_THETA) | (theta > MAX_THETA)


@jitable
def move(body: Body, action: Number, settings: Settings) -> tuple[Body, Number, Flag]:
    x, x_speed, theta, theta_speed = body
    sin, cos = sin_cos(theta)
    force = (2.0 * action - 1.0) * FORCE
    pull = (force + POLE_MASS * HALF_LENGTH * theta_speed * theta_speed * sin) * PER_MASS
    inertia = HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * PER_MASS * cos * cos)
    theta_push = (GRAVITY * sin - cos * pull) / inertia
    x_push = pull - POLE_MASS * HALF_LENGTH * PER_MASS * theta_push * cos
    new = (
        x + STEP_S * x_speed,
        x_speed + STEP_S * x_push,
        theta + STEP_S * theta_speed,
        theta_speed + STEP_S * theta_push,
    )
    has_ended = is_over(new, settings)
    standing, falling = settings
    return new, where(has_ended, falling, standing), has_ended


@jitable
def observe(body: Body) -> Body:
    return body


class CartPole(ClassicControl):
    """Gymnasium's CartPole.

    Variables: x (m), x_speed, theta (rad, 0 is upright), theta_speed; all of them are observed.

    Actions: 0 pushes to the left, 1 to the right. A game ends if |x| > 2.4 or |theta| > 12 degrees.
    """

    rules = Rules(move, is_over, observe)
    advance = compiled(rules)
    variables = ("x", "x_speed", "theta", "theta_speed")
    num_observed = 4
    actions = Discrete(2)
