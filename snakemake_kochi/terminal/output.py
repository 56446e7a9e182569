"""What a program prints: the modes of a terminal that it leaves behind, and what is shown again."""

from __future__ import annotations

import re

# Private modes that a program may leave behind: cursor keys, the cursor, mouse, focus, the
# alternate screens, and bracketed paste (xterm's control sequences, "DEC Private Mode Set").
_MODE = re.compile(rb"\x1b\[\?([\d;]+)([hl])")
_WATCHED = frozenset(b"1 25 47 1000 1002 1003 1004 1006 1015 1047 1049 2004".split())
_USUALLY_SET = frozenset((b"25",))
_LONGEST_SEQUENCE = 64
_PLAIN = b"\x1b>\x1b[0m"  # the keypad, and colours


class Modes:
    """Which modes of the terminal a program has changed."""

    def __init__(self) -> None:
        self._changed: set[bytes] = set()
        self._rest = b""

    def note(self, output: bytes) -> None:
        """Look at what the program prints."""
        output = self._rest + output
        if b"\x1b" not in output:
            return
        end = 0
        for found in _MODE.finditer(output):
            end = found.end()
            for mode in _WATCHED & set(found[1].split(b";")):
                if (found[2] == b"h") == (mode in _USUALLY_SET):
                    self._changed.discard(mode)
                else:
                    self._changed.add(mode)
        # A sequence may be cut in two.
        last = output.rfind(b"\x1b", end)
        is_cut = last >= 0 and len(output) - last < _LONGEST_SEQUENCE
        self._rest = output[last:] if is_cut else b""

    def undone(self) -> bytes:
        """What to print so that the terminal is as before; b"" if nothing was left behind."""
        if not self._changed:
            return b""
        parts = [
            b"\x1b[?%s%s" % (mode, b"h" if mode in _USUALLY_SET else b"l")
            for mode in sorted(self._changed)
        ]
        self._changed.clear()
        return b"".join(parts) + _PLAIN


# A terminal answers these as if somebody typed. Shown again, the answer would be for a program that
# did not ask. Attributes, states and positions, modes, the version, keys, the window, parameters;
# colours and the clipboard; settings and capabilities; the answerback (xterm's control sequences).
_QUESTION = re.compile(
    rb"\x1b\[[>=?]?[\d;]*c|\x1b\[\??[\d;]*n|\x1b\[\??[\d;]*\$p|\x1b\[>[\d;]*q|\x1b\[\?u"
    rb"|\x1b\[(?:1[1-9]|2[01])(?:;\d*)*t|\x1b\[[01]?x"
    rb"|\x1b\](?:\w*;)+\?(?:\x07|\x1b\\)|\x1bP[$+]q[^\x1b\x07]*(?:\x07|\x1b\\)|\x1bZ|\x05"
)


class Recent:
    """The last output of a program, at most so many bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self._unseen = 0

    def add(self, output: bytes, is_seen: bool) -> None:
        self._kept += output
        del self._kept[: -self._most]
        self._unseen = 0 if is_seen else min(self._unseen + len(output), len(self._kept))

    @property
    def unseen(self) -> bytes:
        """What nobody has seen."""
        return bytes(self._kept[-self._unseen :]) if self._unseen else b""

    def again(self) -> bytes:
        """What a terminal is shown that comes later; it has seen all then."""
        self._unseen = 0
        shown = bytes(self._kept)
        if len(shown) >= self._most:
            # Not from the middle of a character, or of a sequence for the terminal.
            shown = shown[shown.find(b"\n") + 1 :]
        return _QUESTION.sub(b"", shown)
