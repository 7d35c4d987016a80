"""Mistakes in losses as plug-ins."""

from tests.mutants.mutant import mutants

OFF_POLICY = "algorithms/test_off_policy.py"
ON_POLICY = "algorithms/test_on_policy.py"
LIKELIHOODS = "algorithms/test_likelihood_losses.py"
TORCHRL = "algorithms/test_torchrl.py"
AS_PPO = "test_it_learns_what_was_drawn_not_what_was_clipped_and_clips_values_as_ppo"

LOSSES = [
    *mutants(
        "algorithms/off_policy.py",
        OFF_POLICY,
        ("(opt_steps + 1) % config.target.interval == 0", "opt_steps % config.target.interval == 0"),
        ("move([self.target_weights, *self.target_buffers],", "move([own.clone(), *self.target_buffers],"),
        ("[own, *self.buffers], share)", "[own, *self.buffers], 1.0)"),
        ("        with evaluation_mode([self.net]):\n            batch = ", "        if True:\n            batch = "),
        ("fold(self.key, opt_steps), self.config.gamma", "self.key, self.config.gamma"),
        ("        if self.config.target is not None:\n            self.follow(1.0)\n", ""),
    ),
    *mutants(
        "algorithms/losses/off_policy_loss.py",
        OFF_POLICY,
        ("rows.next_legal | rows.terminated.unsqueeze(1)", "rows.next_legal"),
        ("~rows.terminated * rows.extras", "rows.extras"),
        ("return self.extras.get(SAMPLED, self.played)", "return self.played"),
        ("weights = {name: weight.detach() for", "weights = {name: weight for"),
        ("        self._num_draws += 1\n", ""),
    ),
    *mutants(
        "algorithms/losses/off_policy_loss.py",
        LIKELIHOODS,
        ("if SAMPLED not in self.extras and isinstance", "if isinstance"),
        ("return self.net.head.sampled(self.played)", "return self.played"),
        ("self.observation | self._taken)[head]", "self.next_observation | self._taken)[head]"),
        ("self._target_nets()(head, self.observation))", "self._target_nets()(head, self.next_observation))"),
        ("self._observed(self.sample()[0])", "self._taken"),
        ("_mean_of_smallest(self.next_distribution,", "_mean_of_smallest(self.distribution,"),
        ("(log_probs.exp() * torch.stack(tuple(values)).amin(dim=0))", "torch.stack(tuple(values)).amin(dim=0)"),
        ("half_widths(self.played)}", "half_widths(self.action)}"),
    ),
    *mutants(
        "algorithms/losses/awac.py",
        LIKELIHOODS,
        ("td_errors.square().sum(dim=0)", "td_errors.square().mean(dim=0)"),
        ("advantage / self.config.temperature", "advantage * self.config.temperature"),
        (".exp().clamp(max=self.config.max_weight)", ".exp()"),
        ("q_values.detach().amin(dim=0) -", "q_values.amin(dim=0) -"),
        ("batch.discount * batch.target_policy_value", "batch.target_policy_value"),
        ("self.td_errors.abs().mean(dim=0)", "self.td_errors.abs().sum(dim=0)"),
    ),
    *mutants(
        "algorithms/losses/iql.py",
        LIKELIHOODS,
        ("advantage > 0.0", "advantage < 0.0"),
        ("(advantage.detach() / self.config.temperature)", "(advantage.detach() * self.config.temperature)"),
        ("advantage.detach()", "advantage"),
        (".exp().clamp(max=self.config.max_weight)", ".exp()"),
        ("batch.discount * batch.next_outputs", "batch.next_outputs"),
        ("batch.next_outputs[VALUE]", "batch.target_outputs[VALUE]"),
        ("batch.target_taken_values(critic)", "batch.taken_values(critic)"),
    ),
    *mutants("algorithms/losses/bc.py", LIKELIHOODS, ("-batch.mean(batch.log_prob)", "batch.mean(batch.log_prob)")),
    *mutants(
        "algorithms/parts/distributions.py",
        LIKELIHOODS,
        (".clamp(-LARGEST_TANH, LARGEST_TANH).atanh()", ".atanh()"),
        ("(action - self.center) / self.divisor).clamp", "(action - self.center) / self.half_width).clamp"),
    ),
    *mutants(
        "algorithms/parts/action_heads.py",
        LIKELIHOODS,
        ("self.family.value(self.half_widths(action))", "self.family.value(action)"),
    ),
    *mutants(
        "algorithms/td3_bc.py",
        "algorithms/test_td3_bc.py",
        ("q_values.detach().abs()", "q_values.abs()"),
        ("self.half_widths(batch.action)", "batch.action"),
        ("scale * terms", "terms"),
    ),
    *mutants(
        "algorithms/losses/torchrl.py",
        TORCHRL,
        ('with seeded_global_state(self.player.key(f"torchrl/{opt_steps}")):', "if True:"),
        ("        counts = batch.weight > 0", "        counts = batch.weight >= 0"),
        ("torch.where(is_empty, 0.0, term)", "term"),
        (
            "    def before_turn(self) -> None:\n        self.follow(1.0)",
            "    def before_turn(self) -> None:\n        pass",
        ),
        ("                place.copy_(weight.data)\n", ""),
        ("        self.follow(1.0)\n        leaves", "        leaves"),
        ("(others.get(key).data for key in keys), share)", "(others.get(key).data for key in keys), 1.0)"),
        ('if name.startswith("target_") or', 'if not name.startswith("target_") and'),
        ('"steps_to_next_obs": (-batch.discount.log2()).unsqueeze(1),', ""),
    ),
    *mutants(
        "algorithms/losses/torchrl.py",
        f"{TORCHRL}::test_dqn_loss_weighs_rows_and_gives_priorities_as_dqn_does",
        ('            columns[self.key("priority_weight")] = batch.importance\n', "            pass\n"),
        ("written.sqrt() if", "written if"),
        ("term * mean_weight if", "term if"),
    ),
    *mutants(
        "config/library.py",
        TORCHRL,
        ("for base in found.__mro__:", "for base in found.__mro__[:1]:"),
        ("            if key not in self.arguments:", "            if False:"),
    ),
    *mutants(
        "algorithms/parts/estimators.py",
        TORCHRL,
        ("multiprocessing.set_start_method(start_method, force=True)", "pass"),
    ),
    *mutants(
        "algorithms/losses/loss.py",
        f"{ON_POLICY} {OFF_POLICY}",
        ("len(set(head_names(loss))) < len(heads)", "False"),
        ("    if len(keeps) == 1:", "    if False:"),
        ("        if name in RECORDED:", "        if False:"),
        ('    if not getattr(loss, "acts_by", POLICY):', "    if False:"),
        ("    loss.load_state_dict(state)\n", ""),
        ("torch.enable_grad(), seeded_global_state(0)", "torch.enable_grad()"),
    ),
    *mutants(
        "algorithms/on_policy.py",
        ON_POLICY,
        ("    if POLICY not in names:", "    if False:"),
        ("    if unknown := [name", "    if False and [name"),
    ),
    *mutants(
        "algorithms/losses/ppo.py",
        f"{ON_POLICY}::{AS_PPO}",
        ("*self.coefficients(batch.opt_steps)", "*self.coefficients(0)"),
    ),
    *mutants(
        "algorithms/losses/reinforce.py",
        f"{ON_POLICY}::test_the_critic_s_error_counts_by_its_coefficient",
        ("self.config.critic.coefficient * value_loss", "value_loss"),
    ),
    *mutants(
        "algorithms/parts/replay.py",
        "algorithms/test_algorithm.py",
        ("        self.transition_builder.forget_waiting()\n", "        pass\n"),
    ),
    *mutants(
        "algorithms/on_policy.py",
        "commands/test_starting.py",
        ("1 if loss is not None and loss.is_of_one_pass else 4", "4"),
        ("usual_body(heads, spaces, said)", "usual_body([POLICY, VALUE], spaces, said)"),
    ),
]
