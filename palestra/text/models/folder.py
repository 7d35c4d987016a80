"""A model's folder, as transformers saves it: what is refused before anything of it is loaded, and its SHA-256."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palestra.config import ConfigError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def check_folder(path: Path) -> None:
    """Raise ConfigError, at the key `path`, for a folder that holds no model, or one that would run code of its own."""
    if not path.is_dir():
        raise _error(f"expected a folder with a model, got {str(path)!r}, which is none")
    names = sorted(file.name for file in path.iterdir())
    if ADAPTER_CONFIG in names:
        remedy = "merge it into its model first (peft: merge_and_unload, save_pretrained)"
        raise _error(f"expected a whole model in {str(path)!r}, got an adapter ({ADAPTER_CONFIG}); {remedy}")
    if WEIGHTS not in names and INDEX not in names:
        pickled = [name for name in names if name.endswith(PICKLED)]
        got = f"{pickled[0]}, which is pickled" if pickled else "none"
        raise _error(f"expected {WEIGHTS} or {INDEX} in {str(path)!r}, got {got}")
    for name in (CONFIG, TOKENIZER):
        if name not in names:
            raise _error(f"expected {name} in {str(path)!r}, got none")
    for name in sorted({CONFIG, TOKENIZER_CONFIG} & set(names)):
        if key := next(_foreign(_read(path / name)), None):
            remedy = "remove the key if transformers itself knows the model"
            raise _error(f"expected a model without code of its own, got {key} in {str(path / name)!r}; {remedy}")
    for name in weight_files(path):
        if "/" in name or "\\" in name or not name.endswith(".safetensors"):
            raise _error(f"expected safetensors in {str(path / INDEX)!r}, got {name!r}")
        if name not in names:
            raise _error(f"expected {name} in {str(path)!r}, as its index says, got none")


def weight_files(path: Path) -> list[str]:
    """Return the names of the files that hold the weights. Raises ConfigError for an index that cannot be read."""
    if (path / WEIGHTS).exists():
        return [WEIGHTS]
    files = _read(path / INDEX).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise _error(f"expected a mapping weight_map in {str(path / INDEX)!r}, got none")
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


def _foreign(data: Any) -> Iterator[str]:
    """Give the keys of a config, at any depth, by which transformers would run code that is not its own."""
    for key, value in data.items() if isinstance(data, dict) else ():
        if key == "auto_map" or (key.endswith("attn_implementation") and "/" in str(value)):
            yield key
        yield from _foreign(value)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _error(f"expected JSON in {str(path)!r}, got a file that cannot be read: {error!s:.200}") from error
    if not isinstance(data, dict):
        raise _error(f"expected a JSON object in {str(path)!r}, got a {type(data).__name__}")
    return data


def _error(message: str) -> ConfigError:
    return ConfigError.at("path", message)
