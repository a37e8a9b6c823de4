"""Programs of hostile model files: nothing is computed at load, and no operation takes all time or memory."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Iterator

import jinja2
import pytest

from sixfold.text.template_meter import METER, LimitReached, Meter
from sixfold.text.template_sandbox import compile_program

DEEP = (
    "{% set n = namespace(v=[1] * 100) %}"
    "{% for i in range(5) %}{% set n.v = [n.v] * 100 %}{% endfor %}{% set v = n.v %}"
    "{% set n.v = [1] * 100 %}{% for i in range(5) %}{% set n.v = [n.v] * 100 %}{% endfor %}{% set w = n.v %}"
)
"""v and w: equal lists of 10 ** 12 elements that take a few kB."""
BYTES_MAX = 80 << 20
"""A few values of the greatest length."""


def render(source: str) -> str:
    return compile_program(source).render({METER: Meter(), "words": ["a", "b"], "nested": {"a": [1, {"b": None}]}})


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is taken is counted, and what would hang the machine is a MemoryError."""
    monkeypatch.setattr("sixfold.text.template_meter._STEPS_MAX", 10_000)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < BYTES_MAX
    finally:
        tracemalloc.stop()
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    "expression",
    [
        "'a' | center(1000000000)",
        "'a'.center(1000000000)",
        "'a'.ljust(1000000000)",
        "words[0].rjust(1000000000)",
        "'1'.zfill(1000000000)",
        "('\t' * 1000).expandtabs(1000000)",
        "'%1000000000d' % 1",
        "'%*d' % (1000000000, 1)",
        "'%.1000000000f' % 1",
        "'%(a)1000000000d' % {'a': 1}",
        "'%1000000000d' | format(1)",
        "'{:1000000000}'.format(1)",
        "'{:{}}'.format(1, 1000000000)",
        "('a' * 1000000).replace('a', 'b' * 1000)",
        "('a' * 1000000) | replace('a', 'b' * 1000)",
        "('a' * 1000000).replace('', 'b' * 1000)",
        "('a\n' * 100000) | indent(10000)",
        "('a\n' * 100000) | indent('b' * 10000)",
        "range(9000) | join('x' * 10000)",
        "'x'.join(['y' * 10000] * 9000)",
        "words | tojson(indent=300000000)",
        "nested | tojson(indent='x' * 10000000)",
        "3.5 | round(400000000, 'ceil')",
        "[words] | sum(start=[])",
        "('a ' * 8000000).split()",
        "('a' * 8000000) | list",
        "'a' * 1000000000",
        "1000000000 * [0]",
        "10 ** 100000000",
    ],
)
@pytest.mark.usefixtures("bounded")
def test_o48_one_operation(expression: str) -> None:
    template = f"{{{{ {expression} }}}}"
    with pytest.raises(LimitReached):
        render(template)
    with pytest.raises(LimitReached):
        render(f"{{% if {expression} %}}{{% endif %}}")
    compile_program(template)  # nothing is computed here


@pytest.mark.parametrize(
    "use",
    [
        "{{ v }}",
        "{{ v ~ '' }}",
        "{{ v | string }}",
        "{{ v | upper }}",
        "{{ v | tojson }}",
        "{{ v | join }}",
        "{{ '%s' % v }}",
        "{{ '%s' % [v] }}",
        "{{ '{}'.format(v) }}",
        "{{ '%s' | format(v) }}",
        "{{ ''.join([v]) }}",
        "{{ {'a': v}.values() }}",
        "{{ {'a': v}.items() | list }}",
        "{{ n }}",
        "{{ v | replace('1', '2') }}",
        "{{ [v] | map('string') | list }}",
        "{% if v == w %}{% endif %}",
        "{% if v in [w] %}{% endif %}",
        "{% if v is eq w %}{% endif %}",
        "{{ [w].index(v) }}",
        "{{ [[v], [w]] | select('equalto', [v]) | list | length }}",
        "{{ [[v], [w]] | map('first') | sort | length }}",
        "{{ [v, w] | min | length }}",
        "{{ [[v, 1], [w, 1]] | groupby(0) | length }}",
        "{{ v | indent }}",
        "{{ v | trim }}",
    ],
)
@pytest.mark.usefixtures("bounded")
def test_o48_values_that_hold_themselves_many_times(use: str) -> None:
    with pytest.raises(LimitReached):
        render(DEEP + use)


