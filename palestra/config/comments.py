"""The comments of config models: the strings below their fields, read from the source on demand.

pydantic can read them too, but reads those of all models at import, which would make every start slower.
"""

import ast
import inspect
import sys
from functools import cache
from types import ModuleType
from typing import Any

from pydantic import BaseModel


def description_of(model: type[BaseModel], key: str) -> str | None:
    """The description of a field, or the string below it in the class that declares it; None if it has neither."""
    field = model.model_fields[key]
    if field.description is not None:
        return field.description
    owner: Any = next(base for base in model.__mro__ if key in inspect.get_annotations(base))
    module = sys.modules.get(owner.__module__)
    return None if module is None else _strings_in(module).get(f"{owner.__qualname__}.{key}")


@cache
def _strings_in(module: ModuleType) -> dict[str, str]:
    """The strings below the annotated names of all classes of a module, by qualified name; empty without its source."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return {}
    return dict(_walk(tree, ""))


def _walk(node: ast.AST, prefix: str) -> list[tuple[str, str]]:
    found, name = [], ""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.AnnAssign(target=ast.Name(id=name)):
                continue
            case ast.Expr(value=ast.Constant(value=str(text))) if name and isinstance(node, ast.ClassDef):
                found.append((prefix + name, inspect.cleandoc(text)))
            case ast.ClassDef():
                found += _walk(child, f"{prefix}{child.name}.")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found += _walk(child, f"{prefix}{child.name}.<locals>.")
            case ast.stmt():
                found += _walk(child, prefix)  # a class may be defined below an `if`
        name = ""
    return found
