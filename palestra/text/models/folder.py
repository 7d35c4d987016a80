"""A model's folder, as transformers saves it: what is refused before anything of it is loaded, and its SHA-256."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palestra.config import ConfigError, cut
from palestra.storage.disk import MAX_BYTES, MAX_CONFIG_BYTES, WORDS, Folder

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
CHAT_TEMPLATES = "additional_chat_templates"  # the one folder in it that transformers reads
READ = (".json", ".jinja", ".txt", ".model")  # files that it reads whole
LONG = ("tokenizer", "vocab", "merges")  # of these the long ones
COUNTED = re.compile(r"(layers?|blocks?|depths?|stages?|experts?|heads?|labels|groups?|codebooks?)$")
MOST_PARTS = 1024  # of a model with few tensors: heads, experts


def check_folder(path: Path) -> None:
    """Raise ConfigError, at the key `path`, for a folder that holds no model, or one that would run code of its own."""
    if not path.is_dir():
        raise at_path(f"expected a folder with a model, got {str(path)!r}, which is none")
    names = _plain_files(Folder(path))
    if ADAPTER_CONFIG in names:
        remedy = "merge it into its model first (peft: merge_and_unload, save_pretrained)"
        raise at_path(f"expected a whole model in {str(path)!r}, got an adapter ({ADAPTER_CONFIG}); {remedy}")
    if WEIGHTS not in names and INDEX not in names:
        pickled = [name for name in names if name.endswith(PICKLED)]
        got = f"{pickled[0]}, which is pickled" if pickled else "none"
        raise at_path(f"expected {WEIGHTS} or {INDEX} in {str(path)!r}, got {got}")
    for name in (CONFIG, TOKENIZER):
        if name not in names:
            raise at_path(f"expected {name} in {str(path)!r}, got none")
    for name in sorted({CONFIG, TOKENIZER_CONFIG} & set(names)):
        for key, value in _entries(_read(path / name)):
            if key == "auto_map" or (key.endswith("attn_implementation") and "/" in str(value)):
                remedy = "remove the key if transformers itself knows the model"
                raise at_path(f"expected a model without code of its own, got {key} in {str(path / name)!r}; {remedy}")
    weights = weight_files(path)
    for name in weights:
        if "/" in name or "\\" in name or not name.endswith(".safetensors"):
            raise at_path(f"expected safetensors in {str(path / INDEX)!r}, got {name!r}")
        if name not in names:
            raise at_path(f"expected {name} in {str(path)!r}, as its index says, got none")
    most = max(MOST_PARTS, sum(_num_tensors(path / name) for name in weights))
    for key, value in _entries(_read(path / CONFIG)):
        if isinstance(value, int) and COUNTED.search(key) and value > most:
            told = f"expected at most {most:,} as {key} in {CONFIG}, as many tensors as there are"
            raise at_path(f"{told}, got {value:,}")


def _plain_files(folder: Folder) -> list[str]:
    """Return the names of the files of a folder.

    Raises ConfigError for what transformers might read, but a stranger's pipe, device, link or huge file is.
    """
    kinds = folder.kinds()
    for name, kind in kinds.items():
        if kind == "folder" and name == CHAT_TEMPLATES:
            _plain_files(folder.below(name))
        if kind in ("link", "other"):
            remedy = "; copy the model with what its links lead to (cp -RL)" if kind == "link" else ""
            raise at_path(f"expected plain files in {str(folder.path)!r}, got {name}, which is {WORDS[kind]}{remedy}")
        most = MAX_BYTES if name.startswith(LONG) else MAX_CONFIG_BYTES
        if kind == "file" and name.endswith(READ) and (size := (folder.path / name).stat().st_size) > most:
            raise at_path(f"expected at most {most:,} bytes in {str(folder.path / name)!r}, got {size:,}")
    return [name for name, kind in kinds.items() if kind == "file"]


def _num_tensors(path: Path) -> int:
    """Return how many tensors a file of safetensors says that it has; 0 for one that is none."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            return len(json.loads(file.read(min(length, MAX_CONFIG_BYTES))))
        except (ValueError, RecursionError, TypeError):
            return 0  # which the library tells


def weight_files(path: Path) -> list[str]:
    """Return the names of the files that hold the weights. Raises ConfigError for an index that cannot be read."""
    if (path / WEIGHTS).exists():
        return [WEIGHTS]
    files = _read(path / INDEX).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise at_path(f"expected a mapping weight_map in {str(path / INDEX)!r}, got none")
    return sorted(set(files.values()))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of what answers depend on: weights, config, tokenizer and chat template."""
    older = ("special_tokens_map.json", "added_tokens.json")  # beside a tokenizer that transformers 4 has saved
    rest = ("generation_config.json", CONFIG, TOKENIZER, TOKENIZER_CONFIG, "chat_template.jinja", *older)
    total = hashlib.sha256()
    for name in sorted([*weight_files(path), *(name for name in rest if (path / name).exists())]):
        with (path / name).open("rb") as file:
            total.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def _entries(data: Any) -> Iterator[tuple[str, Any]]:
    """Give the keys of a config, at any depth, with their values."""
    for key, value in data.items() if isinstance(data, dict) else ():
        yield key, value
        yield from _entries(value)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(Folder(path.parent).read(path.name, MAX_CONFIG_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise at_path(f"expected JSON in {str(path)!r}, got a file that cannot be read: {cut(str(error))}") from error
    if not isinstance(data, dict):
        raise at_path(f"expected a JSON object in {str(path)!r}, got a {type(data).__name__}")
    return data


def at_path(message: str) -> ConfigError:
    """Return the error of a folder, at the key that names it."""
    return ConfigError.at("path", message)
