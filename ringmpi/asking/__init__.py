"""What a run is asked: from options and an input file to a problem, and the arrays that it is about."""
