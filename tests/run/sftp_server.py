"""An SFTP server on loopback, in threads of this process: it shows a folder as its root."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paramiko

USER, PASSWORD = "tests", "a-password-of-the-tests"


class _Login(paramiko.ServerInterface):
    def check_auth_password(self, username: str, password: str) -> int:
        return paramiko.AUTH_SUCCESSFUL if (username, password) == (USER, PASSWORD) else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def get_allowed_auths(self, username: str) -> str:
        return "password"


def _handled(deed):  # type: ignore[no-untyped-def]
    """The result of a call to the disk, or the code of its error."""

    def call(*args):  # type: ignore[no-untyped-def]
        try:
            result = deed(*args)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)
        return paramiko.SFTP_OK if result is None else result

    return call


class _Files(paramiko.SFTPServerInterface):
    def __init__(self, server: paramiko.ServerInterface, root: Path) -> None:
        super().__init__(server)
        self.root = root

    def at(self, path: str) -> str:
        return f"{self.root}{self.canonicalize(path)}"

    @_handled
    def list_folder(self, path: str) -> list[paramiko.SFTPAttributes]:
        with os.scandir(self.at(path)) as entries:
            return [paramiko.SFTPAttributes.from_stat(entry.stat(), entry.name) for entry in entries]

    @_handled
    def stat(self, path: str) -> paramiko.SFTPAttributes:
        return paramiko.SFTPAttributes.from_stat(os.stat(self.at(path)))

    lstat = stat

    @_handled
    def open(self, path: str, flags: int, attributes: paramiko.SFTPAttributes) -> paramiko.SFTPHandle:
        descriptor = os.open(self.at(path), flags, 0o600)
        handle = paramiko.SFTPHandle(flags)
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        handle.readfile = handle.writefile = os.fdopen(descriptor, "wb" if writes else "rb")
        return handle

    @_handled
    def remove(self, path: str) -> None:
        os.remove(self.at(path))

    @_handled
    def mkdir(self, path: str, attributes: paramiko.SFTPAttributes) -> None:
        os.mkdir(self.at(path))

    @_handled
    def rmdir(self, path: str) -> None:
        os.rmdir(self.at(path))


class SftpServer:
    """Listens at `port`; `drop` cuts all connections."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.key = paramiko.ECDSAKey.generate()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self.transports: list[paramiko.Transport] = []

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:  # closed
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(self.key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _Files, self.root)
            self.transports.append(transport)
            transport.start_server(server=_Login())

    def drop(self) -> None:
        for transport in self.transports:
            transport.close()
        self.transports.clear()


@contextmanager
def sftp_server(root: Path) -> Iterator[SftpServer]:
    server = SftpServer(root)
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        yield server
    finally:
        server.socket.close()
        server.drop()
