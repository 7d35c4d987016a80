"""The arrows of the house: who may know whom, and what no file may hold."""

import ast
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest

from palestra.run.kinds import kinds
from tests.house import HOUSE, IMPORTS, ORDER, PATHS, TREES, code_lines, imports_of, rank

TESTS = Path(__file__).parent
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
MOST_AT_THE_ROOT = 6


@pytest.fixture(scope="module", autouse=True)
def forgotten_trees() -> Iterator[None]:
    yield
    TREES.forget()


def test_the_imports_of_the_house_are_seen() -> None:
    assert IMPORTS["palestra.kinds.games.trainer"] >= {"palestra.kinds.games.config", "palestra.players.player"}
    source = """
if TYPE_CHECKING:
    from palestra.kinds.games.trainer import Trainer

def f():
    return import_module("palestra.kinds.games.config")
"""
    assert imports_of("palestra.x", ast.parse(source)) == {
        "palestra.kinds.games.trainer",
        "palestra.kinds.games.config",
    }


def test_every_room_has_its_place_in_the_order() -> None:
    rooms = {module.split(".")[1] for module in TREES if "." in module}
    assert rooms == {room for rooms in ORDER for room in rooms}


def test_few_modules_stand_at_the_root() -> None:
    assert len(list(HOUSE.glob("*.py"))) <= MOST_AT_THE_ROOT


USE_PALESTRA = [f"palestra.commands.{name}" for name in ("train", "resume", "extend", "branch", "export")]


def test_size_is_a_cost() -> None:
    """Who adds more raises these limits, and says why."""
    assert code_lines('"""a"""\nx = 1  # b\n\n\ndef f():\n    """c"""\n    return """d\n    e"""\n') == 4
    assert len(PATHS) <= 470
    assert sum(code_lines(path.read_text()) for path in PATHS.values()) <= 56_098
    assert sum(isinstance(node, ast.stmt) for tree in TREES.values() for node in ast.walk(tree)) <= 54_999


def test_no_arrow_points_upwards() -> None:
    """`palestra` itself gives out names of many rooms, on first use: only the command line, which has them so late,
    uses it."""
    upwards = {
        f"{module} -> {name}"
        for module in TREES
        if module != "palestra"
        for name in IMPORTS[module] & TREES.keys()
        if (name == "palestra" and module not in USE_PALESTRA) or (name != "palestra" and rank(name) < rank(module))
    }
    assert upwards == set()


def test_no_kind_of_run_knows_another() -> None:
    """What they have in common stands below; who needs a kind that a file names asks `palestra.run.kinds`."""
    of = {module: ".".join(module.split(".")[:3]) for module in TREES if module.startswith("palestra.kinds.")}
    found = {f"{module} -> {name}" for module in of for name in IMPORTS[module] & of.keys() if of[name] != of[module]}
    assert len(set(of.values())) >= 3
    assert found == set()


def test_games_know_nothing_of_records() -> None:
    known = {name for module in TREES if f"{module}.".startswith("palestra.games.") for name in IMPORTS[module]}
    assert "palestra.games.info" in known
    assert [name for name in known if name.startswith("palestra.recording")] == []


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The groups of modules that lead to each other."""
    reached = {module: set(names) for module, names in graph.items()}
    for middle in graph:
        for module in graph:
            if middle in reached[module]:
                reached[module] |= reached[middle]
    groups = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
        if module in reached[module]
    }
    return [set(group) for group in groups]


# Who may know one game, and which: its scripted players, and commands that are about it.
KNOWS_A_GAME = {
    "palestra.players.scripted_games": {"boards", "nim"},
    "palestra.players.scripted_polyhedra": {"polyhedra"},
    "palestra.kinds.games.kind": {"polyhedra"},  # the names of its rewards
    "palestra.testing.environments": {"gymnasium"},  # a check of an environment of one's own
}


def test_nothing_generic_knows_one_game() -> None:
    games = ("gymnasium", "polyhedra", "nim", "boards", "classic_control")
    known = {
        module: {game for game in games for name in names if f"{name}.".startswith(f"palestra.games.{game}.")}
        for module, names in IMPORTS.items()
        if not module.startswith("palestra.games")
    }
    assert {module: rooms for module, rooms in known.items() if rooms} == KNOWS_A_GAME


# Who may name the roles and the score of one game: that game, its scripted players, and what begins a file for it.
NAMES_ROLES = ("palestra.games.polyhedra", "palestra.games.gymnasium", "palestra.games.classic_control")
NAMES_ROLES += ("palestra.players.scripted_polyhedra",)


def names_of_one_game(tree: ast.Module) -> set[str]:
    """The roles and the score of polyhedra that a file names, apart from texts that stand alone, as docstrings do."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
    }
    return {text for text in texts if text in ("host", "agent") or re.search(r"\brho\b", text)}


