"""Mistakes in algorithms."""

from tests.mutants.mutant import mutants

TURN = "algorithms/test_turn.py algorithms/test_algorithm.py"
SAC = "algorithms/test_sac.py"
SAMPLED = "algorithms/parts/test_sampled_actions.py algorithms/test_sac.py"
TD3 = "algorithms/test_td3.py"
KERNELS = "algorithms/kernels/test_equality.py"
ADVANTAGES = "algorithms/test_ppo.py algorithms/test_ppo_recurrent.py"
RETURNS = "algorithms/parts/test_return_distributions.py"

ALGORITHMS = [
    *mutants(
        "algorithms/turn.py",
        TURN,
        (
            'progress["done"] += 1\n            self.safe_point()',
            'self.safe_point()\n            progress["done"] += 1',
        ),
        ("if len(self._begun) > num_begun:", "if False:"),
        ("        self.player.turn_progress.clear()\n", ""),
        ('progress["of"] = progress["done"] + 1', 'progress["of"] = progress["done"]'),
        ("self.player.turn_progress[name] = {", "self.player.turn_progress[what] = {"),
    ),
    *mutants(
        "algorithms/terms.py",
        "algorithms/test_algorithm.py",
        ("    for loss in losses[1:]:", "    for loss in losses[2:]:"),
        ("name: term.detach() for name", "name: term for name"),
    ),
    *mutants(
        "algorithms/td3.py",
        TD3,
        ("next_value = next_q_values.amin(dim=0)", "next_value = next_q_values.amax(dim=0)"),
        ("torch.where(batch.terminated, 0.0", "torch.where(batch.terminated | batch.truncated, 0.0"),
        (".clamp(-smoothing.max_noise, smoothing.max_noise)", ""),
        ("(torch.tanh(outputs) + clipped).clamp(-1.0, 1.0)", "torch.tanh(outputs) + clipped"),
        ("self.target_policy(batch.next_observation)", "self.policy_net(batch.next_observation)"),
        ("self.target_critics(batch.next_observation", "self.critics(batch.next_observation"),
        ("            self.target_policy.follow(self.policy_net, config.target.tau)\n", ""),
        ("            self.target_critics.follow(self.critics, config.target.tau)\n", ""),
        ("due = [(opt_steps + 1) % interval == 0", "due = [opt_steps % interval == 0"),
        ("for interval in (config.policy_interval,", "for interval in (config.target.interval,"),
        ('"loss_policy": -q_values.mean()', '"loss_policy": q_values.mean()'),
        ('{"action": self.half_widths(batch.action)}', '{"action": batch.action}'),
        ("random_normals(keys, num)).clamp(-1.0, 1.0)", "random_normals(keys, num))"),
        (
            "std = self.config.exploration.std(self.player.opt_steps) if explore else 0.0",
            "std = self.config.exploration.std(self.player.opt_steps)",
        ),
        ("fill_(config.policy_learning_rate(opt_steps))", "fill_(config.critic_learning_rate(opt_steps))"),
        ("fold(self.noise_key, opt_steps)", "fold(self.noise_key, 0)"),
        ("losses.mean(dim=1).sum()", "losses.mean()"),
        ('batch.extras.get("discount", self.config.gamma)', "self.config.gamma"),
        ('            losses = losses * batch.extras["weight"]\n', "            pass\n"),
        ("        self.update_priorities(priorities)\n", "        pass\n"),
        ("explore and self.player.env_steps <", "self.player.env_steps <"),
    ),
    *mutants(
        "algorithms/sac.py",
        SAC,
        (
            "least = next_q_values.amin(dim=0)",
            "least = next_q_values[0]",
        ),
        ("least = q_values.amin(dim=0)", "least = q_values.mean(dim=0)"),
        ("next_actions.mean(least - alpha * next_actions.log_probs)", "next_actions.mean(least)"),
        ("actions.mean(least - alpha * actions.log_probs)\n        return {", "actions.mean(least)\n        return {"),
        ("torch.where(batch.terminated, 0.0", "torch.where(batch.truncated, 0.0"),
        ("0.5 * losses.mean(dim=1).sum()", "losses.mean(dim=1).sum()"),
        ('batch.extras.get("discount", self.config.gamma)', "self.config.gamma"),
        ('            losses = losses * batch.extras["weight"]\n', "            pass\n"),
        ("        self.update_priorities(priorities)\n", "        pass\n"),
        ("log_alpha * (entropy - self.target_entropy(batch))", "-log_alpha * (entropy - self.target_entropy(batch))"),
        ("return factor * cast(BoxHead, self.head).num_free", "return factor"),
        (".sum(dim=1).clamp(min=1).log()", ".sum(dim=1).clamp(min=1)"),
        ("            self.targets.follow(self.critics, config.target.tau)\n", "            pass\n"),
        ("(opt_steps + 1) % config.target.interval == 0", "opt_steps % config.target.interval == 0"),
        ("self.targets(batch.next_observation", "self.critics(batch.next_observation"),
        ("self.acting(batch.next_observation), batch.next_legal", "self.acting(batch.observation), batch.next_legal"),
        ("head.uniform(legal, keys)", "head.sample(net(view), legal, keys)"),
        ("fold(self.noise_key, opt_steps)", "fold(self.noise_key, 0)"),
        ("lambda view, legal, keys: head.mode(net(view), legal)", "lambda view, *rest: head.sample(net(view), *rest)"),
        ("            self.alpha_optimizer.step(gradient)\n", ""),
        ('self.log_alpha.detach().copy_(state["log_entropy_coefficient"])', "pass"),
    ),
    *mutants(
        "algorithms/parts/sampled_actions.py",
        SAMPLED,
        ("return -self.mean(self.log_probs)", "return self.mean(self.log_probs)"),
        ('return {"action": self.half_widths(action)}', 'return {"action": action}'),
        ("outputs.masked_fill(~legal, ILLEGAL).log_softmax(dim=1)", "outputs.log_softmax(dim=1)"),
        ("2.0 * random_floats(keys, self.num_noise) - 1.0", "random_floats(keys, self.num_noise)"),
        ("distribution.mean + distribution.log_std.exp()", "distribution.mean + distribution.log_std"),
    ),
    *mutants(
        "algorithms/parts/action_heads.py",
        SAMPLED,
        ("(mean, log_std.clamp(*self.log_std_bounds))", "(mean, log_std)"),
    ),
    *mutants(
        "algorithms/kernels/ppo.py",
        f"{ADVANTAGES} {KERNELS}",
        ("                if not sequences.terminated[t, w]:", "                if True:"),
        ("is_cut = sequences.truncated[t, w] or is_last[w]", "is_cut = is_last[w]"),
        ("is_cut = sequences.truncated[t, w] or is_last[w]", "is_cut = sequences.truncated[t, w]"),
        ("else later[w] + gae_lambda * ahead[w]", "else later[w] + ahead[w]"),
        (
            "ahead[w], later[w], is_last[w] = advantage, sequences.value[t, w], False",
            "ahead[w], later[w] = advantage, sequences.value[t, w]",
        ),
    ),
    *mutants(
        "algorithms/parts/advantages.py",
        ADVANTAGES,
        ("following = torch.where(truncated | is_last, next_value,", "following = torch.where(is_last, next_value,"),
    ),
]
