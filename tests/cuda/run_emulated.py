"""`ringmpi` where the name of the NumPy backend stands for the emulated GPU: python -m tests.cuda.run_emulated ..."""

from __future__ import annotations

import ringmpi.backends
from ringmpi.cli import main

ringmpi.backends._CLASSES["numpy"] = ("tests.cuda.emulated", "emulated")

if __name__ == "__main__":
    main()
