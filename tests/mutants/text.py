"""Mistakes in dialogues in words."""

from tests.mutants.mutant import mutants

DIALOGUES = "text/test_dialogue.py"
PROMPTS = "text/test_prompts.py"
CLAIMS = "text/scenarios/test_claims.py"

TEXT = [
    *mutants(
        "games/dialogue/protocol.py",
        DIALOGUES,
        ("        if verdict is not None:\n            return False\n", ""),
        ("return could_decide and not self.is_over(round + 1, verdicts)", "return could_decide"),
    ),
    *mutants(
        "text/dialogue.py",
        DIALOGUES,
        ("for role in rules.paid_for(verifier):", "for role in (verifier,):"),
        ("self.question.label, self.variant)", "self.question.label, 0)"),
        ("            if role in seen[channel]\n", ""),
    ),
    *mutants(
        "text/dialogue.py",
        "text/test_grammar.py",
        (
            "            if text == word:\n                if turn.may_decide:",
            "            if text == word:\n                if True:",
        ),
        ("            if channel is not None and channel in lines:", "            if False:"),
        ('        if "" in messages.values():', "        if False:"),
    ),
    *mutants(
        "text/game.py",
        PROMPTS,
        ("for name in self.scenario.sees[role]}", "for name in self.scenario.fields}"),
        (
            'Message("assistant", answer)]\n                news',
            'Message("assistant", answer.strip())]\n                news',
        ),
    ),
    *mutants(
        "text/sandbox.py",
        "text/test_sandbox.py",
        (
            "                    self.stop()\n            return reply",
            "                    pass\n            return reply",
        ),
        ("after_in_child=_unlock", "after_in_child=lambda: None"),
    ),
    *mutants(
        "text/sandbox.py",
        "text/test_sandbox.py",
        ("and most > 1 and (len(asked) > 1 or", "and False and (len(asked) > 1 or"),
    ),
    *mutants(
        "text/confined_worker.py",
        "text/test_sandbox.py",
        ("limit(resource.RLIMIT_AS, taken + most_bytes)", "pass"),
        ("prctl(1, signal.SIGKILL)", "prctl(1, 0)"),
    ),
    *mutants(
        "text/confined_worker.py",
        PROMPTS,
        ('{"undefined": StrictUndefined}', "{}"),
        (
            "from jinja2.sandbox import ImmutableSandboxedEnvironment",
            "from jinja2 import Environment as ImmutableSandboxedEnvironment",
        ),
    ),
    *mutants(
        "kinds/text/trainer.py",
        "kinds/text/test_text_resume.py",
        ("list(self.statistics_of_epoch.items())", "dict(self.statistics_of_epoch)"),
    ),
    *mutants(
        "kinds/text/tunings.py",
        "kinds/text/test_text_resume.py",
        ('            "num_tuned": self.num_done,', '            "num_tuned": 0,'),
    ),
    *mutants("kinds/text/trainer.py", "kinds/text/test_trainer.py", ("            self._count_waves()  # what", "#")),
    *mutants(
        "kinds/text/rollout_files.py",
        "kinds/text/test_rollout_files.py",
        ('if f"{name}.parquet" not in there', "if True"),
        ('with_prompts=told == "prompts"', "with_prompts=False"),
    ),
    *mutants(
        "kinds/text/evaluations.py",
        "kinds/text/test_rollout_files.py",
        ("epoch=self.training.epochs, rollout=place)", "epoch=self.training.epochs)"),
        ('            require_same_files(state["files"], self.game.files)\n', "            pass\n"),
    ),
    *mutants(
        "text/rollouts.py",
        "text/test_transcripts.py",
        ('2 if text[0] in " \\n\\t" else ""', '""'),
        ('end = "+" if text.endswith("\\n") else "-"', 'end = "-"'),
        ('            yield from _tree(rounds, last.node, with_prompts, f"{margin}  ")\n', ""),
    ),
    *mutants(
        "text/models/sources.py",
        "text/test_models.py",
        ("        if read[0] == read[1]:\n", "        if False:\n"),
    ),
    *mutants(
        "schedules.py",
        "test_schedules.py",
        (
            '            largest = {f"knots.{number}.value": knot.value',
            '            largest = {f"knots.{number}.value": 0',
        ),
        ('if key in ("value", "initial", "peak", "final")}', 'if key in ("value", "initial", "peak")}'),
    ),
    *mutants(
        "kinds/text/trainer.py",
        "kinds/text/test_server_calls.py",
        ("self.is_between or not self._has_nothing_left()", "True"),
        ("        if not self._has_nothing_left():\n", "        if True:\n"),
    ),
    *mutants(
        "config/own_modules.py",
        "kinds/text/test_server_calls.py",
        ("    if not _uses_outside.get():\n        return True\n", ""),
    ),
    *mutants(
        "report/evaluation_tables.py",
        "report/test_game_scores.py",
        ("((0.0, 1.0) if is_share else ())", "(0.0, 1.0)"),
    ),
    *mutants(
        "text/scenarios/claims.py",
        CLAIMS,
        ("missing[self._is_held_out(found[:, :L]) != held_out]", "missing[:0]"),
        ("        if place < 0:\n", "        if place > 99:\n"),
    ),
    *mutants(
        "text/scenarios/code_validation.py",
        "text/scenarios/test_code_validation.py",
        ("order[num_held_out:])", "order)"),
        ('"program": each.versions[label]}', '"program": each.versions[1]}'),
        ("if line.strip() == data", "if data"),
    ),
    *mutants(
        "text/analyses/asking.py",
        "text/analyses/test_asking.py",
        ('if row.stop != "scripted"]', "if True]"),
        ("before = batch[: error.index]", "before = batch[:0]"),
        ("(row.epoch, row.question, row.rollout, row.node)", "(row.epoch, row.question, row.rollout)"),
    ),
    *mutants(
        "text/analyses/follows_up.py",
        "text/analyses/test_asking.py",
        ("and own <= each.round < row.round]", "and each.round < row.round]"),
    ),
    *mutants(
        "text/analyses/quotes.py",
        "text/analyses/test_quotes.py",
        (' if each.role != "system"', ""),
        ("plain[each].rstrip(TRAILING) in read", "False"),
    ),
    *mutants(
        "text/analyses/stored.py",
        "commands/test_analyse.py",
        ("self._file.truncate(found.length)", "pass"),
    ),
    *mutants(
        "kinds/text/analysing.py",
        "commands/test_analyse.py",
        ("(before := found.header) is not None and before != header", "False"),
        (" not in done]", "]"),
        ("last.rollout, last.node\n", "last.rollout, 0\n"),
    ),
    *mutants(
        "kinds/text/play.py",
        "kinds/text/test_play.py",
        ("held_out=True", "held_out=False"),
        ('if each.role != "assistant")', ")"),
    ),
    *mutants(
        "text/servers/jobs.py",
        "text/servers/test_jobs.py",
        ("job = await self._found_job(entry, must_list=not is_new)", "job = None"),
        ('_metadata(job).get("sha256") == entry.sha256', "True"),
        ("min(fits, key=_age)", "max(fits, key=_age)"),
        (
            "await self.calls.reserve(entry.in_ledger, entry.worst)",
            "self.calls.ledger.reserved[entry.in_ledger] = entry.worst",
        ),
        ("            self.calls.ledger.take_back(entry.in_ledger, entry.worst)\n", "            pass\n"),
    ),
    *mutants(
        "text/servers/jobs.py",
        "kinds/text/test_server_faults.py",
        ("for pause in (False, True):", "for pause in ():"),
    ),
    *mutants(
        "text/servers/job_lines.py",
        "text/servers/test_jobs.py",
        ("            if whole < file.size:", "            if False:"),
        ('if each.state == "finished"', "if False"),
    ),
    *mutants(
        "kinds/text/costs.py",
        "kinds/text/test_server_jobs.py",
        ("range(player.num_retries + 1)", "range(1)"),
        ("num * (number + 1 if is_all else 1)", "num"),
        ("kinds = min(self.game.protocol.num_variants, num_rollouts)", "kinds = 1"),
    ),
    *mutants(
        "text/servers/model.py",
        "text/servers/test_calls.py",
        ("_require_readable(each.prompt, index)", "_require_readable(each.prompt, 0)"),
    ),
    *mutants(
        "text/servers/ledger.py",
        "text/servers/test_calls.py",
        ("loop.call_soon(self._begin, loop)", "self._begin(loop)"),
    ),
    *mutants(
        "text/servers/client.py",
        "text/servers/test_calls.py",
        ("(self.openai, *self._copies)", "(self.openai,)"),
    ),
    *mutants(
        "kinds/text/trainer.py",
        "kinds/text/test_server_jobs.py",
        ("        self.is_cut = True\n", ""),
    ),
]
