"""`rows`: the labelled texts of a file. Each role sees the columns that are named for it."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from palestra.config import Config, ConfigError, NonEmptyStr
from palestra.data.table import AnyHeldOutConfig, LabelledFile, flags, has_texts, split_rows, told_file
from palestra.games.dialogue.protocol import Protocol
from palestra.games.dialogue.rows import faults_of_sees, first_sees, shown_columns
from palestra.text.scenarios.scenario import Drawn, TextScenario


class TextRowsConfig(Config):
    name: Literal["rows"]
    """the labelled texts of a file; each role sees the columns that are named for it"""
    file: NonEmptyStr
    """a .csv, .jsonl or .parquet file on this machine; a relative path begins at the working directory"""
    label: NonEmptyStr
    """the column with the labels, 0 and 1"""
    sees: dict[str, list[NonEmptyStr]]
    """the columns that each role sees; []: none"""
    held_out: AnyHeldOutConfig
    """which rows evaluations draw, and training never does"""
    balanced: bool
    """true: both labels are drawn equally often; false: as often as the rows have them"""

    @classmethod
    def usual(cls, said: Mapping[str, Any], protocol: Protocol | None) -> dict[str, Any]:
        """Read what the file tells: provers see all columns but the label and that of held-out rows.

        Verifiers see none unless they are alone: a column may give the answer away. Columns that lack texts are left
        out; if all are such, none is, so that their faults are told.
        """
        told = {"held_out": {"name": "fraction", "fraction": 0.2, "seed": 0}, "balanced": True, **said}
        file = told_file(told, "game.scenario")
        aside = {told["label"], *(value for key, value in dict(told["held_out"]).items() if key == "column")}
        columns = [name for name in file.names if name not in aside]
        shown = [name for name in columns if has_texts(file, name)] or columns
        return {"sees": {} if protocol is None else first_sees(protocol, shown), **told}

    def build(self, protocol: Protocol) -> "TextRows":
        return TextRows(self, protocol)


class TextRows(TextScenario):
    """Questions are rows of a file, whose fields are the columns that some role sees.

    Raises ConfigError, with paths relative to the config, for everything in the file that does not fit.
    """

    def __init__(self, config: TextRowsConfig, protocol: Protocol) -> None:
        super().__init__(config, protocol)
        ConfigError.require_none(faults_of_sees(config.sees, config.label, protocol))
        source = LabelledFile(config, shown_columns(config.sees))
        if len(source) == 0:
            raise ConfigError.at("file", f"expected rows in {config.file!r}, got none")
        self.fields, self.sees, self.files = source.names, config.sees, source.files
        self.texts = source.texts()
        label = flags(source.columns[config.label], "label", f"the label {config.label!r}")
        is_held_out, cpu = source.held_out_rows(), torch.device("cpu")
        self.labels = label.tolist()
        self.training = split_rows(label, ~is_held_out, "training", cpu)
        self.held_out = split_rows(label, is_held_out, "held-out", cpu)
        rows, (training, held_out) = [*zip(*self.texts.values(), strict=True)], (self.training.rows, self.held_out.rows)
        known = {rows[row] for row in training.tolist() if rows}
        if num := sum(rows[row] in known for row in held_out.tolist() if rows):
            told = f"{num} of {len(held_out)} held-out rows equal training rows in all that is seen of them"
            self.notes = [f"  of {config.name}: {told}"]

    def draw(self, keys: Tensor, held_out: bool) -> list[Drawn]:
        rows = (self.held_out if held_out else self.training).draw(keys, self.config.balanced)
        return [Drawn({name: self.texts[name][row] for name in self.fields}, self.labels[row]) for row in rows.tolist()]