def test_roles_and_scores_are_the_games_own() -> None:
    assert names_of_one_game(ast.parse('def f():\n    "of rho"\n    return {"agent": g("mean rho")}')) == {
        "agent",
        "mean rho",
    }
    found = {
        module: names
        for module, tree in TREES.items()
        if not f"{module}.".startswith(tuple(f"{name}." for name in NAMES_ROLES)) and (names := names_of_one_game(tree))
    }
    assert found == {}


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def test_there_is_no_circle_of_files() -> None:
    graph = {m: names & TREES.keys() - {"palestra"} for m, names in IMPORTS.items() if m != "palestra"}
    assert circles(graph) == []


def test_at_most_two_bases_stand_above_a_trainer() -> None:
    """What a training has are its parts, not its ancestors."""
    for trainer in chain.from_iterable(classes for kind in kinds() for classes in kind.trainers().values()):
        assert {base.__name__ for base in trainer.__mro__[1:-1]} <= {"Training", "Trainer"}, trainer


def test_no_class_of_the_algorithms_watches_its_attributes() -> None:
    """What counts of a changed loss is decided once, when a run begins (palestra.runtime.guard)."""
    defined = {
        f"{module}: {node.name}"
        for module, tree in TREES.items()
        if module.startswith(("palestra.algorithms", "palestra.runtime.guard"))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in ("__setattr__", "__delattr__", "__init_subclass__")
    }
    assert defined == set()


# who else changes files, and why that cannot harm a run's surroundings
WRITERS = {
    "palestra.storage.disk": "the one door",
    "palestra.config.own_modules": "the list of trusted sources in the folder of the user's state",
    "palestra.storage.run_folder": "makes the folders that lead to a new run",
    "palestra.sweeps.folder": "makes the folders of new sweeps and of runs side by side",
    "palestra.run.fetching": "gives a fetched run its name",
    "palestra.run.export_files": "makes a new folder that the user names, into which torch writes",
    "palestra.commands.serve": "removes a new folder that it has just made",
    "palestra.run.replay_file": "makes a new folder that the user names",
    "palestra.scaling.ranks": "what processes write for each other, in a new folder of their launcher",
    "palestra.recording.services": "removes what W&B itself has written for this run",
    "palestra.commands.profiling": "the file that the user names",
    "palestra.run.remote": "another place than the local disk, on fsspec",
}
CHANGES = {"mkdir", "unlink", "rename", "replace", "rmdir", "rmtree", "touch", "symlink_to", "hardlink_to"}
CHANGES |= {
    "copytree",
    "copy2",
    "truncate",
    "ftruncate",
    "fsync",
    "write_bytes",
    "write_text",
    "makedirs",
    "removedirs",
}


