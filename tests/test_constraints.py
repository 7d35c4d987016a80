"""constraints.txt and the extras: all of them resolve together, and `make test` installs all but one."""

import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
APART = "docs"  # which `make docs` installs, in CI before the tests
PINS = {
    canonicalize_name(name): version
    for name, version in (line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()[1:])
}


def requirements() -> Iterator[tuple[str, Requirement]]:
    """Whose, and what it requires here: of the project with every extra, and of all that this brings. A library in
    another version than the pinned one (a torch for other GPUs) requires what it likes."""
    waiting = [("pyproject.toml", line, "") for line in PROJECT["dependencies"]]
    here = EXTRAS.keys() - (set() if find_spec("zensical") else {APART})
    waiting += [(f"extra {extra}", line, "") for extra in here for line in EXTRAS[extra]]
    known = set(waiting)
    while waiting:
        whose, line, extra = waiting.pop()
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name == PROJECT["name"] or (requirement.marker and not requirement.marker.evaluate({"extra": extra})):
            continue
        yield whose, requirement
        found = distribution(name)
        if name in PINS and found.version in SpecifierSet(f"=={PINS[name]}"):
            below = {(name, line, extra) for line in found.requires or () for extra in ("", *requirement.extras)}
            waiting += below - known
            known |= below


def test_every_extra_resolves_with_the_constraints_all_together() -> None:
    refused = [
        f"{whose} requires {requirement}, constraints.txt has {pin}"
        for whose, requirement in requirements()
        if (pin := PINS.get(canonicalize_name(requirement.name)))
        and not requirement.specifier.contains(pin, prereleases=True)
    ]
    assert refused == []


def test_whatever_the_project_requires_is_pinned() -> None:
    direct = [line for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]
    names = {canonicalize_name(Requirement(line).name) for line in direct}
    assert names - PINS.keys() == {PROJECT["name"]}


def test_the_tests_are_installed_with_every_extra_but_one() -> None:
    (own,) = (r for r in map(Requirement, EXTRAS["dev"]) if r.name == PROJECT["name"])
    assert own.extras == EXTRAS.keys() - {"dev", APART}
