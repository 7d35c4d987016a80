"""A mirror on a disk of this machine, for which `Remote` makes the same calls as for a file system of fsspec.

Unlike that of fsspec, it follows no link below the root, and writes each file under another name first, so that a
second hard link to the old file keeps the old content.
"""

from pathlib import Path
from typing import Any

from palestra.storage.disk import Folder


class LocalFiles:
    """The files of a mirror, by paths relative to its folder.

    root: that folder, which may itself be a link. Raises OSError, and RefusedPathError for a link or a pipe in place of
    a file or folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def invalidate_cache(self) -> None:
        pass

    def _parent(self, path: str) -> str:
        return path.rpartition("/")[0]

    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
        folder = Folder(self.root, *_names(path))
        entries: list[dict[str, Any]] = []
        for name in folder.names():
            if folder.kind(name) == "folder":
                entries.append({"name": name, "type": "directory", "size": 0})
            else:
                with folder.reading(name) as file:
                    entries.append({"name": name, "type": "file", "size": file.size})
        return entries

    def cat_file(self, path: str) -> bytes:
        folder, name = self._place(path)
        return folder.read(name)

    def get_file(self, path: str, local: str) -> None:
        folder, name = self._place(path)
        _copy(folder, name, Folder(Path(local).parent), Path(local).name)

    def pipe_file(self, path: str, content: bytes) -> None:
        folder, name = self._place(path)
        folder.write(name, content)

    def put_file(self, local: str, path: str) -> None:
        folder, name = self._place(path)
        _copy(Folder(Path(local).parent), Path(local).name, folder, name)

    def rm_file(self, path: str) -> None:
        folder, name = self._place(path)
        folder.remove(name)

    def rmdir(self, path: str) -> None:
        Folder(self.root, *_names(path)).remove_empty()

    def mkdir(self, path: str, create_parents: bool) -> None:
        """Make a folder, and those above it."""
        Folder(self.root, *_names(path)).make_all()

    def _place(self, path: str) -> tuple[Folder, str]:
        *above, name = _names(path)
        return Folder(self.root, *above), name


def _names(path: str) -> list[str]:
    return path.strip("/").split("/") if path.strip("/") else []


def _copy(folder: Folder, name: str, to: Folder, to_name: str) -> None:
    with folder.reading(name) as file:
        to.write_pieces(to_name, file.pieces(file.size))
