"""Who sits where in the ring: what may be asked for, rates measured between hosts, and places all ranks agree on."""
