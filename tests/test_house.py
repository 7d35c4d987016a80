"""The arrows of the house: who may know whom, and what no file may hold."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent / "palestra"
ROOMS_BELOW_THE_TRAINER = ("games", "nets", "buffers", "storage", "recording", "schedules", "randomness", "intervals")
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def module_name(path: Path) -> str:
    parts = path.relative_to(HOUSE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(path): ast.parse(path.read_text()) for path in sorted(HOUSE.rglob("*.py"))}


def statements(node: ast.AST, into_functions: bool) -> Iterator[ast.AST]:
    """All nodes below one, without what stands under `if TYPE_CHECKING`; with or without the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not into_functions:
            continue
        yield child
        yield from statements(child, into_functions)


def imports_of(module: str, tree: ast.Module, into_functions: bool = True) -> set[str]:
    """The full names of the modules that a module imports; of `from a import b`, a.b where that is a module of ours."""
    found = set()
    for node in statements(tree, into_functions):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            assert node.module is not None
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            ours = {name for name in names if name in TREES}
            found |= ours if len(ours) == len(names) else ours | {node.module}
    return found


IMPORTS = {module: imports_of(module, tree) for module, tree in TREES.items()}
IMPORTS_AT_ONCE = {module: imports_of(module, tree, into_functions=False) for module, tree in TREES.items()}


def lies_in(module: str, *rooms: str) -> bool:
    return any(module == f"palestra.{room}" or module.startswith(f"palestra.{room}.") for room in rooms)


def test_the_imports_of_the_house_are_seen() -> None:
    assert IMPORTS["palestra.training.trainer"] >= {
        "palestra.players.player",
        "palestra.config",
        "palestra.storage.checkpoints",
    }
    assert "palestra.algorithms" not in IMPORTS["palestra.training.trainer"]  # for type checkers alone
    assert "palestra.training.trainer" in IMPORTS["palestra.algorithms"]


def test_config_knows_nothing_of_the_rest() -> None:
    known = {name for module in TREES if lies_in(module, "config") for name in IMPORTS[module]}
    assert [name for name in known if name.startswith("palestra") and not lies_in(name, "config")] == []


@pytest.mark.parametrize("room", ROOMS_BELOW_THE_TRAINER)
def test_the_parts_know_neither_trainer_nor_algorithms(room: str) -> None:
    modules = [module for module in TREES if lies_in(module, room)]
    assert modules
    above = [(m, name) for m in modules for name in IMPORTS[m] if lies_in(name, "trainer", "algorithms", "cli")]
    assert above == []


# who else changes files, and why that cannot harm a run's surroundings
WRITERS = {
    "palestra.storage.disk": "the one door",
    "palestra.config.own_modules": "the list of trusted sources in the folder of the user's state",
    "palestra.storage.run_folder": "makes the folders that lead to a new run",
    "palestra.storage.fetching": "gives a fetched run its name",
    "palestra.commands.export": "makes a new folder that the user names",
    "palestra.recording.to_wandb": "removes what W&B itself has written for this run",
    "palestra.commands.profile": "the file that the user names",
    "palestra.storage.remote": "another place than the local disk, on fsspec",
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


def test_files_are_changed_through_one_door() -> None:
    found = {module: list(changes_files(tree)) for module, tree in TREES.items()}
    assert "palestra.storage.disk" in {module for module, calls in found.items() if calls}
    others = {module: calls for module, calls in found.items() if calls and module not in WRITERS}
    assert others == {}
    assert [module for module in WRITERS if not found[module]] == [], "no longer writers"


def test_nobody_imports_the_command_line() -> None:
    assert [module for module in TREES if "palestra.cli" in IMPORTS[module]] == []


def test_there_is_no_circle_of_imports() -> None:
    """Packages are their `__init__`: importing a module imports those above it, which may import their own rooms."""
    graph = {module: {name for name in names if name in TREES} for module, names in IMPORTS_AT_ONCE.items()}
    while leaves := [module for module, names in graph.items() if not names & graph.keys()]:
        for module in leaves:
            del graph[module]
    assert graph == {}


def test_the_config_of_a_stored_run_is_read_as_a_strangers() -> None:
    """Whoever reads it as the user's own imports what it names."""
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("load_config", "read_config", "_read_config"):
                assert not ast.unparse(node.args[0]).endswith(".config"), f"{module}, line {node.lineno}"


def test_nothing_is_pickled() -> None:
    assert [(m, name) for m in TREES for name in IMPORTS[m] if name.split(".")[0] in FORBIDDEN_MODULES] == []
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "torch.save", "np.load"):
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert keywords.get("weights_only") == "True", f"{module}, line {node.lineno}"


def test_no_command_goes_through_a_shell() -> None:
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in ("os.system", "os.popen"), f"{module}, line {node.lineno}"
                shells = [keyword for keyword in node.keywords if keyword.arg == "shell"]
                assert all(ast.unparse(shell.value) == "False" for shell in shells), f"{module}, line {node.lineno}"
