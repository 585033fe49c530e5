"""`python -m ringmpi` is the command `ringmpi`."""

from ringmpi.cli import main

if __name__ == "__main__":
    main()
