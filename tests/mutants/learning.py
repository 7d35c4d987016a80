"""Mistakes in DQN and PPO, in their kernels, and in the guard of kernels."""

from tests.mutants.mutant import mutants

DQN = "algorithms/test_dqn.py"
PPO = "algorithms/test_ppo.py"
EQUALITY = "algorithms/kernels/test_equality.py"
GUARD = "runtime/test_guard.py"

LEARNING = [
    *mutants(
        "algorithms/dqn.py",
        DQN,
        ("best = best_legal(value.q_values(choosing_outputs)", "best = best_legal(value.q_values(next_outputs)"),
        ("batch.next_legal)\n        best_outputs", "torch.ones_like(batch.next_legal))\n        best_outputs"),
        (
            "value, terminated = self.config.value, batch.terminated",
            "value, terminated = self.config.value, batch.terminated | batch.truncated",
        ),
        ("return ~batch.terminated * batch.extras.get(", "return batch.extras.get("),
        ('batch.extras.get("discount", self.config.gamma)', "self.config.gamma"),
        ('            losses = losses * batch.extras["weight"]\n', "            pass\n"),
        (
            "self.target_net(return_distributions.with_fractions(next_observation, fractions))",
            "self.acting(next_observation)",
        ),
        ("(opt_steps + 1) % config.target.interval == 0", "opt_steps % config.target.interval == 0"),
        ("self.target_net.follow(self.online, share=self.config.target.tau)", "pass"),
        ("self.target_net.follow(self.online, config.target.tau)", "self.target_net.follow(self.online, 1.0)"),
        ("        self.update_priorities(priorities)\n", "        pass\n"),
        ("descend(gradient, self.config.max_grad_norm)", "descend(gradient, None)"),
    ),
    *mutants(
        "algorithms/parts/playing.py",
        DQN,
        ("amount = config.schedule(self.player.opt_steps) if explores else 0.0", "amount = 0.0"),
    ),
    *mutants(
        "algorithms/parts/replay.py",
        DQN,
        ("self.player.env_steps < self.config.warmup_env_steps or", "False or"),
    ),
    *mutants(
        "algorithms/ppo.py",
        PPO,
        ("surrogate = torch.minimum(ratio * batch", "surrogate = torch.maximum(ratio * batch"),
        ("policy_loss = -batch.mean(surrogate)", "policy_loss = batch.mean(surrogate)"),
        ("kl = ratio - 1.0 - log_ratio", "kl = ratio - 1.0 + log_ratio"),
        ("ratio * batch.advantage - kl_coefficient * kl", "ratio * batch.advantage + kl_coefficient * kl"),
        ("error = torch.maximum(error, (batch", "error = torch.minimum(error, (batch"),
        ('"loss_entropy": -entropy_coefficient * entropy', '"loss_entropy": entropy_coefficient * entropy'),
        ("return advantage, advantage + sequences.value", "return advantage, advantage"),
        ('bool(metrics["approx_kl"] > self.config.target_kl)', 'bool(metrics["approx_kl"] < self.config.target_kl)'),
        ("if kl < objective.target / 1.5:", "if kl < objective.target * 1.5:"),
    ),
    *mutants(
        "algorithms/parts/passes.py",
        PPO,
        ("weight=batch.valid.to(torch.float32)", "weight=torch.ones_like(value)"),
        ("fold(self.key, self.num_made)", "fold(self.key, 0)"),
        ("action=extras.get(SAMPLED, batch.action)", "action=batch.action"),
    ),
    *mutants(
        "algorithms/parts/playing.py",
        PPO,
        ('self.policy_that(explore or self.config.evaluation == "sampled",', "self.policy_that(explore,"),
    ),
    *mutants(
        "algorithms/kernels/dqn.py",
        EQUALITY,
        ("error = q_values[row, action[row]] - value_target", "error = value_target - q_values[row, action[row]]"),
        ("        if not terminated[row]:", "        if True:"),
        ("if next_legal[row, a] and next_online[row, a] > most:", "if next_online[row, a] > most:"),
        ("next_target[row, best]", "next_online[row, best]"),
        ("(discounts[row] if len(discounts) else gamma)", "gamma"),
        ("output_grads[row, action[row]] = weight * clipped", "output_grads[row, action[row]] = clipped"),
    ),
    *mutants(
        "algorithms/kernels/ppo.py",
        EQUALITY,
        ("if ratio * advantage > clipped_ratio * advantage:", "if ratio > clipped_ratio:"),
        ("if abs(change) <= terms.value_clip else 0.0", "if True else 0.0"),
        ("by_entropy * p * (log_probs[a] + entropies[k])", "by_entropy * p * log_probs[a]"),
        (
            "passed.backward(output_grads, self.by_weights, adds=start > 0)",
            "passed.backward(output_grads, self.by_weights)",
        ),
        ("        self.by_log_std[:] = 0.0\n", ""),
        (
            "        if rows.weight[row] > 0.0:\n            counted",
            "        if rows.weight[row] >= 0.0:\n            counted",
        ),
        ("            self.by_weights[:] = 0.0\n", "            pass\n"),
    ),
    *mutants(
        "algorithms/kernels/choices.py",
        f"{EQUALITY} algorithms/parts/test_distributions.py",
        ("                if legal[row, start + action]:\n", "                if True:\n"),
        ("logits[row, start + last] - top) - np.log(total)", "logits[row, start + last]) - np.log(total)"),
        (
            "if legal[row, start + action] and logits[row, start + action] > top:",
            "if logits[row, start + action] > top:",
        ),
        ("            start += num\n", ""),
        ("                    if left < 0.0:", "                    if left <= -1.0:"),
        ("            x += U_GAMMA\n", ""),
    ),
    *mutants(
        "runtime/guard.py",
        f"{GUARD} algorithms/kernels/test_edits.py",
        ("if hashes[name_of(function)] != fingerprint(function, holder):", "if False:"),
        (" or function.__code__.co_name != method:", ":"),
        ("    yield from functions\n", ""),
        ("    for part in reachable(owner):\n", "    for part in [owner]:\n"),
        ("isinstance(value, MethodType) and value.__self__ is not holder", "False"),
        ("    read = [text, _described([function.__defaults__, function.__kwdefaults__, cells])]", "    read = [text]"),
        ('inspect.getattr_static(holder, name))}")', 'inspect.getattr_static(cls, name))}")'),
        ('read.append(f"{name} = {_described(function.__globals__[name])}")', "pass"),
        (
            "arg in [*function.args.posonlyargs, *function.args.args]}",
            "arg in ast.walk(function.args) if isinstance(arg, ast.arg)}",
        ),
        ("if name in own:", "if False:"),
        ("| ast.Expr(value=ast.Constant()):", ":"),
        ('("annotation", "returns", "type_comment"', '("type_comment"'),
        ("return written(ast.Assign([target], value))", "pass"),
    ),
]