def changes_files(tree: ast.Module) -> Iterator[str]:
    """Calls that make, change or remove files by path. Texts have a method `replace`, and the one door has `rename` and
    `truncate`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(attr=name, value=value) if name in CHANGES:
                is_of_os = isinstance(value, ast.Name) and value.id == "os"
                if is_of_os or name not in ("replace", "rename", "truncate"):
                    yield f"{name}, line {node.lineno}"
            case ast.Name(id="open") | ast.Attribute(attr="open", value=ast.Name(id="io" | "os")):
                mode = [a.value for a in node.args[1:2] if isinstance(a, ast.Constant)]
                if any(isinstance(m, str) and set(m) & set("wax+") for m in mode):
                    yield f"open, line {node.lineno}"
            case ast.Attribute(attr="open"):  # of a Path, whose first argument is the mode
                mode = [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
                if any(isinstance(m, str) and set(m) <= set("rwax+bt") and set(m) & set("wax+") for m in mode):
                    yield f"open, line {node.lineno}"


def test_files_are_changed_through_one_door() -> None:
    found = {module: list(changes_files(tree)) for module, tree in TREES.items()}
    assert "palestra.storage.disk" in {module for module, calls in found.items() if calls}
    others = {module: calls for module, calls in found.items() if calls and module not in WRITERS}
    assert others == {}
    assert [module for module in WRITERS if not found[module]] == [], "no longer writers"


def test_the_config_of_a_stored_run_is_read_as_a_strangers() -> None:
    """Whoever reads it as the user's own imports what it names."""
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("load_config", "read_config", "_read_config"):
                assert not ast.unparse(node.args[0]).endswith(".config"), f"{module}, line {node.lineno}"


def test_nothing_is_pickled() -> None:
    found = [(m, name) for m in TREES for name in IMPORTS[m] if name.split(".")[0] in FORBIDDEN_MODULES]
    assert found == []
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "torch.save", "np.load"):
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                safe = ("allow_pickle", "False") if ast.unparse(node.func) == "np.load" else ("weights_only", "True")
                assert keywords.get(safe[0]) == safe[1], f"{module}, line {node.lineno}"


def test_no_command_goes_through_a_shell() -> None:
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in ("os.system", "os.popen"), f"{module}, line {node.lineno}"
                shells = [keyword for keyword in node.keywords if keyword.arg == "shell"]
                assert all(ast.unparse(shell.value) == "False" for shell in shells), f"{module}, line {node.lineno}"


def covered_by_a_line() -> dict[str, list[Path]]:
    """The modules that tests say they cover, in the last lines of their docstrings, by module."""
    found: dict[str, list[Path]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        told = (ast.get_docstring(ast.parse(path.read_text())) or "").rpartition("Covers ")
        for name in re.findall(r"palestra(?:\.\w+)*", told[2]) if told[1] else ():
            found.setdefault(name, []).append(path)
    return found


def has_mirrored_test(module: str) -> bool:
    *rooms, name = module.split(".")[1:] or [""]
    return TESTS.joinpath(*rooms, f"test_{name}.py").exists()


def test_every_module_has_tests_where_one_looks_for_them() -> None:
    """In the mirrored tree, or in the test that names it under `Covers`. A package that holds nothing needs none."""
    covered = covered_by_a_line()
    empty = {module for module, tree in TREES.items() if all(isinstance(node, ast.Expr) for node in tree.body)}
    assert [m for m in TREES if m not in empty and not has_mirrored_test(m) and m not in covered] == []
    assert [m for m in covered if m not in TREES] == [], "no modules"
    assert {m: paths for m, paths in covered.items() if len(paths) > 1 or has_mirrored_test(m)} == {}, "said twice"


PRIVATE = {  # names of libraries that these do not promise, and the versions with which they were tried
    "gymnasium": ({"_async_worker"}, {"1.4"}),
    "torch": ({"_pytree", "_flatten_dense_tensors", "_BatchNorm", "_utils"}, {"2.13"}),
}


@pytest.mark.parametrize("library", PRIVATE)
def test_private_names_of_a_library_are_listed_and_were_tried_with_the_version_that_is_there(library: str) -> None:
    names, tried = PRIVATE[library]
    found = set()
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{library}."):
                words = [*str(node.module).split("."), *(alias.name for alias in node.names)]
                found |= {word for word in words if word.startswith("_")}
    assert found == names
    assert ".".join(version(library).split(".")[:2]) in tried, "try the private names with this version, and add it"
