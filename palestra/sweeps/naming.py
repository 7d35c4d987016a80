"""Short names for the keys of a space, where there is little room."""

from collections.abc import Sequence

OF_SCHEDULES = ("value", "initial", "final")  # they say nothing without the key above them


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """For each dotted key the shortest end that means it alone: `gamma`, `learning_rate.initial`, `host.updates`."""

    def ends(key: str) -> list[str]:
        parts = key.split(".")
        return [".".join(parts[place:]) for place in reversed(range(len(parts)))]

    others = {key: {end for other in keys if other != key for end in ends(other)} for key in keys}
    return {
        key: next((end for end in ends(key) if end not in others[key] and end not in OF_SCHEDULES), key) for key in keys
    }
