"""A chat template is a program somebody else wrote: it ends, and makes no more than a prompt."""

from pathlib import Path
from typing import Any

import pytest

from workbench.errors import RecipeError
from workbench.template_sandbox import TooMuchWork
from workbench.tokenizer import Tokenizer, _compile

MESSAGES = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]


def written(template: str, **variables: Any) -> str:
    compiled = _compile(template)
    text: str = compiled.environment.write(compiled, messages=MESSAGES, **variables)
    return text


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 10**9 }}",
        "{{ 10**9 * 'x' }}",
        "{{ ([0] * 10**9) | length }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set n = namespace(v=3) %}{% for i in range(99) %}{% set n.v = n.v * n.v %}{% endfor %}",
        "{{ 'x' | center(10**8) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) %}"
        "{% for a in r %}{% for b in r if b < 0 %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
    ],
)
def test_a_template_that_makes_too_much_is_stopped(template: str) -> None:
    with pytest.raises(TooMuchWork):
        written(template)


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
    template = _compile("{% for i in range(100000) %}{% endfor %}x")
    assert {template.environment.write(template) for _ in range(15)} == {"x"}


def test_a_long_conversation_is_no_endless_one() -> None:
    many = [{"role": "user", "content": "word " * 2000}] * 500
    template = (
        "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] | trim }}{% endfor %}"
    )
    compiled = _compile(template)
    assert len(compiled.environment.write(compiled, messages=many)) > 4_000_000


def test_the_checkpoint_is_named(tiny: Path) -> None:
    tokenizer = Tokenizer.load(tiny)
    tokenizer._compiled = _compile("{{ 'x' * 10**9 }}")
    with pytest.raises(RecipeError, match="longer than 16,777,216") as caught:
        tokenizer.render(MESSAGES, True)
    assert "chat_template" in caught.value.where and "chat_template.jinja" in caught.value.fix
