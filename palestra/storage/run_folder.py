"""The folder of a run: its paths, the lock that allows one writing process, and the facts in run.json."""

import json
import os
import re
import shlex
import shutil
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from pydantic import ValidationError

from palestra.storage.disk import WORDS, Folder, RunFolderError, plain_path, written_name
from palestra.storage.facts import RunFacts, require_our_format
from palestra.storage.lock import Lock, take_or_refuse
from palestra.storage.secrets import redacted
from palestra.storage.stored_files import fault_in_words, to_json

STOCK = "palestra.Trainer"


@dataclass(frozen=True)
class WaysOn:
    """The ways on from a run.

    facts: None if its run.json cannot be read. has_checkpoint: without one nothing can be evaluated or branched off.
    has_calls: whether it keeps answers of servers, which it finds again when it begins anew without a checkpoint.
    """

    path: Path
    facts: RunFacts | None
    has_checkpoint: bool
    has_calls: bool

    # ---- what the shell cannot give back -------------------------------------------------------------------

    @property
    def _calls(self) -> list[str]:
        return [] if self.facts is None else self.facts.set_in_python

    @property
    def models(self) -> list[str]:
        """The roles, as Python writes them, whose networks `set_model` handed over."""
        found = (re.fullmatch(r"set_model\((.+), \.\.\.\)", call) for call in self._calls)
        return [match[1] for match in found if match]

    @property
    def trainer_class(self) -> str:
        """The class whose `load` and `branch` go on with the run, as Python writes it."""
        own = None if self.facts is None else self.facts.trainer_in_python
        return STOCK if own is None else own.rpartition(":")[2].rpartition(".")[2]

    @property
    def _is_of_a_script(self) -> bool:
        """Whether the config names a class that stands in the script that began the run."""
        return self.facts is not None and any(name.startswith("__main__:") for name in self.facts.user_classes)

    def in_python(self, method: str, arguments: str, *then: str) -> str:
        """The lines of Python that train: a call of a class's `method` with these arguments, and what follows."""
        models = f", models={{{', '.join(f'{role}: ...' for role in self.models)}}}" if self.models else ""
        loaded = f"trainer = {self.trainer_class}.{method}({arguments}{models})"
        others = [f"trainer.{call}" for call in self._calls if not call.startswith("set_model")]
        return "; ".join([loaded, *others, *then, "trainer.fit()"])

    def _in_shell_or_python(self, command: str, run: str, *then: str) -> str:
        needs_python = self._calls or self._is_of_a_script or self.trainer_class != STOCK
        return self._in_python("load", run, *then) if needs_python else command

    def _in_python(self, method: str, arguments: str, *then: str) -> str:
        where = "in the script that began it" if self._is_of_a_script else "in Python"
        return f"{where}: {self.in_python(method, arguments, *then)}"

    # ---- the ways ------------------------------------------------------------------------------------------

    def to_resume(self) -> str | None:
        """The way on from the last checkpoint, which also sends what the recorders and the mirror lack."""
        if not (self.has_checkpoint or self.has_calls):
            return None
        return self._in_shell_or_python(f"palestra resume {self._quoted}", self._written)

    def to_resume_mirror(self, url: str) -> str:
        """The way on from the mirror, in a new folder."""
        return self._in_shell_or_python(f"palestra resume {url} --run DIR", f"{url!r}, into='DIR'")

    def to_extend(self, change: str) -> str | None:
        """The way to another end of the run, such as stop.after=100."""
        if not self.has_checkpoint:
            return None
        command = f"palestra extend {self._quoted} {change}"
        return self._in_shell_or_python(command, self._written, f"trainer.extend([{change!r}])")

    def to_branch(self, checkpoint: str = "latest") -> str | None:
        """The way to a new run that begins with the state of a checkpoint and a changed key.

        checkpoint: latest, best, or the name of its folder.
        """
        if not self.has_checkpoint:
            return None
        elsewhere = None if self.facts is None else self.facts.checkpoint_folder
        place = Path(elsewhere or self.path, "checkpoints", checkpoint)
        if not (self.models or self._is_of_a_script or self.trainer_class != STOCK):
            return f"palestra branch {shlex.quote(str(place))} KEY=VALUE"
        return self._in_python("branch", f"{str(place)!r}, ['KEY=VALUE']")

    def to_evaluate(self, roles: Mapping[str, str] | None, has_evaluations: bool) -> str | None:
        """The way to evaluate it from the shell. roles: who sits where; None if nobody plays in the run."""
        if not self.has_checkpoint or self.models or self._is_of_a_script or (roles is None and not has_evaluations):
            return None
        seats = ",".join(f"{role}={name}" for role, name in (roles or {}).items())
        return f"palestra evaluate {self._quoted}{'' if has_evaluations else f' --pairing {seats}'}"

    def to_see(self) -> str:
        """The way to see the run as a page, which every run has."""
        return f"palestra report {self._quoted}"

    @property
    def _written(self) -> str:
        return repr(str(self.path))

    @property
    def _quoted(self) -> str:
        return shlex.quote(str(self.path))


