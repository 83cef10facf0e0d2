"""The garbage collector of the server's process: it leaves alone what stays, and looks at the rest less often.

Python's own settings make it look at some hundred new objects at a time, and every so often at all there are: modules,
schemas, vocabularies, models. Requests make few cycles, so that nearly all of this finds nothing, in the thread that
every request goes through.
"""

from __future__ import annotations

import gc

# Objects more than were freed before it looks at the new ones; and how many looks of one kind come before a wider one.
THRESHOLDS = (20_000, 20, 20)


def look_less_often() -> None:
    """For the start, before the web framework is imported: modules and schemas are no garbage."""
    gc.set_threshold(*THRESHOLDS)


def settle() -> None:
    """Collect what is garbage, and leave alone what lives; again after models have come or gone, to free these."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    look_less_often()
