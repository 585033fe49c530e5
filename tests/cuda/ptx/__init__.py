"""Executes PTX as NVRTC makes it: whole kernels, all threads of a grid at once, in NumPy.

What each instruction does is written down here from the PTX manual (PTX ISA 9.0, sections 9.7.1 ff.), apart from the
emulator (../emulator) and in another language. Threads with the smallest program counter go first, so those that have
parted meet again; what one instruction does for all of them is one call of NumPy.
"""
