"""`rows`: the labelled rows of a file. Each role sees the columns that are named for it.

Letters: B worlds, N rows of the file, D numbers that a role sees of a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from palestra.config import Config, ConfigError, ConfigErrorItem, NonEmptyStr, PositiveInt, cut
from palestra.data.table import TABLE, AnyHeldOutConfig, Table, cell_text, flags, split_rows, suggested, told_file
from palestra.games.dialogue.protocol import Protocol
from palestra.games.dialogue.scenario import OWN_ENTRIES, Instances, Scenario
from palestra.games.game import value_text
from palestra.games.spaces import Space

RESERVED = (TABLE, *OWN_ENTRIES)

# ---- what a run must say -------------------------------------------------------------------------------


class RowsConfig(Config):
    name: Literal["rows"]
    """the labelled rows of a file; each role sees the columns that are named for it; a message is a symbol"""
    file: NonEmptyStr
    """a .csv, .jsonl, .parquet or .npz file on this machine; a relative path begins at the working directory"""
    label: NonEmptyStr
    """the column with the labels, 0 and 1"""
    sees: dict[str, list[NonEmptyStr]]
    """the columns that each role sees; []: none"""
    categorical: list[NonEmptyStr]
    """those of them that hold categories, as texts do: one number for each value that training rows have, 1 where the
    row has it; a value that only held-out rows have is all zeros"""
    images: list[NonEmptyStr]
    """those of them that hold images, arrays (rows, height, width) or (rows, channels, height, width): they stay as
    they are; each number of any other array is one of its own"""
    num_tokens: PositiveInt
    """how many symbols there are, of which a message is one"""
    held_out: AnyHeldOutConfig
    """which rows evaluations draw, and training never does"""
    balanced: bool
    """true: both labels are drawn equally often; false: as often as the rows have them"""
    standardize: bool
    """true: the numbers that players see have mean 0 and standard deviation 1 over the training rows, but categories
    and images; false: they are as in the file"""

    def build(self, protocol: Protocol, device: torch.device) -> "Rows":
        return Rows(self, protocol, device)

    def misfit(self, other: Config) -> ConfigErrorItem | None:
        """Say why players that have learned with these rows would see the others otherwise, or return None."""
        for key in ("name", "file", "held_out", "sees", "categorical", "images", "standardize"):
            own, there = getattr(self, key), getattr(other, key, None)
            if own != there:
                expected = "the same as in the run's game, because it says how players see a row"
                return ConfigErrorItem(key, f"expected {expected} ({cut(str(own))}), got {cut(str(there))}")
        return None

    @classmethod
    def usual(cls, said: Mapping[str, Any], protocol: Protocol | None) -> dict[str, Any]:
        """Read what the file tells: provers see all columns, verifiers none unless they are alone.

        Columns that lack values, and texts with many values, are left out; if all are such, none is, so that their
        faults are told. Raises ConfigError if the file or the label must be given first.
        """
        held_out = {"name": "fraction", "fraction": 0.2, "seed": 0}
        told: dict[str, Any] = {"num_tokens": 8, "held_out": held_out, "balanced": True, "standardize": True, **said}
        file = told_file(told, "game.scenario")
        aside = {told["label"], *(value for key, value in dict(told["held_out"]).items() if key == "column")}
        columns = [name for name in file.names if name not in aside]
        shown = {name: column for name in columns if (column := suggested(file, name))}
        if protocol is None:  # keys of it are missing, which is told later
            return told
        told.setdefault("sees", first_sees(protocol, [*shown] or columns))
        seen = {name for names in told["sees"].values() for name in names}
        for key, wanted in (("categorical", "texts"), ("images", "images")):
            told.setdefault(key, [name for name, kind in shown.items() if kind == wanted and name in seen])
        return told


# ---- what players see ----------------------------------------------------------------------------------


class Rows(Scenario):
    """Instances are rows of a file, of which the state holds the number; the file lies in tensors on the device.

    A role sees the numbers and categories of its columns as one entry, `columns`, float32 (D,), in the order of its
    list; each array as an entry of its own name: images (N, H, W) or (N, C, H, W) as (C, H, W), uint8 where the file
    has that, other arrays as float32. Raises ConfigError, with paths relative to the config, for everything in the file
    that does not fit.
    """

    def __init__(self, config: RowsConfig, protocol: Protocol, device: torch.device) -> None:
        super().__init__(config, protocol, device)
        self.num_tokens = config.num_tokens
        columns = shown_columns(config.sees)
        unseen = [
            ConfigErrorItem(f"categorical.{place}", f"expected a column that some role sees, got {name!r}")
            for place, name in enumerate(config.categorical)
            if name not in [column for _, column in columns]
        ]
        ConfigError.require_none([*faults_of_sees(config.sees, config.label, protocol), *unseen])
        self.source = source = Table(config, columns, RESERVED)
        self.files = source.files
        label = flags(source.columns[config.label], "label", f"the label {config.label!r}")
        is_held_out = source.held_out_rows()
        self.labels = torch.from_numpy(label).to(device)
        self.training = split_rows(label, ~is_held_out, "training", device)
        self.held_out = split_rows(label, is_held_out, "held-out", device)
        table, self.ranges, arrays = source.shown(source.encodings(~is_held_out))
        self.table = torch.from_numpy(table).to(device)
        self.arrays = {name: torch.from_numpy(values).to(device) for name, values in arrays.items()}
        self.places = {
            role: torch.tensor([i for n in listed for i in self.ranges.get(n, ())], dtype=torch.int64, device=device)
            for role, listed in config.sees.items()
        }

    # ---- the scenario ------------------------------------------------------------------------------------

    def spaces(self, role: str) -> dict[str, Space]:
        table = {TABLE: Space((len(self.places[role]),), torch.float32, padded=False)} if len(self.places[role]) else {}
        arrays = ((name, self.arrays[name]) for name in self._arrays_of(role))
        return table | {name: Space(tuple(value.shape[1:]), value.dtype, padded=False) for name, value in arrays}

    def _arrays_of(self, role: str) -> list[str]:
        return [name for name in self.config.sees[role] if name in self.arrays]

    def draw(self, keys: Tensor, held_out: bool) -> tuple[Instances, Tensor]:
        row = (self.held_out if held_out else self.training).draw(keys, self.config.balanced)
        return {"row": row}, self.labels[row]

    def view(self, instances: Instances, role: str, messages: Tensor) -> dict[str, Tensor]:
        row, places = instances["row"], self.places[role]
        table = {TABLE: self.table[row.unsqueeze(1), places]} if len(places) else {}
        return table | {name: self.arrays[name][row] for name in self._arrays_of(role)}

    def describe_token(self, token: int) -> str:
        return f"symbol {token}"

    def describe(self, instance: Mapping[str, Tensor]) -> str:
        """Describe an instance without its arrays, such as "row 17: age 31, colour red"."""
        return self.source.describe(int(instance["row"]))

    def describe_view(self, instances: Instances, role: str, messages: Tensor) -> str:
        """Describe what a role sees, as the file has it; a category that no training row has is `?`."""
        row = int(instances["row"])
        texts = {}
        for name in self.config.sees[role]:
            if name in self.arrays:
                texts[name] = value_text(self.arrays[name][row])
            elif name in self.config.categorical and not self.table[row, list(self.ranges[name])].any():
                texts[name] = "?"
            else:
                texts[name] = cell_text(self.source.columns[name][row])
        return ", ".join(f"{name} {text}" for name, text in texts.items()) or "nothing of the instance"


# ---- what does not fit ---------------------------------------------------------------------------------


def first_sees(protocol: Protocol, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return what roles see in a first file: all columns, but verifiers beside provers none."""
    has_provers = set(protocol.roles) > set(protocol.verifiers)
    return {role: [] if has_provers and role in protocol.verifiers else [*columns] for role in protocol.roles}


