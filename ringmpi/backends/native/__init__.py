"""Block attention in C++ on one or several cores; forward.cpp and backward.cpp are the kernels, attend.py the way in."""
