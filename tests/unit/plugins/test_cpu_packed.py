"""oneDNN's packed products: few numbers of rows, so few kernels, and no row that depends on how many there are."""

import pytest
import torch

from anychip_cpu.kernels import packed

pytestmark = pytest.mark.skipif(torch.float32 not in packed.usable_dtypes(), reason="this torch has no packed products")


def test_prompts_of_all_lengths_are_multiplied_with_few_numbers_of_rows():
    given = [packed.rounded(rows) for rows in range(1, 4097)]
    assert len({one for one in given if one > packed.EXACT_ROWS}) == 6 * packed.ROUNDED_ROWS
    assert all(rows <= one <= max(rows, 1.125 * rows + 1) for rows, one in enumerate(given, 1))


@pytest.mark.parametrize("rows", [1, 2, 16, packed.EXACT_ROWS, 128, 4096])
def test_decodes_and_whole_chunks_get_no_company(rows):
    assert packed.rounded(rows) == rows


@pytest.mark.parametrize("rows", [65, 100, 129, 250])
def test_rows_that_fill_up_change_no_other_row(rows):
    generator = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(count, 40, generator=generator) for count in (packed.rounded(rows), 48))
    matrix, bias = packed.pack(weight), torch.randn(48, generator=generator)
    assert torch.equal(packed.multiply(x[:rows], matrix, bias), packed.multiply(x, matrix, bias)[:rows])
    stacked = packed.multiply(x[:rows].unsqueeze(0), matrix, bias)
    assert torch.equal(stacked[0], packed.multiply(x, matrix, bias)[:rows])
