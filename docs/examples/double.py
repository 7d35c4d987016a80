import torch
from torch.nn.functional import huber_loss

from palestra import Trainer
from palestra.config import UserConfig
from palestra.nets.weights import flat_gradient
from palestra.rollouts.transitions import Transitions


class DoubleDQN(Trainer):
    """Double DQN (van Hasselt et al. 2016) for the players of all roles, the whole logic in one place."""

    class Config(UserConfig):
        pass

    def _train(self):
        """One epoch: each player rolls out, remembers, and makes its opt steps."""
        plan = [
            (player, part)
            for player in self.learners
            for part in ("roll out", *["update"] * player.algorithm.config.updates_per_turn)
        ]
        while self.extra_state.setdefault("done", 0) < len(plan):  # a resumed run goes on right here
            player, part = plan[self.extra_state["done"]]
            if part == "roll out":
                rows = self.roll_out(player.roles[0], player.algorithm.config.rollout_length)
                player.replay_buffer.add(rows.rows(), rows.valid)
            elif player.env_steps >= player.algorithm.config.warmup_env_steps:
                self.update(player, player.algorithm.config)
            self.extra_state["done"] += 1
            self.safe_point()
        self.extra_state["done"] = 0

    def update(self, player, config):
        """One opt step of a player."""
        self.before_step(player)
        net, target_net, optimizer = player.nets["q"], player.nets["target"], player.optimizers["q"]
        batch = Transitions.from_rows(player.replay_buffer.sample(config.batch_size))
        with torch.no_grad():
            next_q = net(batch.next_observation).masked_fill(~batch.next_legal, -torch.inf)
            next_value = target_net(batch.next_observation).gather(1, next_q.argmax(dim=1, keepdim=True)).squeeze(1)
            value_target = batch.reward + config.gamma * next_value * ~batch.terminated
        q = net(batch.observation).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        loss = huber_loss(q, value_target)
        gradient = flat_gradient(loss, list(net.parameters()))
        metrics = {"loss": loss.detach(), "q_mean": q.detach().mean()}
        gradient, metrics = player.mean_over_replicas(gradient, metrics)
        optimizer.follow_schedule()  # the learning rate is that of the player's schedule
        norms = optimizer.descend(gradient, config.max_grad_norm)
        with torch.no_grad():
            for old, new in zip(target_net.parameters(), net.parameters(), strict=True):
                old.lerp_(new, config.target.tau)
        self.after_step(player, {**metrics, **norms})
