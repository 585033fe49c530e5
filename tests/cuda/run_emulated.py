"""`ringmpi` whose GPU is emulated: python -m tests.cuda.run_emulated ..."""

from __future__ import annotations

import ringmpi.backends
from ringmpi.cli import main

ringmpi.backends._OPENERS["cuda"] = ("tests.cuda.emulated", "emulated")

if __name__ == "__main__":
    main()
