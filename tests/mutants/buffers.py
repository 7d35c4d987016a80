"""Mistakes in replay memory."""

from tests.mutants.mutant import mutants

REPLAY = "buffers/test_replay.py buffers/test_frames_once.py"
PRIORITIZED = "buffers/test_prioritized.py"
FRAMES = "buffers/test_frames_once.py"

BUFFERS = [
    *mutants(
        "buffers/replay.py",
        REPLAY,
        ("return min(self.num_added, self.capacity)", "return self.num_added"),
        ("torch.where(valid, places, self.capacity)", "places"),
        ("self._added += valid.sum()", "self._added += len(valid)"),
        ("places = (self._added + valid.cumsum(0) - 1)", "places = (self._added + valid.cumsum(0))"),
        ("places[row] = added[()] % capacity\n", "places[row] = min(added[()], capacity - 1)\n"),
        ("            added[()] += 1\n", ""),
        ("        if valid[row]:\n", "        if True:\n"),
        ("self.num_samples += 1", "self.num_samples += 0"),
        ('self.num_samples = state["num_samples"]', "self.num_samples = 0"),
        (
            "_draw(self.key, self.num_samples, len(self), places.numpy())",
            "_draw(self.key, self.num_samples, self.capacity, places.numpy())",
        ),
        ("high = self._added.clamp(max=self.capacity)", "high = self._added.clamp(max=self.capacity) - 1"),
        (
            "places[i] = np.int64((mix(state) >> np.uint64(33)) * np.uint64(high) >> np.uint64(31))",
            "places[i] = np.int64((mix(state) >> np.uint64(34)) * np.uint64(high) >> np.uint64(31))",
        ),
        ("np.uint64(num_samples + 1) * U_GAMMA", "np.uint64(num_samples) * U_GAMMA"),
        ("if not max(self.num_added - self.capacity, 0) <= start <= stop", "if not 0 <= start <= stop"),
        (
            "places = torch.arange(start, start + num_rows(stored), device=self.home) % self.capacity",
            "places = torch.arange(num_rows(stored), device=self.home) % self.capacity",
        ),
        (
            "            value.copy_(rows[name])",
            "            value[: len(valid) - 1].copy_(rows[name][: len(valid) - 1])",
        ),
    ),
    *mutants(
        "buffers/replay.py",
        FRAMES,
        ("if batch_size not in self._images:", "if not self._images:"),
        ("                self._forget(first, first + int(valid.sum()))\n", ""),
        ("self._forget(start, start + num)", "pass"),
        (
            "rows = self._planes.hold(rows, torch.zeros(num_rows(rows), dtype=torch.bool))",
            "rows = self._planes.hold(rows, torch.ones(num_rows(rows), dtype=torch.bool))",
        ),
    ),
    *mutants(
        "buffers/replay.py",
        REPLAY,
        ("key=lambda item: -item[1].dtype.itemsize", "key=lambda item: item[1].dtype.itemsize"),
        ("self.num_words = -(-start // BYTES_PER_WORD)", "self.num_words = start // BYTES_PER_WORD"),
    ),
    *mutants(
        "buffers/prioritized.py",
        PRIORITIZED,
        ("torch.where(valid, self.largest, 0.0)", "self.largest.expand(len(valid))"),
        ("(abs(np.float64(errors[i])) + eps) ** alpha", "(abs(np.float64(errors[i])) + eps) ** (2 * alpha)"),
        ("(abs(np.float64(errors[i])) + eps) ** alpha", "abs(np.float64(errors[i])) ** alpha + eps"),
        ("largest[()] = max(largest[()], priorities[i])", "largest[()] = priorities[i]"),
        ("least = min(least, leaves[place])", "least = min(1.0, leaves[place])"),
        ("(least / leaves[drawn[i]]) ** beta", "(leaves[drawn[i]] / least) ** beta"),
        ("beta = self.config.beta(opt_steps)", "beta = self.config.beta(0)"),
        ("/ len(places) * total", "/ len(places) * len(places)"),
        ("self.tree.leaves[: len(self)].clone()", "torch.ones(len(self), dtype=torch.float64)"),
        ('self.largest.copy_(state["largest"])', "pass"),
        ("amounts[i] = (i + np.float64", "amounts[i] = (np.float64"),
        ("td_error.detach().double().abs() + config.eps", "td_error.detach().double() + config.eps"),
    ),
    *mutants(
        "buffers/prioritized.py",
        PRIORITIZED,
        ("            if changed[i] == parent:\n", "            if changed[i] >= parent >= 0:\n"),
        ("            amounts = amounts - before.squeeze(1)\n", ""),
        ("amounts[i] = amount - before", "amounts[i] = amount"),
        ("self.nodes.zero_()", "pass"),
        ("is_beyond = running <= amount", "is_beyond = running < amount"),
    ),
    *mutants(
        "buffers/frames.py",
        FRAMES,
        ("        num_places[slot] += 1\n        slots[k] = slot", "        slots[k] = slot"),
        ("while slot and not _equal(words[slot], frame):", "while slot and False:"),
        ("                    next_[before] = next_[slot]", "                    next_[before] = 0"),
        ("                free[0] = slot\n", ""),
        ("        if not held[k]:\n            continue\n", ""),
        ("np.add.at(self._num_places, slots.numpy(), 1)", "self._num_places[slots.numpy()] += 1"),
    ),
    *mutants(
        "buffers/replay.py",
        FRAMES,
        ("order = np.argsort(first)", "order = np.arange(len(first))"),
        ("            store.release(slots[used])\n", ""),
        ("each = valid.repeat_interleave(channels).numpy()", "each = valid.repeat(channels).numpy()"),
    ),
]
