import pytest

from usher_core.decimals import read_decimal


@pytest.mark.parametrize(
    "text, most, least, number",
    [
        ("0", 9, 0, 0),
        ("0", 9, 1, None),
        ("9", 9, 0, 9),
        ("10", 9, 0, None),
        ("65535", 65535, 1, 65535),
        ("007", 999, 0, 7),
    ],
)
def test_a_number_within_bounds_is_read(text: str, most: int, least: int, number: int | None) -> None:
    assert read_decimal(text, most, least) == number


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "+1", "-1", "1_0", "1.0", "0x1", "²", "\u0661", "1\n", "\x001", "9" * 5_000, "0" * 10**6]
)
def test_anything_else_is_none_and_raises_nothing(text: str) -> None:
    assert read_decimal(text, 99_999) is None
