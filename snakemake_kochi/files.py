"""How a file of ours gets onto disk and is read back: written once, renamed into place, private.

Every file has one writer, or is written once. A reader never sees half a file: data goes to a
temporary name in the same directory and is renamed (or linked, where a second writer must lose).

Network filesystems answer some calls with errors that say nothing about the file: ESTALE for a
name that another node is just replacing, ENOENT for a rename whose first answer got lost. The
functions here ask again where that helps. What they still raise means: not known now.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from snakemake_kochi.errors import DamagedFileError, KochiError

Answer = TypeVar("Answer")

PRIVATE_DIRECTORY = 0o700
_PRIVATE = 0o600
# Of a file that is not ours but a person's: what the umask leaves of this.
OF_A_PERSON = 0o666
# Seconds. GlusterFS answers ESTALE for some tenths of a second after another node has replaced a
# file, and for longer while it heals.
_STALE_PATIENCE = 2.0
_STALE_PAUSE = 0.005
_LONGEST_STALE_PAUSE = 0.2
# What is answered where there is no room, for anybody or for this user.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
# What network filesystems answer while a server is away, or another takes its place.
TRANSIENT = frozenset(
    {
        errno.ESTALE,
        errno.EIO,
        errno.EREMOTEIO,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ESHUTDOWN,
    }
)
# Bytes; a file of less may need no block of its own, and be written although the disk is full.
_PAGE = 4096
# What is answered where files cannot be linked, within a directory or between two of them.
LINK_REFUSED = frozenset({errno.EPERM, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK})
# What is nested deeper than this in a file of ours was not written by us.
_DEEPEST = 100


def answered(call: Callable[[], Answer]) -> Answer:
    """Make a call that may be repeated, again while the answer is ESTALE, for two seconds at most.

    Raises what the call raises; OSError other than FileNotFoundError means: not known now.
    """
    try:
        return call()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    # Here: on most filesystems it is never needed, and every short job would pay for the import.
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

    again = Retrying(
        retry=retry_if_exception(_is_stale),
        stop=stop_after_delay(_STALE_PATIENCE),
        wait=wait_random_exponential(_STALE_PAUSE, _LONGEST_STALE_PAUSE),
        reraise=True,
    )
    return again(call)


def _is_stale(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ESTALE


def is_there(path: Path | str) -> bool:
    """Whether there is such a file or directory. Raises OSError when that is not known now.

    Path.exists raises or says False then, as the version of Python has it, and os.path.exists
    always says False: a job whose result was not seen for a moment would be run again.
    """
    try:
        answered(partial(os.stat, path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def list_names(directory: Path | str) -> list[str]:
    """The names in a directory, in no order; none where there is no such directory. Raises OSError
    when they are not known now."""
    try:
        return answered(partial(os.listdir, directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def show_new_files(directory: Path | str) -> None:
    """Have the files in a directory seen that other nodes have made just now.

    A client of NFS takes a name that it once did not find for missing for up to a minute. When a
    directory is opened it asks the server whether that has changed (close-to-open consistency, see
    nfs(5)), and looks for such names anew; so what is listed is seen. A directory that is new
    itself is seen by listing the one above. What cannot be listed stays as it is.
    """
    path = os.fspath(directory) or os.curdir
    with contextlib.suppress(OSError):
        try:
            answered(partial(os.listdir, path))
        except FileNotFoundError:
            above = os.path.dirname(path)
            if above != path and path != os.curdir:
                show_new_files(above)
                os.listdir(path)


def move(source: Path | str, target: Path | str) -> None:
    """Rename a file or directory, to a target to which nobody else moves anything.

    A network filesystem may do it and lose the answer: NFS then says to the repeated request that
    there is no such file, others EIO. What is not at the source any more, and is at the target, has
    been moved. Raises OSError when it has not, or that is not known now.
    """
    try:
        answered(partial(os.rename, source, target))
    except OSError:
        if not _was_moved(source, target):
            raise


def _was_moved(source: Path | str, target: Path | str) -> bool:
    with contextlib.suppress(OSError):
        return not is_there(source) and is_there(target)
    return False


def sync(descriptor: int) -> None:
    """Have the content of an open file, or the names in an open directory, outlast a power failure.

    Where the filesystem knows no such thing (EINVAL) there is nothing that could be waited for.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise


