"""Templates of others, which end in one line where they would run on and on, fill the memory, or nest without end.

Covers palestra.text.confined_worker.
"""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palestra.text import sandbox
from palestra.text.sandbox import Limits, Sandbox, SandboxError
from tests.forked import Forked

SECONDS, MEMORY, NESTED = "computes for longer than 0 s", "more than 128 MiB of memory", "nested too deeply"
LONG = "makes more than 300,000 characters"
DOUBLED = "{% set n = namespace(s={0}) %}{% for i in range(99) %}{% set n.s = {1} %}{% endfor %}"
# What strangers' templates may do, and why it ends.
TOO_LONG = {
    "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}": SECONDS,
    "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else '' }}{% endmacro %}{{ f(60) }}": SECONDS,
    "{{ 9 ** 999999999 }}": SECONDS,
    "{% set r = range(9999) | list %}{% for i in r %}{% set x = r | select | list | sum %}{% endfor %}": SECONDS,
    "{% for i in range(99999) %}{% set x = range(9999) | groupby('real') | sort | list %}{% endfor %}": SECONDS,
    "{% set s = '1' * 40000 %}{% for i in range(99999) %}{% set x = s | int(base=16) %}{% endfor %}": SECONDS,
}
TOO_MUCH = {
    "{% for i in range(99999) %}{{ i * 99 }}{{ 'x' * i }}{% endfor %}": MEMORY,
    "{{ range(100000) | join('x' * 40000) }}": MEMORY,
    "{{ ('x' * 40000).join(range(100000) | map('string')) }}": MEMORY,
    "{{ (['x' * 999] * 9999) | replace('x', 'x' * 9999) }}": MEMORY,
    "{{ 'a' * 999999999 }}": MEMORY,
    "{{ 999999999 * ['a'] }}": MEMORY,
    "{{ 'a' | center(999999999) }}": MEMORY,
    "{{ 'a'.zfill(999999999) }}": MEMORY,
    "{{ '\\t'.expandtabs(999999999) }}": MEMORY,
    "{{ ('a' * 99999) | replace('', 'b' * 99999) }}": MEMORY,
    "{{ ('a\\n' * 99999) | indent(99999) }}": MEMORY,
    "{{ '%999999999d' % 1 }}": MEMORY,
    "{{ '%*d' % (999999999, 1) }}": MEMORY,
    "{{ '{:>1000000000}'.format(1) }}": MEMORY,
    "{{ '{:>10000000000000000000000}'.format(1) }}": "Too many decimal digits",
    "{{ '{:{}}'.format(1, 999999999) }}": MEMORY,
    "{{ (1).to_bytes(999999999, 'big') }}": MEMORY,
    "{{ ['a'] | batch(999999999, 'b') | list }}": MEMORY,
    "{{ {'a': [1]} | tojson(indent=999999999) }}": MEMORY,
    "{{ raise_exception('x' * 999999) }}": "^x{500}$",
    "{% set x %}{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}{% endset %}": MEMORY,
    DOUBLED.replace("{0}", "'aa'").replace("{1}", "n.s ~ n.s"): MEMORY,
    DOUBLED.replace("{0}", "['a']").replace("{1}", "n.s + n.s"): MEMORY,
    "{{ 'x' * 300001 }}": LONG,
}
TOO_DEEP = {
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": NESTED,
    "{% include 'chat_template' %}": NESTED,
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000: NESTED,
    "{% for i in [1] %}" * 3000 + "{% endfor %}" * 3000: NESTED,
    "{% for i in [1] %}" * 30 + "{% endfor %}" * 30: "SyntaxError: too many statically nested blocks",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}": NESTED,
    "{{ " + "[" * 3000 + "]" * 3000 + " }}": NESTED,
    "{{ " + "not " * 30000 + "1 }}": NESTED,
    "{{ " + "-" * 3000 + "1 }}": NESTED,
    "{{ 1" + " + 1" * 9999 + " }}": NESTED,
    "{{ x" + ".x" * 9999 + " }}": NESTED,
    "{{ x" + "|e" * 9999 + " }}": NESTED,
}
ENDLESS = TOO_LONG | TOO_MUCH | TOO_DEEP


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """At most a second of a process, and little memory."""
    monkeypatch.setattr(sandbox._PROCESS, "limits", Limits(seconds=0, num_bytes=128 << 20, characters=300_000))
    sandbox._PROCESS.stop()
    yield
    sandbox._PROCESS.stop()


def rendered(source: str, **values: object) -> str:
    [text] = Sandbox("chat", {"chat_template": source}, {}).render([("chat_template", values)])
    return str(text)


