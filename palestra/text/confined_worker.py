"""The process in which templates and tokenizers of others work: a script that imports no module of palestra.

    python -P confined_worker.py MOST_SECONDS MOST_BYTES MOST_CHARACTERS

Each line that it reads is a JSON object: the `key` of some templates or tokenizers, their `definition` unless it has
come before, and `jobs`: each the name of a template, or what a tokenizer is to do, with values. It answers by a line:
what each job has given. Fewer are answered where the texts become long, or one has a `fault`. Jinja's sandbox keeps
templates from Python's objects; the operating system bounds the memory and the processor time of the process.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
from importlib import import_module
from typing import Any, NoReturn

from jinja2 import DictLoader, StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

A_DATE = time.strptime("2024-07-26", "%Y-%m-%d")  # today, so that the same dialogue always reads the same
RANDOM = ("random", "lipsum")  # equal prompts must be equal
IN_PROMPTS = ("range", "namespace")


class Environment(ImmutableSandboxedEnvironment):
    """The one of a folder of prompts, or, for kind "chat", one like that of transformers."""

    def __init__(self, kind: str, sources: dict[str, str], shared: dict[str, Any]) -> None:
        options: dict[str, Any] = {"undefined": StrictUndefined}
        if kind == "chat":
            options = {"extensions": [Generation, loopcontrols]}
        super().__init__(loader=DictLoader(sources), trim_blocks=True, lstrip_blocks=True, **options)
        self.sources, self.always = sources, shared
        self.filters = {name: each for name, each in self.filters.items() if name not in RANDOM}
        if kind == "chat":
            self.filters["tojson"] = to_json
            self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_a_date}
            del self.globals["lipsum"]
        else:
            self.globals = {name: self.globals[name] for name in IN_PROMPTS}

    def handle_exception(self, source: str | None = None) -> NoReturn:
        raise  # as it is: jinja hides in which template and line it was raised

    def do(self, name: str, values: dict[str, Any] | None) -> Any:
        """Render a template.

        Without values: say which variables it uses, with their first lines, and which files it includes.
        """
        template = self.get_template(name)
        if values is not None:
            roles = {"roles": tuple(values["roles"])} if "roles" in values else {}  # which JSON has made a list
            return template.render(self.always | values | roles)
        tree = self.parse(self.sources[name], name)
        lines = {each.name: each.lineno for each in sorted(tree.find_all(nodes.Name), key=lambda each: -each.lineno)}
        used = meta.find_undeclared_variables(tree) - self.globals.keys()
        return {"lines": {each: lines[each] for each in used}, "files": list(meta.find_referenced_templates(tree))}


class Generation(Extension):
    """The tag around what an assistant has written, which transformers notes, and which changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def to_json(
    x: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: Any) -> NoReturn:
    raise TemplateError(message)


def strftime_a_date(form: str) -> str:
    return time.strftime(form, A_DATE)


class Tokenizers:
    """Tokenizers by their places. sources: each as JSON."""

    def __init__(self, sources: list[str]) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        made = import_module("tokenizers").Tokenizer
        self.tokenizers = [made.from_str(source) for source in sources]

    def do(self, name: str, values: dict[str, Any]) -> Any:
        """Return the tokens of a text ("encode"), or the text of tokens ("decode")."""
        tokenizer, given = self.tokenizers[values["place"]], values["given"]
        if name == "encode":
            return tokenizer.encode(given, add_special_tokens=False).ids
        return tokenizer.decode(given, skip_special_tokens=False)


# ---- within limits ---------------------------------------------------------------------------------------


def fault_of(error: BaseException, most_bytes: int) -> dict[str, Any]:
    """Say what was wrong, and where. is_spent: whether the process may be unfit for more."""
    name, line, trace = None, None, error.__traceback__
    while trace is not None:
        if (template := trace.tb_frame.f_globals.get("__jinja_template__")) is not None:
            name, line = template.name, template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    if isinstance(error, TemplateSyntaxError):
        name, line = error.name, error.lineno
    is_spent = isinstance(error, MemoryError | RecursionError)
    kind = "" if is_spent or isinstance(error, TemplateError) else f"{type(error).__name__}: "
    told = kind + " ".join(str(getattr(error, "message", error))[:500].split())
    if isinstance(error, MemoryError):
        told = f"it needs more than {most_bytes >> 20:,} MiB of memory"
    if isinstance(error, RecursionError):
        told = "it is nested too deeply, or calls itself without end (RecursionError)"
    return {"told": told, "name": name, "line": line, "is_spent": is_spent}


def limit(which: int, soft: int) -> None:
    hard = resource.getrlimit(which)[1]
    limits = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(which, (min(limits, default=resource.RLIM_INFINITY), hard))


def limit_memory(most_bytes: int) -> None:
    """Bound what the process takes from now on."""
    taken = 0
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    limit(resource.RLIMIT_AS, taken + most_bytes)


def main(most_seconds: int, most_bytes: int, most_characters: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the process that has started this one
    limit(resource.RLIMIT_CORE, 0)
    limit_memory(most_bytes)
    known: dict[str, Environment | Tokenizers] = {}
    for asked in sys.stdin.buffer:
        done: list[Any] = []
        fault, left = None, most_characters
        try:
            said = json.loads(asked)
            if (definition := said["definition"]) is not None and definition["kind"] == "tokenizers":
                limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)  # whoever has written them could load them, too
                known[said["key"]] = Tokenizers(definition["sources"])
                limit_memory(most_bytes)
            elif definition is not None:
                known[said["key"]] = Environment(**definition)
            for name, values in said["jobs"]:
                limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + most_seconds)
                found = known[said["key"]].do(name, values)
                if len(found) > most_characters:
                    raise TemplateError(f"it makes more than {most_characters:,} characters")
                done.append(found)
                if (left := left - len(found)) < 0:
                    break
        except BaseException as error:  # what Rust raises is no Exception
            fault = fault_of(error, most_bytes)
        reply = json.dumps({"done": done, "fault": fault}, ensure_ascii=False)
        sys.stdout.buffer.write(reply.encode("utf-8", "surrogatepass") + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
