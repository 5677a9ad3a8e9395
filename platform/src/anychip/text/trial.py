"""Load a tokenizer.json in another process first, so that a crash becomes an error. Knows the library; knows no model.

`python -m anychip.text.trial FILE` loads the file and encodes a few texts with it. The library's own checks leave out
some files that make it panic, abort or take all memory, and no thread could be kept from that.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from anychip_sdk.errors import CheckpointInvalid

MAX_FILE_BYTES = 128 * 2**20
MAX_SECONDS = 60
MAX_DATA_BYTES = 512 * 2**20  #: and MAX_FACTOR times the file's size
MAX_FACTOR = 40

_TEXTS = ("", "a", "Hello, wörld! 你好 1234567890\n\t  <|end|>", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!")


def try_out(path: Path) -> None:
    """Load and use the tokenizer elsewhere.

    Raises:
        CheckpointInvalid: it can't be read, or the process was ended by it or by a limit.
    """
    where = f"checkpoint {path.parent}: {path.name}"
    nbytes = path.stat().st_size
    if nbytes > MAX_FILE_BYTES:
        raise CheckpointInvalid(f"{where} has {nbytes:,} bytes, expected at most {MAX_FILE_BYTES:,}")
    ended = subprocess.run(
        [sys.executable, "-m", "anychip.text.trial", str(path.absolute())],
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if ended.returncode == 0:
        return
    said = ended.stdout.decode("utf-8", "replace").strip()
    if ended.returncode == -signal.SIGALRM:
        said = f"loading it takes more than {MAX_SECONDS} seconds"
    elif ended.returncode < 0:
        said = f"the tokenizers library crashes on it ({signal.Signals(-ended.returncode).name})"
    raise CheckpointInvalid(f"{where} can't be read: {said or f'exit code {ended.returncode}'}")


def main(path: Path) -> int:
    data_bytes = MAX_DATA_BYTES + MAX_FACTOR * path.stat().st_size
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(MAX_SECONDS)
    try:
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        for text in _TEXTS:
            with contextlib.suppress(Exception):  # a vocabulary may lack some text; a panic is no Exception
                tokenizer.encode(text, add_special_tokens=True)
    except BaseException as error:  # the library's panics are no Exception
        sys.stdout.write(f"{error}"[:500])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

__all__ = ["MAX_FILE_BYTES", "main", "try_out"]
