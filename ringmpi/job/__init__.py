"""What `ringmpi run` does, from file to file: read, compute, write. Start reading at run.py."""
