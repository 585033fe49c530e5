// The threads of one block, as fibers of one thread of the system.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "primitives.cuh"

namespace emulator {

constexpr int LANES = 32;

enum class State { READY, AT_COLLECTIVE, AT_BARRIER, DONE };

// 16 bytes on their way to shared memory.
struct Copy {
  unsigned char* to;
  const unsigned char* from;
  bool valid;
  Place place;
};

struct Fiber {
  void* stack;  // its pointer, while the fiber does not run
  State state;
  Place place;  // where it waits
  int epoch;    // barriers that it has passed
  std::vector<Copy> open;               // not committed yet
  std::deque<std::vector<Copy>> groups; // committed
};

struct Warp {
  void* own[LANES];
  unsigned arrived;
  Collective what;
  Place place;
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  void* scheduler;  // stack pointer of who launched
  int current, number, at_barrier, vote, last_vote;
  Place barrier_place;
  unsigned char* shared;
  unsigned shared_bytes;
  Kernel kernel;
  const void* argument;
  std::string error;
};

extern Block block;

// Ends the launch with a message; returns to whoever launched.
[[noreturn]] void fail(Place place, const char* format, ...);

// Hooks of the watched build (watch.cpp); without it they check bounds of what the emulator itself touches.
void check_shared(const void* p, unsigned bytes, bool write, int thread, Place place);
void check_global(const void* p, unsigned bytes, bool write, Place place);
void copy_begins(const void* to, int thread, Place place);
void copy_ends(const void* to, int thread, Place place);

}  // namespace emulator
