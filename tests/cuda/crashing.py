"""A program that ends as MPI does when it reads from an address that it does not know."""

import os
import signal

if __name__ == "__main__":
    os.kill(os.getpid(), signal.SIGSEGV)
