"""Lists in pages, as OpenAI's server gives them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palestra.serving.errors import ApiError, named, quoted


def page(items: Sequence[Mapping[str, Any]], asked: Mapping[str, str], usual_limit: int, most: int) -> dict[str, Any]:
    """Return the part of a list for which a query asks by `after`, an id, and `limit`. Raises ApiError."""
    start, after = 0, asked.get("after")
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise ApiError(f"after: expected the id of an entry of this list, got {quoted(after)}", "after")
        start = ids.index(after) + 1
    text = asked.get("limit", str(usual_limit))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise ApiError(f"limit: expected an integer from 1 to {most}, got {quoted(text)}", "limit")
    found = list(items[start : start + int(text)])
    return {
        "object": "list",
        "data": found,
        "first_id": found[0]["id"] if found else None,
        "last_id": found[-1]["id"] if found else None,
        "has_more": start + len(found) < len(items),
    }


def require_known(asked: Mapping[str, str], is_known: Callable[[str], object]) -> None:
    """Raise ApiError for a parameter of a query that nobody reads."""
    if others := [name for name in asked if not is_known(name)]:
        name = named(others[0])
        raise ApiError(f"{name}: this list knows no such parameter", name, code="unsupported_parameter")
