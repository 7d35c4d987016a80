"""Starts `palestra serve` on loopback, for tests that ask it through OpenAI's own client."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai

from tests.forked import ForkedServer


class Server:
    """A process of `palestra serve` in a folder, at a free port. It can be killed, and started again."""

    def __init__(self, model: Path, folder: Path, *options: str) -> None:
        self.command = [sys.executable, "-m", "palestra", "serve", str(model), "--port", "0", "--folder", str(folder)]
        self.command += options
        self.start()

    def start(self) -> None:
        self.process = ForkedServer(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.match(r"serving (http://127\.0\.0\.1:\d+/v1)$", line):
                self.url = found[1]
                break
        else:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read())
        self.client = openai.OpenAI(base_url=self.url, api_key="any", max_retries=0)

    def kill(self) -> None:
        """End the process at once, as a failure of the machine does."""
        self.process.kill()
        self.process.communicate()

    def stop(self) -> tuple[int, str]:
        """Let the process leave; returns its exit code and what it has told on stderr."""
        self.process.terminate()
        _, told = self.process.communicate()
        return self.process.returncode, told

    def ask(self, text: str = "hi", **parameters: Any) -> Any:
        said: dict[str, Any] = {"model": "base", "max_tokens": 6, **parameters}
        return self.client.chat.completions.create(messages=[{"role": "user", "content": text}], **said)

    def upload(self, content: bytes, name: str = "examples.jsonl") -> str:
        return self.client.files.create(file=(name, content), purpose="fine-tune").id
