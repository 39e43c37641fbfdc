"""A chat template is a program somebody else wrote: it ends, and makes no more than a prompt."""

from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError

from workbench.errors import RecipeError
from workbench.template_sandbox import MOST_WORK, BoundedEnvironment, TooMuchWork
from workbench.tokenizer import Tokenizer, _compile, _written

MESSAGES = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]


def written(template: str, **variables: Any) -> str:
    return _written(_compile(template), messages=MESSAGES, **variables)


DOUBLED = "{% set s = 'x' * 1000 %}" + "{% set s = s ~ s %}" * 40
PAIRS = "{% set a = ['x'] %}" + "{% set a = [a, a] %}" * 40


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 10**9 }}",
        "{{ 10**9 * 'x' }}",
        "{{ ([0] * 10**9) | length }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set n = namespace(v=3) %}{% for i in range(99) %}{% set n.v = n.v * n.v %}{% endfor %}",
        "{{ 'x' | center(10**9) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ ('x' * 10**6).replace('x', 'y' * 10**6) }}",
        "{{ ('x' * 10**6) | replace('x', 'y' * 10**6) }}",
        "{{ range(99999) | join('y' * 10**6) }}",
        "{{ ('\t' * 10**6).expandtabs(10**6) }}",
        "{{ messages | tojson(indent=10**9) }}",
        "{{ [1] | batch(10**9, 0) | list | length }}",
        "{{ [1] | slice(10**9) | list | length }}",
        DOUBLED,
        DOUBLED.replace("~", "+"),
        PAIRS + "{{ a }}",
        PAIRS + "{{ a | tojson }}",
        PAIRS + "{{ a | string | length }}",
        PAIRS + "{{ '%s' % a }}",
        PAIRS + "{{ 'a' ~ a }}",
        PAIRS + "{% if a == 3 %}{% endif %}{{ messages[0] == a }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) %}"
        "{% for a in r %}{% for b in r if b < 0 %}{% endfor %}{% endfor %}",
        "{% for a in range(999) recursive %}{% if loop.depth < 5 %}"
        "{{ loop(range(999)) }}{% endif %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
        "{{ m(60) }}",
        "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
    ],
)
def test_a_template_that_makes_too_much_is_stopped(template: str) -> None:
    with pytest.raises(TooMuchWork):
        written(template)


def test_words_no_template_needs_are_not_there() -> None:
    with pytest.raises(TemplateError, match="lipsum"):
        written("{{ lipsum(n=10**9) }}")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'ab' * 3 }}{{ 2 * 3 }}{{ 2 ** 3 }}{{ 7 % 4 }}{{ 'a' + 'b' }}", "ababab683ab"),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '{:>4}'.format('x') }}{{ '%s' | format('y') }}",
         "a-007   xy"),
        ("{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
         "1/2False 2/2True "),
        ("{% for k, v in messages[0].items() if v != 'user' %}{{ k }}={{ v }}{% endfor %}",
         "content=a b"),
        ("{% for m in [] %}x{% else %}none{% endfor %}", "none"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user, assistant"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ messages[0].content.split(' ')[-1] }}{{ messages[1] is mapping }}{{ x is defined }}",
         "bTrueFalse"),
        ("{{ 1 < 2 < 3 }}{{ 'a' in 'abc' }}{{ 'role' in messages[0] }}{{ x }}{{ none }}",
         "TrueTrueTrueNone"),
        ("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m('x') }}{{ m(a='y') | upper }}", "<x><Y>"),
        ("{{ [3, 1] | sort | first }}{{ 'a\nb' | indent(2) }}{{ 'x' | default('y') }}", "1a\n  bx"),
        ("{{ 'a' ~ 1 ~ none }}{{ messages | length }}{{ [[1, 2], [3]] | sum(start=[]) }}",
         "a1None2[1, 2, 3]"),
    ],
)  # fmt: skip
def test_what_templates_do_comes_out_as_in_jinja2(template: str, text: str) -> None:
    assert written(template) == text


def test_each_rendering_is_counted_alone() -> None:
    template = _compile("{% for i in range(30000) %}{% endfor %}x")
    assert {_written(template) for _ in range(15)} == {"x"}


def test_a_long_conversation_is_no_endless_one() -> None:
    many = [{"role": "user", "content": "word " * 2000}] * 500
    template = (
        "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] | trim }}{% endfor %}"
    )
    assert len(_written(_compile(template), messages=many)) > 4_000_000


def test_nothing_is_made_while_a_template_is_compiled() -> None:
    environment = BoundedEnvironment()
    environment.from_string("{{ 'x' * 10**9 }}{{ 'x' | center(9999) }}")
    assert environment._left == MOST_WORK


def test_the_checkpoint_is_named(tiny: Path) -> None:
    tokenizer = Tokenizer.load(tiny)
    tokenizer._compiled = _compile("{{ 'x' * 10**9 }}")
    with pytest.raises(RecipeError, match="longer than 16,777,216") as caught:
        tokenizer.render(MESSAGES, True)
    assert "chat_template" in caught.value.where and "chat_template.jinja" in caught.value.fix
