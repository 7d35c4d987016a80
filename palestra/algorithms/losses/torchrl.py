"""TorchRL's loss modules as losses of `on_policy` and `off_policy` (extra: torchrl, imported where a run asks for it).

They compute with the player's own networks, distributions and rows. Target networks that they keep are part of their
state. Their random numbers come from keys, and rows that do not count never reach them.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from palestra.algorithms.losses.loss import ActionValues, AnyHead, Critic, Loss, LossBatch, LossConfig, OnPolicyLoss, Q
from palestra.algorithms.losses.off_policy_loss import OffPolicyLoss, ReplayBatch
from palestra.algorithms.parts.actor_critic import POLICY, VALUE, HeadedNet
from palestra.algorithms.parts.estimators import OBJECTIVES, TorchRLConfig, torchrl_module
from palestra.config import ConfigError, InBranch, below, running_own
from palestra.config.errors import shown
from palestra.games.spaces import Box, Discrete
from palestra.nets.weights import move
from palestra.players.player import Player
from palestra.randomness import seeded_global_state

REPLAY_LOSSES: tuple[Any, ...] = ("DQNLoss", "SACLoss", "DiscreteSACLoss")
HALF = 0.5  # discounts are powers of it


class _ModuleLoss(Loss):
    """The base of both kinds of losses: it holds the loss module, `module`, and its state.

    begun: its coefficients, as the arguments give them. tied: for each weight of an ensemble of critics, which TorchRL
    stacks, the stacked tensor and the networks' own.
    """

    player: Player
    module: Any

    def make(self, networks: Mapping[str, Any]) -> Any:
        """Make the loss module of these networks: by head, modules on TensorDicts (torchrl_modules.networks_of)."""
        raise NotImplementedError

    def adopt(self, net: HeadedNet, player: Player) -> None:
        """Make the loss module of the networks. Raises ConfigError, at paths below the algorithm's config."""
        net.refuse_memories(" for a loss of TorchRL")
        with below("loss"):
            kind = torchrl_module(OBJECTIVES).LossModule
            from palestra.algorithms.losses import torchrl_modules

            self.modules, self.player = torchrl_modules, player
            networks = torchrl_modules.networks_of(net, self.heads, player)
            with running_own("arguments", f"{self.config.name!r} cannot be made"), seeded_global_state(0):
                self.module = self.make(networks)
            if not isinstance(self.module, kind):
                raise ConfigError.at("name", f"expected a LossModule of `make`, got {type(self.module).__name__}")
            self.begun = {name: b.cpu().clone() for name, b in self.module.named_buffers() if "_params." not in name}
            for name in self.module._has_update_associated:  # `follow` moves them: TorchRL need not warn
                self.module._has_update_associated[name] = True
            if getattr(self.module, "_value_estimator", None) is not None:
                why = "discounts and returns are those of the algorithm and its estimator"
                self.notes = [f"loss: {self.config.name} calls make_value_estimator, whose gamma has no say; {why}"]
            self.net, self.tied = net, self._tied(net, networks)

    def _tied(self, net: HeadedNet, networks: Mapping[str, Any]) -> list[tuple[nn.Parameter, list[nn.Parameter]]]:
        """Return each weight that TorchRL has stacked for an ensemble, with those of our networks that it stands for.

        TorchRL was given the ensemble as one network, or as a list: its networks are that one, or the list's first one,
        and those that follow it.
        """
        ours, tied = set(map(id, net.parameters())), []
        for name, params in self.module.named_children():
            if not name.endswith("_params") or name.startswith("target_"):
                continue
            first = vars(self.module).get(name.removesuffix("_params"))
            heads = [head for head in networks if networks[head] is first]
            for key, weight in params.items(True, True):
                if not isinstance(weight, nn.Parameter) or id(weight) in ours:
                    continue
                ensemble = list(networks)[list(networks).index(heads[0]) :][: len(weight)] if heads else []
                if len(ensemble) < len(weight):
                    expected = f"expected a head for each of {len(weight)} networks of the loss module in {name}"
                    raise ConfigError.at("name", f"{expected}, got {', '.join(ensemble) or 'none'}")
                path = ".".join(key) if isinstance(key, tuple) else key
                tied.append((weight, [networks[head].get_parameter(path) for head in ensemble]))
        return tied

    def compute(self, rows: dict[Any, Tensor], opt_steps: int) -> tuple[dict[str, Tensor], Any]:
        """Return the terms for rows, the entries of a TensorDict, and the TensorDict, to which the module may write."""
        from tensordict import TensorDict

        inputs = TensorDict(rows, batch_size=[len(next(iter(rows.values())))])
        with seeded_global_state(self.player.key(f"torchrl/{opt_steps}")):
            outputs = self.module(inputs)
        terms = {}
        for name, value in outputs.items():
            if isinstance(value, Tensor):
                is_learned = name.startswith("loss_") or name == "loss"
                own = "loss_td" if name == "loss" else name
                terms[own] = value if is_learned else value.detach().float().mean()
                if is_learned:  # each of them is recorded, and not their sum alone
                    terms[f"{own.removeprefix('loss_')}_loss"] = value.detach()
        return terms, inputs

    def key(self, name: str) -> Any:
        """Return the key of a TensorDict under which the module looks for something."""
        return getattr(self.module.tensor_keys, name)

    @torch.no_grad()
    def follow(self, share: float) -> None:
        """Move the module's target networks a share of the way to the networks that learn."""
        for name, targets in self.module.named_children():
            if name.startswith("target_"):
                others = getattr(self.module, name.removeprefix("target_"))
                keys = list(targets.keys(True, True))
                move((targets.get(key).data for key in keys), (others.get(key).data for key in keys), share)

    def state_dict(self) -> dict[str, Any]:
        """Return the module's buffers: target networks, and coefficients that it changes, with how these began.

        Checkpoints hold those of the player's own networks anyway.
        """
        return {
            name: buffer
            for name, buffer in self.module.named_buffers()
            if name.startswith("target_") or not name.partition(".")[0].endswith("_params")
        } | {"begun": self.begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, but for coefficients that begin otherwise here, in a branch."""
        for name, buffer in self.module.named_buffers():
            if name in state and (name not in self.begun or torch.equal(self.begun[name], state["begun"][name].cpu())):
                buffer.data.copy_(state[name])


# ---- on roll-outs --------------------------------------------------------------------------------------


class TorchRLLoss(_ModuleLoss, OnPolicyLoss):
    """A loss module of TorchRL on roll-outs, such as ClipPPOLoss.

    A class of your own derives from it, carries its `Config`, and implements `make`.

    The module gets only rows that count. Its target networks, if it keeps any, are those with which the roll-out was
    collected.
    """

    estimators = ("gae", "td_lambda", "reward_to_go", "torchrl")

    @property
    def is_of_one_pass(self) -> bool:  # type: ignore[override]
        return self.config.name in (f"{OBJECTIVES}:ReinforceLoss", f"{OBJECTIVES}:A2CLoss")

    def make(self, networks: Mapping[str, Any]) -> Any:
        cls, objectives = self.config.load(self.config.name), torchrl_module(OBJECTIVES)
        if not issubclass(cls, (objectives.PPOLoss, objectives.A2CLoss, objectives.ReinforceLoss)):
            expected = "a class that derives from PPOLoss, A2CLoss or ReinforceLoss, or one of your own that makes it"
            raise ConfigError.at("name", f"expected {expected}, got {self.config.name!r}")
        arguments = self.config.called_with()
        if issubclass(cls, objectives.KLPENPPOLoss) and not arguments["delay_actor"]:
            why = "its target network is the policy that collected the roll-out, whose outputs rows do not hold"
            message = f"expected true ({why}), got {shown(arguments['delay_actor'])}"
            raise ConfigError.at("arguments.delay_actor", message)
        return cls(actor_network=networks[POLICY], critic_network=networks[VALUE], **arguments)

    def begin(self, net: HeadedNet, player: Player) -> None:
        self.adopt(net, player)
        if not set(map(id, self.module.parameters())) <= set(map(id, net.parameters())):
            message = "expected a loss module without weights of its own on roll-outs, got one with some"
            raise ConfigError.at("loss.name", message)

    def before_turn(self) -> None:
        self.follow(1.0)

    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        counts = batch.weight > 0
        is_empty = ~counts.any()
        rows = (counts | is_empty).nonzero().squeeze(1)  # of a minibatch without any: all, and they count as 0
        observation = {name: entry[rows] for name, entry in batch.observation.items()}
        columns = self.modules.network_inputs(observation, batch.legal[rows]) | {
            self.key("action"): batch.action[rows],
            self.key("sample_log_prob"): batch.old_log_prob[rows],
            self.key("advantage"): batch.advantage[rows].unsqueeze(1),
            self.key("value_target"): batch.value_target[rows].unsqueeze(1),
        }
        if VALUE in self.net.heads:
            columns[self.key("value")] = batch.old_value[rows].unsqueeze(1)
        terms, _ = self.compute(columns, batch.opt_steps)
        return {name: torch.where(is_empty, 0.0, term) for name, term in terms.items()}


class TorchRLLossConfig(TorchRLConfig, LossConfig):
    made = TorchRLLoss

    name: str
    """a loss module of TorchRL (extra: torchrl), as torchrl.objectives:ClipPPOLoss"""


# ---- from a replay buffer ------------------------------------------------------------------------------


class TorchRLReplayLoss(_ModuleLoss, OffPolicyLoss):
    """A loss module of TorchRL on rows of a replay buffer, such as SACLoss.

    A class of your own derives from it, carries its `Config`, sets `heads` and `acts_by`, and implements `make`.

    The module's target networks are part of the loss's state. Weights of its own, as the temperature of SAC, are
    learned by the player's optimizer.
    """

    learns_batch_norm = False  # TorchRL would keep statistics of its own
    own_targets = True

    def learns(self) -> Literal["DQNLoss", "SACLoss", "DiscreteSACLoss"]:
        """Return the class of TorchRL that the file names, or from which the class that it names derives.

        TorchRL's own are known by their names, so that a file can be read where TorchRL is not installed.
        """
        name = self.config.name
        found = [each for each in REPLAY_LOSSES if name == f"{OBJECTIVES}:{each}"]
        if not found and not self.config.is_name(name):
            with below("loss"):
                cls, objectives = self.config.load(name), torchrl_module(OBJECTIVES)
            found = [each for each in REPLAY_LOSSES if issubclass(cls, getattr(objectives, each))]
        if not found:
            expected = f"expected {OBJECTIVES}:{', '.join(REPLAY_LOSSES)}, a class of your own that derives from one"
            raise ConfigError.at("loss.name", f"{expected}, or a loss of your own that makes another, got {name!r}")
        return found[0]

    @property
    def heads(self) -> tuple[AnyHead, ...]:  # type: ignore[override]
        learns, number = self.learns(), self.config.arguments.get("num_qvalue_nets")
        if learns == "DQNLoss":
            return (Q,)
        if type(number) is not int or number < 1:
            raise ConfigError.at("loss.arguments.num_qvalue_nets", f"expected an integer >= 1, got {shown(number)}")
        kind = Critic if learns == "SACLoss" else ActionValues
        return (POLICY, *(kind(f"critic_{place}") for place in range(number)))

    @property
    def acts_by(self) -> str:  # type: ignore[override]
        return Q if self.learns() == "DQNLoss" else POLICY

    def make(self, networks: Mapping[str, Any]) -> Any:
        cls, space = self.config.load(self.config.name), self.player.action_space
        arguments = self.config.called_with()
        if self.acts_by == Q:
            return cls(value_network=networks[Q], action_space="categorical", **arguments)
        critics = [network for head, network in networks.items() if head != POLICY]
        ensemble = critics if len(critics) > 1 else critics[0]
        actor: dict[str, Any] = {"actor_network": networks[POLICY], "qvalue_network": ensemble}
        if isinstance(space, Discrete):
            return cls(**actor, action_space="categorical", num_actions=space.num, **arguments)
        assert isinstance(space, Box)
        bounds = (torch.tensor(each, device=self.player.device) for each in (space.low, space.high))
        return cls(**actor, action_spec=torchrl_module("torchrl.data").Bounded(*bounds), **arguments)

    def begin(self, net: HeadedNet, player: Player) -> None:
        self.adopt(net, player)
        self.own_targets = any(name.startswith("target_") for name, _ in self.module.named_children())
        self.module.make_value_estimator(gamma=HALF)  # whose powers stand for the discounts of rows: `terms`
        known = set(map(id, [*net.parameters(), *(stacked for stacked, _ in self.tied)]))
        own = {name: weight for name, weight in self.module.named_parameters() if id(weight) not in known}
        self.own = list(own.values())
        if own:
            self.weights = nn.ParameterDict({name.replace(".", "_"): weight for name, weight in own.items()})

    def leaves(self, weights: Mapping[str, nn.Parameter]) -> Mapping[str, Tensor]:
        """Return the parameters of the loss module.

        The stacked weights of an ensemble become views of its networks' weights, which lie one after the other; initial
        weights that TorchRL has drawn for an ensemble are dropped.
        """
        for stacked, parts in self.tied:
            first, places = parts[0].data, [part.storage_offset() for part in parts]
            step = places[1] - places[0] if len(parts) > 1 else 0
            assert places == [places[0] + number * step for number in range(len(parts))]
            stacked.data = torch.as_strided(first, stacked.shape, (step, *first.stride()), places[0])
        self.follow(1.0)
        leaves = dict(self.module.named_parameters())
        if num_missing := sum(map(torch.numel, weights.values())) - sum(map(torch.numel, leaves.values())):
            heads = ", ".join(self.net.heads)
            message = f"names the heads {heads}, but its loss module leaves out {num_missing} of their weights"
            raise ConfigError.at("loss.name", f"{self.config.name!r} {message}")
        return leaves

    def gradient(self, loss: Tensor, leaves: list[Any], weights: Tensor) -> Tensor:
        flat = torch.zeros_like(weights)
        for leaf, gradient in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
            flat.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset()).copy_(gradient)
        return flat

    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        following = self.modules.network_inputs(batch.next_observation, batch.next_legal)
        following |= dict.fromkeys((self.key("done"), self.key("terminated")), batch.terminated.unsqueeze(1))
        following[self.key("reward")] = batch.reward.unsqueeze(1)
        columns = self.modules.network_inputs(batch.observation, batch.legal)
        columns |= {("next", *(key if isinstance(key, tuple) else (key,))): value for key, value in following.items()}
        columns |= {
            self.key("action"): batch.action,
            "steps_to_next_obs": (-batch.discount.log2()).unsqueeze(1),  # 0.5 to this power is the discount
        }
        if batch.importance is not None:
            columns[self.key("priority_weight")] = batch.importance
        places = [weight.data for weight in self.own]
        terms, inputs = self.compute(columns, batch.opt_steps)
        for weight, place in zip(self.own, places, strict=True):
            if weight.data_ptr() != place.data_ptr():  # DiscreteSACLoss clamps its temperature into a new tensor
                place.copy_(weight.data)
                weight.data = place
        self.written = inputs.get(self.key("priority"), None)
        return terms if batch.importance is None else self._as_means(terms, batch.importance.mean())

    def _as_means(self, terms: dict[str, Tensor], mean_weight: Tensor) -> dict[str, Tensor]:
        """Scale the terms of rows drawn by priority to means of weighted losses (Schaul et al. 2016).

        TorchRL divides by the sum of the weights instead.
        """
        if self.module.reduction != "mean" or getattr(self.module, "use_prioritized_weights", False) is False:
            return terms
        return {name: term * mean_weight if name.startswith("loss_") else term for name, term in terms.items()}

    def priorities(self, batch: ReplayBatch) -> Tensor:
        """Return the priorities that the module has written; for DQNLoss, which writes squared TD errors, their roots.

        SACLoss writes the largest absolute TD error of its critics.
        """
        written: Tensor = self.written.detach().flatten()
        return written.sqrt() if isinstance(self.module, torchrl_module(OBJECTIVES).DQNLoss) else written


class TorchRLReplayLossConfig(TorchRLConfig, LossConfig):
    made = TorchRLReplayLoss

    name: str
    """a loss module of TorchRL (extra: torchrl), as torchrl.objectives:SACLoss"""
    arguments: Annotated[dict[str, Any], InBranch.FIXED]
    """what it is called with: all of its arguments but networks and what the run knows"""