def children_s() -> float:
    """Return the processor time of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.usefixtures("low_limits")
@pytest.mark.parametrize("kind", [TOO_LONG, TOO_MUCH, TOO_DEEP], ids=["too long", "too much", "too deep"])
def test_a_template_that_never_ends_or_fills_the_memory_is_one_line_and_the_next_one_renders(
    kind: dict[str, str],
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for source, why in kind.items():
        spent = children_s()
        with pytest.raises(SandboxError, match=why) as caught:
            rendered(source)
        assert str(caught.value).count("\n") == 0
        assert rendered("{{ x }}!", x="é") == "é!"
        assert children_s() - spent < 3.0, source
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "the memory of palestra stays small"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ text.replace('a', 'xx') | center(9) }}|", "  xxb cd |"),
        ("{{ '%5.1f %s %%' % (1.25, text) }}", "  1.2 ab cd %"),
        ("{{ '{0:>4}{x}'.format(1, x=2) }}", "   12"),
        ("{{ [1, (2, 3)] + [{'a': text}] }}", "[1, (2, 3), {'a': 'ab cd'}]"),
        ("{% for a, b in [(1, 2)] if a %}{{ a ** 3 * b ~ loop.index }}{% endfor %}", "21"),
        ("{% macro m(x) %}<{{ x }}>{{ caller() }}{% endmacro %}{% call m(1) %}in{% endcall %}", "<1>in"),
        ("{% set n = namespace(s='') %}{% for c in text %}{% set n.s = c ~ n.s %}{% endfor %}{{ n.s }}", "dc ba"),
        ("{{ {'a': [1, 2]} | tojson(indent=1) | length }} {{ text.split() | join('-') }}", "23 ab-cd"),
        ("{{ half }}|{{ '\\n' }}", "\ud83d\ude00|\n"),
    ],
)
def test_other_templates_render_as_ever(source: str, expected: str) -> None:
    assert rendered(source, text="ab cd", half="\ud83d\ude00") == expected


def test_the_first_template_that_fails_is_told_and_long_texts_come_in_several_answers() -> None:
    both = Sandbox("prompts", {"a": "{{ x * n }}", "b": "{{ y }}"}, {"n": 70_000})
    texts = [chr(97 + number % 26) + str(number) for number in range(150)]
    assert both.render([("a", {"x": text}) for text in texts]) == [text * 70_000 for text in texts]
    jobs: list[tuple[str, dict[str, object]]] = [
        ("a", {"x": "x", "n": 1}),
        ("a", {"x": "x", "n": 1}),
        ("b", {"y": (1, 2)}),
        ("b", {}),
        ("a", {}),
    ]
    with pytest.raises(SandboxError, match="'y' is undefined") as caught:
        both.render(jobs)
    assert (caught.value.index, caught.value.name, caught.value.line) == (3, "b", 1)


@pytest.mark.usefixtures("low_limits")
def test_of_several_texts_the_one_that_runs_on_is_told() -> None:
    each = Sandbox("chat", {"t": "{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}{{ n }}"}, {})
    with pytest.raises(SandboxError, match=SECONDS) as caught:
        each.render([("t", {"n": n}) for n in (1, 2, 99_999, 3)])
    assert caught.value.index == 2
    assert each.render([("t", {"n": n}) for n in (1, 3)]) == ["1", "3"]


# ---- its process -----------------------------------------------------------------------------------------


def pid_of_the_process() -> int:
    assert sandbox._PROCESS.running is not None
    return sandbox._PROCESS.running.pid


def test_a_process_that_is_suspended_or_killed_or_whose_thread_has_ended_makes_no_error() -> None:
    sandbox._PROCESS.stop()
    starter = threading.Thread(target=rendered, args=["a"])
    starter.start()
    starter.join()
    assert rendered("b") == "b"
    os.kill(pid_of_the_process(), signal.SIGKILL)
    assert rendered("c") == "c"
    os.kill(pid_of_the_process(), signal.SIGSTOP)
    waiting = threading.Timer(1.5, os.kill, (pid_of_the_process(), signal.SIGCONT))
    waiting.start()
    started = time.monotonic()
    assert rendered("d") == "d"
    assert time.monotonic() - started > 1.0


def test_a_forked_process_has_one_of_its_own() -> None:
    assert rendered("a") == "a"
    mine, (reading, writing) = pid_of_the_process(), os.pipe()
    sandbox._PROCESS.lock.acquire()  # as another thread may have it
    if (child := os.fork()) == 0:
        signal.alarm(20)
        os.write(writing, f"{rendered('b')} {pid_of_the_process() != mine}".encode())
        os._exit(0)
    sandbox._PROCESS.lock.release()
    os.waitpid(child, 0)
    os.close(writing)
    assert os.read(reading, 99) == b"b True"
    assert rendered("c") == "c"
    assert pid_of_the_process() == mine
    os.close(reading)


def test_what_interrupts_an_answer_leaves_none_for_the_next_question() -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    assert rendered("a") == "a"
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Interrupted):
            rendered("{% for i in range(99999) %}{% for j in range(99) %}{% endfor %}{% endfor %}b" * 9)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert rendered("c") == "c"


@pytest.mark.parametrize(
    "source", ["x", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"]
)
def test_it_ends_with_the_process_that_has_started_it_also_while_it_computes(source: str, tmp_path: Path) -> None:
    program = f"""
import threading, time
from palestra.text import sandbox
from palestra.text.sandbox import Limits
made = sandbox.Sandbox("chat", {{"t": {source!r}}}, {{}})
threading.Thread(target=lambda: made.render([("t", {{}})]), daemon=True).start()
while sandbox._PROCESS.running is None:
    time.sleep(0.01)
print(sandbox._PROCESS.running.pid, flush=True)
time.sleep(99)
"""
    parent = Forked([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 5.0
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_imports_jinja_alone() -> None:
    assert rendered("a") == "a"
    opened = Path(f"/proc/{pid_of_the_process()}/maps").read_text()
    assert "python" in opened
    assert not any(name in opened for name in ("torch", "numpy", "pydantic"))
