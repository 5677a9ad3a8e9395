"""Rendering in processes that can be ended: limits hold whatever the template does, and the next rendering works."""

import asyncio
import gc
import os
import signal
import threading
import time

import psutil
import pytest

from anychip.text import template_process
from anychip.text.renderer import TemplateRenderer
from anychip.text.sandbox import TemplateBroken, TemplateRefused

USER = {"messages": [{"role": "user", "content": "hi"}]}
#: Runs what the variable `mode` names; everything else just works.
SOURCE = """\
{%- macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}x{% endmacro -%}
{%- set long = 'x' * 16000000 -%}
{%- if mode == 'macro' %}{{ f(40) }}
{%- elif mode == 'multiply' %}
{%- set n = namespace(x=2**64) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}
{%- elif mode == 'ljust' %}{{ 'x'.ljust(4000000000) | length }}
{%- elif mode == 'center' %}{{ 'x' | center(4000000000) | length }}
{%- elif mode == 'percent' %}{{ '%4000000000d' % 5 }}
{%- elif mode == 'format filter' %}{{ '%4000000000d' | format(5) | length }}
{%- elif mode == 'format' %}{{ '{:>4000000000}'.format('x') | length }}
{%- elif mode == 'zfill' %}{{ '1'.zfill(4000000000) | length }}
{%- elif mode == 'join' %}{{ range(9000) | join(long) | length }}
{%- elif mode == 'replace' %}{{ long | replace('x', long) | length }}
{%- elif mode == 'indent' %}{{ ('\n' * 1000000) | indent(1000000) | length }}
{%- elif mode == 'tabs' %}{{ ('\t' * 10000000).expandtabs(100000) | length }}
{%- elif mode == 'json' %}{{ messages | tojson(indent=2000000000) | length }}
{%- elif mode == 'batch' %}{{ range(99999) | batch(4000000000, 'x') | list | length }}
{%- else %}{{ messages[0].content }}
{%- endif -%}
"""


@pytest.fixture(scope="module")
def renderer():
    made = TemplateRenderer(SOURCE)
    yield made
    made.close()


def processes():
    children = psutil.Process().children()
    running = [one for one in children if one.status() != psutil.STATUS_ZOMBIE]  # other tests' may not be waited for
    return [one for one in running if "anychip.text.template_process" in one.cmdline()]


@pytest.mark.parametrize(
    "mode",
    ["ljust", "center", "percent", "format filter", "format", "zfill", "join", "replace", "tabs", "json",
     "batch"],
)  # fmt: skip
def test_no_call_makes_a_text_beyond_the_memory_of_its_process(renderer, mode):
    with pytest.raises(TemplateRefused, match=r"needs too much memory|want of memory"):
        renderer.render({**USER, "mode": mode})
    assert renderer.render(USER) == "hi"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["macro", "multiply"])
def test_a_rendering_that_takes_long_is_ended_in_time_and_the_next_one_works(renderer, mode):
    start_s = time.monotonic()
    with pytest.raises(TemplateRefused, match=r"takes more than 10 seconds|more than 1,000,000 times|memory"):
        renderer.render({**USER, "mode": mode})
    assert time.monotonic() - start_s < template_process.MAX_SECONDS + 2
    assert renderer.render(USER) == "hi"


def test_a_process_that_is_killed_is_replaced(renderer):
    renderer.render(USER)
    for process in processes():
        process.kill()
    with pytest.raises(TemplateRefused, match="its process"):
        renderer.render(USER)
    assert renderer.render(USER) == "hi"


def test_a_process_that_stands_still_is_given_up():
    made = TemplateRenderer("{{ messages[0].content }}")
    (process,) = made._helpers._idle
    process._socket.settimeout(0.1)
    os.kill(process._process.pid, signal.SIGSTOP)
    with pytest.raises(TemplateRefused, match="its process doesn't answer"):
        made.render(USER)
    assert made.render(USER) == "hi"
    made.close()


def test_constants_that_are_computed_while_compiling_are_bounded_too():
    with pytest.raises((TemplateBroken, TemplateRefused), match="memory"):
        TemplateRenderer("{{ 'x' | center(4000000000) | length }}").render(USER)


def test_the_event_loop_goes_on_while_a_template_renders(renderer):
    busy = {**USER, "mode": "join"}

    async def main():
        renderings = [asyncio.ensure_future(renderer.soon(lambda: renderer.render(USER))) for _ in range(20)]
        renderings.append(asyncio.ensure_future(renderer.soon(lambda: renderer.render(busy))))
        longest_s, last_s = 0.0, time.monotonic()
        while not all(one.done() for one in renderings):
            await asyncio.sleep(0)
            now_s = time.monotonic()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
        return await asyncio.gather(*renderings, return_exceptions=True), longest_s

    (*texts, refused), longest_s = asyncio.run(main())
    assert texts == ["hi"] * 20
    assert isinstance(refused, TemplateRefused)
    assert longest_s < 1.0


def test_several_threads_render_at_once(renderer):
    found = []
    threads = [threading.Thread(target=lambda: found.append(renderer.render(USER))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["hi"] * 8


@pytest.mark.parametrize("variables", [{"x": [print]}, {"x": object()}])
def test_what_is_no_plain_data_is_refused(renderer, variables):
    with pytest.raises(TemplateRefused, match="no plain data"):
        renderer.render({**USER, **variables})


def test_values_that_nest_too_deeply_are_refused(renderer):
    deep = []
    for _ in range(10**5):
        deep = [deep]
    with pytest.raises(TemplateRefused, match=r"no plain data|RecursionError"):
        renderer.render({**USER, "x": deep})


def test_processes_end_with_the_renderer():
    before = len(processes())
    made = TemplateRenderer("{{ 1 }}")
    assert len(processes()) == before + 1
    del made
    gc.collect()
    assert len(processes()) == before
    closed = TemplateRenderer("{{ 1 }}")
    closed.close()
    closed.close()
    assert len(processes()) == before


def test_a_long_prompt_comes_back_whole(renderer):
    text = "héllo 你好 \U0001f600" * 500_000
    assert renderer.render({"messages": [{"content": text}]}) == text
