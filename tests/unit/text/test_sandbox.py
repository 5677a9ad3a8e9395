"""The sandbox of chat templates: what it counts, what it refuses, and that its errors name their cause."""

import pytest

from anychip.text import sandbox
from anychip.text.sandbox import Sandbox, TemplateBroken, TemplateRefused

USER = {"messages": [{"role": "user", "content": "hi"}]}


def refusal(source, variables=USER):
    with pytest.raises(TemplateRefused) as caught:
        Sandbox(source).render(variables)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ messages[0].content + none }}", "TypeError"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content.nope() }}", "no attribute 'nope'"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ '{0.__class__.__mro__}'.format(messages) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages | join(5) | int + '' }}", "TypeError"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ raise_exception(none) }}", "None"),
    ],
)
def test_what_goes_wrong_within_a_template_is_refused_with_its_words(source, words):
    assert words in refusal(source)


def test_half_a_surrogate_pair_is_refused():
    assert "half a surrogate pair" in refusal("{{ messages[0].content }}", {"messages": [{"content": "\ud800"}]})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "more than 20,000 times"),
        ("{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}", "20,000 times"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        (
            "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
            "calls more than 20,000",
        ),
        ("{{ 'x' * 10**9 }}", "16,000,000 characters"),
        ("{{ '%99999999d' % 5 }}", "16,000,000 characters"),
        ("{{ 2 ** 10000000 }}", "power above 64"),
        ("{% set n=namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "16,000,000"),
        ("{% set n=namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}", "16,000,000"),
        ("{% for i in range(9999) %}{{ 'abc' * 1000 }}{% endfor %}", "writes more than 16,000,000"),
        ("{% for i in range(1000000) %}{% endfor %}", "Range too big"),
    ],
)
def test_no_template_runs_on_and_on(monkeypatch, source, words):
    monkeypatch.setattr(sandbox, "MAX_STEPS", 20_000)
    assert words in refusal(source)


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('x' * 10**6) }}", "{{ ('x' * 10**6).y.z }}", "{{ ('x' * 10**6) + 1 }}"]
)
def test_a_refusal_stays_short_whatever_a_template_says(source):
    assert len(refusal(source)) < 2200


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("ok\n{% for %}", "has a syntax error, line 2"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "can't be compiled: RecursionError"),
        ("{{ 1 / 0 }}{{ nope | nofilter }}", "has a syntax error, line 1: No filter named 'nofilter'"),
    ],
)
def test_a_template_that_can_not_be_compiled_is_broken(source, words):
    with pytest.raises(TemplateBroken) as caught:
        Sandbox(source)
    assert words in str(caught.value)
