"""`ringmpi` whose ranks believe that they run on hosts of their own: python many_hosts.py HOST,HOST,... ARGUMENT..."""

import os
import sys

from ringmpi import cli
from ringmpi.comm.launcher import launched_rank
from ringmpi.topology import at_hand

HOSTS = sys.argv[1].split(",")
sys.argv = ["ringmpi", *sys.argv[2:]]
original = at_hand.Whereabouts.here


def here(host, environment):
    return original(HOSTS[launched_rank(os.environ)], environment)


at_hand.Whereabouts.here = staticmethod(here)
cli.main()
