"""Native draws and penalties against the references, on each instruction set. Knows the test kit; knows no engine."""

from types import SimpleNamespace

import pytest
import torch

from anychip_cpu import native
from anychip_cpu.kernels import drawing, penalties
from anychip_cpu.kernels.drawing import Drawing
from anychip_sdk import CATALOGUE
from anychip_sdk.ops import sample
from anychip_sdk.testing import check_kernel, random_case

LIBRARY = native.load()
BUILT = pytest.mark.skipif(isinstance(LIBRARY, native.Absent), reason=f"native kernels: {LIBRARY}")
DRAWING = Drawing(None if isinstance(LIBRARY, native.Absent) else LIBRARY)
SETS = ["portable", "avx2", "avx512"]
INFINITY = float("inf")


class Alone:
    """The library without the reference's help: what it can't decide stays negative."""

    def __init__(self, monkeypatch):
        nobody = SimpleNamespace(reference=lambda logits, *_: torch.full((len(logits),), -1))
        monkeypatch.setattr(drawing, "sample_op", nobody)

    def __call__(self, *args):
        return DRAWING.sample(*args)


def settings(rows, generator):
    def some(values, off):
        return torch.where(torch.rand(rows, generator=generator) < 0.5, off, values)

    return (
        torch.rand(rows, generator=generator) * 1.5 + 0.05,
        some(torch.randint(1, 300, (rows,), generator=generator), 0),
        some(torch.rand(rows, generator=generator) * 0.99 + 0.01, 1.0),
        some(torch.rand(rows, generator=generator) * 0.3, 0.0),
        torch.rand(rows, generator=generator, dtype=torch.float64),
    )


def one_row(logits, uniform, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    rows = len(uniform)
    return (
        logits.expand(rows, -1).contiguous(),
        torch.full((rows,), temperature),
        torch.full((rows,), top_k),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        torch.tensor(uniform, dtype=torch.float64),
    )


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("vocab", [1, 2, 63, 65, 1000, 5003, 20011])
def test_the_library_draws_the_references_token(instruction_set, vocab, spread):
    generator = torch.Generator().manual_seed(vocab)
    rows = 60 if vocab < 5000 else 12
    logits = torch.randn(rows, vocab, generator=generator) * spread
    logits[1::3, 1::5] = -INFINITY
    logits[2::4] = logits[2::4].bfloat16().float()  # with many equals
    args = (logits, *settings(rows, generator))
    assert DRAWING.sample(*args).tolist() == sample(*args).tolist()


@BUILT
@pytest.mark.parametrize("filters", [{}, {"top_k": 50}, {"top_p": 0.95}, {"min_p": 0.05}, {"top_k": 900, "top_p": 0.9}])
def test_the_reference_is_asked_for_hardly_any_draw(monkeypatch, filters):
    logits = torch.randn(30000, generator=torch.Generator().manual_seed(0)) * 2
    args = one_row(logits, [(place + 0.5) / 64 for place in range(64)], **filters)
    expected = sample(*args)
    drawn = Alone(monkeypatch)(*args)
    assert torch.equal(drawn[drawn >= 0], expected[drawn >= 0])
    assert int((drawn < 0).sum()) <= 1


@BUILT
def test_equal_logits_are_drawn_from_the_lowest_id_on(monkeypatch):
    args = one_row(torch.zeros(8192), [0.0, 0.25 + 2**-20, 0.5 + 2**-20, 0.75 + 2**-20], top_k=4096)
    assert Alone(monkeypatch)(*args).tolist() == [0, 1024, 2048, 3072]


@BUILT
def test_what_rounding_would_decide_is_the_references(monkeypatch):
    between = one_row(torch.zeros(1000), [0.5])
    assert Alone(monkeypatch)(*between).tolist() == [-1]
    end_of_top_p = one_row(torch.zeros(1000), [0.1], top_p=0.5)
    assert Alone(monkeypatch)(*end_of_top_p).tolist() == [-1]


@BUILT
@pytest.mark.parametrize("strange", [float("nan"), INFINITY])
def test_logits_without_a_finite_largest_are_the_references(monkeypatch, strange):
    logits = torch.zeros(3, 500)
    logits[0, 77] = strange
    logits[1] = -INFINITY
    args = (logits, *one_row(torch.zeros(1), [0.3001] * 3)[1:])
    assert (Alone(monkeypatch)(*args) < 0).tolist() == [True, True, False]


@BUILT
def test_banned_tokens_are_never_drawn():
    logits = torch.full((700,), -INFINITY)
    logits[[3, 650]] = torch.tensor([1.0, 0.0])
    drawn = DRAWING.sample(*one_row(logits, [place / 200 for place in range(200)], temperature=50.0))
    assert set(drawn.tolist()) == {3, 650}


@BUILT
def test_a_draw_does_not_depend_on_its_mates_or_the_threads():
    generator = torch.Generator().manual_seed(0)
    args = (torch.randn(16, 9000, generator=generator) * 2, *settings(16, generator))
    together = DRAWING.sample(*args)
    torch.set_num_threads(2)
    try:
        shared = DRAWING.sample(*args)
    finally:
        torch.set_num_threads(1)
    alone = [int(DRAWING.sample(*(one[row : row + 1] for one in args))) for row in range(16)]
    assert together.tolist() == shared.tolist() == alone


@BUILT
@pytest.mark.parametrize("seed", range(4))
def test_penalties_are_within_the_error_model(seed):
    args = random_case("apply_penalties", torch.float32, seed, rows=5, vocab=40)
    found = check_kernel(CATALOGUE["apply_penalties"], DRAWING.apply_penalties, args, torch.float32)
    assert found.passed, found


@BUILT
def test_penalties_leave_no_mark_on_the_next_row():
    ids = torch.tensor([[3, 3, 5, -1], [-1, -1, -1, -1]])
    ones = torch.ones(2)
    logits = torch.full((2, 8), 2.0)
    DRAWING.apply_penalties(logits, torch.tensor([0, 1]), ids.flip(1), ids, 2 * ones, 0.25 * ones, 0.5 * ones)
    assert logits.tolist() == [[2.0, 2.0, 2.0, -0.25, 2.0, 0.25, 2.0, 2.0], [2.0] * 8]
    again = torch.full((2, 8), 2.0)
    DRAWING.apply_penalties(again, torch.tensor([1, 0]), ids.flip(1), ids, 2 * ones, 0.25 * ones, 0.5 * ones)
    assert again.tolist() == logits.flip(0).tolist()


@BUILT
def test_an_id_outside_the_vocabulary_is_refused_before_anything_is_written():
    logits, ids, ones = torch.ones(1, 8), torch.tensor([[2, 8]]), torch.ones(1)
    with pytest.raises(IndexError, match="not below 8"):
        DRAWING.apply_penalties(logits, torch.tensor([0]), ids, ids, 2 * ones, ones, ones)
    assert logits.tolist() == [[1.0] * 8]


def test_without_a_library_torch_draws_and_penalises():
    fallback = Drawing(None)
    generator = torch.Generator().manual_seed(1)
    args = (torch.randn(6, 3000, generator=generator), *settings(6, generator))
    assert torch.equal(fallback.sample(*args), sample(*args))
    case = random_case("apply_penalties", torch.float32, 0, rows=5, vocab=40)
    expected = penalties.apply_penalties(case[0].clone(), *case[1:])
    assert torch.equal(fallback.apply_penalties(case[0].clone(), *case[1:]), expected)
