"""The yardstick: a plain rewrite of what hironaka.trainer (github.com/honglu2875/hironaka, MIT) does per operation.

It stands for the original, so that the table needs nothing that is not in this repository. It makes the original's
operations, on tensors of the original's shapes, as often as the original does, its faults included: (B, N, N, n)
temporaries twice per reduction, one matrix per point in a move, Python iterating over a batch, games that have ended
kept until all have ended, the target of DQN over illegal actions. `measure_original.py` measures how far its speed is
from the original's, which depends on the machine; README.md states the figures.

Letters: B games, N points, n dimension, A actions. Boards are float32 (B, N, n), absent rows hold -1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal

import torch
from torch import Tensor, nn

Role = Literal["host", "agent"]
Observation = dict[str, Tensor]
Experience = tuple[Observation, Tensor, Tensor, Tensor, Observation]

PADDING = -1.0
DIMENSION, MAX_NUM_POINTS, MAX_VALUE = 3, 20, 20
SUBSETS = [mask for mask in range(2**DIMENSION) if mask.bit_count() >= 2]

# ---- boards --------------------------------------------------------------------------------------------


def reduce_boards(points: Tensor) -> None:
    """Remove, in place, rows that repeat an earlier row, then rows that another row is <= to in every coordinate."""
    _remove_repeated(points)
    B, N, n = points.shape
    present = points.ge(0)
    both = present.unsqueeze(2).repeat(1, 1, N, 1) & present.unsqueeze(1).repeat(1, N, 1, 1)
    difference = points.unsqueeze(2).repeat(1, 1, N, 1) - points.unsqueeze(1).repeat(1, N, 1, 1)
    others = ~torch.diag(torch.ones(N, device=points.device)).bool()
    others = others.view(1, N, N, 1).repeat(B, 1, 1, n)
    _pad(points, (difference.ge(0) & others & both).all(3).any(2))


def _remove_repeated(points: Tensor) -> None:
    B, N, _ = points.shape
    difference = points.unsqueeze(2).repeat(1, 1, N, 1) - points.unsqueeze(1).repeat(1, N, 1, 1)
    earlier = ~torch.triu(torch.ones((N, N), device=points.device).bool()).unsqueeze(0).repeat(B, 1, 1)
    _pad(points, (difference.eq(0).all(3) & earlier).any(2))


def _pad(points: Tensor, rows: Tensor) -> None:
    """Make the rows absent, in place. rows: bool (B, N)."""
    mask = rows.unsqueeze(2).repeat(1, 1, points.shape[2])
    points[:, :, :] = points * ~mask + torch.full(points.shape, PADDING, device=points.device) * mask


def shift_boards(points: Tensor, chosen: Tensor, axis: Tensor) -> None:
    """x_axis <- sum of the chosen coordinates, in place, by one matrix per point. Ended games and illegal moves stay.

    chosen: (B, n) of 0.0 and 1.0. axis: (B,).
    """
    B, N, n = points.shape
    present = points.ge(0)
    assert torch.all(present.all(2).eq(present.any(2))), "rows are present or absent as a whole"
    one_hot = torch.zeros((B, n), device=points.device).scatter(
        1, axis.unsqueeze(1).long(), torch.ones((B, 1), device=points.device)
    )
    one_hot *= (one_hot - chosen).le(0).all(1).view(-1, 1)
    one_hot *= points[:, :, 0].ge(0).sum(1).ge(2).view(-1, 1)
    identity = torch.diag(torch.ones(n, device=points.device)).repeat(B, 1, 1)
    rows = one_hot.unsqueeze(2)
    matrices = rows * chosen.unsqueeze(1) + identity - rows * one_hot.unsqueeze(1)
    moved = torch.matmul(matrices.unsqueeze(1).repeat(1, N, 1, 1), points.unsqueeze(3)).squeeze(3)
    points[:, :, :] = moved * present + torch.full(points.shape, PADDING, device=points.device) * ~present


def rescale_boards(points: Tensor) -> None:
    """Divide every board by its largest coordinate, in place; boards of zeros stay."""
    present = points.ge(0)
    largest = points.amax((1, 2))
    largest = (largest + largest.eq(0) * 1).view(-1, 1, 1)
    points[:, :, :] = points * present / largest + PADDING * ~present


def features(points: Tensor) -> Tensor:
    """What a network sees: the rows in descending order of their first coordinate, a copy."""
    order = torch.argsort(points[:, :, 0], dim=1, descending=True)
    return points.gather(1, order.unsqueeze(-1).repeat(1, 1, points.shape[2])).clone()


def ended(points: Tensor) -> Tensor:
    """bool (B,): at most one point is left."""
    return points[:, :, 0].ge(0).sum(1).le(1)


def new_boards(num_games: int, device: torch.device) -> Tensor:
    """Random integer points 0..20, reduced and rescaled."""
    shape = (num_games, MAX_NUM_POINTS, DIMENSION)
    points = torch.randint(MAX_VALUE + 1, shape, dtype=torch.float32, device=device)
    max(len(board) for board in points)  # the original counts the points so, board by board
    reduce_boards(points)
    rescale_boards(points)
    return points


# ---- players -------------------------------------------------------------------------------------------


class RandomHost(nn.Module):
    """Values of host actions, (B, A), of which a random one is the largest."""

    def forward(self, observation: Observation) -> Tensor:
        points = observation["points"]
        choice = torch.randint(len(SUBSETS), (len(points),), device=points.device)
        return nn.functional.one_hot(choice, num_classes=len(SUBSETS)).float()


class RandomAgent(nn.Module):
    """Values of coordinates, (B, n), of which a random chosen one is the largest."""

    def forward(self, observation: Observation) -> Tensor:
        coords = observation["coords"]
        choice = (torch.rand(coords.shape, device=coords.device) * coords).argmax(1)
        return nn.functional.one_hot(choice, num_classes=coords.shape[1]).float()


class QNetwork(nn.Module):
    """[16, b, 32, b, 32, b, 16, b]: linear, batch norm and ReLU, after a ReLU on the flat input."""

    WIDTHS = (16, 32, 32, 16)

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        widths = pairwise((num_inputs, *self.WIDTHS))
        blocks = [(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in widths]
        self.layers = nn.Sequential(nn.ReLU(), *chain(*blocks), nn.Linear(self.WIDTHS[-1], num_actions))

    def forward(self, observation: Observation) -> Tensor:
        return self.layers(torch.cat([value.flatten(1) for value in observation.values()], dim=1))


# ---- the game ------------------------------------------------------------------------------------------


class LegacyGame:
    """A host and an agent network that move boards in place."""

    def __init__(self, host: nn.Module, agent: nn.Module, device: torch.device) -> None:
        self.nets: dict[Role, nn.Module] = {"host": host, "agent": agent}
        self.device = device
        bits = [[mask >> k & 1 for k in range(DIMENSION)] for mask in SUBSETS]
        self.binary = torch.tensor(bits, dtype=torch.float32, device=device)

    def host_move(self, points: Tensor, exploration: float) -> tuple[Tensor, Tensor]:
        """The action of largest value: its chosen coordinates (B, n), and its code int32 (B,)."""
        with torch.inference_mode():
            values = self.nets["host"]({"points": features(points)})
        noise = torch.rand(values.shape, device=self.device)
        explore = torch.rand(len(values), 1, device=self.device).le(exploration)
        actions = (values * ~explore + noise * explore).argmax(1).int()
        for legal in (actions.le(len(SUBSETS) - 1), actions.ge(0)):
            assert all(legal), "an action out of range"  # one by one, as the original: Python iterates over the tensor
        return self.binary[actions.long()], actions

    def agent_move(self, points: Tensor, chosen: Tensor, exploration: float) -> Tensor:
        """The chosen coordinate of largest value, int64 (B,); an exploring agent may pick one that was not chosen.

        Moves the points.
        """
        with torch.inference_mode():
            values = self.nets["agent"]({"points": features(points), "coords": chosen})
        values = values * chosen + (1 - chosen) * torch.finfo(values.dtype).min
        actions = values.argmax(1)
        noise = torch.randint(0, values.shape[1], actions.shape, device=self.device)
        explore = torch.rand(len(actions), device=self.device).le(exploration)
        actions = actions * ~explore + noise * explore
        shift_boards(points, chosen, actions)
        reduce_boards(points)
        rescale_boards(points)
        return actions

    @torch.inference_mode()
    def play(self, num_games: int) -> int:
        """Play new games until all have ended; gives the env steps of games that had not."""
        points = new_boards(num_games, self.device)
        num_steps = 0
        while not all(ended(points)):
            num_steps += int((~ended(points)).sum())
            chosen, _ = self.host_move(points, exploration=0.0)
            self.agent_move(points, chosen, exploration=0.0)
        return num_steps

    def step(self, points: Tensor, role: Role, exploration: float) -> Experience:
        """Move the points, and give what `role` has experienced in the games that had not ended."""
        observation = features(points)
        running = ~ended(points)
        chosen, host_actions = self.host_move(points, exploration if role == "host" else 0.0)
        agent_actions = self.agent_move(points, chosen, exploration if role == "agent" else 0.0)
        next_ended = ended(points)[running].clone().view(-1, 1)
        next_observation = features(points)
        reward = next_ended.float().clone()
        if role == "host":
            seen = {"points": observation[running].clone()}
            seen_next = {"points": next_observation[running].clone()}
            return seen, host_actions[running].clone().view(-1, 1), reward, next_ended, seen_next
        next_chosen, _ = self.host_move(points, exploration)
        seen = {"points": observation[running].clone(), "coords": chosen[running].clone()}
        seen_next = {"points": next_observation[running].clone(), "coords": next_chosen[running].clone()}
        return seen, agent_actions[running].clone().view(-1, 1), -reward, next_ended, seen_next


# ---- DQN -----------------------------------------------------------------------------------------------


class LegacyBuffer:
    """A ring of experience, one tensor per entry; adds and draws entry by entry."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], capacity: int, device: torch.device) -> None:
        self.capacity, self.device = capacity, device
        self.position, self.full = 0, False

        def room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros((capacity, *shape), dtype=dtype, device=device)

        self.observation, self.next_observation = (
            {name: room(shape, torch.float32) for name, shape in shapes.items()} for _ in range(2)
        )
        self.actions, self.rewards = room((1,), torch.int32), room((1,), torch.float32)
        self.ended = room((1,), torch.bool)

    def add(self, experience: Experience) -> None:
        observation, actions, rewards, ended, next_observation = experience
        num = len(actions)
        end = self.position + num
        storage = [*self.observation.values(), self.actions, self.rewards, self.ended, *self.next_observation.values()]
        rows = [*observation.values(), actions.int(), rewards, ended, *next_observation.values()]
        for target, source in zip(storage, rows, strict=True):
            fitting = min(num, self.capacity - self.position)
            target[self.position : self.position + fitting] = source[:fitting].to(self.device).clone()
            if end >= self.capacity:
                target[: end - self.capacity] = source[fitting:].to(self.device).clone()
        self.full = self.full or end >= self.capacity
        self.position = end % self.capacity

    def sample(self, batch_size: int) -> Experience:
        places = torch.randint(self.capacity if self.full else self.position, (batch_size,))

        def drawn(tensor: Tensor) -> Tensor:
            return tensor[places].to(self.device).clone()

        return (
            {name: drawn(value) for name, value in self.observation.items()},
            drawn(self.actions),
            drawn(self.rewards),
            drawn(self.ended),
            {name: drawn(value) for name, value in self.next_observation.items()},
        )


