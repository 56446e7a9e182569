"""A GlusterFS volume of two replicas, in a network of its own, with a mount for each node."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil
from support import wait_until

_ADDRESS = "192.0.2.1"  # of a network for documentation; glusterd refuses loopback's
_VOLUME = "shared"
_STOPPING = 10.0


class GlusterVolume:
    """Real daemons, whose addresses nobody else can reach. For that one has to be root.

        with GlusterVolume() as volume:
            first, second = volume.mount("first"), volume.mount("second")

    Each mount is a client of its own, with caches of its own, as on a node of its own.
    """

    def __enter__(self) -> GlusterVolume:
        # Not below a test's directory: the path of a socket has 107 bytes at most.
        self._directory = Path(tempfile.mkdtemp(prefix="gluster-"))
        self._mounts: list[Path] = []
        network = f"ip link set lo up && ip address add {_ADDRESS}/32 dev lo && echo ready"
        self._network = subprocess.Popen(
            ("unshare", "--net", "bash", "-c", f"{network} && exec sleep infinity"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        try:
            assert self._network.stdout is not None
            assert self._network.stdout.readline() == b"ready\n"
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for mount in self._mounts:
            subprocess.run(["umount", "--lazy", str(mount)], check=False)
        own = _network_of(self._network.pid)
        ended = [process for process in psutil.process_iter() if _network_of(process.pid) == own]
        for process in ended:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(ended, _STOPPING)
        self._network.wait(_STOPPING)
        assert self._network.stdout is not None
        self._network.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def mount(self, name: str) -> Path:
        """Where a further client shows the volume."""
        place = self._directory / name
        place.mkdir()
        log = self._directory / f"{name}.log"
        self._mounts.append(place)
        self._run("glusterfs", "-s", _ADDRESS, "--volfile-id", _VOLUME, "-l", str(log), str(place))
        wait_until(lambda: os.path.ismount(place), f"mounting {place}")
        return place

    def _start(self) -> None:
        place = self._directory
        for name in ("state", "run", "brick1", "brick2"):
            (place / name).mkdir()
        socket = place / "run" / "glusterd.socket"
        options = {
            "working-directory": place / "state",
            "run-directory": place / "run",
            "glusterd-sockfile": socket,
            "transport-type": "socket",
            "transport.socket.listen-port": 24007,
        }
        lines = [f"option {name} {value}" for name, value in options.items()]
        text = "\n".join(["volume management", "type mgmt/glusterd", *lines, "end-volume", ""])
        (place / "glusterd.vol").write_text(text)
        files = ("-f", str(place / "glusterd.vol"), "-p", str(place / "run" / "glusterd.pid"))
        self._run("glusterd", *files, "-l", str(place / "glusterd.log"))
        gluster = ("gluster", f"--glusterd-sock={socket}", "--mode=script", "volume")
        wait_until(lambda: self._answers(*gluster, "list"), "glusterd answers")
        bricks = [f"{_ADDRESS}:{place / name}" for name in ("brick1", "brick2")]
        self._run(*gluster, "create", _VOLUME, "replica", "2", *bricks, "force")
        self._run(*gluster, "start", _VOLUME)

    def _enter(self, *command: str) -> list[str]:
        return ["nsenter", f"--target={self._network.pid}", "--net", "--", *command]

    def _run(self, *command: str) -> None:
        subprocess.run(self._enter(*command), check=True, stdin=subprocess.DEVNULL)

    def _answers(self, *command: str) -> bool:
        done = subprocess.run(self._enter(*command), capture_output=True, check=False)
        return done.returncode == 0


def _network_of(pid: int) -> str | None:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return None
