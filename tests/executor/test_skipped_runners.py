"""Why a job was not executed by the runner that was chosen for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import write

SNAKEFILE = """
    import threading, time
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    rule one:
        output: "one"
        run:
            open(output[0], "w").close()
    """


def test_the_line_at_the_end_names_a_job_of_which_is_shown_why(
    tmp_path: Path, snakemake: Any, kochi: Any
) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE)
    done = snakemake("--executor", "kochi", "-j1", cwd=tmp_path)
    assert done.returncode == 0
    assert "kochi ran 1 job: 1 by command (1 not by zygote: see kochi show job 0)" in done.stdout
    shown = kochi("show", "job", "0", cwd=tmp_path)
    assert "runner command (no zygote: its parse starts threads (see " in shown.stdout
