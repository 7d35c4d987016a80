"""Mistakes in sweeps."""

from tests.mutants.mutant import equal_mutant, mutants

STUDY = "sweeps/test_study.py"
CONSTRAINTS = "sweeps/test_constraints.py"
OWN = "sweeps/test_own_classes.py"
REFUSED = f"{OWN}::test_what_cannot_work_is_one_line_before_anything_starts"
WHOLE = "sweeps/test_sweep.py"
TABLE = "commands/test_trials.py"
ODD = "sweeps/test_odd_folders.py"
SIDE = "commands/test_side_by_side.py"

SWEEPS = [
    *mutants(
        "sweeps/study.py",
        STUDY,
        ('f"{self.seed}/{number}/{name}"', 'f"{number}/{name}"'),
        ('return self.make(int.from_bytes(digest[:4], "little"))', "return self.make(None)  # type: ignore[arg-type]"),
    ),
    *mutants(
        "sweeps/pruning.py",
        STUDY,
        (
            'stored = {"prune": bool(pruner.prune(view, trial)), "notes": notes.held}',
            'stored = {"prune": bool(pruner.prune(study, trial)), "notes": {}}',
        ),
    ),
    *mutants(
        "sweeps/study.py",
        STUDY,
        ("if step not in trial.intermediate_values:", "if True:"),
        (
            "(changes := list(tree_differences(theirs, ours))):",
            "(changes := list(tree_differences(theirs, theirs))):",
        ),
        ('user_attrs={"folder": self.id, "claim": token}', 'user_attrs={"folder": "", "claim": token}'),
    ),
    *mutants(
        "sweeps/outcomes.py",
        STUDY,
        ("(sign * (trial.value or 0.0), -trial.number)", "(sign * (trial.value or 0.0), trial.number)"),
        ('sign = 1.0 if goal == "max" else -1.0', "sign = 1.0"),
    ),
    *mutants(
        "sweeps/seed_runs.py",
        STUDY,
        (
            "if file.size < self._offset:\n                self._offset = self.num_damaged = 0",
            "if file.size < 0:\n                self._offset = self.num_damaged = 0",
        ),
        ("if not math.isnan(self.evaluations[moment])]", "]"),
        ("max(before, counts[name]) for name, before", "counts[name] for name, before"),
        ('"train_seconds", 0.0) / 60)', '"train_seconds", 0.0))'),
        ("// self.interval.every * self.interval.every", "* 1"),
        ("            return max(moments)", "            return min(moments)"),
        ("self.first.setdefault(int(step), moment)", "self.first[int(step)] = moment"),
        ("if moment <= self.first[step]", "if True"),
        ('best = max if self.objective.goal == "max" else min', "best = max"),
        ("if self.start and moment == self._moment(self.start):", "if False:"),
        ("self.stop.after - begun", "self.stop.after"),
        ("n - self.start.get(name, 0) for name, n", "n for name, n"),
    ),
    equal_mutant(
        "sweeps/seed_runs.py",
        STUDY,
        "self._offset = line.stop",
        "self._offset = file.size",
        "what is read from the middle of a line is damaged, and then all is read anew",
    ),
    *mutants(
        "sweeps/space.py",
        STUDY,
        (
            "return list(range(self.low, self.high + 1, self.step))",
            "return list(range(self.low, self.high, self.step))",
        ),
        (
            "else round((self.high - self.low) / self.step) + 1",
            "else int((self.high - self.low) / self.step) + 1",
        ),
        (
            "value = math.exp(draw.uniform(math.log(dimension.low), math.log(dimension.high)))",
            "value = draw.uniform(dimension.low, dimension.high)",
        ),
    ),
    *mutants(
        "storage/lock.py",
        STUDY,
        (
            "while not _is_locked(file, folder.path / name, fcntl.LOCK_EX):\n            if not wait:",
            "while not _is_locked(file, folder.path / name, fcntl.LOCK_SH):\n            if not wait:",
        ),
    ),
    *mutants(
        "sweeps/seed_runs.py",
        "sweeps/test_seed_runs.py",
        ("not in (expected, None):", 'not in (expected, "link", None):'),
        (
            "if (difference := _difference(data, found)) is not None:",
            "if (difference := _difference(data, data)) is not None:",
        ),
    ),
    *mutants(
        "storage/run_folder.py",
        "storage/test_run_folder.py",
        ("            self.require_free(copies)\n", ""),
    ),
    *mutants(
        "kinds/games/tournament.py",
        "kinds/games/test_tournament.py",
        ("records.cut(0)", "records.flush()"),
        ("            folder.require_begun_only()\n", "            pass\n"),
    ),
    *mutants(
        "sweeps/sweep.py",
        ODD,
        ("if not all(map(self._is_named, waiting))", "if waiting"),
        ("        folder.require_plain()\n", ""),
    ),
    *mutants(
        "sweeps/folder.py",
        f"{WHOLE}::test_a_sweep_begins_in_a_new_or_empty_folder_alone_and_harms_no_other",
        ("(is_sweep_folder(path) and folder.data() == load_yaml(sweep))", "True"),
    ),
    *mutants(
        "sweeps/seed_runs.py",
        f"{WHOLE}::test_runs_of_another_point_are_not_taken_for_those_of_a_trial",
        ("return _difference(self._data, load_yaml(plain_path(self.folder, self.base.name)))", "return None"),
    ),
    *mutants(
        "sweeps/space.py",
        CONSTRAINTS,
        ("if (keys := self.full_keys(data)) is None:", "if (keys := self.full_keys(data) or {}) is None:"),
        (
            "one, other = _number(_compute(left, values)), _number(_compute(right, values))",
            "one, other = _compute(left, values), _compute(right, values)",
        ),
        (
            "if isinstance(op, ast.Pow) and abs(other) > LARGEST_POWER:",
            "if isinstance(op, ast.Pow) and abs(other) > 1e9:",
        ),
    ),
    *mutants(
        "sweeps/places.py",
        f"{OWN}::test_each_run_sees_its_gpu",
        ("gpus[share % len(gpus)]", "gpus[0]"),
        ("min(by_cores, len(self.config.gpus) * self.config.runs_per_gpu)", "min(by_cores, len(self.config.gpus))"),
    ),
    *mutants(
        "sweeps/places.py",
        REFUSED,
        ("if config.cores > (available := available_cores()):", "if config.cores > (available := 10**9):"),
    ),
    *mutants(
        "sweeps/plan.py",
        REFUSED,
        ("if total is not None and total.after < least < math.inf:", "if False:"),
    ),
    *mutants(
        "sweeps/plan.py",
        f"{OWN}::test_an_evaluation_by_minutes_cannot_decide_a_pruning",
        ('(evaluation.interval is None or evaluation.interval.unit == "minutes")', "evaluation.interval is None"),
    ),
    *mutants(
        "sweeps/trials.py",
        f"{OWN}::test_wilcoxon_ends_a_trial_after_some_of_its_seeds",
        (
            "for step, run in enumerate(self.runs) if run.value is not None]",
            "for step, run in enumerate(self.runs) if all(each.value is not None for each in self.runs)]",
        ),
    ),
    *mutants(
        "sweeps/trials.py",
        f"{WHOLE}::test_a_run_that_is_killed_goes_on_and_two_processes_share_a_sweep",
        ("elif (code < 0 or code > 128) and run.restarts < self.sweep.max_restarts:", "elif False:"),
    ),
    *mutants(
        "sweeps/naming.py",
        TABLE,
        ("[word in VAGUE or word.isdigit() for word in words]", "[word in VAGUE for word in words]"),
        ("if any(mapping.get(key) != value[key] for mapping in alike)", "if key != 'name'"),
        ("if len(set(texts)) < len(texts):", "if False:"),
    ),
    *mutants(
        "sweeps/stored.py",
        TABLE,
        ("_is_of_unmade_study(first) and not folder.trials.names()", "_is_of_unmade_study(first)"),
    ),
    *mutants(
        "sweeps/stored.py",
        TABLE,
        ('== "SQLITE_READONLY_ROLLBACK"', '== ""'),
    ),
    *mutants(
        "sweeps/stored.py",
        "sweeps/test_damaged_studies.py",
        ("    if begun > len(trials):", "    if False:"),
        ("        if fault:\n", "        if False:\n"),
    ),
    *mutants(
        "sweeps/storages.py",
        "sweeps/test_damaged_studies.py",
        ("        if end == SUPER_JOURNAL:", "        if False:"),
        ("        folder.require_plain(STUDY + suffix)\n", "        pass\n"),
        ("folder.require_plain(STUDY, one_name=for_writing)", "folder.require_plain(STUDY, one_name=False)"),
        ("        _require_tables_alone(connection, folder.path / STUDY)", "        pass"),
        (r"\({COLUMN}(, ?{COLUMN})*\)", r"\([^()]*\)"),
    ),
    *mutants(
        "sweeps/storages.py",
        "sweeps/test_power_loss.py",
        ("PRAGMA synchronous = EXTRA", "PRAGMA synchronous = FULL"),
    ),
    *mutants(
        "sweeps/journal.py",
        "sweeps/test_journal.py",
        ("if file.size != self._sound_size and", "if False and"),
        ("                if is_damaged:", "                if False:"),
        ("            if not lock_within(file, self.path, WAIT_S):", "            if False:"),
    ),
    *mutants(
        "config/own_modules.py",
        "sweeps/test_strangers_sweeps.py",
        ('_entered("check", "all", "unsaid", "own", "trust")', '_entered("check", *get_args(Kind))'),
        ('_entered("trust", "all", "unsaid", "own")', '_entered("trust", "all", "unsaid", "own", "trusted")'),
    ),
    *mutants(
        "commands/ranked_trials.py",
        f"{TABLE}::test_a_csv_tells_null_from_a_key_that_a_base_does_not_have",
        ('if key in trial.params else ""', "if key in trial.params else _cell(None)"),
    ),
    *mutants(
        "report/groups.py",
        TABLE,
        ("told if len(told) <= MOST_KEYS else", "told if True else"),
    ),
    *mutants(
        "sweeps/plan.py",
        f"{WHOLE}::test_what_cannot_work_is_refused_before_anything_starts",
        ("for key in shared or first if key in names", "for key in first if key in names"),
    ),
    *mutants(
        "commands/sweeping.py",
        f"{WHOLE}::test_a_sweep_of_which_all_trials_fail_ends_with_1",
        ('if progress.counts.get("failed"):', "if False:"),
    ),
    *mutants(
        "report/comparison.py",
        "report/test_compare.py",
        ("return estimate if num_runs >= FEWEST_OF_A_BAND else", "return estimate if True else"),
        ("    return _of_enough(estimate, min(nums))", "    return estimate"),
        ("min(low, estimate.low), max(high, estimate.high)", "estimate.low, estimate.high"),
        ("sign = 1.0 if is_high_good else -1.0", "sign = 1.0"),
        ("    if is_high_good is None:\n", "    if False:\n"),
        ("if any(len(nums) > 1 for nums in games.values()):", "if len(set(map(max, games.values()))) > 1:"),
    ),
    *mutants(
        "config/own_modules.py",
        f"{TABLE}::test_a_database_that_a_strangers_sweep_names_is_not_contacted",
        ("lambda: [] if source in read_trusted() else [refusal]", "lambda: []"),
    ),
    *mutants(
        "commands/ranked_trials.py",
        TABLE,
        ('sign = -1.0 if sweep.data["objective"].get("goal") == "max" else 1.0', "sign = 1.0"),
    ),
    *mutants(
        "commands/side_by_side.py",
        SIDE,
        ("if len(done) < len(work.runs):", "if not done:"),
        ("    if lock is None:\n        raise RunFolderError(in_use(folder))\n", ""),
        ("written_name(name) in (LOCK, BASE) for name", "True for name"),
    ),
    *mutants(
        "sweeps/evolution.py",
        "sweeps/test_evolution.py",
        ('f"{self.seed}/{rank}".encode()', 'f"{rank}".encode()'),
        ("if rank < self.size or rank % self.size:", "if rank < self.size:"),
        ('return "running" not in states and "succeeded" in states', 'return "running" not in states'),
        ("num = math.ceil(self.config.quantile * self.size)", "num = int(self.config.quantile * self.size)"),
        ('for n in order[:num] if state_of(before[n]) == "succeeded"]', "for n in order[:num]]"),
        ('if not num or (goes_on and state_of(own) == "succeeded"):', "if not num or goes_on:"),
        ("return not is_done, self.sign *", "return False, self.sign *"),
        ("draw.choice(parents).params[key]", "parents[0].params[key]"),
        ("if draw.random() < mutation.redraw:", "if draw.random() > mutation.redraw:"),
        ("[*values[max(place - 1, 0) : place], *values[place + 1 : place + 2]]", "[*values[place + 1 : place + 2]]"),
        ("place += 1 if (factor > 1) == (value >= 0) else -1", "pass"),
    ),
    *mutants(
        "sweeps/trials.py",
        "sweeps/test_evolution.py",
        ('for key in (*keys, "stop")]', "for key in keys]"),
        ("keep_alone(number)", "is_alone()"),
    ),
    *mutants(
        "sweeps/trials.py",
        "sweeps/test_display.py",
        ("if last.share >= 1.0:", "if last.share >= 2.0:"),
        ("self._before_s = max(self._before_s, train_s)", "pass"),
        ("return max(left - (now_s - last.at_s), 0.0)", "return left"),
    ),
]