@pytest.mark.usefixtures("bounded")
def test_o48_a_hash_of_many() -> None:
    tuples = "{% set n = namespace(v=(1,) * 100) %}{% for i in range(5) %}{% set n.v = (n.v,) * 100 %}{% endfor %}"
    for use in ("{{ {n.v: 1} | length }}", "{{ nested[n.v] }}", "{{ nested.get(n.v) }}", "{{ [n.v] | unique | list }}"):
        with pytest.raises(LimitReached):
            render(tuples + use)


@pytest.mark.parametrize("kept", ["ns.l + [x | upper]", "[x[1:], ns.l]", "[x ~ i, ns.l]", "[x.lower(), ns.l]"])
def test_o48_many_copies(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sixfold.text.template_meter._GROWTH_BYTES_MAX", 64 << 20)
    monkeypatch.setattr("sixfold.text.template_meter._RENDER_S_MAX", 60.0)
    loop = f"{{% for i in range(90000) %}}{{% set ns.l = {kept} %}}{{% endfor %}}"
    with pytest.raises(LimitReached, match="64 MB of memory"):
        render("{% set ns = namespace(l=[]) %}{% set x = 'a' * 1000000 %}" + loop)


@pytest.mark.parametrize("name", ["batch", "slice", "wordwrap", "xmlattr", "urlize", "pprint", "random"])
def test_absent_filters_are_named(name: str) -> None:
    with pytest.raises(jinja2.TemplateError, match=name):
        compile_program(f"{{{{ words | {name} }}}}")


@pytest.mark.parametrize(
    "use", ["{{ 'a'.encode() }}", "{{ 'a'.translate({97: 'b'}) }}", "{{ (1).to_bytes(9, 'big') }}"]
)
def test_absent_methods(use: str) -> None:
    with pytest.raises(jinja2.TemplateError):
        render(use)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' | center(3) }}|{{ 'a'.ljust(3) }}|{{ '7'.zfill(3) }}", " a |a  |007"),
        ("{{ '%03d %s' % (7, 'x') }}|{{ '%5.2f' | format(1.5) }}|{{ '{:>4}{}'.format(1, 'b') }}", "007 x| 1.50|   1b"),
        (
            "{{ 'aXbX'.replace('X', '--') }}|{{ 'aXb' | replace('X', 'Y') }}|{{ 'aXX' | replace('X', '', 1) }}",
            "a--b--|aYb|aX",
        ),
        (
            "{{ words | join(', ') }}|{{ ', '.join(words) }}|{{ [{'k': 1}, {'k': 2}] | join('-', attribute='k') }}",
            "a, b|a, b|1-2",
        ),
        (
            "{{ nested | tojson }}|{{ nested | tojson(indent=1) }}",
            '{"a": [1, {"b": null}]}|{\n "a": [\n  1,\n  {\n   "b": null\n  }\n ]\n}',
        ),
        ("{{ 2.345 | round(2) }}|{{ [1, 2] | sum }}|{{ [{'n': 3}] | sum(attribute='n') }}", "2.35|3|3"),
        ("{{ 'b a'.split() | sort | list }}|{{ [2, 1, 2] | unique | list }}|{{ [2, 1] | min }}", "['a', 'b']|[2, 1]|1"),
        (
            "{{ {'b': 1, 'a': 2} | dictsort }}|{{ words is sequence }}|{{ 'a' in words }}",
            "[('a', 2), ('b', 1)]|True|True",
        ),
        (
            "{{ [{'r': 1, 'v': 1}, {'r': 2, 'v': 2}] | selectattr('r', 'eq', 2) | map(attribute='v') | list }}",
            "[2]",
        ),
        ("{{ words[1:] }}|{{ words[::-1] }}|{{ nested['a'][0] }}|{{ 'abc'[-1] }}", "['b']|['b', 'a']|1|c"),
        (
            "{{ 'a\nb' | indent(2) }}|{{ ' x ' | trim }}|{{ 'x' | upper | e }}|{{ nothing }}|{{ none }}",
            "a\n  b|x|X||None",
        ),
        (
            "{% macro m(a, b=2) %}{{ a + b }}{% endmacro %}{{ m(1) }}{{ m(1, b=4) }}|{{ 2 ** 10 }}|{{ 7 % 3 }}",
            "35|1024|1",
        ),
        ("{% for w in words if w != 'a' %}{{ loop.index }}{{ w }}{% endfor %}|{{ (true and 'a') ~ 1 }}", "1b|a1"),
        (
            "{% for g in [{'k': 1}, {'k': 1}] | groupby('k') %}{{ g[0] }}{{ g[1] | length }}{% endfor %}",
            "12",
        ),
    ],
)
def test_what_templates_do_is_as_ever(source: str, text: str) -> None:
    assert render(source) == text
