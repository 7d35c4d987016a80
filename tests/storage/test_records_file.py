"""Lines of a records file, however its bytes come."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from palestra.storage import records_file
from palestra.storage.records_file import Line, lines_of

SHORT = 8


class Pieces:
    """A file whose bytes come in pieces."""

    def __init__(self, content: bytes, cuts: list[int]) -> None:
        places = sorted({0, *(cut % (len(content) + 1) for cut in cuts), len(content)})
        self.parts = [content[start:stop] for start, stop in pairwise(places)]

    def pieces(self, length: int, start: int = 0) -> Iterator[bytes]:
        yield from self.parts


@given(
    lines=st.lists(st.text("ab", max_size=20).map(str.encode), max_size=6),
    rest=st.text("ab", max_size=20).map(str.encode),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
@example(lines=[b"a" * 20, b"b", b""], rest=b"", cuts=[5, 10, 15])
def test_a_line_is_whole_whatever_the_pieces_and_left_out_only_if_it_is_long(
    lines: list[bytes], rest: bytes, cuts: list[int]
) -> None:
    content = b"".join(line + b"\n" for line in lines) + rest
    before, records_file.MAX_LINE = records_file.MAX_LINE, SHORT
    try:
        file: Any = Pieces(content, cuts)
        found = list(lines_of(file, len(content)))
    finally:
        records_file.MAX_LINE = before
    expected, stop = [], 0
    for line in lines:
        stop += len(line) + 1
        expected.append(Line(line, stop, True))
    if rest:
        expected.append(Line(rest, stop + len(rest), False))
    assert [line._replace(content=None) for line in found] == [line._replace(content=None) for line in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.content == other.content or (one.content is None and len(other.content or b"") > SHORT)
