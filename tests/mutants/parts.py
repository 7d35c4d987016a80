"""Mistakes in what all algorithms share: chance, schedules, optimizers, distributions, networks, statistics."""

from tests.mutants.mutant import equal_mutant, mutants

RANDOMNESS = "test_randomness.py"
DISTRIBUTIONS = "algorithms/parts/test_distributions.py"
EXPLORATION = "algorithms/parts/test_exploration.py"
OPTIMIZERS = "test_optimizers.py callbacks/test_freeze.py"
SCHEDULES = "test_schedules.py"
NETS = "nets/test_nets.py"
HAND = "nets/kernels/test_learning.py nets/test_flat.py nets/kernels/test_acting.py"

PARTS = [
    *mutants(
        "randomness.py",
        RANDOMNESS,
        ("return _mix(keys + (data + 1) * GAMMA)", "return _mix(keys + data * GAMMA)"),
        ("step = _signed((data + 1) * GAMMA % 2**64)", "step = _signed((data + 2) * GAMMA % 2**64)"),
        ("return (x >> bits) & ((1 << (64 - bits)) - 1)", "return x >> bits"),
        ("torch.arange(1, num + 1, device=keys.device) * GAMMA", "torch.arange(num, device=keys.device) * GAMMA"),
        ('f"{seed}/{stream}".encode()', 'f"{seed}".encode()'),
        (
            "radius = torch.sqrt(-2.0 * torch.log(1.0 - uniforms[..., :half]))",
            "radius = torch.sqrt(-torch.log(1.0 - uniforms[..., :half]))",
        ),
        ("second = mix(key + np.uint64(half + i + 1) * U_GAMMA)", "second = mix(key + np.uint64(half + i) * U_GAMMA)"),
        ("chosen += action * (legal[action] & (left == 0))", "chosen += action * (left == 0)"),
        ("        torch.default_generator.manual_seed(seed)\n", ""),
        ("            np.random.set_state(numbers)", "            pass"),
    ),
    equal_mutant(
        "randomness.py",
        RANDOMNESS,
        "return (legal & (ranks == wanted + 1)).to(torch.int8).argmax(dim=1)",
        "return (ranks == wanted + 1).to(torch.int8).argmax(dim=1)",
        "argmax gives the first of equal numbers, and the first entry with a rank is the legal one",
    ),
    *mutants(
        "schedules.py",
        SCHEDULES,
        (
            "min(step / self.num_steps, 1.0)\n\n\nclass ExponentialSchedule",
            "step / self.num_steps\n\n\nclass ExponentialSchedule",
        ),
        ("share = self.rate**step", "share = self.rate ** (step + 1)"),
        ("share = 0.5 * (1.0 + math.cos(", "share = 0.5 * (1.0 - math.cos("),
        ("if left.step <= step < right.step:", "if left.step < step <= right.step:"),
        (
            "return self.knots[0].value if step < self.knots[0].step else self.knots[-1].value",
            "return self.knots[-1].value",
        ),
    ),
    *mutants(
        "schedules.py",
        SCHEDULES,
        (
            "{name: factor * getattr(self, name) for name in self.in_proportion}",
            "{name: factor * getattr(self, name) for name in self.in_proportion[:1]}",
        ),
        (
            "knots = [Knot(step=knot.step, value=factor * knot.value) for knot in self.knots]",
            "knots = [Knot(step=knot.step, value=knot.value) for knot in self.knots]",
        ),
    ),
    *mutants(
        "optimizers/optimizer.py",
        OPTIMIZERS,
        (
            "vector.copy_(torch.where(self.frozen, old, vector))\n\n    def _scale_step(",
            "vector.copy_(torch.where(self.frozen, vector, old))\n\n    def _scale_step(",
        ),
        (
            "vectors += [value for value in self.state.values() if value.shape == self.weights.shape]",
            "vectors += []",
        ),
        (
            "return gradient.masked_fill(self.frozen, 0.0) if is_masked else gradient",
            "return gradient",
        ),
        ("self._masks = [other for other in self._masks if other is not mask]", "self._masks = []"),
        ("            value.copy_(state[name])", "            pass"),
        ("    if not factor >= 1.0:", "    if factor < 1.0:"),
        ("    if not factor >= 1.0:", "    if True:"),
        ("    norm = np.sqrt(square)\n", "    norm = square\n"),
    ),
    *mutants(
        "optimizers/ours.py",
        OPTIMIZERS,
        ("        self.num_steps += 1\n", "        self.num_steps.fill_(1)\n"),
        ("            lr=self.learning_rate,", "            lr=self.learning_rate / 2,"),
        ("            eps=self.config.eps,", "            eps=1e-8,"),
        ("            weight_decay=self.config.weight_decay,", "            weight_decay=0.0,"),
        ("step_size = self.learning_rate / self._unbiased(config.beta1)", "step_size = self.learning_rate"),
        ("root = (self.mean_square / self._unbiased(config.beta2)).sqrt()", "root = self.mean_square.sqrt()"),
        (
            "gradient = self.velocity.mul_(self.config.momentum).add_(gradient)",
            "gradient = self.velocity * self.config.momentum + gradient",
        ),
        (
            "gradient = gradient.add(self.weights, alpha=self.config.weight_decay)",
            "gradient = gradient.sub(self.weights, alpha=self.config.weight_decay)",
        ),
    ),
    *mutants(
        "algorithms/parts/distributions.py",
        DISTRIBUTIONS,
        ("_invert(part, uniforms[:, index])", "_invert(part, uniforms[:, 0])"),
        (
            "return columns[0].squeeze(1) if len(columns) == 1 else torch.cat(columns, dim=1).sum(dim=1)",
            "return columns[0].squeeze(1) if len(columns) == 1 else torch.cat(columns, dim=1).mean(dim=1)",
        ),
        (
            "return (-0.5 * noise.square() - log_std - LOG_ROOT_2_PI).sum(dim=1)\n\n\ndef gaussian_entropy",
            "return (-0.5 * noise.square() - LOG_ROOT_2_PI).sum(dim=1)\n\n\ndef gaussian_entropy",
        ),
        ("return (log_std + (0.5 + LOG_ROOT_2_PI)).sum(dim=-1)", "return (log_std + LOG_ROOT_2_PI).sum(dim=-1)"),
        (
            "return value, (-0.5 * noise.square() - log_std - LOG_ROOT_2_PI - self._log_derivative(drawn)).sum(dim=1)",
            "return value, (-0.5 * noise.square() - log_std - LOG_ROOT_2_PI).sum(dim=1)",
        ),
        (
            "return gaussian_log_prob(mean, log_std, value) - self._log_derivative(value).sum(dim=1)",
            "return gaussian_log_prob(mean, log_std, value) + self._log_derivative(value).sum(dim=1)",
        ),
        ("return torch.log(half_width) + 2.0 *", "return 2.0 *"),
        ("return torch.clamp(value, self.low, self.high)", "return value"),
        ("(mean - other_mean).square()) * torch.exp(-2.0 * other_log_std)", "(mean - other_mean).square())"),
        ("(own.exp() * (own - theirs)).sum", "(theirs.exp() * (own - theirs)).sum"),
        (
            "        masked = logits.masked_fill(~legal, ILLEGAL)\n        return self._shaped",
            "        masked = logits\n        return self._shaped",
        ),
    ),
    *mutants(
        "algorithms/parts/exploration.py",
        EXPLORATION,
        ("return q.masked_fill(~legal, -torch.inf).argmax(dim=1)", "return q.masked_fill(~legal, 0.0).argmax(dim=1)"),
        ("return best_legal(q + temperature * gumbel, legal)", "return best_legal(q + gumbel, legal)"),
        ("random_choice(fold(keys, 1), legal)", "random_choice(fold(keys, 0), legal)"),
    ),
    *mutants(
        "algorithms/kernels/choices.py",
        "algorithms/parts/test_exploration.py algorithms/test_dqn.py",
        ("            if legal[world, action] and q[world, action] > best:", "            if q[world, action] > best:"),
        ("if uniform < np.float32(epsilon):", "if uniform > np.float32(epsilon):"),
        ("choice(mix(key + U_GAMMA + U_GAMMA), legal[world])", "choice(mix(key + U_GAMMA), legal[world])"),
    ),
    *mutants(
        "nets/deep_sets.py",
        NETS,
        ("x = torch.cat([x, sets.spread(rest)], dim=-1)", "x = torch.cat([x, 0 * sets.spread(rest)], dim=-1)"),
        ("torch.cat([sets.pool(self.point_layers(x)), rest], dim=-1)", "torch.cat([sets.pool(x), rest], dim=-1)"),
    ),
    *mutants(
        "nets/deep_sets.py",
        NETS,
        ("sets.clear_absent(sets.members - sets.spread(corner)).log1p()", "sets.members.log1p()"),
    ),
    *mutants(
        "nets/sets.py",
        "nets/test_sets.py",
        ("self.clear_absent(features).sum(1) / self.num_members", "features.sum(1) / self.num_members"),
        ("torch.where(self.present, features, -torch.inf)", "torch.where(self.present, features, 0.0)"),
        ("(points.amin(-1) >= 0)", "(points.amin(-1) > 0)"),
    ),
    *mutants(
        "nets/kernels/sets.py",
        "nets/test_sets.py",
        ("        for i in range(start + 1, end):", "        for i in range(start + 2, end):"),
        ("by_maximum[k] = output_grads[b, k] / by_maximum[k]", "by_maximum[k] = output_grads[b, k]"),
        ("by_mean[k] = output_grads[b, d + k] / count", "by_mean[k] = output_grads[b, d + k]"),
    ),
    *mutants(
        "nets/kernels/set_nets.py",
        "nets/kernels/test_set_nets.py",
        ("corner[k] = value if num == starts[b] or value < corner[k]", "corner[k] = value if value < corner[k]"),
        ("                by_x[b, layout.rest[k]] += by_members[member, n + k]", "                pass"),
        ("by_members[i, k] += by_corner / num_least", "by_members[i, k] += by_corner"),
        ("by_members[i, k] *= np.exp(-members[i, k])", "by_members[i, k] *= np.float32(1.0)"),
        ("    mlp.activation_backward(by_features, hidden.features, False)\n", ""),
    ),
    *mutants(
        "nets/kernels/plain.py",
        "nets/kernels/test_set_nets.py",
        ("is_newton=coordinates is NewtonSets.coordinates", "is_newton=isinstance(net, NewtonSets)"),
        ("(*others, *map(find_other_call, net.modules()))", "others"),
        ("edit, layers = find_edit(SETS, net), layers_of(net.p", "edit, layers = None, layers_of(net.p"),
    ),
    *mutants(
        "nets/recurrent.py",
        "nets/test_recurrent.py",
        ("            memory = {name: value * stays[start] for name, value in memory.items()}\n", ""),
        (
            "later = episode_start[1:].any(dim=1).nonzero().flatten() + 1",
            "later = episode_start[1:].any(dim=1).nonzero().flatten()",
        ),
        ("later = episode_start[1:].any(dim=1)", "later = episode_start[1:].all(dim=1)"),
        (
            "parts = after if self.is_lstm else (after,)",
            "parts = after[:1] * 2 if self.is_lstm else (after,)",
        ),
    ),
    *mutants(
        "nets/weights.py",
        f"{HAND} nets/test_recurrent.py",
        ("        tensor.data = part.view_as(tensor)\n", "        pass\n"),
        ("for tensor in chain(net.parameters(), net.buffers())}).eval()", "for tensor in ()}).eval()"),
        ("net.buffers())}).eval()", "net.buffers())})"),
        ("        if not (shares and plain and tensor.data_ptr() == end):", "        if not (shares and plain):"),
    ),
    *mutants(
        "nets/flat.py",
        "nets/test_flat.py algorithms/test_dqn.py",
        (
            "move([self.weights, *self.buffers], [other",
            "move([self.weights, *(b.clone() for b in self.buffers)], [other",
        ),
        ("*other.buffers], share)", "*other.buffers], 1.0 - share)"),
        ("return self.weights if self.original is None else self.weights.detach()", "return self.weights"),
        ("        start += flat_size({name: space})\n", ""),
    ),
    *mutants(
        "nets/kernels/mlp.py",
        HAND,
        (
            "            flat[k] *= np.float32(1.0) - values[k] * values[k]",
            "            flat[k] *= np.float32(1.0) - values[k]",
        ),
        ("            for o in range(num_out):\n                of_bias[o] = 0.0\n", ""),
        ("                    of_weight[o, i] += more[o, i]", "                    of_weight[o, i] = more[o, i]"),
        ("    start = layer % 2 * (len(spare) // 2)", "    start = 0"),
        (
            "            flat[k] = flat[k] if values[k] > 0.0 else np.float32(0.0)",
            "            flat[k] = flat[k] if values[k] >= 0.0 else np.float32(0.0)",
        ),
        (
            "np.sqrt(moments[at + num_out : at + 2 * num_out] + eps)",
            "np.sqrt(moments[at + num_out : at + 2 * num_out])",
        ),
        ("            at += 2 * num_out\n", ""),
    ),
    *mutants(
        "nets/inputs.py",
        f"{NETS} nets/kernels/test_acting.py nets/test_multi_input.py",
        ("            flat[world, N * n + i] = present\n", "            flat[world, N * n + i] = 1.0\n"),
        (
            "flat[world, i * n + k] = rows[world, i, k] if present else 0.0",
            "flat[world, i * n + k] = rows[world, i, k]",
        ),
        ("            start += size + space.shape[0]\n", "            start += size\n"),
        ("            value = value / 255.0 if space.is_image else value\n", ""),
    ),
    *mutants(
        "games/gymnasium/normalization.py",
        "games/gymnasium/test_gym_normalization.py",
        (
            "self.squares = self.squares + squares + np.square(delta) * (self.count * num / total)",
            "self.squares = self.squares + squares",
        ),
        ("self.mean = self.mean + delta * (num / total)", "self.mean = self.mean + delta / total"),
        ("return self.squares / self.count if self.count", "return self.squares / (self.count - 1) if self.count > 1"),
        (
            "return (rows / np.sqrt(self.variance + eps)).astype(np.float32)",
            "return ((rows - self.mean) / np.sqrt(self.variance + eps)).astype(np.float32)",
        ),
        ('self.count = state["count"]', "self.count = 0"),
    ),
    *mutants(
        "runtime/intervals.py",
        "kinds/games/test_trainer.py",
        (
            "return (after[self.unit] // self.every + 1) * self.every",
            "return (after[self.unit] // self.every + 2) * self.every",
        ),
        (
            "return now[self.unit] // self.every > before[self.unit] // self.every",
            "return now[self.unit] - before[self.unit] >= self.every",
        ),
        (
            "due[unit] = min(due.get(unit, math.inf), count)",
            "due[unit] = count",
        ),
    ),
    *mutants(
        "recording/aggregates.py",
        "recording/test_aggregates.py",
        ("between = apart * apart / (num * num_more * (num + num_more))", "between = 0.0"),
        ("self._sums[name] = (total + more, num + len(values))", "self._sums[name] = (total + more, num + 1)"),
        ("        self._clear()\n        return taken", "        return taken"),
        ('            if not num or statistic == "last":', "            if not num:"),
    ),
    *mutants(
        "callbacks/plateau.py",
        "callbacks/test_plateau.py",
        ("if self.num_waited >= self.config.patience:", "if self.num_waited > self.config.patience:"),
        ("if sign * value > best + self.config.min_delta:", "if sign * value > best:"),
        (
            "            self.num_waited = 0\n            self.on_plateau(training)",
            "            self.on_plateau(training)",
        ),
        ("self.best, self.num_waited = value, 0", "self.best = value"),
    ),
    *mutants(
        "callbacks/freeze.py",
        "callbacks/test_freeze.py",
        (
            "is_frozen = until is None or player.opt_steps < until",
            "is_frozen = until is None or player.opt_steps <= until",
        ),
    ),
    equal_mutant(
        "callbacks/freeze.py",
        "callbacks/test_freeze.py",
        "            self.mask = None\n",
        "            pass\n",
        "to thaw again what is thawed changes nothing, and opt steps never decrease",
    ),
]