def sync_directory(directory: Path) -> None:
    """Without it a power failure may take a name though its content is safe."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> Path:
    """Create a directory and its missing parents with mode 0700; return it.

    `Path.mkdir(parents=True)` would give the parents the default mode, which lets other users of a
    cluster read what jobs do.
    """
    missing = []
    parent = path
    while not parent.is_dir():
        missing.append(parent)
        parent = parent.parent
    for directory in reversed(missing):
        try:
            directory.mkdir(mode=PRIVATE_DIRECTORY)
        except FileExistsError:
            if not directory.is_dir():
                raise
        else:
            _take_inherited_modes(directory)
    return path


def _take_inherited_modes(directory: Path) -> None:
    """Where access control lists are inherited (GPFS, Isilon, ZFS), mkdir(2) does not make what it
    is told to. Where that cannot be changed, `ownership.check_ours` finds out."""
    with contextlib.suppress(OSError):
        mode = answered(partial(os.lstat, directory)).st_mode
        if stat.S_ISDIR(mode) and mode & 0o077:
            os.chmod(directory, stat.S_IMODE(mode) & ~0o077)


def lacks_room(error: BaseException | None) -> bool:
    """Whether an error is one of a full disk, or of a quota that is used up, or comes of one."""
    return _comes_of(NO_ROOM, error)


def may_pass(error: BaseException | None) -> bool:
    """Whether an error is one of a filesystem that is full, in trouble or away, or comes of one."""
    return _comes_of(NO_ROOM | TRANSIENT, error)


def _comes_of(numbers: Collection[int], error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in numbers:
            return True
        error = error.__cause__
    return False


def has_room(directory: Path) -> bool:
    """Whether a small file can be written in a directory. Raises OSError when not known now.

    Tried, and not asked: what a user's quota leaves, no call tells on all filesystems.
    """
    try:
        _write_temporary(directory / "room", bytes(_PAGE), durable=False).unlink(missing_ok=True)
    except OSError as error:
        if not lacks_room(error):
            raise
        return False
    return True


def write_new(
    path: Path | str, content: bytes, durable: bool = False, mode: int = _PRIVATE
) -> None:
    """Write a file where none is and nobody looks yet, all of it or none. Its mode is `mode`, less
    what the umask takes away.

    Raises FileExistsError when there is one.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                sync(stream.fileno())
    except BaseException as error:
        # A full disk shows here: nothing half-written may stay behind.
        os.unlink(path)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(path)  # a write does not tell where
        raise


def _write_temporary(path: Path, content: bytes, durable: bool, mode: int = _PRIVATE) -> Path:
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.tmp")
    write_new(temporary, content, durable, mode)
    return temporary


def write_atomically(path: Path, content: bytes, durable: bool = False) -> None:
    """Replace a file as a whole; readers see the old content or the new, never a mixture.

    With `durable` the content is on the disk before the name is.
    """
    _put(_write_temporary(path, content, durable), path)


def edit_atomically(path: Path, content: bytes) -> None:
    """Replace a file that a person has or is to have, as a whole; where that fails, nothing has
    changed. It keeps its mode, and a symbolic link what it leads to."""
    target = path.resolve()
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
        temporary = _write_temporary(target, content, durable=True, mode=mode)
        with contextlib.suppress(PermissionError):  # where files have modes of the mount's
            temporary.chmod(mode)
    except FileNotFoundError:
        temporary = _write_temporary(target, content, durable=True, mode=OF_A_PERSON)
    _put(temporary, target)


def _put(temporary: Path, path: Path) -> None:
    try:
        answered(partial(os.replace, temporary, path))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_exclusively(path: Path, content: bytes, durable: bool = False) -> bool:
    """Create a file that must not exist yet; return False, and change nothing, if it does.

    link(2) fails for the second of two writers on every filesystem, NFS included, and unlike
    O_EXCL never shows a reader an empty file. Raises KochiError where there are no hard links: for
    them there is no substitute.
    """
    temporary = _write_temporary(path, content, durable)
    try:
        answered(partial(os.link, temporary, path))
    except FileExistsError:
        # NFS says so also when the link was made and the answer got lost: then it is ours.
        with contextlib.suppress(FileNotFoundError):
            return os.path.samefile(temporary, path)
        return False
    except OSError as error:
        if error.errno in LINK_REFUSED:
            raise _no_links(path.parent, error) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _no_links(directory: Path, error: OSError) -> KochiError:
    return KochiError(
        f"the filesystem of {directory} has no hard links (link: {error.strerror}), by which two "
        "processes tell who was first",
        "Choose a KOCHI_ROOT on another one, which all nodes share. To examine it: kochi doctor",
    )


def write_last(path: Path, content: bytes, tree: Path) -> None:
    """Write a file that says that `tree`, around it, is complete; on the disk after all of that.

    One syncfs(2): to fsync each of three thousand small files took 25 times as long. What others
    have just written to the same filesystem is waited for, too. Raises OSError.
    """
    import subprocess

    done = subprocess.run(["sync", "-f", tree], capture_output=True, check=False)
    if done.returncode != 0:
        said = os.fsdecode(done.stderr).strip() or f"status {done.returncode}"
        raise OSError(errno.EIO, f"not on the disk, sync says: {said}", os.fspath(tree))
    write_atomically(path, content, durable=True)
    sync_directory(path.parent)


