"""Templates of others, which end in one line where they would run on and on, or put together a huge text."""

import time

import pytest
from jinja2 import TemplateError

from palestra.text import sandbox
from palestra.text.sandbox import MOST_CHARACTERS, Sandbox, size

MANY = "more than 100,000,000 characters"
DOUBLED = "{% set n = namespace(s={0}) %}{% for i in range(99) %}{% set n.s = {1} %}{% endfor %}"
# What strangers' templates may do, and why it ends.
ENDLESS = {
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": MANY,
    "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}": MANY,
    "{% for i in range(99999) %}{% for j in range(99) %}" + "x" * 999 + "{% endfor %}{% endfor %}": MANY,
    "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else '' }}{% endmacro %}{{ f(60) }}": MANY,
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "recursion",
    "{{ 9 ** 99999999 }}": "bits",
    "{% set n = namespace(s=3) %}{% for i in range(99) %}{% set n.s = n.s * n.s %}{% endfor %}": "bits",
    "{{ 'a' * 999999999 }}": MANY,
    "{{ 999999999 * ['a'] }}": MANY,
    "{{ 'a' | center(999999999) }}": MANY,
    "{{ 'a'.ljust(999999999) }}": MANY,
    "{{ 'a'.zfill(999999999) }}": MANY,
    "{{ '\\t'.expandtabs(999999999) }}": MANY,
    "{{ ('a' * 99999).replace('a', 'b' * 99999) }}": MANY,
    "{{ ('a' * 99999) | replace('', 'b' * 99999) }}": MANY,
    "{{ ('a' * 99999).join(['b'] * 99999) }}": MANY,
    "{{ (['b'] * 99999) | join('a' * 99999) }}": MANY,
    "{{ ('a\\n' * 99999) | indent(99999) }}": MANY,
    "{{ '%999999999d' % 1 }}": MANY,
    "{{ '%999999999d' | format(1) }}": MANY,
    "{{ '{:999999999}'.format(1) }}": MANY,
    "{{ '%*d' % (999999999, 1) }}": "width that is computed",
    "{{ '{:{}}'.format(1, 999999999) }}": "width that is computed",
    "{{ ('{0}' * 99999).format('a' * 99999) }}": MANY,
    "{{ (1).to_bytes(999999999, 'big') }}": MANY,
    "{{ 1.5 | round(999999999, 'floor') }}": MANY,
    "{{ ['a'] | batch(999999999, 'b') | list }}": MANY,
    "{{ {'a': 1} | tojson(indent=999999999) }}": MANY,
    "{{ range(99999) | map('center', 9999) | list }}": MANY,
    "{% set x %}{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}{% endset %}": MANY,
    DOUBLED.replace("{0}", "'aa'").replace("{1}", "n.s ~ n.s"): MANY,
    DOUBLED.replace("{0}", "'aa'").replace("{1}", "n.s + n.s"): MANY,
    DOUBLED.replace("{0}", "['a']").replace("{1}", "[n.s, n.s]"): MANY,
}


def rendered(source: str) -> str:
    made = Sandbox()
    made.count_filters()
    made.begin()
    return made.from_string(source).render(text="ab cd")


@pytest.mark.parametrize("source", [each for each, why in ENDLESS.items() if why != "recursion"])
def test_a_template_that_runs_on_and_on_ends(source: str) -> None:
    started = time.process_time()
    with pytest.raises(TemplateError, match=ENDLESS[source]):
        rendered(source)
    assert time.process_time() - started < 5.0


def test_a_template_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST_SECONDS", -1.0)
    with pytest.raises(TemplateError, match="it takes longer than"):
        rendered("{% for i in [1] %}{% endfor %}")


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
    ],
)
def test_other_templates_render_as_ever(source: str, expected: str) -> None:
    assert rendered(source) == expected


def test_the_size_of_a_value_is_that_of_all_in_it() -> None:
    assert size("abc") == 3
    assert size({"a": ["bc", (1, "d")]}) == 1 + 2 + 1 + 1 + 3 * sandbox.TURN + 2 + 2
    nested: list[object] = ["a"]
    for _ in range(99):
        nested = [nested, nested]
    assert size(nested) > MOST_CHARACTERS
