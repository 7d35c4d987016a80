"""The process that computes one job of a server: `python -m palestra.serving.work PIPE FOLDER`.

It imports what jobs need, and reads the id of its job from its standard input when there is one. It tells the server
what it does by lines of JSON on its standard output. When the server ends, however it does, the operating system ends
this process by way of the pipe.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from palestra.runtime.signals import end_with_parent


def main() -> None:
    pipe, folder = sys.argv[1:]
    end_with_parent(int(pipe))  # before the imports, which take seconds
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what libraries print

    def tell(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        from palestra.serving.computing import compute
        from palestra.storage.disk import Folder
        from palestra.text.models.extra import library

        library("transformers.models.llama.modeling_llama")  # with what models of other kinds import, too
        compute(Folder(Path(folder)), sys.stdin.readline().strip(), tell)
    except Exception as error:  # whatever a stranger's model raises
        from palestra.config import failure
        from palestra.runtime.limits import lack
        from palestra.storage.secrets import redacted
        from palestra.text.servers.job_files import JobFileError

        at = "the training file: " if isinstance(error, JobFileError) else ""
        is_ours = type(error).__module__.startswith("palestra.")
        said = " ".join(str(error).split()) if is_ours else failure(error)
        tell({"failed": redacted(lack(error) or at + said)})
        sys.exit(1)


if __name__ == "__main__":
    main()
