"""Short names for the keys of a space, where there is little room."""

from collections.abc import Iterable

VAGUE = {"name", "value", "initial", "final", "num_steps"}  # parts of keys that say nothing alone


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """By dotted key its last part that says what it is, or as many of its last parts as make it the only one."""
    listed = list(keys)
    told = {key: _without_vague_end(key) for key in listed}
    if len(set(told.values())) < len(listed):
        told = {key: key for key in listed}
    found = {}
    for key, text in told.items():
        parts = text.split(".")
        endings = [".".join(parts[-num:]) for num in range(1, len(parts) + 1)]
        others = [f".{other}" for other in told.values() if other != text]
        found[key] = next((e for e in endings if not any(other.endswith(f".{e}") for other in others)), text)
    return found


def _without_vague_end(key: str) -> str:
    parts = key.split(".")
    while len(parts) > 1 and (parts[-1] in VAGUE or parts[-1].isdigit()):
        parts.pop()
    return ".".join(parts)
