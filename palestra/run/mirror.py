"""A run's mirror: a copy of its checkpoints at a URL, updated by a thread while the run trains.

The run's folder stays authoritative. After a save the thread sends what is new: segments of replay rows and files
that are written once, then the checkpoint's files, then its contents.json, which makes the checkpoint exist, then
results of evaluations. Only then does it remove anything. So a kill at any moment leaves every checkpoint that
retention keeps, or a newer one. The layout:

    run.json                                   as in the run's folder; identifies the run
    checkpoints/00000003-1a2b3c4d/...          the checkpoint's files, and the run's files at that time
                                  contents.json   their SHA-256, and those of the segments that it needs; written last
    buffers/...                                segments of replay rows
    players/...                                copies of players that others have trained, written once
    evaluations/...                            results of `palestra evaluate`, as they are after a save

A checkpoint exists if and only if its contents.json is complete. The one with the highest number is the latest, and
names the best. The digits after the number are the first of the manifest's SHA-256, so different content has a
different name: no file of an existing checkpoint is ever overwritten, and the mirror needs no pointer files.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import fsspec
from pydantic import Field, ValidationInfo, field_validator

from palestra.config import Config, ConfigError, NonNegativeFloat, PositiveInt
from palestra.run.checkpoints import SEGMENT, Checkpoints, kept_numbers
from palestra.run.remote import Remote, RemoteError, require_backend
from palestra.storage.disk import RunFolderError, written_name
from palestra.storage.manifest import GROWING, MANIFEST, ONCE, Manifest, Once, OnceFolder, training_reads
from palestra.storage.run_folder import JOBS, RunFolder
from palestra.storage.secrets import MAY_HOLD, may_hold_secret, option_errors, where_secrets_lie, where_users_stand
from palestra.storage.stored_files import DamagedError, FileName, SealedEntry, StoredFile, having, raising_damaged

# ---- the layout of a mirror ---------------------------------------------------------------------------

FORMAT: Literal[4] = 4  # 4 has all files that are written once, by folder
FOLDER_NAME = re.compile(r"([0-9]{8,})-[0-9a-f]{8}")
CONTENTS = "contents.json"
RECORDS = "records.jsonl"
EVALUATION = re.compile(r"[^./\\\x00][^/\\\x00]*-opt-step-[0-9]+(-[0-9a-f]+)?\.(json|mp4)")  # a file's name
SOME = ("changes.jsonl", JOBS)  # which only some runs have
Tell = Callable[[str], None]
RUN_FILES = ("run.json", "config.yml", *SOME, RECORDS)


class Contents(SealedEntry):
    """The list of what belongs to a checkpoint on the mirror: the size and SHA-256 of each file, by name.

    files: those in the checkpoint's folder. segments: those in `buffers/` that it needs. once: those beside the
    checkpoints that were written once. best: the folder of the best checkpoint of the run so far.
    """

    file: ClassVar = CONTENTS

    format: Literal[4]
    files: Annotated[dict[FileName, StoredFile], having(*{*RUN_FILES, MANIFEST}.difference(SOME))]
    segments: dict[FileName, StoredFile]
    once: Once
    best: Annotated[str, Field(pattern=f"^{FOLDER_NAME.pattern}$")] | None

    def paths(self, name: str) -> set[str]:
        """The paths on the mirror of all files of the checkpoint whose folder has that name."""
        own = {f"checkpoints/{name}/{file}" for file in self.files}
        once = {f"{folder}/{file}" for folder, files in self.once.items() for file in files}
        return own | {f"buffers/{segment}" for segment in self.segments} | once


def number_of(name: str) -> int:
    """The number of the checkpoint in a folder of that name."""
    return int(name.split("-")[0])


def evaluations_in(files: Iterable[str]) -> set[str]:
    """The names of the results of evaluations among the files of a mirror."""
    names = {path.partition("/")[2] for path in files if path.startswith("evaluations/")}
    return {name for name in names if EVALUATION.fullmatch(name)}


def folders_in(files: Iterable[str]) -> set[str]:
    """The names of the checkpoints' folders among the files of a mirror, complete or not."""
    names = (path.split("/")[1] for path in files if path.startswith("checkpoints/") and path.count("/") == 2)
    return {name for name in names if FOLDER_NAME.fullmatch(name)}


# ---- what a run must say -----------------------------------------------------------------------------

ARCHIVES = ("zip", "tar", "libarchive")


