"""xpu-smi's outputs in their variants."""

import pytest

from anychip_kunlun.smi import kernel_version, machine_cards, query_cards, versions

LINE = (
    "0000:3b:00.0 3 0 SN03 41 0 38 0 87 1000 1000 1000 1000 1000 1000 2 96 1024 98304 7 0001.0015 'P800 OAM' 0 "
    "0 0 0 0 0 0 0 0 0"
)
QUERY = """
XPU 0000:3B:00.0
    Product Name                          : P800 OAM
    Product Architecture                  : KL3
    Minor Number                          : 3
    L3 Usage
        Total                             : 96 MiB
        Used                              : 2 MiB
    Memory Usage
        Total                             : 98304 MiB
        Reserved                          : 0 MiB
        Used                              : 1024 MiB
        Free                              : 97280 MiB
    Utilization
        Xpu                               : 7 %
"""


def test_a_machine_readable_line_is_split_as_a_shell_does():
    [card] = machine_cards(LINE + "\n")
    assert (card.number, card.product, card.firmware) == (3, "P800 OAM", "0001.0015")
    assert (card.memory_mib_used, card.memory_mib_total) == (1024, 98304)


def test_fewer_fields_than_the_product_needs_are_an_error_with_the_line():
    with pytest.raises(ValueError, match="3 fields, at least 22 were expected: 'a b c'"):
        machine_cards("a b c")


def test_the_query_tells_memory_from_l3():
    [card] = query_cards(QUERY)
    assert (card.number, card.product, card.memory_mib_used, card.memory_mib_total) == (3, "P800 OAM", 1024, 98304)


def test_each_card_of_a_query_is_found():
    assert [card.number for card in query_cards(QUERY + QUERY.replace(": 3", ": 4"))] == [3, 4]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("XPU-SMI  Driver Version: 5.0.21.26   XPU-RT Version: 5.0.21", ("5.0.21.26", "5.0.21")),
        ("Driver Version: 5.19.0.0 XPU-RT Version: 5.19.0", ("5.19.0.0", "5.19.0")),
        ("Driver Version: 5.0.21.26 XPU-RT Version: N/A", ("5.0.21.26", None)),
        ("Driver Version: 5.0.21.26 XPU-RT Version: 10.2", ("5.0.21.26", None)),
        ("Driver Version: 515.58 XPU-RT Version: N/A", (None, None)),
        ("", (None, None)),
    ],
)
def test_numbers_that_are_the_shims_are_no_versions(header, expected):
    assert versions(header) == expected


def test_the_kernels_file_holds_the_driver():
    assert kernel_version("XPU driver version: 5.0.21.26\n") == "5.0.21.26"
    assert kernel_version("") is None
