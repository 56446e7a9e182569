"""What is left of a program on a person's terminal, and the frames between client and host."""

from __future__ import annotations

import pytest

from snakemake_kochi.terminal.output import Modes
from snakemake_kochi.terminal.protocol import (
    FrameReader,
    Kind,
    ProtocolError,
    Size,
    frame,
)


def undone(*output: bytes) -> bytes:
    modes = Modes()
    for part in output:
        modes.note(part)
    return modes.undone()


def test_modes_that_a_program_has_left_behind_are_undone_and_no_others() -> None:
    assert undone(b"plain text", b"\x1b[31mred\x1b[0m") == b""
    assert undone(b"\x1b[?1049h\x1b[?25l") == b"\x1b[?1049l\x1b[?25h\x1b>\x1b[0m"
    assert undone(b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l\x1b[?25h") == b""
    # Several at once, and one that is cut in two.
    assert undone(b"\x1b[?1000;1006h\x1b[?2004", b"h").startswith(
        b"\x1b[?1000l\x1b[?1006l\x1b[?2004l"
    )


def test_frames_come_out_as_they_went_in_however_they_are_cut() -> None:
    sent = [(Kind.DATA, b"a\nb\0"), (Kind.SIZE, Size(1, 2, 3, 4).pack()), (Kind.DETACH, b"")]
    stream = b"".join(frame(kind, payload) for kind, payload in sent)
    for length in (1, 3, 7, len(stream)):
        reader, found = FrameReader(), []
        for start in range(0, len(stream), length):
            found += reader.feed(stream[start : start + length])
        assert found == sent
    assert Size.unpack(found[1][1]) == Size(1, 2, 3, 4)


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(ProtocolError):
        FrameReader().feed(b"SSH-2.0-OpenSSH_9.2\r\n")
    with pytest.raises(ProtocolError):
        Size.unpack(b"12345")
    for wrong in (None, [1, 2], [1, 2, 3, "4"], [1, 2, 3, 1 << 16]):
        with pytest.raises(ProtocolError):
            Size.from_list(wrong)
