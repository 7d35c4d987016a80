"""Classic control: Gymnasium's CartPole, Pendulum, Acrobot and MountainCar as tensor games."""

from palestra.games.classic_control.acrobot import Acrobot, AcrobotConfig
from palestra.games.classic_control.cartpole import CartPole, CartPoleConfig
from palestra.games.classic_control.mountain_car import MountainCar, MountainCarConfig
from palestra.games.classic_control.pendulum import Pendulum, PendulumConfig
