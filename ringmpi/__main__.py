"""`python -m ringmpi` is the command `ringmpi`."""

import sys

from ringmpi.environment.missing import of_import

try:
    from ringmpi.cli import main
except ModuleNotFoundError as error:  # another Python than the one that ringmpi was installed for
    if (sentence := of_import(error, sys.executable)) is None:
        raise
    sys.stderr.write(f"ringmpi: error: {sentence}\n")
    sys.exit(3)

if __name__ == "__main__":
    main()
