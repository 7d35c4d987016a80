"""Mistakes in the stages of a run: the test as one piece, the contexts, and what is said of them."""

from tests.mutants.mutant import mutants

STAGES = "training/test_stages.py"
MODES = "nets/test_modes.py"
PENDING = "training/test_workers.py"
LOCKSTEP = "training/test_lockstep.py"
JOINT = "training/test_joint_gradients.py"
TURNS = "games/dialogue/test_protocol.py"

PROTOCOLS = "games/dialogue/test_game.py games/dialogue/test_tryout.py"

ACTORS = "kinds/games/test_actors.py"
GIVEN = "buffers/test_data_set.py kinds/games/test_given_data.py"

TRAINING = [
    *mutants(
        "buffers/data_set.py",
        GIVEN,
        (
            "        super()._allocate({name: rows[name] for name in self.data._storage})",
            "        super()._allocate(rows)",
        ),
        ("data.time_log, data.num_samples = self.time_log, self.num_samples", "data.time_log = self.time_log"),
        ("        self.num_drawn += num\n", ""),
        ("round(self.config.share_of_data * batch_size)", "int(self.config.share_of_data * batch_size) + 1"),
        ("num_data if i < num else num_own", "min(num_data, num_own)"),
        ('        self.num_drawn = state["num_drawn"]', "        pass"),
        (
            "            self.num_samples += 1\n            return data.sample(batch_size)",
            "            return data.sample(batch_size)",
        ),
        ("memory = data if i < num else own", "memory = data"),
        (
            'if (wanted := kinds_of(own).get(name, "no such key")) != kind:',
            'if not (wanted := kinds_of(own).get(name, "")):',
        ),
        ("            self.data.load_rows(0, rows)\n", ""),
    ),
    *mutants(
        "kinds/games/recorded.py",
        "docs/test_offline.py kinds/games/test_recorded.py",
        ("if each and each[1] in (None, player)", "if each"),
        ("        check(columns, ColumnsConfig)\n", "        pass\n"),
        ("values = np.moveaxis(values, -1, 1)", "values = values.reshape(self.num, *space.shape)"),
    ),
    *mutants(
        "run/checkpoints.py",
        "run/test_retention.py",
        ('if not Manifest.read(self.folder.below(f"{latest:08d}")).is_due:', "if False:"),
    ),
    *mutants(
        "kinds/games/given_data.py",
        GIVEN,
        ("value[~held_out] if held_out.any() else value", "value"),
        ("        next_observation=_transformed(game, role, rows.next_observation),\n", ""),
        ("order[:num_held_out]", "order[num_held_out:]"),
        ("before = files.get(stored.data_set_of(data.player).file, data.sha256)", "before = data.sha256"),
        ("if not 0 < num_held_out < num:", "if False:"),
    ),
    *mutants(
        "algorithms/parts/replay.py",
        GIVEN,
        ("for each in (~held_out, held_out))", "for each in (held_out, held_out))"),
        ("value if made.valid.all() else value[made.valid]", "value"),
        ("self.buffer.require_fit(", "print("),
        ("            self.buffer.data, self.buffer.held_out = before.data, before.held_out\n", "            pass\n"),
    ),
    *mutants(
        "kinds/games/trainer.py",
        GIVEN,
        ('            if name in state["worlds"]:', "            if True:"),
        ('            new["game"] = self.game.state_dict()', "            pass"),
        ("            require_same_play(copies, self.config, self.game, self.given_data)\n", "            pass\n"),
        ("            require_room(run.origin, self.buffers())\n", "            pass\n"),
    ),
    *mutants(
        "kinds/games/user_nets.py",
        GIVEN,
        ("        vars(player).update(before)\n", ""),
    ),
    *mutants(
        "games/game.py",
        GIVEN,
        ("        if role in self.settled:\n            counted = None\n", ""),
    ),
    *mutants(
        "games/normalization.py",
        GIVEN,
        ("        self.common.load_own_state(self.own_state())\n", ""),
    ),
    *mutants(
        "evaluation/evaluations.py",
        GIVEN,
        ("100.0 * shares", "shares"),
        ("reference.expert - reference.random", "reference.expert"),
    ),
    *mutants(
        "kinds/games/actors.py",
        ACTORS,
        ("self.worlds[place].load_state_dict(copied(state))", "self.worlds[place].load_state_dict(state)"),
        ('        parts.game.load_state_dict(request.snapshot["game"])\n', ""),
        ("            self.worlds[place].forget_results()\n", ""),
        ("        worlds.forget_results()\n        return answer", "        return answer"),
        ("        elif not is_known:", "        elif False:"),
        ("return torch.stack(moved, dim=1).flatten(0, 2)", "return torch.cat(parts)"),
        ("share.totals = totals + share.totals", "share.totals = totals"),
        ("        self.game.load_state_dict(before)", "        pass"),
        ("                place.knows.discard(worlds.stream)", "                pass"),
        ("            roll_out.asked = []", "            pass"),
    ),
    *mutants(
        "kinds/games/trainer.py",
        ACTORS,
        ("if each != who[0]), len(who)) - 1", "if False), len(who)) - 1"),
        ('            if was != stored_config(self.config)["players"]:', "            if False:"),
        ("            self.trainer.collected.remove(self.player.name)", "            pass"),
    ),
    *mutants(
        "players/player.py",
        "players/test_player.py",
        (
            '            if (new := state["schedules"][key]) != schedule.state_dict():',
            '            if (new := state["schedules"][key]) and False:',
        ),
        ('if not key.startswith("replay_buffer.")', "if True"),
    ),
    *mutants(
        "algorithms/parts/estimators.py",
        "algorithms/test_v_trace.py",
        ("ratio.clamp(max=config.rho_bar), config.trace", "ratio, config.trace"),
        ("later_target).masked_fill(terminated, 0.0)", "later_target)"),
        ("torch.where(valid, target, later_target)", "target"),
    ),
    *mutants(
        "algorithms/on_policy.py",
        "algorithms/test_v_trace.py",
        ('            extras["value"] = outputs[:, -1]', "            pass"),
        ('{"log_prob": log_prob}', "{}"),
    ),
    *mutants(
        "algorithms/on_policy.py",
        "algorithms/test_on_policy.py::test_what_fills_up_a_shorter_sequence_belongs_to_no_game",
        ("replace(rows, valid=rows.valid & exists.flatten())", "rows"),
    ),
    *mutants(
        "games/dialogue/protocol.py",
        PROTOCOLS,
        ("        if role not in protocol.roles\n", "        if False\n"),
        ('for name in names if "/" in name]', "for name in names if False]"),
        ("    if not 1 <= protocol.min_rounds <= protocol.max_rounds:", "    if False:"),
        (
            "return side[variant] if isinstance(side, tuple) else side",
            "return side[0] if isinstance(side, tuple) else side",
        ),
        ("self.rewards.shared and verifier == self.verifiers[0]", "self.rewards.shared"),
        ("    if not protocol.verifiers:", "    if False:"),
    ),
    *mutants(
        "games/dialogue/tryout.py",
        PROTOCOLS,
        ("        faults = faults or faults_of_names(protocol)\n", ""),
        ("        faults = faults or list(faults_of_turns(protocol))\n", ""),
    ),
    *mutants(
        "games/dialogue/game.py",
        PROTOCOLS,
        ("        if self.labels_are_checked and", "        if False and"),
        ("wrong := label[(label != 0) & (label != 1)]", "wrong := label[label < 0]"),
    ),
    *mutants(
        "games/gymnasium/workers.py",
        "games/gymnasium/test_gym_faults.py",
        ("        admit_sources(sources)\n", ""),
    ),
    *mutants(
        "config/own_modules.py",
        "test_strangers_runs.py kinds/games/test_report.py",
        ("        return not _untrusted(sources)", "        return True"),
        ("        return not _untrusted(sources)", "        return False"),
    ),
    *mutants(
        "kinds/games/descriptions.py",
        "players/test_updates.py training/test_stages.py",
        ('never in this run" if first >= num_epochs', 'never in this run" if False'),
    ),
    *mutants(
        "training/lockstep.py",
        LOCKSTEP,
        ("            self.training.end_reason = found[0]\n", "            pass\n"),
        (
            "wants_to_end = run.signals.received is not None or self.training.end_reason is not None",
            "wants_to_end = run.signals.received is not None",
        ),
        ("if self.replica.leads:\n            return of_leader, is_branch\n", "return of_leader, is_branch\n"),
        ("[*differing(told, of_all[0][0])]", "[]"),
        ("                buffer.copy_(value.view_as(buffer))\n", "                pass\n"),
        ("            raise TrainingFailed(without_mean(player, type(self.training)))\n", "            pass\n"),
        ('if maker.__module__.startswith("palestra."):', "if False:"),
    ),
    *mutants(
        "kinds/games/trainer.py",
        LOCKSTEP,
        ("self.config.seed, key, self.replica.index * num)", "self.config.seed, key, 0)"),
        ("* collecting[0].num_worlds * self.replica.num", "* collecting[0].num_worlds"),
        ("            self.lockstep.join_statistics(self.game, self.fused_game.added)\n", "            pass\n"),
        ("sum(each[name] for each in of_all)", "of_all[0][name]"),
    ),
    *mutants(
        "rollouts/solo.py",
        LOCKSTEP,
        ("base_key(seed, stream), first, fold", "base_key(seed, stream), 0, fold"),
    ),
    *mutants(
        "algorithms/ppo.py",
        JOINT,
        ("metrics, weight=experience.weight_of(index))", "metrics)"),
    ),
    *mutants(
        "scaling/means.py",
        "scaling/test_means.py",
        ("share.gradient * weight.to(share.gradient.dtype)", "share.gradient"),
        ("    if share.is_absent:\n        zeros", "    if False:\n        zeros"),
        ("zip(values[::2], values[1::2], strict=True)", "zip(values[: len(values) // 2], values[len(values) // 2 :])"),
    ),
    *mutants(
        "scaling/states.py",
        "scaling/test_states.py",
        ("state.keys() == of_leader.keys()", "list(state) == list(of_leader)"),
        ("for key in sorted(value, key=repr)]", "for key in value]"),
        ("repr(base(value))", "repr(value)"),
    ),
    *mutants(
        "scaling/link.py",
        "scaling/test_link.py",
        ("        if len({kind for kind, *_ in headers}) > 1:\n", "        if False:\n"),
        ("addends = [rest[2] if is_present else zeros for", "addends = [zeros for"),
        (
            "        own = tree_sum(self._all_to_all(rows).unbind())\n",
            "        own = self._all_to_all(rows).sum(dim=0)\n",
        ),
        ("        if not late or is_awaited:\n", "        if not late:\n"),
        ('        if not self._store.check(["failed"]):\n', "        if True:\n"),
    ),
    *mutants(
        "training/processes.py",
        "training/test_processes.py",
        ("        for change in tree_differences(of_all[0], each):\n", "        for change in ():\n"),
        (
            '        self.link.gather("the rows", told if why is None else why, NOTHING)\n',
            '        self.link.gather("the rows", {}, NOTHING)\n',
        ),
        ('        link.fail(f"rank {replica.ranks.rank} has failed: {why}", has_failed=True)\n', "        pass\n"),
    ),
    *mutants(
        "scaling/replica.py",
        LOCKSTEP,
        ("return mean.clone(), means", "return mean, means"),
    ),
    *mutants(
        "kinds/games/seating.py",
        "testing/test_check_algorithm.py",
        ("getattr(worlds, 'num_moves', 0)", "id(object())"),
    ),
    *mutants(
        "kinds/games/trainer.py",
        "testing/test_check_algorithm.py",
        ('seed_global_state(player.own_key(f"opt_step/{player.opt_steps}"))', "pass"),
    ),
    *mutants(
        "players/player.py",
        LOCKSTEP,
        ("return stream if self.replica is None or self.replica.index == 0 else", "return stream if True else"),
    ),
    *mutants(
        "training/training.py",
        STAGES,
        ("with torch.enable_grad(), restored_torch_states():", "with torch.no_grad(), restored_torch_states():"),
        ("            self.train_context(),\n", ""),
        ("if cls._test is Training._test:", "if True:"),
    ),
    *mutants(
        "training/training.py",
        STAGES,
        ("owner = next(each for each in cls.__mro__ if method in vars(each))", "owner = cls"),
    ),
    *mutants(
        "run/evaluating.py",
        STAGES,
        (
            "            self._tested += (records := self._records(request))\n",
            "            return self._count(self._records(request), counters, hooks)\n",
        ),
        ("                with hooks.context():\n", "                if True:\n"),
        ("hooks.context() if names else nullcontext()", "nullcontext()"),
        ("hooks.context() if names else nullcontext()", "hooks.context()"),
        ("        finally:\n            self.is_final = False", "        finally:\n            pass"),
    ),
    *mutants(
        "run/evaluating.py",
        PENDING,
        ("            if self._tested:\n                self.load_state_dict(before)\n", ""),
        ("                self.evaluate([], counters, hooks)  #", "                pass  #"),
    ),
    *mutants(
        "kinds/games/trainer.py",
        STAGES,
        ("evaluation_mode(net for each in self.learners for net in each.nets.values())", "evaluation_mode([])"),
        ("turns_in_words(config) if cls._train is Trainer._train else stage.description", "turns_in_words(config)"),
    ),
    *mutants(
        "kinds/games/descriptions.py",
        STAGES,
        ("_num_pairings(each) * each.final_num_games", "_num_pairings(each) * each.num_games"),
        ("_num_pairings(each) * each.final_num_games", "each.final_num_games"),
        ("if len(set(after.values())) == 1 and", "if"),
    ),
    *mutants(
        "players/player.py",
        STAGES,
        ('set_in_evaluation(net, state["in_evaluation"][name])', 'net.train("" not in state["in_evaluation"][name])'),
    ),
    *mutants(
        "nets/weights.py",
        MODES,
        ("for net in nets for module in net.modules()]", "for net in nets for module in [net]]"),
        ("if not module.training]", "if module.training]"),
        ("        for module, training in modes:\n            module.training = training\n", "        pass\n"),
    ),
    *mutants(
        "games/dialogue/protocol.py",
        TURNS,
        ("everywhere = len(those) == len(variants)", "everywhere = True"),
        ("len(rounds) > MOST_LISTED and len(steps) == 1", "len(rounds) > MOST_LISTED"),
        ("protocol.may_decide(role, round, variant)", "protocol.is_active(role, round, variant)"),
    ),
]
