"""Mistakes in roll-outs and in what becomes a row of them."""

from tests.mutants.mutant import equal_mutant, mutants

N_STEP = "rollouts/test_n_step.py"
SOLO = "rollouts/test_solo.py"
FUSED = "rollouts/test_fused.py"
GYM = "games/gymnasium/test_gym_worlds.py games/gymnasium/test_gym_sync.py games/gymnasium/test_gym_oddities.py"
NORMALIZATION = "games/gymnasium/test_gym_normalization.py"
NORMALIZED = "games/test_normalization.py rollouts/test_normalized_play.py"
DIALOGUE_LOOPS = "games/dialogue/test_loops.py"
COLLECTING = "kinds/games/test_collecting.py"

ROLLOUTS = [
    *mutants(
        "rollouts/n_step.py",
        N_STEP,
        ("for step in range(1, self.config.steps):", "for step in range(1, self.config.steps + 1):"),
        ("for step in range(1, self.config.steps):", "for step in range(1, max(self.config.steps - 1, 1)):"),
        ("self.gamma**step * _later", "self.gamma ** (step - 1) * _later"),
        ("goes_on = has_next & ~ended &", "goes_on = has_next &"),
        ("goes_on = has_next & ~ended & _is_continued_by_next(rows)", "goes_on = has_next & ~ended"),
        (
            'ended, valid, sequence = rows["terminated"] | rows["truncated"],',
            'ended, valid, sequence = rows["terminated"],',
        ),
        (
            "has_next = valid & _later(valid, 1) & (_later(sequence, 1) == sequence)",
            "has_next = valid & _later(valid, 1)",
        ),
        (
            "num_rewards = last - torch.arange(len(last), device=last.device) + 1",
            "num_rewards = last - torch.arange(len(last), device=last.device)",
        ),
        ('if name.startswith("next_") or name in ("terminated", "truncated")]', 'if name.startswith("next_")]'),
        (
            'if name.startswith("next_") or name in ("terminated", "truncated")]',
            'if name in ("terminated", "truncated")]',
        ),
        ("waits = valid & ~sums & ~ended[last] & ~has_next[last]", "waits = valid & ~sums & ~ended[last]"),
        ("waits = valid & ~sums & ~ended[last] & ~has_next[last]", "waits = valid & ~sums & ~has_next[last]"),
        ('valid=rows["valid"] & ~waits)', 'valid=rows["valid"])'),
        ('return {"waiting": self.waiting}', 'return {"waiting": None}'),
        ("argsort(stable=True)\n        rows", "flip(0).argsort(stable=True)\n        rows"),
        ("one_round = role.unsqueeze(1) * num_worlds", "one_round = role.unsqueeze(1) * 0"),
    ),
    *mutants(
        "rollouts/solo.py",
        SOLO,
        ("worlds.num_moves += num_rounds", "worlds.num_moves += 1"),
        ("observations.append(world.observation)", "observations.insert(0, world.observation)"),
        ("begins = ~outcome.valid | outcome.terminated | outcome.truncated", "begins = outcome.terminated"),
        ("terminated=_join([outcome.terminated", "terminated=_join([outcome.truncated"),
        ("truncated=_join([outcome.truncated", "truncated=_join([outcome.terminated"),
        ("            lengths[world] += valid[row]", "            lengths[world] += 1"),
        ("                lengths[world], returns[world] = 0, 0.0", "                lengths[world] = 0"),
        ("                totals[2] += truncated[row]", "                totals[2] += terminated[row]"),
        ("            if terminated[row] or truncated[row]:", "            if terminated[row]:"),
        (
            "recent[num_finished[()] % NUM_RECENT, 0] = returns[world]\n                num_finished[()] += 1",
            "num_finished[()] += 1\n                recent[num_finished[()] % NUM_RECENT, 0] = returns[world]",
        ),
        (
            "        lengths, returns = lengths + valid[step], returns + rewards[step]",
            "        lengths, returns = lengths + 1, returns + rewards[step]",
        ),
    ),
    *mutants(
        "rollouts/played.py",
        SOLO,
        ("        worlds.totals = torch.zeros_like(worlds.totals)\n", ""),
    ),
    equal_mutant(
        "rollouts/played.py",
        f"{FUSED} {SOLO}",
        "is_kept = ended & (numbers >= num_finished - NUM_RECENT)",
        "is_kept = ended",
        "of several rows for one place a CPU writes the last one last; a GPU has no order",
    ),
    *mutants(
        "rollouts/played.py",
        f"{FUSED} {SOLO}",
        ("recent[:-1].roll(-(num % NUM_RECENT), 0)", "recent[:-1]"),
    ),
    *mutants(
        "rollouts/fused.py",
        FUSED,
        ("            worlds.num_moves += 1\n", ""),
        ("keys = move_keys + (game.roles.index(role) + 1)", "keys = move_keys"),
        ('"truncated": worlds.truncated_pending & ~is_over,', '"truncated": worlds.truncated_pending,'),
        ('"valid": is_awaiting & (is_over | decides),', '"valid": is_awaiting & decides,'),
        (
            "going_on, waiting = decides & ~is_over, is_awaiting & ~is_over & ~decides",
            "going_on, waiting = decides, is_awaiting & ~is_over & ~decides",
        ),
        ("worlds.pending_reward[:, role] = torch.where(waiting, reward, 0.0)", "worlds.pending_reward[:, role] = 0.0"),
        (
            "refilled = is_over | (worlds.truncated_pending & ~is_waited_for)",
            "refilled = is_over | worlds.truncated_pending",
        ),
        ("worlds.memory[role] = {name: _keep(~refilled, value, 0) for name, value in memory.items()}", "pass"),
        (
            "{name: _choose(decides, new, before[name]) for name, new in decision.memory.items()}",
            "decision.memory",
        ),
        (
            "next_observation={key: _keep(going_on, value, spaces[key].empty) for key, value in observation.items()}",
            "next_observation=seat.observation",
        ),
    ),
    *mutants(
        "rollouts/fused.py",
        FUSED,
        ("        require_policies(self.policies, self.game.roles)\n", ""),
        ("        super().forget_results()\n", ""),
        ("            self.results.sums.zero_()\n", "            pass\n"),
    ),
    *mutants(
        "rollouts/fused.py",
        "algorithms/test_centralized_critic.py",
        (' or "with_critics" in observed:', ":"),
    ),
    *mutants(
        "rollouts/fused_kernel.py",
        FUSED,
        (
            "        truncated[world] = truncated_pending[world] and not was_done",
            "        truncated[world] = truncated_pending[world]",
        ),
        (
            "        valid[world] = was_awaiting and (was_done or decides)",
            "        valid[world] = was_awaiting and decides",
        ),
        ("        if not waiting[world]:\n            pending_reward", "        if True:\n            pending_reward"),
        (
            "        awaiting[world, role] = (decides and not truncated_pending[world]) or waiting[world]",
            "        awaiting[world, role] = decides or waiting[world]",
        ),
        ("            if awaiting[world, role] and not done[world, role]:", "            if awaiting[world, role]:"),
        (
            "ends = (is_over or truncated[world]) and not truncated_pending[world] and lengths[world] > 0",
            "ends = (is_over or truncated[world]) and lengths[world] > 0",
        ),
        (
            "leaves = is_over or (truncated_pending[world] and not is_waited_for)",
            "leaves = is_over or truncated_pending[world]",
        ),
        ("                done[world, role] = terminated[world, role]", "                done[world, role] = is_over"),
        (
            "next_legal[world, action] = legal[world, action] and going_on[world]",
            "next_legal[world, action] = going_on[world]",
        ),
        ("            totals[3] += lengths[world]", "            totals[3] += 1"),
    ),
    *mutants(
        "games/gymnasium/world.py",
        GYM,
        (
            "            truncated=self._tensor(truncated & ~terminated),",
            "            truncated=self._tensor(truncated),",
        ),
        (
            "            valid=self._all_true if valid is None else self._tensor(valid),",
            "            valid=self._all_true,",
        ),
        (
            "outcome = self._observe({name: _replace(value, ended, last[name]) for name, value in arrays.items()})",
            "outcome = self._observe(arrays)",
        ),
        ("            self._awaiting_reset = self._awaiting_reset & ~mask", "            pass"),
        ("                terminated, truncated = terminated & valid, truncated & valid", "                pass"),
    ),
    *mutants(
        "games/gymnasium/seeding.py",
        GYM,
        ("        self.numbers += where\n", "        self.numbers += 1\n"),
        (
            '            "starts": torch.tensor(self.starts - first),',
            '            "starts": torch.tensor(self.starts),',
        ),
    ),
    *mutants(
        "games/gymnasium/world.py",
        NORMALIZATION,
        ("                self._returns[ended] = 0.0", "                pass"),
        (
            "game.reward_moments.update(self._returns if reset_only is None else self._returns[~reset_only])",
            "game.reward_moments.update(self._returns)",
        ),
        (
            "        if self.training:\n            game.update_observation_statistics(first)",
            "        if True:\n            game.update_observation_statistics(first)",
        ),
        (
            "        if self.training:\n            self.game.update_observation_statistics(arrays)",
            "        self.game.update_observation_statistics(arrays)",
        ),
        (
            "rewards = rewards.clip(-game.config.reward.clip, game.config.reward.clip)",
            "rewards = rewards.clip(0.0, game.config.reward.clip)",
        ),
    ),
    *mutants(
        "games/normalization.py",
        NORMALIZED,
        ("share = num / total.clamp(min=1).to(torch.float64)", "share = num / (total + 1).to(torch.float64)"),
        ("delta.square() * (self.count * share)", "delta.square() * share"),
        ("squares = (rows - mean).masked_fill(left_out, 0.0)", "squares = (rows - mean)"),
        ("space.shape, not space.padded, device)", "space.shape, True, device)"),
        ("(present & counted.unsqueeze(1)).flatten()", "present.flatten()"),
        ("(self.variance + eps).sqrt()", "self.variance.sqrt()"),
        ("new[name] = new[name].clamp(-clip, clip)", "new[name] = new[name].clamp(max=clip)"),
    ),
    *mutants(
        "rollouts/fused.py",
        NORMALIZED,
        (
            "counted = deciding[:, game.roles.index(role)] if role in collected else None",
            "counted = deciding.any(dim=1) if role in collected else None",
        ),
        (
            "counted = deciding[:, game.roles.index(role)] if role in collected else None",
            "counted = deciding[:, game.roles.index(role)]",
        ),
    ),
    *mutants(
        "games/world.py",
        NORMALIZED,
        ("first = self.game.transformed(self.role, begun, begins)", "first = self.game.transformed(self.role, begun)"),
        (
            'self.observation = {name: value.to(device) for name, value in state["observation"].items()}',
            "self.observation = self.game.transformed(self.role, self.game.observe(self.state, self.role))",
        ),
    ),
    *mutants(
        "games/dialogue/loops.py",
        DIALOGUE_LOOPS,
        ("has_turn = (has_turn | active[t, k, v]) and verdicts[world, v] < 0", "has_turn = has_turn | active[t, k, v]"),
        ("        if verifier >= 0 and verdicts[world, verifier] >= 0:\n            t = len(flags) - 1\n", ""),
        ("            if v >= 0 and verdicts[world, v] >= 0:\n                continue\n", ""),
        ("                    reward += go_on * np.float32(goes_on)", "                    reward += go_on"),
        ("if paid_for[v, r]:", "if v == r:"),
        ("number = 3 * number + (2 if verdict < 0 else verdict)", "number = 3 * number + max(verdict, 0)"),
        ("rewards[world, r] = reward * ran", "rewards[world, r] = reward"),
    ),
    *mutants(
        "kinds/games/collecting.py",
        COLLECTING,
        ("view = self.game.transformed(self.role, dict(view))", "view = dict(view)"),
        ('f"player/{sitter}/play"', '"play"'),
        ("ended = (rows.terminated | rows.truncated) & rows.valid", "ended = rows.terminated & rows.valid"),
        ("is_last = ended & (valid.cumsum(0) >= share)", "is_last = ended & (valid.cumsum(0) >= 1)"),
        (".view(-1, num_worlds).T[kept.T]", ".view(-1, num_worlds)[kept]"),
        ("return places[:num],", "return places,"),
        ('game.own_actions(value) if name == "action" else value', "value"),
    ),
    *mutants(
        "kinds/games/stored.py",
        COLLECTING,
        ('if self.explores and "optimizers" in player_state:', "if False:"),
    ),
    *mutants(
        "games/gymnasium/game.py",
        COLLECTING,
        ("game.transforms_observations = game.transforms_rewards = False", "game.transforms_rewards = False"),
        ("game.transforms_observations = game.transforms_rewards = False", "game.transforms_observations = False"),
    ),
]
