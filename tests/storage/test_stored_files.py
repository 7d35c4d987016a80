"""A file of a run is read as it was written, or named as damaged."""

from typing import ClassVar, Literal

import pytest

from palestra.storage.stored_files import CheckpointError, DamagedError, SealedEntry


class Letter(SealedEntry):
    file: ClassVar = "letter.json"

    format: Literal[2]
    text: str


WRITTEN = Letter(format=2, text="a").to_bytes()


def test_a_sealed_file_is_read_as_it_was_written() -> None:
    assert Letter.from_bytes(WRITTEN) == Letter(format=2, text="a")


@pytest.mark.parametrize("content", [WRITTEN.replace(b'"a"', b'"b"'), WRITTEN[:-9], b"[]", b"[" * 9999])
def test_a_changed_sealed_file_is_damaged(content: bytes) -> None:
    with pytest.raises(DamagedError, match=r"letter\.json"):
        Letter.from_bytes(content)


def test_a_sealed_file_of_a_later_format_is_refused_whatever_its_digest_is() -> None:
    with pytest.raises(CheckpointError, match=r"^here: expected format 2, got 3 of a later palestra; use the version"):
        Letter.from_bytes(WRITTEN.replace(b"2", b"3", 1), "here")
