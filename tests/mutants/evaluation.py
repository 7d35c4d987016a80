"""Mistakes in evaluations and their figures."""

from tests.mutants.mutant import mutants

STATISTICS = "runtime/test_statistics.py"
GAMES = "evaluation/test_evaluator.py"
EPISODES = "evaluation/test_episodes.py"
NAMED = "evaluation/test_named_evaluations.py evaluation/test_best_score.py"
ASYNC = "training/test_async_evaluations.py training/test_workers.py"

EVALUATION = [
    *mutants(
        "runtime/statistics.py",
        STATISTICS,
        ("math.sqrt(float(values.double().var()) / n)", "math.sqrt(float(values.double().var()))"),
        ("_t_quantile(n - 1)", "_t_quantile(n)"),
        ("_t_quantile(n - 1)", "_t_quantile(min(n - 1, 30))"),
        ("(ranked[(n - 1) // 2] + ranked[n // 2]) / 2", "ranked[n // 2]"),
        (
            "return scores.sort(dim=-1).values[..., n // 4 : n - n // 4].mean(dim=-1)",
            "return scores[..., n // 4 : n - n // 4].mean(dim=-1)",
        ),
        ("0.5 * (difference == 0).double()", "0.0 * (difference == 0).double()"),
        (
            "return scores.double()[torch.randint(len(scores), (num_resamples, len(scores)), generator=generator)]",
            "return scores.double().expand(num_resamples, -1)",
        ),
    ),
    *mutants(
        "evaluation/evaluator.py",
        GAMES,
        ("    worlds.retire(torch.ones_like(worlds.running))\n", ""),
        ("played = worlds.lengths > 0", "played = worlds.lengths >= 0"),
        ("self.returns[self.index] += rewards * self.running.unsqueeze(1)", "self.returns[self.index] += rewards"),
        (
            "self.finished[self.index] |= over & self.running",
            "self.finished[self.index] |= (over | truncated) & self.running",
        ),
        ("self.running = self.running & ~over & ~truncated", "self.running = self.running & ~over"),
        ("self.lengths[self.index] += self.running\n", "self.lengths[self.index] += 1\n"),
        ("            self.num_moves += 1\n", ""),
        (
            "self.index[staying], self.keys[staying], self.running[staying]",
            "self.index[staying], self.keys[: int(staying.sum())], self.running[staying]",
        ),
        (
            "{k: v[staying] for k, v in memory.items()}",
            "{k: v[: len(self.index)] for k, v in memory.items()}",
        ),
        (
            "self.state: State = game.reset(fold(self.keys, 0))",
            "self.state: State = game.reset(fold(self.keys[:1].expand(num_games), 0))",
        ),
        ("memory_after(decides, decision.memory, self.memory.get(role, {}))", "decision.memory"),
        (
            "self.actions[role].scatter_add_(0, decision.action, decides.long())",
            "self.actions[role].scatter_add_(0, decision.action, torch.ones_like(decides).long())",
        ),
        ("scores=game.scores(ends),", "scores={},"),
        ("wins=game.wins(ends),", "wins={},"),
    ),
    *mutants(
        "evaluation/episodes.py",
        EPISODES,
        ("longest = (results.lengths * running).max()", "longest = results.lengths.max()"),
        (
            "(torch.arange(num_worlds, device=device) < num_games % num_worlds).long()",
            "torch.zeros(num_worlds, dtype=torch.int64, device=device)",
        ),
        ("results.returns += outcome.raw_reward", "results.returns += outcome.reward"),
        ("results.lengths += outcome.valid", "results.lengths += 1"),
        (
            "cut = (results.lengths >= max_rounds) & ~outcome.terminated & ~outcome.truncated",
            "cut = (results.lengths > max_rounds) & ~outcome.terminated & ~outcome.truncated",
        ),
        ("results.write(ended & running, outcome.terminated)", "results.write(ended & running, ended)"),
        ("                world.restart(leaving)", "                pass"),
        ("memory = cleared(decision.memory, ended | ~outcome.valid)", "memory = decision.memory"),
        ("        self.lengths[worlds], self.returns[worlds] = 0, 0.0", "        self.lengths[worlds] = 0"),
        ("training=False", "training=True"),
        ("(running & outcome.valid).long()", "outcome.valid.long()"),
        (
            "with closing(game.make_world(num_worlds, key, training=False)) as world:",
            "for world in [game.make_world(num_worlds, key, training=False)]:",
        ),
        ("fields.add(step_info, ended & running, results.played)", "fields.add(step_info, ended, results.played)"),
        ("self.sums[name][world] = counts[world] = 0.0", "counts[world] = 0.0"),
        ("if name in step.values and step.values[name][1][world]:", "if name in step.values:"),
    ),
    *mutants(
        "evaluation/measures.py",
        "evaluation/test_measures.py evaluation/test_best_score.py",
        ('if record["evaluation"] != self.keys.evaluation:', "if False:"),
        ('{"length": "episode_length"}', '{"length": "episode_return"}'),
        ("        if result is None:\n            return None\n        if self", "        if self"),
        ('(keys.pairing is None and ":" in keys.measure)', "keys.pairing is None"),
        ("return None if keys.pairing is None else f", "return None if True else f"),
    ),
    *mutants(
        "evaluation/config.py",
        "evaluation/test_user_evaluation.py",
        ("                player.num_predictions = 0", "                pass"),
        ("            players[name].num_predictions = count", "            pass"),
        ("set(found) != set(evaluation.scores)", "False"),
        ("restored_global_states(), ", ""),
        ("            np.random.seed(key % 2**32)\n", ""),
    ),
    *mutants(
        "games/info.py",
        f"{EPISODES} games/gymnasium/test_gym_info.py",
        ("            if valid is not None:\n                has = has & valid\n            if", "            if"),
        ("np.where(ended, last, numbers), np.where(ended, has_last, has)", "numbers, has"),
    ),
    *mutants(
        "evaluation/evaluations.py",
        f"{NAMED} test_gym_training.py",
        ("            game.load_state_dict(self.game.state_dict())", "            pass"),
        ("return self.seed if config.seed is None else config.seed", "return self.seed"),
        ("return (stand_in or player).policy(explore=False)", "return (stand_in or player).policy(explore=True)"),
        ("sign * one > sign * other", "sign * one >= sign * other"),
        ('sign = 1.0 if self.config.goal == "max" else -1.0', "sign = 1.0"),
        ("score is None or math.isnan(score) or not", "score is None or not"),
        ("        self.value = self._before", "        pass"),
    ),
    *mutants(
        "games/polyhedra/game.py",
        "games/polyhedra/test_rho.py",
        ("rho = num_finished / steps", "rho = num_finished / n"),
        ("finished.double() - rho * lengths.double()", "finished.double() - rho"),
        ("clusters)) / steps", "clusters)) / n"),
        (
            "return Estimate(rho, max(rho - half, 0.0), min(rho + half, 1.0))",
            "return Estimate(rho, rho - half, rho + half)",
        ),
    ),
    *mutants(
        "games/game.py",
        "games/test_wins.py",
        ("(one > other)", "(one < other)"),
        ("0.5 * (one == other)", "0.0 * (one == other)"),
    ),
    *mutants(
        "runtime/scores.py",
        "runtime/test_scores.py",
        ("if zero_sum else ()", "if False else ()"),
        ('"low" if role in self.low_for', '"high" if role in self.low_for'),
    ),
    *mutants(
        "recording/results.py",
        "recording/test_display.py recording/test_plots.py report/test_compare.py",
        ("if self.declared[name].shown", "if True"),
        ('return wishes == {"high"} if len(wishes) == 1', 'return "high" in wishes if wishes'),
        ('players={role: pair["players"][role] for role in roles}', 'players=pair["players"]'),
    ),
    *mutants(
        "evaluation/ratings.py",
        "evaluation/test_ratings.py",
        ("for role in each.players], dim=1)", "for role in reversed([*each.players])], dim=1)"),
        ("float(name == first) - float(name == second)", "float(name == first)"),
        ("(wins - contests * share) @ sides", "(wins - share) @ sides"),
        ("if each.clusters is not None:", "if False:"),
        ("num_others=1)", "num_others=0)"),
    ),
    *mutants(
        "evaluation/exploitability.py",
        "evaluation/test_exploitability.py",
        ("return value - first, second - value", "return second - value, value - first"),
        ("(row @ self.payoffs).min()", "(row @ self.payoffs).mean()"),
        ("if decision.memory:", "if False:"),
        ("share * action_probabilities(", "action_probabilities("),
        ("if bool((actions != actions[0]).any()):", "if False:"),
    ),
    *mutants(
        "games/positions.py",
        "evaluation/test_exploitability.py",
        ("sign = 1.0 - 2.0 * mover", "sign = 1.0 + 0.0 * mover"),
        ("self.reward[wave] + values", "0.0 * self.reward[wave] + values"),
        ("for name in sorted(state)]", "for name in state]"),
        ("actions, keys + number)", "actions, keys)"),
        ("| ~legal[left]", "& legal[left]"),
        ("if len(known) > max_positions:", "if len(known) > max_positions + 1:"),
    ),
    *mutants(
        "run/evaluating.py",
        "kinds/games/test_trainer.py test_resume.py::test_an_evaluation_does_not_hold_up_a_signal",
        ("self.evaluations.num(task.name, request.is_final)", "self.evaluations.num(task.name, False)"),
        ("            self.progress.show_or_leave()", "            self.progress.show()"),
    ),
    *mutants(
        "run/evaluating.py",
        NAMED,
        ("for each in self.configs if each.at_start]", "for each in self.configs]"),
    ),
    *mutants(
        "training/async_evaluations.py",
        ASYNC,
        (
            "Batch(request, copied(self.evaluations.snapshot()))",
            "Batch(request, self.evaluations.snapshot())",
        ),
        (
            "due = [batch for batch in self.batches if request.is_final or now >= self._counts_at(batch)]",
            "due = [batch for batch in self.batches if now >= self._counts_at(batch)]",
        ),
        ("request.is_final or now >= self._counts_at(batch)", "request.is_final or now > self._counts_at(batch)"),
        ("        self.batches = self.batches[len(due) :]\n", "        self.batches = []\n"),
        ("                self.batches.pop()", "                pass"),
        ("                batch.pending = {}", "                pass"),
        (
            '            if filed == record_of(name, request, Answer(None, 0.0, filed["why"])):',
            "            if False:",
        ),
    ),
]