# Without `indent`: with it the encoder is the one written in Python, ten times slower.
_encode = json.JSONEncoder(ensure_ascii=False).encode


def link_atomically(path: Path, target: Path) -> None:
    """Put a symbolic link to `target`, relative, in the place of what is at `path`."""
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.tmp")
    temporary.symlink_to(os.path.relpath(target, path.parent))
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def to_json(data: Mapping[str, Any]) -> bytes:
    """JSON for people: an object with a line for each key, sorted nowhere (the order of keys is
    the order of reading)."""
    lines = [f" {_encode(key)}: {_encode(value)}" for key, value in data.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    return text.encode("utf-8", "surrogateescape")


def read_json(path: Path, version: int | None = None, is_ours: bool = False) -> dict[str, Any]:
    """Read a JSON object written by us; where `is_ours`, by this user, which is asked of the file.

    Raises FileNotFoundError when it is not there, DamagedFileError when it is not a JSON object,
    its "version" is newer than `version`, or somebody else has put it there.
    """
    content = _content_of_ours(path) if is_ours else answered(path.read_bytes)
    try:
        data = _decode(content.decode("utf-8", "surrogateescape"))
        # Tens of thousands in a file of ours are in texts, and nothing of ours is ten deep.
        if content.count(b"[") + content.count(b"{") > _DEEPEST and _is_deep(data):
            raise RecursionError
        if b"\\ud" in content.lower():
            _encode(data).encode("utf-8", "surrogateescape")  # half a character: no name of a file
    except ValueError as error:
        raise DamagedFileError(f"{path}: not valid JSON ({error})") from error
    except RecursionError:
        raise DamagedFileError(f"{path}: not valid JSON (nested too deeply)") from None
    if not isinstance(data, dict):
        raise DamagedFileError(f"{path}: a JSON object was expected, not {type(data).__name__}")
    if version is not None:
        found = data.get("version")
        if not isinstance(found, int):
            raise DamagedFileError(f"{path}: key 'version' is missing or not a number")
        if found > version:
            raise DamagedFileError(
                f"{path}: written by a newer snakemake_kochi (format {found}, this one reads "
                f"up to {version})",
                "Update with: pip install --upgrade snakemake-executor-plugin-kochi",
            )
    return data


def _content_of_ours(path: Path) -> bytes:
    # Not as a link, which may lead to something else that belongs to us; and not waiting for
    # somebody to write to it.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

    def read() -> bytes:
        try:
            descriptor = os.open(path, flags)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise DamagedFileError(f"{path}: a file was expected, not a link") from error
            raise
        with open(descriptor, "rb") as stream:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise DamagedFileError(f"{path}: a file was expected")
            if found.st_uid != os.geteuid():
                raise DamagedFileError(
                    f"{path}: it belongs to user {found.st_uid}, and not to you: it is not executed"
                )
            return stream.read()

    return answered(read)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


# With these no number of a file is one that cannot be counted with.
_decode = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number).decode


def _is_deep(data: Any) -> bool:
    level = [data]
    for _ in range(_DEEPEST):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for part in inner for each in part if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def expand_path(text: str, what: str, environment: Mapping[str, str] = os.environ) -> Path:
    """An absolute path as written by a person, with `~`, `$NAME` and `${NAME}` replaced.

    `what` names the setting in the message of the KochiError that is raised for a variable that is
    not set, a user that does not exist, and a relative path.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if not environment.get(name):
            raise KochiError(
                f"{what}: the variable {name} in {text} is not set",
                f"Type it on the machine, with: export {name}=DIRECTORY; or write the directory.",
            )
        return environment[name]

    # Not os.path.expandvars, which leaves a variable that is not set as it is written: the
    # directory would be one that is called $SCRATCH.
    path = expand_user(re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text), what)
    if not path.is_absolute():
        raise KochiError(f"{what}: an absolute path was expected, not {text}")
    return path


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log, read from its end: it may be large. None,
    if it cannot be read."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - 16384))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-count:]


def is_name(text: str) -> bool:
    """Whether a text may serve as one path component: letters, digits and ._+@=- , 1 to 128 long,
    not starting with a dot or a dash."""
    return (
        0 < len(text) <= 128
        and text[0] not in ".-"
        and all((c.isascii() and c.isalnum()) or c in "._+@=-" for c in text)
    )


def expand_user(text: str, what: str) -> Path:
    """A path as written by a person, `~` and `~user` replaced by a home directory.

    `what` names the setting in the message of the KochiError raised when there is no such user.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        # pathlib's own message does not say of whom.
        user = text.split("/", 1)[0].removeprefix("~")
        if user:
            raise KochiError(f"{what}: there is no user '{user}', whose home {text} is") from None
        raise KochiError(
            f"{what}: the home directory in {text} is not known",
            "Set it with: export HOME=DIRECTORY",
        ) from None
