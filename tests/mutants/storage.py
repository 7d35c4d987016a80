"""Mistakes in checkpoints, replay segments, records and the run's folder."""

from tests.mutants.mutant import equal_mutant, mutants

CHECKPOINTS = "run/test_checkpoints.py"
SEGMENTS = "storage/test_replay_segments.py"
RETENTION = "run/test_retention.py run/test_checkpoints.py"
POWER_LOSS = "run/test_power_loss.py"
DAMAGE = "run/test_checkpoints.py run/test_damage.py"
MIRROR = "run/test_mirror.py run/test_fetching.py"
RECORDS = "storage/test_records_file.py recording/test_recorders.py test_damaged_runs.py"
RUN_FOLDER = "storage/test_run_folder.py test_links.py"
DISK = "storage/test_disk.py storage/test_run_folder.py test_links.py"

STORAGE = [
    *mutants(
        "run/checkpoints.py",
        RETENTION,
        ("return {*due[-keep_last:], *every}", "return {*due[:keep_last], *every}"),
        ("number % keep_every == 0}", "number % keep_every == 1}"),
        (
            "for number in (best, between_dues) if number is not None}",
            "for number in (between_dues,) if number is not None}",
        ),
        ("due = [number for number in past if number != between_dues]", "due = list(past)"),
        ("between_dues) | self.in_use()\n", "between_dues)\n"),
        ("numbers = [number for number in numbers if number < latest] + [latest]", "pass"),
        (
            "return [self._place(number) for number in reversed(numbers)]",
            "return [self._place(number) for number in numbers]",
        ),
    ),
    *mutants(
        "run/checkpoints.py",
        "run/test_checkpoints.py",
        (
            "            self._write_refused()\n            self._remove_leftovers()\n",
            "            self._remove_leftovers()\n",
        ),
        ("        for folder in BEGUN:\n", "        for folder in ():\n"),
    ),
    *mutants(
        "run/checkpoints.py",
        POWER_LOSS,
        ("            unfinished.sync()\n", ""),
    ),
    equal_mutant(
        "run/checkpoints.py",
        POWER_LOSS,
        "        self.folder.rename(unfinished.path.name, name)\n        self.folder.sync()\n",
        "        self.folder.rename(unfinished.path.name, name)\n",
        "who writes `latest` next syncs the same folder, and until then the checkpoint before is the latest",
    ),
    *mutants(
        "run/loaded_checkpoint.py",
        f"{DAMAGE} {SEGMENTS}",
        ("int(folder.path.name) != manifest.number", "False"),
        ("        for rows in manifest.buffers.values():\n            rows.check(place)\n", "        pass\n"),
    ),
    *mutants(
        "run/checkpoints.py",
        DAMAGE,
        (
            '                damaged.append(f"checkpoint {place.folder.path} is damaged: {error}")',
            "                pass",
        ),
    ),
    *mutants(
        "run/checkpoints.py",
        SEGMENTS,
        (
            "            self._named = {key: rows.segments for key, rows in stored.items()}",
            "            self._named = {}",
        ),
        (
            "            segments |= manifest.segments().keys()",
            "            segments = set(manifest.segments())",
        ),
        ("            if (fault := stored.fault_of(buffers[key].capacity)) is not None:", "            if False:"),
        ("        if set(buffers) != set(loaded.buffers):", "        if not set(buffers) <= set(loaded.buffers):"),
    ),
    equal_mutant(
        "storage/manifest.py",
        SEGMENTS,
        "if stop in on_disk and on_disk[stop].start <= start:",
        "if stop in on_disk:",
        "the rows that a buffer holds never begin earlier than at the save before",
    ),
    *mutants(
        "storage/manifest.py",
        SEGMENTS,
        ("(start // segment_rows + 1) * segment_rows", "(start // segment_rows) * segment_rows + segment_rows - 1"),
        (
            "    start = max(0, num_added - buffer.capacity)",
            "    start = max(0, num_added - buffer.capacity + 1)",
        ),
        (
            "    reached = segments[-1].stop if segments else first",
            "    reached = num_added - num_added % segment_rows",
        ),
        (
            "yield start, part(rows, start - segment.start, num_rows(rows))",
            "yield start, part(rows, 0, num_rows(rows))",
        ),
        ("-{stored.sha256[:8]}.safetensors", "-00000000.safetensors"),
        ("return min(at_most, 1 << num.bit_length() - 1)", "return at_most"),
    ),
    *mutants(
        "storage/manifest.py",
        DAMAGE,
        ("        if reached != self.num_added:", "        if False:"),
        ("            if any(value.shape[:1] != (expected,) for", "            if any(value.dim() < 0 for"),
    ),
    *mutants(
        "storage/stored_files.py",
        DAMAGE,
        ("    if sha256 != stored.sha256:", "    if False:"),
    ),
    *mutants(
        "storage/stored_files.py",
        CHECKPOINTS,
        ("torch.empty(t.shape, dtype=t.dtype).copy_(t.detach())", "t.detach()"),
    ),
    *mutants(
        "storage/stored_files.py",
        CHECKPOINTS,
        ("if abs(value) < 1 << 63 else", "if abs(value) < 1 << 80 else"),
        ("if math.isfinite(value) else", "if not math.isnan(value) else"),
        ('return {"$tuple": items} if isinstance(value, tuple) else items', "return items"),
        ("str(key).replace('~', '~0').replace('/', '~1')", "key"),
        ("            return int(text, 16)", "            return int(text, 10)"),
        ("order: Callable[..., Any] = sorted", "order: Callable[..., Any] = list"),
    ),
    *mutants(
        "storage/stored_files.py",
        DAMAGE,
        ("        is_whole = content == _sealed(document)", "        is_whole = True"),
        ("(found > expected or (found", "(found > expected + 1 or (found"),
        ("        if not {*names} <= files.keys():", "        if not files:"),
    ),
    *mutants(
        "storage/disk.py",
        POWER_LOSS,
        ("                raise\n            DISK.sync(folder)", "                raise"),
        ("            _write_all(file, piece)\n        DISK.sync(file)", "            _write_all(file, piece)"),
    ),
    *mutants(
        "storage/disk.py",
        DISK,
        ("        if not stat.S_ISREG(os.fstat(descriptor).st_mode):", "        if False:"),
        ("        if status.st_nlink > 1:", "        if False:"),
        ("            if file.size > max_bytes:", "            if False:"),
        ("            if file.size != size:", "            if file.size > size:"),
        ('                Folder(self.root, *self.parts[:depth])._require(folder, name, "folder")\n', ""),
    ),
    *mutants(
        "storage/disk.py",
        "recording/test_recorders.py test_full_disk.py test_resume.py",
        (
            "        except OSError:\n            self.truncate(before)\n            raise",
            "        except OSError:\n            raise",
        ),
    ),
    *mutants(
        "storage/records_file.py",
        RECORDS,
        ("        self.num_lines += len(others)", "        self.num_lines += len(others) + 1"),
        (
            "            self._last, self._line = self._line, hashlib.sha256(line)",
            "            self._last, self._line = self._line, hashlib.sha256()",
        ),
        ("            return Beginning(line.stop, False, 0)", "            return Beginning(counted.length, False, 0)"),
        ("            stop += len(end) + 1\n", "            stop += len(end)\n"),
        ('            begun, is_too_long = b"", False\n        stop', '            begun = b""\n        stop'),
    ),
    *mutants(
        "storage/records_file.py",
        RECORDS,
        ("for line in lines_of(self.file, length) if line.is_whole", "for line in lines_of(self.file, length)"),
        ('default=0))\n        vars(self).pop("measure", None)', "default=0))"),
        ("return float(value) if math.isfinite(value) else None", "return float(value)"),
    ),
    *mutants(
        "storage/records_file.py",
        POWER_LOSS,
        ("        self._put()\n        self.file.sync()", "        self._put()"),
    ),
    *mutants(
        "storage/run_folder.py",
        RUN_FOLDER,
        ("n = 1 + max((int(match[1])", "n = max((int(match[1])"),
        ("        self.require_plain()\n        try:\n            return", "        try:\n            return"),
    ),
    *mutants(
        "storage/lock.py",
        RUN_FOLDER,
        ("if (lock := Lock.take(folder, name)) is None:", "if (lock := Lock.take(folder, name)) is False:"),
    ),
    *mutants(
        "run/mirror.py",
        MIRROR,
        ('if self._there.get(f"buffers/{segment}") != stored.size:', 'if f"buffers/{segment}" not in self._there:'),
        ("records.pieces(manifest.records.length)", "records.pieces(records.size)"),
        ("first = (job.latest,) if job.best is None else (job.best, job.latest)", "first = (job.latest,)"),
        (
            'for path in sorted(files, key=lambda path: not path.endswith(f"/{CONTENTS}")):',
            'for path in sorted(files, key=lambda path: path.endswith(f"/{CONTENTS}")):',
        ),
        (
            'elif not isinstance(claimed, dict) or claimed.get("id") != json.loads(own)["id"]:',
            "elif not isinstance(claimed, dict):",
        ),
        ("        if ahead > max(self.checkpoints.numbers(), default=-1):", "        if False:"),
    ),
]
