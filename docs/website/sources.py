"""Pages that show files of the repository which are no pages: code, configs, folders."""

from docs.website.layout import ROOT, Pages

LANGUAGES = {".py": "python", ".yml": "yaml", ".toml": "toml", ".sh": "sh", ".txt": "text", ".ipynb": "json"}


def source_page(file: str, line: int | None = None) -> str:
    """The page of a file or folder, by its path in the repository."""
    return f"source/{file}.md" + (f"#__codelineno-0-{line}" if line else "")


def written(file: str) -> str:
    """The page of a file or folder. Search leaves it out: it would find each name a hundred times."""
    path = ROOT / file
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {file}\n\n"
    if path.is_dir():
        names = sorted(
            each.name + ("/" if each.is_dir() else "") for each in path.iterdir() if each.name[0] not in "._"
        )
        return head + "\n".join(f"- `{name}`" for name in names) + "\n"
    fence = "`" * 5
    return f'{head}{fence}{LANGUAGES.get(path.suffix, "text")} linenums="1"\n{path.read_text()}\n{fence}\n'


def pages(files: set[str]) -> Pages:
    return {source_page(file): written(file) for file in files}
