"""Mistakes in reading data."""

from tests.mutants.mutant import mutants

RUNS = "kinds/data/test_fit_data.py"
LOADING = "data/test_loading.py"
ROWS = "data/test_rows.py"

DATA = [
    *mutants(
        "data/reading.py",
        LOADING,
        ("torch.tensor(fold_number(self.key, key.epoch))", "torch.tensor(self.key)"),
        ("(self.key, key.epoch)), torch", "(self.key, key.number)), torch"),
        ("COLLATING + key.number", "COLLATING"),
    ),
    *mutants(
        "data/loading.py",
        LOADING,
        ("BatchKey(epoch, start + at, tuple", "BatchKey(epoch, at, tuple"),
    ),
    *mutants(
        "data/rows.py",
        ROWS,
        ("table.encodings(~is_held_out) if train is None else train.encodings", "table.encodings(~is_held_out)"),
        ("_classes(column) if train is None else train.classes", "_classes(column)"),
        ("table.encodings(~is_held_out)", "table.encodings(is_held_out | True)"),
    ),
    *mutants(
        "data/own_loaders.py",
        RUNS,
        ("if start and self.hash != before:", "if False:"),
        ("self.place = (key.epoch, key.number + 1)", "self.place = (0, 0)"),
        ("self.config.num_batches is None and (self.going is None or start == 0)", "self.going is None or start == 0"),
        ("self.turn += limit is not None", "pass"),
        ("set_epoch(self.turn)", "pass"),
        ("is END and self.is_stateful and (number == 0 or limit is not None)", "is END and False"),
        (
            '        if self.is_stateful:\n            self.loader.load_state_dict(state["loader"])\n',
            "        if False:\n            pass\n",
        ),
    ),
    *mutants(
        "data/workers.py",
        RUNS,
        ("            if self.is_awaited:\n                raise\n", "            raise\n"),
        ("        loader.worker_init_fn = partial(_begin_both, loader.worker_init_fn)\n", "        pass\n"),
    ),
    *mutants(
        "data/columns.py",
        f"{RUNS} games/dialogue/test_rows.py",
        ("if now.get(path, sha256) != sha256:", "if False:"),
    ),
    *mutants(
        "kinds/games/recorded.py",
        "kinds/games/test_recorded.py",
        ("truncated[:-1] |= is_lost[1:] & ~terminated[:-1]", "pass"),
        ("is_lost = ends & ~terminated & needs_next_row", "is_lost = ends & needs_next_row"),
        ("(rows + 1).clamp(max=num - 1)", "rows"),
        ("(terminated | truncated)[:-1] | self.changes()", "terminated[:-1] | self.changes()"),
        ("(is_used.cumsum() - 1)[episode]", "episode"),
        ("self.require(is_legal(found, space, legal).numpy(), path, what, values)", "pass"),
        ("joined[lacks] = 0", "joined[lacks] = np.nan"),
    ),
]
