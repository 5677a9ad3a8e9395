"""Keep what lives as long as its process out of the garbage collector's way. Knows the collector; knows no object."""

from __future__ import annotations

import gc


def keep_for_good() -> None:
    """Let the collector never again look at what is there now; call it once all that is lasting has been loaded.

    A full collection keeps the interpreter from every thread until it has visited each object: a tenth of a second for
    what a service has imported, and more in a worker. Whatever makes many objects sets one off, a large request say.
    """
    gc.collect()
    gc.freeze()


__all__ = ["keep_for_good"]
