"""Which numbers of a tensor a source takes."""

from anychip.models.source import Source, same_name


def test_a_source_of_the_same_name_is_the_whole_tensor():
    [source] = same_name("a.weight", (3, 4))
    assert source == Source("a.weight", (3, 4))
    assert source.is_whole
    assert source.size == (3, 4)
    assert source.elements == 12


def test_all_dimensions_but_the_last_count_rows():
    assert Source("stack", (5, 3, 4)).matrix == (15, 4)
    assert Source("stack", (5, 3, 4), transposed=True).matrix == (20, 3)
    assert Source("convolution", (6, 1, 4)).matrix == (6, 4)


def test_a_vector_has_rows_of_one_number():
    assert Source("bias", (7,), range(2, 5)).size == (3, 1)
    assert Source("scalar", ()).size == (1, 1)


def test_padding_is_counted():
    source = Source("a", (8, 6), range(0, 8, 2), range(2, 5), padding=(3, 1))
    assert not source.is_whole
    assert source.size == (4 + 3, 3 + 1)
    assert source.elements == 28
