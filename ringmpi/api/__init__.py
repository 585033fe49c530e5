"""What Python users call: attention, its gradients and its map, on whole arrays or over the ranks of a ring.

To be called as `ringmpi.attention`, `ringmpi.attention_backward`, `ringmpi.attention_map` and so on.
"""