class MirrorConfig(Config):
    url: str
    """the run is copied to a folder of its name below this URL, as s3://bucket/runs"""
    options: dict[str, Any]
    """arguments of the URL's file system, as {endpoint_url: "https://..."}; only those known to be no secrets"""
    attempts: PositiveInt
    """attempts of each remote call before it counts as failed"""
    first_wait_s: NonNegativeFloat
    """seconds before the second attempt; doubled before each further one"""
    end_wait_s: NonNegativeFloat
    """the longest time in seconds that the end of the run waits for the last upload"""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        protocol, _, path = url.partition("://")
        if may_hold_secret(url):
            raise ValueError(f"{MAY_HOLD}; {where_secrets_lie(url)}{where_users_stand(url)}")
        is_relative = protocol in ("file", "local") and not path.startswith("/")
        if protocol not in fsspec.available_protocols() or not path.strip("/") or is_relative or "::" in url:
            raise ValueError(f"expected a URL of fsspec (s3://bucket/folder, file:///folder, ...), got {url!r}")
        if protocol in ARCHIVES:
            raise ValueError(f"expected a place where files can be replaced and deleted, got an archive ({protocol})")
        return url

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any], before: ValidationInfo) -> dict[str, Any]:
        errors = list(option_errors(before.data["url"], options)) if "url" in before.data else []
        ConfigError.require_none(errors)
        return options

    def require_backend(self) -> None:
        """Raise ConfigError if the package that the URL needs is not installed."""
        try:
            require_backend(self.url)
        except RemoteError as error:
            raise ConfigError.at("output.mirror.url", str(error)) from error


# ---- the mirror --------------------------------------------------------------------------------------


class Job(NamedTuple):
    """The numbers of the checkpoints that the run's folder keeps after a save, among them the latest and the best.

    between_dues: the latest if it was saved for a stop, not at an interval.
    """

    numbers: tuple[int, ...]
    latest: int
    best: int | None
    between_dues: int | None


