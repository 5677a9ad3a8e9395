"""Reports hold what results hold, and nothing else."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from anychip_sdk.conformance.certify.verdict import judged
from anychip_sdk.conformance.report.charts import bars, heat_map
from anychip_sdk.conformance.report.html import report_html
from anychip_sdk.conformance.report.report import finish, rewrite
from anychip_sdk.conformance.report.tables import junit_xml, numerics_csv, op_state, ops_markdown
from anychip_sdk.conformance.results import save
from support.conformance_runs import case, made_up, waiver

FAILING = "AC-OP-001[linear-float32-wide]"
MANY = (
    case(FAILING, "failed", op="linear", dtype="float32", message="off <b>by</b> 3\x00\nmore", replay="run --only 'x'"),
    case("AC-OP-003[add-float32]", "failed", op="add", dtype="float32", force="SHOULD"),
    case("AC-OP-004[mul-float32]", "passed_via_fallback", op="mul", dtype="float32"),
    case("AC-OP-005[gelu-float32]", "not_claimed", op="gelu", dtype="float32", missing=("op:gelu:float32",)),
    case("AC-OP-006[silu-float32]", "failed", op="silu", dtype="float32"),
    case("AC-MEMORY-009", measured={"fds_per_cycle": -0.5, "rss_bytes_per_cycle": 40960.0}),
)


@pytest.fixture
def results():
    return judged(made_up(*MANY, waivers=[waiver("AC-OP-006")]))


class Strict(HTMLParser):
    """Every tag is closed, and nothing is loaded from elsewhere."""

    VOID = ("meta", "link", "line", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.urls: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.urls += [value for name, value in attrs if name in ("src", "href")]
        assert tag != "script"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(results):
    page = Strict()
    page.feed(report_html(results))
    assert page.open == []
    assert page.urls == ["data:,"]


def test_the_page_begins_with_the_verdict_and_escapes_messages(results):
    text = report_html(results)
    body = re.sub(r"<[^>]+>", " ", text.partition("<body>")[2])
    assert body.split()[:5] == ["Conformance", "of", "odd", "NOT", "CONFORMANT"]
    assert "off &lt;b&gt;by&lt;/b&gt; 3" in text
    assert "run --only &#x27;x&#x27;" in text


def test_the_sections_come_in_order(results):
    titles = re.findall(r"<h2>([^<]+)</h2>", report_html(results))
    order = ["Identity", "Profile and claims", "Failures", "Waivers", "Not claimed"]
    assert titles[:5] == order
    assert titles[-1] == "Environment"


def test_an_emulated_device_is_said_at_the_top(results):
    from dataclasses import replace

    emulated = replace(results, identity=replace(results.identity, emulated=True))
    assert "EMULATED" in report_html(emulated).partition("<h2>")[0]


def test_junit_counts_musts_only(results):
    root = ElementTree.fromstring(junit_xml(results))
    suite = root.find("testsuite[@name='op']")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("6", "1", "2")
    assert suite.find(f"testcase[@name='{FAILING}']/failure").get("message") == "off <b>by</b> 3?"


def test_ops_are_full_partial_fallback_or_none(results):
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", ops_markdown(results), re.MULTILINE))
    states = {name: rows[name] for name in ("linear", "mul", "gelu", "rope")}
    assert states == {"linear": "1 failed", "mul": "fallback", "gelu": "none", "rope": "full"}
    both = [case("AC-OP-004", "passed_via_fallback"), case("AC-OP-001")]
    assert op_state(both) == "partial"


def test_numerics_hold_the_worst_error_by_shape_class():
    results = made_up(
        *(
            case(f"AC-OP-001[add-{i}]", op="add", dtype="float32", shape_class="tails", measured={"headroom": value})
            for i, value in enumerate((0.2, 0.7, 0.1))
        )
    )
    assert "add,float32,tails,AC-OP-001,0.7\n" in numerics_csv(results)


def test_bars_go_left_of_zero_for_negative_values():
    zero, x = (
        float(re.search(pattern, bars([("a", -1.0), ("b", 1.0)], "s")).group(1))
        for pattern in (r'class="zero" x1="([\d.]+)"', r'<rect class="bar" x="([\d.]+)"')
    )
    assert x < zero


def test_cells_without_a_value_are_empty():
    assert heat_map(["add"], ["float32", "bfloat16"], {("add", "float32"): 0.5}).count('class="empty"') == 1


def test_reports_can_be_written_again(results, tmp_path):
    save(results, tmp_path)
    finish(tmp_path, results)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for path in rewrite(tmp_path):
        assert path.read_bytes() == before[path.name]