@dataclass
class Learner:
    """What one role trains with."""

    net: nn.Module
    target: nn.Module
    optimizer: torch.optim.Optimizer
    buffer: LegacyBuffer


class LegacyDQN:
    """The original's DQN trainer with the configuration of its own tests, its logging and timers off."""

    BATCH_SIZE, CAPACITY = 2, 100
    NUM_GAMES, MAX_ROUNDS = 2, 10  # of a roll-out
    ROLLOUT_INTERVAL, TARGET_INTERVAL = 2, 2  # train steps
    GAMMA, TAU, MAX_GRAD_NORM = 0.99, 0.9, 10.0
    LEARNING_RATE, EXPLORATION = 1e-3, 0.5

    def __init__(self, device: torch.device) -> None:
        self.device = device
        points = (MAX_NUM_POINTS, DIMENSION)
        num_inputs = MAX_NUM_POINTS * DIMENSION
        self.learners: dict[Role, Learner] = {
            "host": self._learner(num_inputs, len(SUBSETS), {"points": points}),
            "agent": self._learner(num_inputs + DIMENSION, DIMENSION, {"points": points, "coords": (DIMENSION,)}),
        }
        self.game = LegacyGame(self.learners["host"].net, self.learners["agent"].net, device)
        self.num_steps = 0
        with self._eval_mode():
            for role in self.learners:
                self._roll_out(role)

    def _learner(self, num_inputs: int, num_actions: int, shapes: dict[str, tuple[int, ...]]) -> Learner:
        net = QNetwork(num_inputs, num_actions).to(self.device)
        optimizer = torch.optim.Adam(net.parameters(), lr=self.LEARNING_RATE)
        return Learner(net, deepcopy(net), optimizer, LegacyBuffer(shapes, self.CAPACITY, self.device))

    def train(self, num_steps: int) -> None:
        """Train steps: one opt step of the host and one of the agent each, and their roll-outs."""
        for _ in range(num_steps):
            for learner in self.learners.values():
                for group in learner.optimizer.param_groups:
                    group["lr"] = self.LEARNING_RATE
            for role, learner in self.learners.items():
                if self.num_steps % self.TARGET_INTERVAL == 0:
                    self._follow(learner)
                self._opt_step(learner)
                if self.num_steps % self.ROLLOUT_INTERVAL == 0:
                    with self._eval_mode():
                        self._roll_out(role)
            self.num_steps += 1

    def _opt_step(self, learner: Learner) -> None:
        observation, actions, rewards, ended, next_observation = learner.buffer.sample(self.BATCH_SIZE)
        with torch.no_grad():
            value = learner.target(next_observation).max(dim=1)[0].view(-1, 1)
            target = rewards + ~ended * self.GAMMA * value
        taken = learner.net(observation).gather(1, actions.long())
        loss = nn.functional.smooth_l1_loss(taken, target)
        learner.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learner.net.parameters(), self.MAX_GRAD_NORM)
        learner.optimizer.step()

    @torch.no_grad()
    def _follow(self, learner: Learner) -> None:
        """The target moves a share TAU towards the network, parameter by parameter, then statistic by statistic."""
        online, target = _tracked(learner.net), _tracked(learner.target)
        for source, moved in zip(online, target, strict=True):
            moved.data.mul_(1 - self.TAU)
            torch.add(moved.data, source.data, alpha=self.TAU, out=moved.data)

    def _roll_out(self, role: Role) -> None:
        points = new_boards(self.NUM_GAMES, self.device)
        experiences = []
        for _ in range(self.MAX_ROUNDS):
            if not all(ended(points)):
                experiences.append(self.game.step(points, role, self.EXPLORATION))
        for experience in experiences:
            self.learners[role].buffer.add(experience)

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        self._set_training(False)
        yield
        self._set_training(True)

    def _set_training(self, training: bool) -> None:
        for learner in self.learners.values():
            learner.net.train(training)


def _tracked(net: nn.Module) -> list[Tensor]:
    """Parameters, then running means and variances."""
    statistics = [buffer for name, buffer in net.named_buffers() if "running" in name]
    return [*net.parameters(), *statistics]
