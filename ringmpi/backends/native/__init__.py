"""Block attention in C++ on CPU cores; forward.cpp and backward.cpp are the kernels, attend.py the way in."""
