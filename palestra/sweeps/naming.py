"""Short names for the keys of a space, where there is little room."""

from collections import Counter
from collections.abc import Iterable

VAGUE = {"name", "value", "initial", "final", "num_steps"}  # parts of keys that say nothing alone


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """By dotted key its last part that says what it is, or as many of its last parts as make it the only one."""
    listed = list(keys)
    told = {key: _without_vague_end(key) for key in listed}
    shared = [text for text, count in Counter(told.values()).items() if count > 1]
    told = {key: key if text in shared else text for key, text in told.items()}
    found = {}
    for key, text in told.items():
        parts = text.split(".")
        endings = [".".join(parts[-num:]) for num in range(1, len(parts) + 1) if not _is_vague(parts[-num])]
        others = [f".{other}" for other in told.values() if other != text]
        found[key] = next((e for e in endings if not any(other.endswith(f".{e}") for other in others)), text)
    return found


def _without_vague_end(key: str) -> str:
    parts = key.split(".")
    while len(parts) > 1 and _is_vague(parts[-1]):
        parts.pop()
    return ".".join(parts)


def _is_vague(part: str) -> bool:
    return part in VAGUE or part.isdigit()