FAILURE, OWNER, UNFILED, JOBS = "failure.txt", "owner.json", "unfiled", "jobs.jsonl"
LARGE_FOLDERS = ("checkpoints", "buffers")
OUR_FOLDERS = (
    *(*LARGE_FOLDERS, "evaluations", "analyses", "media", "players", "prompts", "rollouts", "learned", "transcripts"),
    *("past", "calls", "ranks", "actors", "export", "tensorboard", "csv", "wandb", "mlflow", "trackio"),
)
OUR_FILES = (
    *("lock", "config.yml", "run.json", "records.jsonl", "changes.jsonl", JOBS, UNFILED),
    *("scores.png", "report.html", FAILURE),
)
BEGUN_FOLDERS = (*LARGE_FOLDERS, "evaluations", "players", "prompts")
ELSEWHERE = "; to use another disk, set output.checkpoint_folder when the run begins, or copy to it by output.mirror"
BEGUN_FILES = ("lock", "config.yml")  # run.json comes last: a folder with both is a run


class RunFolder:
    """The paths of one run, its facts and its lock. Made by `create`, `create_at` or `open`.

    The folders `checkpoints/` and `evaluations/` exist from the start, the others once something is written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.root = path, Folder(path)
        self.holds_lock = False
        self.config, self.run = path / "config.yml", path / "run.json"
        self.records, self.changes = path / "records.jsonl", path / "changes.jsonl"
        self.media, self.evaluations = self.root.below("media"), self.root.below("evaluations")
        self.players, self.prompts = self.root.below("players"), self.root.below("prompts")
        self.rollouts = self.root.below("rollouts")

    @cached_property
    def checkpoints(self) -> Folder:
        return self._large_files.below("checkpoints")

    @cached_property
    def buffers(self) -> Folder:
        return self._large_files.below("buffers")

    @cached_property
    def _large_files(self) -> Folder:
        """The folder of checkpoints and replay rows.

        Raises RunFolderError if run.json names a folder that does not exist, or that belongs to another run.
        """
        elsewhere = self.facts().checkpoint_folder if self.root.kind(self.run.name) is not None else None
        if elsewhere is None:
            return self.root
        folder = Folder(Path(elsewhere))
        try:
            owner = json.loads(folder.read(OWNER))
        except (OSError, ValueError, RecursionError) as error:
            message = f"{self.run} names the checkpoint folder {elsewhere}, which cannot be read: {error}"
            raise RunFolderError(message) from error
        if not isinstance(owner, dict) or owner.get("id") != self.facts().id:
            raise RunFolderError(f"{self.run} names the checkpoint folder {elsewhere}, which belongs to another run")
        return folder

    @classmethod
    def create(cls, runs: Path, name: str) -> "RunFolder":
        """Make `runs/<name>-<n>` with n = 1 + the largest number in use. Several processes may do so at once."""
        if not name or "/" in name or name.startswith("."):
            raise RunFolderError(f"expected a run's name without slashes and without a dot in front, got {name!r}")
        runs.mkdir(parents=True, exist_ok=True)
        matches = (re.fullmatch(re.escape(name) + r"-(\d+)", path.name) for path in runs.iterdir())
        n = 1 + max((int(match[1]) for match in matches if match), default=0)
        while True:
            try:
                return cls._make(runs / f"{name}-{n}")
            except FileExistsError:  # another process was faster
                n += 1

    @classmethod
    def create_at(cls, path: Path, copies: Collection[str] | None = None) -> "RunFolder":
        """Make the run's folder at `path`; an empty folder will do. Raises RunFolderError if anything is in it.

        copies: the names of the files in `players/`; with them, what a kill has left of a run's beginning may be there.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                return cls._make(path)
            cls(path).require_free(copies)
            return cls(path)._make_inner()
        except OSError as error:
            raise RunFolderError(f"{path} cannot be made: {error.strerror or error}") from None

    def require_free(self, copies: Collection[str] | None) -> None:
        """Raise RunFolderError unless a run may begin here. copies: as in `create_at`."""
        with suppress(OSError, RunFolderError):  # as of a file, or of more than a kill has left
            if copies is not None:
                return self.require_begun_only(copies)
            if not self.root.names():
                return
        way = self.ways_on().to_resume()
        remedy = "" if way is None else f"; to go on with the run there: {way}"
        raise RunFolderError(
            f"{self.path} exists already; a new run needs a folder that does not exist, or an empty one{remedy}"
        )

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The run at `path`. Raises RunFolderError if there is none, or if its config is no regular file."""
        folder = cls(path)
        try:
            kind = folder.root.kind(folder.config.name)
        except OSError as error:
            why = "expected the folder of a run, got a file" if path.is_file() else error
            raise RunFolderError(f"{path} is not a run: {why}") from None
        if kind is None:
            is_url = bool(path.parts) and path.parts[0].endswith(":")
            remedy = "; palestra resume URL brings a run back from its mirror, into a folder" if is_url else ""
            raise RunFolderError(f"{path} is not a run: {folder.config} is missing{remedy}")
        try:
            plain_path(folder.root, folder.config.name)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be used: {error}") from None
        content = None
        with suppress(OSError, ValueError, RecursionError):  # what is damaged shows when it is needed
            content = json.loads(folder.root.read(folder.run.name))
        require_our_format(path, content)
        return folder

    def facts(self) -> RunFacts:
        """The content of run.json. Raises RunFolderError if it is damaged, missing, or of another format."""
        try:
            content = json.loads(self.root.read(self.run.name))
            require_our_format(self.path, content)
            return RunFacts.model_validate(content)
        except FileNotFoundError:
            raise RunFolderError(f"{self.path} is not a run: {self.run} is missing") from None
        except ValidationError as error:
            raise RunFolderError(f"{self.run} is damaged: {fault_in_words(error)}") from error
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(f"{self.run} is damaged: {error}") from error

    def ways_on(self) -> WaysOn:
        """The commands by which people go on with the run."""
        facts, has_checkpoint, has_calls = None, False, False
        with suppress(OSError, RunFolderError):  # the code that needs a damaged file says so
            facts = self.facts()
            has_checkpoint = any(re.fullmatch(r"\d{8}", name) for name in self.checkpoints.names())
            has_calls = bool(self.root.below("calls").names())
        return WaysOn(self.path, facts, has_checkpoint, has_calls)

    def write_facts(self, facts: RunFacts) -> None:
        """Write run.json. Raises OSError."""
        self.root.write(self.run.name, to_json(facts.model_dump()).encode())

    def keep_checkpoints_in(self, place: Path, run_id: str) -> Path:
        """Make a new folder in `place`, for instance on another disk, for checkpoints and replay rows.

        Gives its path, which run.json must name. To be called before anything is saved. Raises RunFolderError.
        """
        own = place / f"{self.path.resolve().name}-{run_id[:8]}"
        owner = {"id": run_id, "run": str(self.path.resolve())}
        try:
            place.mkdir(parents=True, exist_ok=True)
            own.mkdir()
            Folder(own, "checkpoints").make()
            self.root.below("checkpoints").remove_empty()
            Folder(own).write(OWNER, to_json(owner).encode())
            Folder(place).sync()
        except OSError as error:
            raise RunFolderError(f"{own} cannot be made: {error}") from None
        return own

    def discard(self) -> None:
        """Remove a run that this process has just made and that failed to start."""
        with suppress(RunFolderError):
            if (elsewhere := self.facts().checkpoint_folder) is not None and self._large_files.path == Path(elsewhere):
                shutil.rmtree(elsewhere, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def require_begun_only(self, copies: Collection[str] = ()) -> None:
        """Raise RunFolderError, which names the reason, unless a kill came before the folder was a run.

        Such a folder has no run.json, and nothing but a config, copies of players and of prompts, and empty folders.
        copies: the names of the files in `players/`.
        """
        for folder, files in self._begun(copies):
            for name in folder.names():
                is_inner = folder == self.root and name in BEGUN_FOLDERS
                if folder.kind(name) != ("folder" if is_inner else "file") or not (is_inner or _is_of(name, files)):
                    missing = (self.run if self.root.kind(self.run.name) is None else self.config).name
                    found = folder.path.joinpath(name).relative_to(self.path)
                    raise RunFolderError(
                        f"{self.path}: expected a run, but {missing} is missing, and {found} is there; bring {missing} "
                        "back, or move the folder away, and the run begins anew"
                    )

    @contextmanager
    def beginning(self, copies: Collection[str]) -> Iterator[None]:
        """A context that holds the lock in which a run begins; what a kill has left of one is removed before.

        Raises RunFolderError as `lock`, and if another process was faster. copies: as in `create_at`.
        """
        with self.lock():
            self.require_free(copies)
            for folder, files in self._begun(copies):
                folder.remove_files(partial(_is_of, files=set(files) - {"lock"}))  # others may wait for the lock
            yield

    def _begun(self, copies: Collection[str]) -> Iterator[tuple[Folder, Collection[str]]]:
        """The folders that exist before there is a run, each with the names of its files; the outer one comes last."""
        for name in BEGUN_FOLDERS:
            folder = self.root.below(name)
            prompts = {each for each in map(written_name, folder.names()) if each.endswith(".jinja")}
            yield folder, {"players": copies, "prompts": prompts}.get(name, ())
        yield self.root, BEGUN_FILES

    @classmethod
    def of_checkpoint(cls, path: Path) -> "RunFolder":
        """The run that a checkpoint's folder belongs to. Raises RunFolderError if there is none."""
        place = path.resolve().parent.parent
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            place = Path(json.loads(Folder(place).read(OWNER))["run"])
        try:
            return cls.open(place)
        except RunFolderError as error:
            if (path / "config.yml").exists():
                its = f"{path / 'checkpoints' / 'latest'} or {path / 'checkpoints' / 'best'}"
                raise RunFolderError(f"expected a checkpoint, got the run {path}; give one of its own: {its}") from None
            expected = f"expected a checkpoint, such as runs/mine/checkpoints/latest, got {path}"
            raise RunFolderError(f"{expected}: {error}") from None

    def require_rebuildable(self, calls: Sequence[str] = ()) -> None:
        """Raise RunFolderError unless `calls` hand over the networks that the config does not name.

        These are the networks of `Trainer.set_model`, as run.json has the calls.
        """
        if {call for call in self.facts().set_in_python if call.startswith("set_model")} != set(calls):
            raise self.not_rebuildable()

    def not_rebuildable(self) -> RunFolderError:
        if not self.facts().set_in_python:
            return RunFolderError(
                f"{self.path}: expected no objects from Python, because its config names all, got some"
            )
        ways = self.ways_on()
        also = " (StoredRun.open, load_player, load_model and Trainer.branch take `models`, too)" if ways.models else ""
        return RunFolderError(
            f"{self.path} was trained with objects that no config names; only Python can continue it, with the same "
            f"objects: {ways.in_python('load', repr(str(self.path)))}{also}"
        )

    def require_named_trainer(self) -> None:
        """Raise RunFolderError for a run that is trained by a class which its config does not name."""
        if self.facts().trainer_in_python is not None:
            raise self.other_trainer_needed()

    def other_trainer_needed(self) -> RunFolderError:
        module, _, name = str(self.facts().trainer_in_python).partition(":")
        return RunFolderError(
            f"{self.path} is trained by {name} of {module}, which its config does not name; it can go on from Python "
            f"alone: {self.ways_on().in_python('load', repr(str(self.path)))}"
        )

    @classmethod
    def _make(cls, path: Path) -> "RunFolder":
        path.mkdir()
        Folder(path.parent).sync()
        return cls(path)._make_inner()

    def _make_inner(self) -> "RunFolder":
        for name in ("checkpoints", "evaluations"):
            self.root.below(name).make()
        self.root.sync()
        return self

    def require_plain(self) -> None:
        """Raise RunFolderError if a link or another kind of file has replaced a file or folder that palestra writes."""
        kinds = self.root.kinds()
        for name in (*OUR_FOLDERS, *OUR_FILES):
            kind, expected = kinds.get(name), "folder" if name in OUR_FOLDERS else "file"
            if kind not in (expected, None):
                remedy = ELSEWHERE if name in LARGE_FOLDERS else ""
                raise RunFolderError(f"{self.path / name}: expected a {expected} of the run, got {WORDS[kind]}{remedy}")

    def take_lock(self) -> Lock:
        """Lock the run, so that only this process writes to it.

        Raises RunFolderError if another process holds the lock (the message has its id), and for the reasons of
        `require_plain`.
        """
        self.require_plain()
        try:
            return take_or_refuse(self.root, "lock")
        except RunFolderError:
            raise
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be used: {error}") from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """A context that holds the lock, as `take_lock` takes it. May not be nested.

        Raises RunFolderError also for a copy of a run whose checkpoints lie elsewhere, OSError.
        """
        lock = self.take_lock()
        self.holds_lock = True
        try:
            self._own_checkpoints()
            yield
        finally:
            self.holds_lock = False
            lock.free()

    def _own_checkpoints(self) -> None:
        """Note in a checkpoint folder elsewhere where the run lies, if it was moved."""
        if self.root.kind(self.run.name) is None or (place := self._large_files) is self.root:
            return
        path, owner = self.path.resolve(), json.loads(place.read(OWNER))
        before, is_copy = RunFolder(Path(str(owner.get("run")))), False
        with suppress(OSError, RunFolderError):  # there is none any more
            is_copy = not before.path.samefile(path) and before.facts().id == owner["id"]
        if is_copy:
            why = f"both have their checkpoints in {place.path}, where only one may write"
            way = before.ways_on().to_branch()
            raise RunFolderError(f"{self.path} is a copy of {before.path}; {why}; to train apart from it: {way}")
        if before.path != path:
            place.write(OWNER, to_json(owner | {"run": str(path)}).encode())

    def is_in_use(self) -> bool:
        """Whether a process of this machine holds the lock, read from /proc/locks without taking the lock.

        False if the kernel has no such list.
        """
        try:
            with self.root.reading("lock") as file:
                inode = os.fstat(file.descriptor).st_ino
                holder = b"".join(file.pieces(20)).decode().partition(" ")[0]
            locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        except (OSError, ValueError):
            return False
        # as "1: FLOCK ADVISORY WRITE <process> <major>:<minor>:<inode> 0 EOF"
        return any(lock[1] == "FLOCK" and lock[4] == holder and lock[5].endswith(f":{inode}") for lock in locks)


def write_traceback(folder: Folder, error: BaseException) -> str:
    """Write the traceback of an exception into failure.txt. Gives a phrase that names the file, for a message."""
    path = folder.path / FAILURE
    try:
        folder.write(FAILURE, redacted("".join(traceback.format_exception(error))).encode())
    except OSError as refused:
        return f"its traceback could not be written to {path}: {refused}"
    return f"its traceback: {path}"


def _is_of(name: str, files: Collection[str]) -> bool:
    """Whether a name belongs to one of these files, or to an unfinished one of them or of run.json."""
    return name in files or (written_name(name) != name and written_name(name) in (*files, "run.json"))