class Mirror:
    """Updates the mirror of a run; a context manager, open while the run trains.

    If several jobs wait, only the newest is done. tell, note: called from the thread with a line when jobs begin to
    fail, and when one succeeds again.
    """

    def __init__(
        self, url: str, config: MirrorConfig, folder: RunFolder, checkpoints: Checkpoints, tell: Tell, note: Tell
    ) -> None:
        self.remote = Remote(url, config.options, config.attempts, config.first_wait_s)
        self.end_wait_s = config.end_wait_s
        self.folder = folder
        self.checkpoints = checkpoints
        self.tell, self.note = tell, note
        self._changed = threading.Condition()
        self._waiting: Job | None = None
        self._current: Job | None = None
        self._failure: RemoteError | None = None  # of the last job
        self._closed = False
        self._there: dict[str, int] = {}  # the files on the mirror and their sizes
        self._known: dict[str, Contents] = {}  # every contents.json that was read or written
        self._evaluations: dict[str, tuple[int, int]] = {}  # size and time of the results that were sent

    def __enter__(self) -> Self:
        """Claim the mirror and start the thread.

        Raises RemoteError if the URL cannot be reached or written, RunFolderError if it belongs to another run.
        """
        self._claim()
        threading.Thread(target=self._work, name="mirror", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._is_idle(), self.end_wait_s)
        self._close()

    def send(self, latest: int) -> None:
        """Let the thread send what the mirror lacks, and return at once. latest: the number of the last checkpoint."""
        checkpoints = self.checkpoints
        past = [number for number in checkpoints.numbers() if number <= latest]
        best, between_dues = checkpoints.best(), checkpoints.between_dues(latest)
        kept = kept_numbers(past, checkpoints.keep_last, checkpoints.keep_every, best, between_dues)
        with self._changed:
            self._waiting = Job(tuple(sorted(kept, reverse=True)), latest, best, between_dues)
            self._changed.notify_all()

    def in_use(self) -> set[int]:
        """The numbers of checkpoints that must not be deleted from the run's folder yet."""
        with self._changed:
            return {number for job in (self._current, self._waiting) if job is not None for number in job.numbers}

    def finish(self) -> None:
        """Wait until everything is sent. Raises RemoteError if that fails or takes longer than `end_wait_s`."""
        with self._changed:
            in_time = self._changed.wait_for(self._is_idle, self.end_wait_s)
        if not in_time:
            self._close()
            raise RemoteError(f"{self.remote.url}: the last upload takes longer than end_wait_s = {self.end_wait_s:g}")
        if self._failure is not None:
            raise self._failure

    def _is_idle(self) -> bool:
        return self._current is None and self._waiting is None

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _claim(self) -> None:
        """Write run.json to a new mirror.

        Raises RunFolderError for a folder of another run, or of anything else, and for a mirror that has later
        checkpoints.
        """
        self._there = self.remote.files()
        own = self.folder.root.read(self.folder.run.name)
        claimed = _json(self.remote.read("run.json")) if "run.json" in self._there else None
        others = sorted(path for path in self._there if written_name(path) != "run.json")
        if claimed is None and others:
            raise RunFolderError(f"output.mirror.url: expected a new folder, got {self.remote.url}, with {others[0]}")
        if claimed is None:  # run.json is missing, or a kill has left an unfinished one
            self._write("run.json", own)
        elif not isinstance(claimed, dict) or claimed.get("id") != json.loads(own)["id"]:
            raise RunFolderError(f"output.mirror.url: expected a new folder, got {self.remote.url} of another run")
        ahead = max((number_of(name) for name in self._whole()), default=-1)
        if ahead > max(self.checkpoints.numbers(), default=-1):
            raise RunFolderError(
                f"{self.remote.url} has checkpoint {ahead:08d}, but {self.folder.path} does not: another process has "
                f"continued the run. To continue from there: {self.folder.ways_on().to_resume_mirror(self.remote.url)}"
            )

    # ---- the thread ------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._current = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or self._waiting is not None)
                if self._closed:
                    return
                job, self._waiting = self._waiting, None
                self._current = job
            assert job is not None
            before, self._failure = self._failure, None
            try:
                self._sync(job)
                if before is not None:
                    self.note(f"{self.remote.url}: an upload has succeeded again; the mirror lacks nothing")
            except Exception as error:
                failure = error if isinstance(error, RemoteError) else RemoteError(f"{self.remote.url}: {error!r}")
                self._failure = failure
                if before is None and not self._closed:
                    self.tell(f"{self._failure}; the mirror lacks what is new until an upload succeeds")

    def _sync(self, job: Job) -> None:
        """Send the best and the latest, then the others unless a newer job waits; then remove by retention.

        What was sent before may have vanished, as from a disk that was mounted anew; it is sent again.
        """
        self._there = self.remote.files()
        if "run.json" not in self._there:
            self._write("run.json", self.folder.root.read(self.folder.run.name))
        whole = self._whole()
        names: dict[int, str] = {}
        first = (job.latest,) if job.best is None else (job.best, job.latest)
        for number in dict.fromkeys((*first, *job.numbers)):
            if number not in first and self._waiting is not None:
                break
            try:
                names[number], manifest = self._manifest(number)
            except DamagedError:
                continue  # damaged in the run's folder; the mirror may still hold it undamaged
            if names[number] not in whole:
                best = next((name for name in (*names.values(), *whole) if number_of(name) == job.best), None)
                whole[names[number]] = self._upload(number, names[number], manifest, best)
        self._send_evaluations()
        self._remove_unkept(job, names, whole)

    def _whole(self) -> dict[str, Contents]:
        """The checkpoints of which the mirror holds all files, by their folders' names."""
        whole = {}
        there = self._there
        for name in folders_in(there):
            path = f"checkpoints/{name}/{CONTENTS}"
            with suppress(DamagedError):
                if path in there and name not in self._known:
                    self._known[name] = Contents.from_bytes(self.remote.read(path))
            if path in there and name in self._known and self._known[name].paths(name) <= there.keys():
                whole[name] = self._known[name]
        return whole

    def _manifest(self, number: int) -> tuple[str, Manifest]:
        """The name of a checkpoint's folder on the mirror, and its manifest.

        Raises DamagedError, also if a file is missing.
        """
        folder = self.checkpoints.folder.below(f"{number:08d}")
        manifest = Manifest.read(folder)
        buffers = self.folder.buffers, manifest.segments()
        once = [(self.folder.root.below(name), files) for name, files in self._once(manifest).items()]
        for place, files in ((folder, manifest.files), buffers, *once):
            for file in files:
                if place.kind(file) != "file":
                    raise DamagedError(f"{file} is missing, or no regular file")
        with raising_damaged(MANIFEST):
            digest = hashlib.sha256(folder.read(MANIFEST)).hexdigest()
        return f"{number:08d}-{digest[:8]}", manifest

    def _once(self, manifest: Manifest) -> Once:
        """The files that were written once, which a checkpoint names, but those that only readers may miss, and do."""

        def is_there(folder: OnceFolder, name: str, stored: StoredFile) -> bool:
            path = self.folder.root.below(folder).path / name
            return training_reads(folder, name) or (path.is_file() and path.lstat().st_size == stored.size)

        return {
            folder: {name: stored for name, stored in files.items() if is_there(folder, name, stored)}
            for folder, files in manifest.once.items()
        }

    def _upload(self, number: int, name: str, manifest: Manifest, best: str | None) -> Contents:
        folder = self.checkpoints.folder.below(f"{number:08d}")
        segments = manifest.segments()
        for segment, stored in segments.items():
            if self._there.get(f"buffers/{segment}") != stored.size:  # a kill may have left an unfinished one
                self._put(f"buffers/{segment}", self.folder.buffers.path / segment)
        once = self._once(manifest)
        for place in once:
            for file, stored in once[place].items():
                path = self.folder.root.below(place).path / file
                if self._there.get(f"{place}/{file}") != (path.stat().st_size if place in GROWING else stored.size):
                    self._put(f"{place}/{file}", path)
        files = dict(manifest.files)
        for file in files:
            self._put(f"checkpoints/{name}/{file}", folder.path / file)
        root = self.folder.root
        small = {file: root.read(file) for file in RUN_FILES if file != RECORDS and root.kind(file) is not None}
        with root.reading(RECORDS) as records:
            small[RECORDS] = b"".join(records.pieces(manifest.records.length))
        small[MANIFEST] = folder.read(MANIFEST)
        for file, content in small.items():
            self._write(f"checkpoints/{name}/{file}", content)
            files[file] = StoredFile.of(content)
        contents = Contents(format=FORMAT, files=files, segments=segments, once=once, best=best)
        self._write(f"checkpoints/{name}/{CONTENTS}", contents.to_bytes())
        self._known[name] = contents
        return contents

    def _send_evaluations(self) -> None:
        """Send the results that are new or have changed since they were sent."""
        place = self.folder.evaluations
        for file in place.names():
            if EVALUATION.fullmatch(file) and place.kind(file) == "file":
                path, status = f"evaluations/{file}", (place.path / file).lstat()
                if path not in self._there or self._evaluations.get(file) != (status.st_size, status.st_mtime_ns):
                    self._put(path, place.path / file)
                    self._evaluations[file] = status.st_size, status.st_mtime_ns

    def _remove_unkept(self, job: Job, names: Mapping[int, str], whole: dict[str, Contents]) -> None:
        """Apply the retention rules of the run's folder to the checkpoints on the mirror.

        Abandoned later checkpoints and what a kill has left go, too. contents.json is removed first.
        """
        past = sorted({number_of(name) for name in whole if number_of(name) <= job.latest})
        rules = self.checkpoints.keep_last, self.checkpoints.keep_every
        kept = kept_numbers(past, *rules, job.best, job.between_dues)
        for name in folders_in(self._there):
            number = number_of(name)
            if name in whole and number in kept and names.get(number, name) == name:
                continue
            whole.pop(name, None)
            files = [path for path in self._there if path.startswith(f"checkpoints/{name}/")]
            for path in sorted(files, key=lambda path: not path.endswith(f"/{CONTENTS}")):
                self._remove(path)
            self.remote.remove_folder(f"checkpoints/{name}")
        named = {f"buffers/{segment}" for contents in whole.values() for segment in contents.segments}
        named |= {f"past/{name}" for contents in whole.values() for name in contents.once.get("past", {})}
        for path in [path for path in self._there if path not in named]:
            ours = {"buffers": SEGMENT, "past": ONCE["past"]}.get(path.partition("/")[0])
            if ours is not None and ours.fullmatch(written_name(path.partition("/")[2])):  # else it is not palestra's
                self._remove(path)

    def _put(self, path: str, local: Path) -> None:
        self._check_open()
        self.remote.put(path, local)
        self._there[path] = local.stat().st_size

    def _write(self, path: str, content: bytes) -> None:
        self._check_open()
        self.remote.write(path, content)
        self._there[path] = len(content)

    def _remove(self, path: str) -> None:
        self._check_open()
        self.remote.remove(path)
        self._there.pop(path, None)

    def _check_open(self) -> None:
        """Raise RemoteError after the end: another process may then own the run's folder and write to the mirror."""
        if self._closed:
            raise RemoteError(f"{self.remote.url}: the run has ended")


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