def shown_columns(sees: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """List the columns that roles see, each with its path in the config."""
    return [(f"sees.{role}.{at}", name) for role, listed in sees.items() for at, name in enumerate(listed)]


def faults_of_roles(sees: Mapping[str, Any], protocol: Protocol) -> Iterator[ConfigErrorItem]:
    """Say which roles a config lacks below `sees`, and which it names in vain."""
    for role in protocol.roles:
        if role not in sees:
            message = "expected a list of what it sees ([]: nothing), but the key is missing"
            yield ConfigErrorItem(f"sees.{role}", message)
    for role in sees:
        if role not in protocol.roles:
            message = f"unknown key; the roles of the protocol are {', '.join(protocol.roles)}"
            yield ConfigErrorItem(f"sees.{role}", message)


def faults_of_sees(sees: Mapping[str, list[str]], label: str, protocol: Protocol) -> Iterator[ConfigErrorItem]:
    """Say what is wrong with who sees which columns."""
    yield from faults_of_roles(sees, protocol)
    for role, columns in sees.items():
        for place, name in enumerate(columns):
            if name in columns[:place]:
                yield ConfigErrorItem(f"sees.{role}.{place}", f"expected different columns, got {name!r} twice")
            if name == label and role in protocol.verifiers:
                message = f"expected another column, because {role!r} is to decide by what it sees, got the label"
                yield ConfigErrorItem(f"sees.{role}.{place}", f"{message} {name!r}")
