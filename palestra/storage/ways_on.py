"""The commands by which people go on with a run.

This file alone decides which ones a run accepts, for every message that advises one. Messages advise Python where the
shell refuses a run, and nothing that a run cannot do.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from palestra.storage.facts import RunFacts

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

    @property
    def _shell_can_train(self) -> bool:
        return not (self._calls or self._is_of_a_script or self.trainer_class != STOCK)

    def in_python(self, method: str, arguments: str, *then: str) -> str:
        """The lines of Python that train: a call of a class's `method` with these arguments, and what follows."""
        models = f", models={{{', '.join(f'{role}: ...' for role in self.models)}}}" if self.models else ""
        loaded = f"trainer = {self.trainer_class}.{method}({arguments}{models})"
        others = [f"trainer.{call}" for call in self._calls if not call.startswith("set_model")]
        return "; ".join([loaded, *others, *then, "trainer.fit()"])

    def _in_python(self, method: str, arguments: str, *then: str) -> str:
        where = "in the script that began it" if self._is_of_a_script else "in Python"
        return f"{where}: {self.in_python(method, arguments, *then)}"

    # ---- the ways ------------------------------------------------------------------------------------------

    def to_resume(self) -> str | None:
        """The way on from the last checkpoint, which also sends what the recorders and the mirror lack."""
        if not (self.has_checkpoint or self.has_calls):
            return None
        return f"palestra resume {self._quoted}" if self._shell_can_train else self._in_python("load", self._written)

    def to_resume_mirror(self, url: str) -> str:
        """The way on from the mirror, in a new folder."""
        if self._shell_can_train:
            return f"palestra resume {url} --run DIR"
        return self._in_python("load", f"{url!r}, into='DIR'")

    def to_extend(self, change: str) -> str | None:
        """The way to another end of the run, such as stop.after=100."""
        if not self.has_checkpoint:
            return None
        if self._shell_can_train:
            return f"palestra extend {self._quoted} {change}"
        return self._in_python("load", self._written, f"trainer.extend([{change!r}])")

    def to_branch(self, checkpoint: str = "latest") -> str | None:
        """The way to a new run that begins with the state of a checkpoint and a changed key.

        checkpoint: latest, best, or the name of its folder.
        """
        if not self.has_checkpoint:
            return None
        place = self.path / "checkpoints" / checkpoint
        if not (self.models or self._is_of_a_script or self.trainer_class != STOCK):
            return f"palestra branch {shlex.quote(str(place))} KEY=VALUE"
        return self._in_python("branch", f"{str(place)!r}, ['KEY=VALUE']")

    def to_evaluate(self, roles: Mapping[str, str] | None, has_evaluations: bool) -> str | None:
        """The way to evaluate it from the shell. roles: who sits where; None if nobody plays in the run."""
        if not self.has_checkpoint or self.models or self._is_of_a_script or (roles is None and not has_evaluations):
            return None
        pairing = (
            ""
            if has_evaluations or roles is None
            else f" --pairing {','.join(f'{role}={name}' for role, name in roles.items())}"
        )
        return f"palestra evaluate {self._quoted}{pairing}"

    def to_see(self) -> str:
        """The way to see the run as a page, which every run has."""
        return f"palestra report {self._quoted}"

    @property
    def _written(self) -> str:
        return repr(str(self.path))

    @property
    def _quoted(self) -> str:
        return shlex.quote(str(self.path))
